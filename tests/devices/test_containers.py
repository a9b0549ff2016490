"""
Attachments in real containers. There is no driver behind the devices, and that is the test: a device that a worker may
open answers ENXIO, one that it may not answers EPERM, one that it does not have is not there.
"""

from __future__ import annotations

import asyncio
import shutil
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from astra_agent.attach import Edits, Placement, Request, apply, attach
from astra_agent.attach.edits import Rlimit
from astra_agent.inventory import Inventory, read
from astra_agent.runtime import BindMount
from tests.agent.inventory.captured import captured, inventory
from tests.contract.conftest import ContainerdBench
from tests.fakes.eventually import until
from tests.fakes.machine import Machine

pytestmark = [
    pytest.mark.containers,
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler: apt-get install gcc libc6-dev"),
]

BOUND_S = 30.0
LOW = Edits(rlimits=(Rlimit("RLIMIT_MEMLOCK", 65536, 65536),))
"""What containers have of a containerd with the usual limit; that of a test's own is root's."""
MAY_OPEN = ("ok", "ENXIO", "ENODEV")
USERS = pytest.mark.parametrize("uid", [0, 1000])


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("probe") / "probe"
    source = Path(__file__).parent / "probe.c"
    subprocess.run(["cc", "-static", "-O1", "-Wall", "-Werror", "-o", program, source], check=True, timeout=60)
    return program


class Worker:
    """One container after the other, each with some edits on top of a containerd's low limits."""

    def __init__(self, bench: ContainerdBench, probe: Path) -> None:
        self.bench = bench
        self.probe = probe
        self.count = 0

    async def can_raise_memlock(self) -> bool:
        return (await self.bench.containers.probe()).memlock_unlimited

    async def said(self, edits: Edits, *words: str, uid: int = 0) -> dict[str, str]:
        """What the probe says inside, by word."""
        name = f"device-a{self.count}"
        self.count += 1
        await self.bench.run(
            name,
            args=("/probe", *words),
            mounts=(BindMount(str(self.probe), "/probe", read_only=True),),
            uid=uid,
            gid=uid,
            spec_edits=lambda spec: apply(apply(spec, LOW), edits),
        )
        status = await asyncio.wait_for(self.bench.containers.wait(name), BOUND_S)
        await until(lambda: len(self.bench.log(name).splitlines()) >= len(words))
        assert status.code == 0, self.bench.log(name)
        lines = (line.replace("\t", " ").partition(" ") for line in self.bench.log(name).splitlines())
        return {word.rstrip(":"): answer for word, _, answer in lines}


@pytest.fixture
def worker(containerd_bench: ContainerdBench, probe: Path) -> Worker:
    return Worker(containerd_bench, probe)


def opens(edits: Edits) -> tuple[str, ...]:
    return tuple(f"open:{device.path}" for device in edits.devices)


# With --------------------------------------------------------------------------------------------------------------


@USERS
async def test_a_worker_on_infiniband_may_open_what_it_was_promised_and_lock_a_gibibyte(
    worker: Worker, uid: int
) -> None:
    can_raise = await worker.can_raise_memlock()
    request = Request(gpus=(0, 1), min_gbps=400, can_raise_memlock=can_raise)
    edits = replace(attach(inventory("dgx-h100-ndr"), Placement("infiniband"), request), cpus=None)
    assert bool(edits.rlimits) == can_raise
    found = await worker.said(edits, *opens(edits), "mlock:1024", "caps", uid=uid)
    assert {word: found[word] for word in opens(edits) if found[word] not in MAY_OPEN} == {}
    assert found["mlock:1024"] == "ok"
    assert int(found["CapEff"], 16) >> 14 & 1, "IPC_LOCK is effective, also for a user who is not root"


@USERS
async def test_the_capability_alone_does_where_the_limit_can_not_be_raised(worker: Worker, uid: int) -> None:
    request = Request(can_raise_memlock=False)
    edits = attach(inventory("dgx-h100-ndr"), Placement("infiniband"), request)
    assert edits.rlimits == ()
    assert (await worker.said(edits, "mlock:64", uid=uid))["mlock:64"] == "ok"


@USERS
async def test_a_worker_in_an_nvlink_domain_may_open_its_channel_and_no_other(worker: Worker, uid: int) -> None:
    edits = attach(inventory("gb200-nvl72-tray"), Placement("nvlink", channel=7), Request())
    mine, other = (f"open:/dev/nvidia-caps-imex-channels/channel{number}" for number in (7, 0))
    found = await worker.said(edits, mine, other, uid=uid)
    assert found[mine] in MAY_OPEN
    assert found[other] == "ENOENT"


