"""Machines that broke in ways that others have met: driver upgrades, stale CDI files, GPUs off the bus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from astra_agent.attach import Placement, Request, attach
from astra_agent.errors import HostFault
from astra_agent.inventory import Besides, Inventory, read
from astra_agent.inventory.kernel_log import Heard, hear
from astra_agent.inventory.kernel_log import after as after_reading
from astra_agent.inventory.library import GpuReading, LibraryReading
from tests.fakes.machine import Machine

CASES = Path(__file__).parents[2] / "fixtures" / "cases"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
NEW, OLD = "570.195.03", "570.158.01"


def machine_of(gpus: int, *, loaded: str | None, library: str | None) -> Machine:
    """GPU 5 sits at 0000:b3:00.0, as in the cases."""
    machine = Machine("gpu-2", {0: "0-31", 1: "32-63"}, route="eno1")
    for bus in ("18", "2a", "3b", "5d", "9b", "b3", "ae", "db")[:gpus]:
        machine.gpu(f"0000:{bus}:00.0", numa=int(bus > "8"))
    if loaded is not None:
        machine.file(
            "/proc/driver/nvidia/version",
            f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {loaded}  Release Build  (dvs-builder)",
        )
    if library is not None:
        for stem in ("libcuda", "libnvidia-ml"):
            machine.file(f"{LIBRARIES}/{stem}.so.{library}", "ELF")
            machine.links[f"{LIBRARIES}/{stem}.so.1"] = f"{stem}.so.{library}"
    return machine


# H03 ---------------------------------------------------------------------------------------------------------------


def driver_case(case: dict[str, Any]) -> Inventory:
    version = case["libnvidia_ml"] if case["libnvidia_ml"] and case["libnvidia_ml"][0].isdigit() else None
    machine = machine_of(
        case.get("pci_nvidia_functions", 8), loaded=case["proc_driver_nvidia_version"], library=version
    )
    if case["nvml_init"]:
        machine.nvml = {"init_error": case["nvml_init"]}
    return read(*machine.capture())


@pytest.mark.parametrize(
    ("at", "sentence"),
    [
        (0, None),
        (1, "driver 570.158.01 is loaded, the library is 570.195.03; reload the driver or reboot"),
        (2, "the NVIDIA library is missing, driver 570.158.01 is loaded; install the driver's libraries again"),
        (3, "the driver is not loaded, 8 GPUs are on the PCI bus; modprobe nvidia, or reboot"),
        (4, None),
    ],
)
def test_a_driver_and_a_library_that_do_not_fit_take_the_machine_out_of_use(at: int, sentence: str | None) -> None:
    case = json.loads((CASES / "H03-driver-versions.json").read_text())["cases"][at]
    found = driver_case(case)
    assert found.out_of_use == sentence
    if sentence is not None:
        assert found.gpus == ()
        assert len(found.lost) == 8, "a GPU that does not answer is not a GPU that is not there"
        assert f"no new work: {sentence}" in [finding.sentence for finding in found.findings]


def test_a_machine_without_gpus_and_without_a_driver_is_healthy() -> None:
    found = driver_case(json.loads((CASES / "H03-driver-versions.json").read_text())["cases"][4])
    assert (found.gpus, found.lost, found.out_of_use) == ((), (), None)
    assert [finding for finding in found.findings if finding.level == "fault"] == []


def test_a_machine_is_back_as_soon_as_driver_and_library_fit_again() -> None:
    assert read(*machine_of(8, loaded=NEW, library=NEW).capture()).out_of_use is None


def test_an_upgrade_under_a_running_agent_is_seen_though_its_own_library_still_answers() -> None:
    found = read(*machine_of(8, loaded=OLD, library=NEW).capture())
    assert len(found.gpus) == 8
    assert found.out_of_use == f"driver {OLD} is loaded, the library is {NEW}; reload the driver or reboot"


# H18 ---------------------------------------------------------------------------------------------------------------


def with_cdi(text: str, *, present: tuple[str, ...] = ()) -> Machine:
    machine = machine_of(1, loaded=NEW, library=NEW)
    machine.file("/etc/cdi/nvidia.yaml", text)
    for path in ("/run/nvidia-persistenced/socket", *present):
        machine.file(path, "")
    return machine


def test_a_cdi_file_of_last_weeks_driver_takes_the_machine_out_of_use_before_any_placement() -> None:
    found = read(*with_cdi((CASES / "H18-cdi-stale.yaml").read_text()).capture())
    assert found.out_of_use == (
        "its CDI file /etc/cdi/nvidia.yaml was made for driver 570.158.01, the driver is 570.195.03; "
        "make it again with nvidia-ctk"
    )
    with pytest.raises(HostFault, match=r"gpu-2 takes no work with GPUs: its CDI file .* was made for driver 570\.158"):
        attach(found, Placement("machine"), Request(gpus=(0,)))


def test_a_cdi_file_that_was_made_again_counts_at_the_next_reading() -> None:
    text = (CASES / "H18-cdi-stale.yaml").read_text().replace(OLD, NEW)
    found = read(*with_cdi(text).capture())
    assert found.out_of_use is None
    assert attach(found, Placement("machine"), Request(gpus=(0,))).hooks


def test_one_optional_file_that_is_missing_is_a_warning_that_names_it() -> None:
    machine = with_cdi((CASES / "H18-cdi-stale.yaml").read_text().replace(OLD, NEW))
    del machine.files["/run/nvidia-persistenced/socket"]
    found = read(*machine.capture())
    assert found.out_of_use is None
    assert [finding.sentence for finding in found.findings if finding.subject == "/etc/cdi/nvidia.yaml"] == [
        "it names /run/nvidia-persistenced/socket, which is not there: workers go without it"
    ]
    mounts = [mount.destination for mount in attach(found, Placement("machine"), Request(gpus=(0,))).mounts]
    assert mounts == [f"{LIBRARIES}/libcuda.so.{NEW}", f"{LIBRARIES}/libnvidia-ml.so.{NEW}"]


# H19 ---------------------------------------------------------------------------------------------------------------


def after(step: dict[str, Any], *, log: Heard | None = None) -> Inventory:
    machine = machine_of(8, loaded=NEW, library=NEW)
    assert machine.nvml is not None
    for index, error in step.get("handle_errors", {}).items():
        machine.gpus[int(index)] = {"index": int(index), "error": error}
    if step.get("count") == 7:
        del machine.gpus[5]
    if step["pci_nvidia_functions"] == 7:
        del machine.links["/sys/bus/pci/devices/0000:b3:00.0"]
    if "init_error" in step:
        machine.nvml = {"init_error": step["init_error"]}
    return read(*machine.capture(), Besides(log=log or Heard(), had_gpus=8))


@pytest.mark.parametrize(
    ("at", "usable", "lost", "sentence"),
    [
        (0, 8, [], None),
        (1, 7, ["0000:b3:00.0"], "it can't be used: GPU 5: GPU is lost"),
        (2, 7, ["0000:b3:00.0"], "it can't be used: on the PCI bus, but the driver does not have it"),
        (3, 7, [], "7 can be used, fewer than the 8 that this machine had: one is gone"),
        (4, 0, None, "no new work: the driver does not answer: Unknown Error (999); it is asked again"),
    ],
)
def test_seven_of_eight_gpus_are_seven_and_one_that_is_lost(
    at: int, usable: int, lost: list[str] | None, sentence: str | None
) -> None:
    step = json.loads((CASES / "H19-nvml-seven-of-eight.json").read_text())["steps"][at]
    found = after(step)
    assert len(found.gpus) == usable
    assert lost is None or [gpu.address for gpu in found.lost] == lost
    assert sentence is None or sentence in [finding.sentence for finding in found.findings]


def test_a_lost_gpu_is_refused_by_name_and_the_others_are_given() -> None:
    found = after(json.loads((CASES / "H19-nvml-seven-of-eight.json").read_text())["steps"][1])
    with pytest.raises(HostFault, match=r"GPU 5 of gpu-2 \(0000:b3:00\.0\) can't be used: GPU 5: GPU is lost"):
        attach(found, Placement("machine"), Request(gpus=tuple(range(8))))
    assert attach(found, Placement("machine"), Request(gpus=(0, 1, 7))).devices


def test_the_kernel_log_names_lost_gpus_with_and_without_a_number_and_no_healthy_one() -> None:
    log = Heard()
    for line in (CASES / "H19-kmsg-gpu-off-bus.txt").read_text().splitlines():
        if not line.startswith("#"):
            log = hear(log, line)
    assert log.off_bus == {"0000:ae:00.0", "0000:b3:00.0", "0000:18:00.0"}
    found = after({"count": 8, "pci_nvidia_functions": 8}, log=log)
    assert {gpu.address for gpu in found.lost} == log.off_bus
    assert "0000:5d:00.0" in {gpu.pci for gpu in found.gpus}


def test_the_log_is_heard_the_same_when_lines_come_twice() -> None:
    lines = [line for line in (CASES / "H19-kmsg-gpu-off-bus.txt").read_text().splitlines() if not line.startswith("#")]
    once, twice = Heard(), Heard()
    for line in lines:
        once = hear(once, line)
        twice = hear(hear(twice, line), line)
    assert (once.off_bus, once.faults) == (twice.off_bus, twice.faults)


# And back: what brings a GPU back has no line in the log -----------------------------------------------------------

ADDRESS = "0000:b3:00.0"
FALLEN = f"NVRM: Xid (PCI:{ADDRESS[:-2]}): 79, GPU has fallen off the bus."
WORN = f"NVRM: Xid (PCI:{ADDRESS[:-2]}): 95, Uncontained error"


def answered(*, error: int = 0, recovery: int | None = None) -> LibraryReading:
    uuid = None if error else "GPU-5"
    return LibraryReading(count=1, gpus=(GpuReading(5, error, uuid, pci="00000000:B3:00.0", recovery=recovery),))


GONE, THERE, SICK, WELL = answered(error=15), answered(), answered(recovery=1), answered(recovery=0)
SILENT, UNLOADED, SLOW = LibraryReading(count=0), LibraryReading(error=9), LibraryReading(error=10)


@pytest.mark.parametrize(
    ("readings", "is_back"),
    [
        ([GONE, THERE], True),
        ([GONE, GONE, WELL], True),
        ([SILENT, THERE], True),
        ([UNLOADED, THERE], True),
        ([SICK, WELL], True),
        ([WELL, WELL], True),
        ([THERE, THERE, THERE], False),
        ([WELL], False),
        ([WELL, SLOW, WELL], True),
        ([SLOW, THERE], False),
        ([GONE, SICK], False),
        ([GONE, GONE], False),
    ],
)
@pytest.mark.parametrize("line", [FALLEN, WORN])
def test_a_gpu_of_the_log_is_back_once_the_driver_says_so_after_it_did_not(
    line: str, readings: list[LibraryReading], is_back: bool
) -> None:
    log = hear(Heard(), line)
    for reading in readings:
        log = after_reading(log, reading)
    assert (log.off_bus, log.faults) == (frozenset(), ()) if is_back else ADDRESS in {at for at, _ in log.faults}


def test_a_gpu_that_is_back_can_be_lost_again() -> None:
    log = after_reading(after_reading(hear(Heard(), FALLEN), GONE), THERE)
    again = hear(log, FALLEN)
    assert again.off_bus == {ADDRESS}
    assert after_reading(again, THERE).off_bus == {ADDRESS}, "what was confirmed before says nothing of now"


def test_a_gpu_in_mig_mode_is_a_finding_and_is_not_given() -> None:
    machine = machine_of(8, loaded=NEW, library=NEW)
    machine.gpus[5] = {**machine.gpus[5], "mig_mode": [1, 1]}
    found = read(*machine.capture())
    assert "it is in MIG mode, without a device: no worker gets it, since workers get whole GPUs" in [
        finding.sentence for finding in found.findings if finding.subject == "GPU 5"
    ]


@pytest.mark.parametrize(("recovery", "wish"), [(1, "a reset"), (2, "a reboot"), (4, "to be drained and reset")])
def test_a_gpu_that_the_driver_wants_reset_gets_no_new_work_and_keeps_what_runs(recovery: int, wish: str) -> None:
    machine = machine_of(8, loaded=NEW, library=NEW)
    machine.gpus[5] = {**machine.gpus[5], "recovery_action": recovery}
    found = read(*machine.capture())
    assert [gpu.index for gpu in found.gpus] == [0, 1, 2, 3, 4, 6, 7]
    assert [(lost.address, lost.reason, lost.gone) for lost in found.lost] == [
        (ADDRESS, f"GPU 5: the driver asks for {wish}", False)
    ]


def test_a_gpu_whose_peers_are_to_be_drained_is_a_finding() -> None:
    machine = machine_of(8, loaded=NEW, library=NEW)
    machine.gpus[5] = {**machine.gpus[5], "recovery_action": 3}
    found = read(*machine.capture())
    assert len(found.gpus) == 8
    assert "the driver asks for its peers to be drained" in [finding.sentence for finding in found.findings]