async def test_a_worker_runs_on_the_processors_and_with_the_shared_memory_that_it_was_given(worker: Worker) -> None:
    edits = Edits(cpus=frozenset({0}), shm_bytes=5 << 20)
    found = await worker.said(edits, "cpus", "shm")
    assert (found["Cpus_allowed_list"], found["shm"]) == ("0", str(5 << 20))


# Without -----------------------------------------------------------------------------------------------------------


@USERS
async def test_a_worker_without_the_attachment_is_refused_all_of_it(worker: Worker, uid: int) -> None:
    promised = attach(inventory("gb200-nvl72-tray"), Placement("infiniband"), Request(gpus=(0,)))
    found = await worker.said(Edits(), *opens(promised), "mlock:64", "caps", uid=uid)
    assert {found[word] for word in opens(promised)} == {"ENOENT"}
    assert found["mlock:64"] == "ENOMEM"
    assert not int(found["CapEff"], 16) >> 14 & 1


async def test_a_node_that_a_worker_makes_by_itself_stays_shut(worker: Worker) -> None:
    word = "mknod:/dev/mine:231:199"
    assert (await worker.said(Edits(), word))[word] == "EPERM"


async def test_a_node_without_its_rule_stays_shut(worker: Worker) -> None:
    edits = attach(inventory("dgx-h100-ndr"), Placement("infiniband"), Request())
    nodes = Edits(devices=edits.devices)
    assert set((await worker.said(nodes, *opens(nodes))).values()) == {"EPERM"}


# CDI ---------------------------------------------------------------------------------------------------------------


def with_hook(folder: Path) -> Inventory:
    """A machine whose CDI file has a hook that writes down that it ran, and a file to be mounted."""
    hook, library = folder / "hook", folder / "libcuda.so.1"
    hook.write_text(f'#!/bin/sh\ncat > {folder}/state.json\necho "$@" > {folder}/arguments\n')
    hook.chmod(hook.stat().st_mode | stat.S_IXUSR)
    library.write_text("the driver's\n")
    machine = Machine("cdi", {0: "0-7"}, route="eth0")
    machine.gpu("0000:10:01.0/0000:11:00.0")
    machine.file(str(library), "")
    machine.file(
        "/etc/cdi/nvidia.yaml",
        f"""
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
  - name: "0"
    containerEdits: {{deviceNodes: [{{path: /dev/nvidia0}}]}}
containerEdits:
  env: [FROM_CDI=1]
  deviceNodes: [{{path: /dev/nvidiactl, permissions: rw}}]
  mounts: [{{hostPath: {library}, containerPath: /opt/driver/libcuda.so.1, options: [ro, nosuid, nodev, rbind]}}]
  hooks: [{{hookName: createContainer, path: {hook}, args: [hook, update-ldcache]}}]
""".strip(),
    )
    return read(*machine.capture())


@USERS
async def test_a_gpu_comes_through_cdi_with_its_nodes_its_files_and_its_hook(
    worker: Worker, uid: int, tmp_path: Path
) -> None:
    edits = attach(with_hook(tmp_path), Placement("machine"), Request(gpus=(0,)))
    found = await worker.said(edits, *opens(edits), "open:/opt/driver/libcuda.so.1", uid=uid)
    assert {found[word] for word in opens(edits)} <= set(MAY_OPEN)
    assert found["open:/opt/driver/libcuda.so.1"] in ("EROFS", "EACCES"), "it is there, and can't be written"
    assert (tmp_path / "arguments").read_text() == "update-ldcache\n"
    assert '"ociVersion"' in (tmp_path / "state.json").read_text()


async def test_edits_of_every_captured_machine_are_taken_by_the_real_runtime(worker: Worker) -> None:
    for name in ("aws-p5-efa", "oci-h100-roce", "h20-roce-bond"):
        found = read(*captured(name))
        edits = attach(found, Placement("rdma"), Request(gpus=tuple(gpu.index for gpu in found.gpus)))
        edits = Edits(devices=edits.devices, rules=edits.rules)
        answers = await worker.said(edits, *opens(edits))
        assert {word: answer for word, answer in answers.items() if answer not in MAY_OPEN} == {}
