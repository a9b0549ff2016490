"""What a worker gets, and why it is refused, by machine, placement and request."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from astra_agent.attach import Edits, Placement, Request, attach
from astra_agent.attach.edits import UNLIMITED
from astra_agent.errors import HostFault, InvalidRequest
from astra_agent.inventory import Inventory, read
from astra_agent.inventory.model import Overrides
from tests.agent.inventory.captured import captured, inventory
from tests.fakes.machine import Machine

DGX, TRAY, OCI, A100 = "dgx-h100-ndr", "gb200-nvl72-tray", "oci-h100-roce", "dgx-a100-hdr-nps4"


def env_of(edits: Edits) -> dict[str, str]:
    return dict(edits.env)


def with_file(name: str, path: str, text: str) -> Inventory:
    tree, library = captured(name)
    return read(replace(tree, files={**tree.files, path: text.encode()}), library)


# Refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "placement", "request_", "error", "sentence"),
    [
        (DGX, Placement("machine"), Request(gpus=(0, 8)), InvalidRequest, "GPU 8 is not on gpu-dgx-01; it has: 0, 1"),
        (DGX, Placement("machine"), Request(gpus=(3, 3)), InvalidRequest, "gpus names GPU 3 of gpu-dgx-01 twice"),
        (
            OCI, Placement("rdma"), Request(min_gbps=400), HostFault,
            "no port of gpu-oci-06 has 400 Gb/s: mlx5_0:1 is its fastest, with 200 Gb/s; min_gbps is for one port, not "
            "for their sum",
        ),
        (OCI, Placement("infiniband"), Request(), HostFault, "gpu-oci-06 has no infiniband ports: its network is roce"),
        (
            TRAY, Placement("nvlink", "other.32766"), Request(), HostFault,
            "is in NVLink domain 7d3f2c11-5a0e-4b6d-9c55-0f1e2d3c4b5a.32766, the run was placed in other.32766",
        ),
        (
            TRAY, Placement("nvlink", channel=2048), Request(), HostFault,
            "offers IMEX channels 0 to 2047, the run has 2048",
        ),
        (
            "gb200-fabric-broken", Placement("nvlink"), Request(), HostFault,
            "registration failed (status 23 Insufficient Resources, zero UUID)",
        ),
    ],
)  # fmt: skip
def test_a_refusal_names_the_machine_the_thing_and_what_would_be_right(
    name: str, placement: Placement, request_: Request, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error) as caught:
        attach(inventory(name), placement, request_)
    assert sentence in str(caught.value)


def test_a_machine_on_another_fabric_than_the_placements_is_refused() -> None:
    found = with_file(DGX, "/etc/astraeus/machine.toml", '[fabric]\nname = "hall-2"\n')
    assert attach(found, Placement("infiniband", "hall-2"), Request(min_gbps=400)).devices
    with pytest.raises(HostFault, match="gpu-dgx-01 is on hall-2, the run was placed on hall-1"):
        attach(found, Placement("infiniband", "hall-1"), Request(min_gbps=400))


def test_a_machine_whose_training_ports_are_all_down_is_refused_though_storage_ports_are_up() -> None:
    tree, library = captured(DGX)
    files = dict(tree.files)
    for device in ("mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11"):
        for path in files:
            if path.endswith(f"/{device}/ports/1/state"):
                files[path] = b"1: DOWN\n"
    with pytest.raises(HostFault, match="no training port of gpu-dgx-01 is active: mlx5_0:1, mlx5_3:1"):
        attach(read(replace(tree, files=files), library), Placement("infiniband"), Request())


def test_a_control_node_that_is_missing_is_refused_by_name() -> None:
    tree, library = captured(DGX)
    devices = {path: numbers for path, numbers in tree.devices.items() if path != "/dev/nvidia-uvm"}
    found = read(replace(tree, devices=devices), library)
    with pytest.raises(HostFault, match="/dev/nvidia-uvm is not on gpu-dgx-01"):
        attach(found, Placement("machine"), Request(gpus=(0,)))


# What it gets ------------------------------------------------------------------------------------------------------


def test_the_users_own_variables_are_never_set() -> None:
    mine = {"NCCL_IB_HCA": "mlx5_0", "NVIDIA_VISIBLE_DEVICES": "all", "NCCL_DEBUG": "INFO"}
    found = attach(inventory(DGX), Placement("infiniband"), Request(gpus=(0,), min_gbps=400, env=mine))
    assert not env_of(found).keys() & mine.keys()
    assert len([device for device in found.devices if "uverbs" in device.path]) == 8, "devices limit what it can reach"


def test_locked_memory_is_a_limit_and_a_capability_and_the_capability_alone_where_the_limit_cant_be_raised() -> None:
    found = attach(inventory(DGX), Placement("infiniband"), Request())
    assert [(limit.kind, limit.soft, limit.hard) for limit in found.rlimits] == [
        ("RLIMIT_MEMLOCK", UNLIMITED, UNLIMITED)
    ]
    lower = attach(inventory(DGX), Placement("infiniband"), Request(can_raise_memlock=False))
    assert (lower.rlimits, lower.capabilities) == ((), ("CAP_IPC_LOCK",))


def test_the_operators_variables_are_set_for_rdma_alone() -> None:
    found = with_file(OCI, "/etc/astraeus/machine.toml", '[env]\nNCCL_IB_TC = "41"\nNCCL_IB_GID_INDEX = "3"\n')
    rdma = env_of(attach(found, Placement("rdma"), Request()))
    assert (rdma["NCCL_IB_TC"], rdma["NCCL_IB_GID_INDEX"]) == ("41", "3")
    assert "NCCL_IB_TC" not in env_of(attach(found, Placement("ethernet"), Request()))
    assert "NCCL_IB_GID_INDEX" not in env_of(attach(inventory(OCI), Placement("rdma"), Request()))


def test_the_runs_own_channel_is_the_only_one_it_gets() -> None:
    found = attach(inventory(TRAY), Placement("nvlink", channel=7), Request())
    assert [(device.path, device.minor) for device in found.devices] == [("/dev/nvidia-caps-imex-channels/channel7", 7)]


def test_a_part_of_the_gpus_gets_their_nodes_processors_and_no_formula() -> None:
    found = attach(inventory(A100), Placement("machine"), Request(gpus=(4, 5), memory_bytes=1 << 30, cpu_cores=8))
    assert found.cpus == frozenset(range(112, 128)) | frozenset(range(240, 256))
    assert "NVRX_GPUS_PER_NUMA" not in env_of(found)
    half = attach(inventory(DGX), Placement("machine"), Request(gpus=(4, 5, 6, 7)))
    assert "NVRX_GPUS_PER_NUMA" not in env_of(half), "its local ranks are not the GPUs' indexes"
    assert (
        env_of(attach(inventory(DGX), Placement("machine"), Request(gpus=tuple(range(8)))))["NVRX_GPUS_PER_NUMA"] == "4"
    )


def test_more_processors_than_are_near_are_not_taken_away() -> None:
    assert attach(inventory(A100), Placement("machine"), Request(gpus=(4,), cpu_cores=64)).cpus is None


def test_memory_nodes_are_bound_only_where_all_that_was_asked_for_fits() -> None:
    tree, library = captured(A100)
    meminfo = {
        f"/sys/devices/system/node/node{n}/meminfo": f"Node {n} MemTotal: {64 << 20} kB\n".encode() for n in range(8)
    }
    found = read(replace(tree, files={**tree.files, **meminfo}), library)
    fits = attach(found, Placement("machine"), Request(gpus=(4,), memory_bytes=64 << 30))
    assert fits.memory_nodes == frozenset({7})
    assert attach(found, Placement("machine"), Request(gpus=(4,), memory_bytes=65 << 30)).memory_nodes is None
    assert attach(found, Placement("machine"), Request(gpus=(4,))).memory_nodes is None


def test_the_topology_says_local_rank_gpu_port_and_node_in_the_workers_own_order() -> None:
    found = attach(inventory(A100), Placement("machine"), Request(gpus=(6, 0)))
    ranks = json.loads(found.files[0].text)["local_ranks"]
    assert [(rank["local_rank"], rank["index"], rank["numa_node"], rank["ports"]) for rank in ranks] == [
        (0, 6, 5, ["mlx5_8:1", "mlx5_9:1"]),
        (1, 0, 3, ["mlx5_0:1", "mlx5_1:1"]),
    ]


@pytest.mark.parametrize(
    ("request_", "size_bytes"),
    [
        (Request(gpus=(0, 1), memory_bytes=64 << 30), 32 << 30),
        (Request(gpus=tuple(range(8)), memory_bytes=12 << 30), 8 << 30),
        (Request(gpus=tuple(range(8)), memory_bytes=8 << 30), 6 << 30),
        (Request(gpus=(0,), memory_bytes=64 << 30, shm_bytes=5), 5),
        (Request(gpus=(0,)), None),
    ],
)
def test_shared_memory_is_sized_for_the_gpus_and_never_all_of_the_memory(
    request_: Request, size_bytes: int | None
) -> None:
    assert attach(inventory(DGX), Placement("machine"), request_).shm_bytes == size_bytes


# GPUs --------------------------------------------------------------------------------------------------------------


def cdi(version: str, **device: Any) -> str:
    return json.dumps(
        {
            "cdiVersion": version,
            "kind": "nvidia.com/gpu",
            "devices": [
                {
                    "name": name,
                    "containerEdits": {
                        "deviceNodes": [{"path": f"/dev/nvidia{name}", **device}],
                        "env": [f"GPU{name}=1"],
                    },
                }
                for name in ("0", "1")
            ],
            "containerEdits": {
                "env": ["NVIDIA_VISIBLE_DEVICES=void"],
                "deviceNodes": [{"path": "/dev/nvidiactl", "permissions": "rw"}],
                "mounts": [
                    {"hostPath": "/usr/bin/nvidia-smi", "containerPath": "/usr/bin/nvidia-smi", "options": ["ro"]}
                ],
                "hooks": [
                    {"hookName": "createContainer", "path": "/usr/bin/hook", "args": ["hook", name]}
                    for name in ("create-symlinks", "update-ldcache")
                ],
            },
        }
    )


def two_gpus(**files: str) -> Inventory:
    machine = Machine("two", {0: "0-7"}, route="eth0")
    for bus in ("11", "12"):
        machine.gpu(f"0000:10:01.0/0000:{bus}:00.0")
    machine.file("/usr/bin/nvidia-smi", "ELF")
    for path, text in files.items():
        machine.file(path, text)
    return read(*machine.capture())


@pytest.mark.parametrize("version", ["0.3.0", "0.5.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"])
def test_gpus_come_through_cdi_with_common_edits_once_and_hooks_in_order(version: str) -> None:
    found = attach(two_gpus(**{"/etc/cdi/nvidia.json": cdi(version)}), Placement("machine"), Request(gpus=(1, 0)))
    assert env_of(found)["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert [device.path for device in found.devices] == ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"]
    assert [(rule.minor, rule.access) for rule in found.rules] == [(0, "rwm"), (1, "rwm"), (255, "rw")]
    assert [hook.args[1] for hook in found.hooks] == ["create-symlinks", "update-ldcache"]
    assert [mount.destination for mount in found.mounts] == ["/usr/bin/nvidia-smi"]
    one = attach(two_gpus(**{"/etc/cdi/nvidia.json": cdi(version)}), Placement("machine"), Request(gpus=(1,)))
    assert "GPU0" not in env_of(one)
    assert [device.path for device in one.devices] == ["/dev/nvidia1", "/dev/nvidiactl"]


def test_the_later_folder_wins_where_two_files_have_a_gpu() -> None:
    found = two_gpus(
        **{"/etc/cdi/a.json": cdi("0.5.0"), "/var/run/cdi/b.json": cdi("0.5.0", major=195, minor=0, permissions="r")}
    )
    edits = attach(found, Placement("machine"), Request(gpus=(0,)))
    assert [(rule.minor, rule.access) for rule in edits.rules] == [(0, "r"), (255, "rw")]


def test_two_files_of_one_folder_that_claim_a_gpu_cancel_each_other_with_a_finding() -> None:
    found = two_gpus(**{"/etc/cdi/a.json": cdi("0.5.0"), "/etc/cdi/b.json": cdi("0.5.0")})
    sentences = [finding.sentence for finding in found.findings if finding.subject == "nvidia.com/gpu=0"]
    assert sentences == ["it is in /etc/cdi/a.json and in /etc/cdi/b.json: neither counts"]
    assert "GPU0" not in env_of(attach(found, Placement("machine"), Request(gpus=(0,))))


def test_a_gpu_in_no_cdi_file_is_made_from_the_inventory_with_the_drivers_own_files() -> None:
    folder = "/usr/lib/x86_64-linux-gnu"
    names = ("libcuda.so.1", "libcuda.so.570.158.01", "libnvidia-ml.so.570.158.01", "libcuda.so.550.90.07", "libc.so.6")
    found = two_gpus(
        **{f"{folder}/{name}": "ELF" for name in names},
        **{"/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.158.01  Tue"},
    )
    edits = attach(found, Placement("machine"), Request(gpus=(1,)))
    assert [device.path for device in edits.devices] == [
        "/dev/nvidia1", "/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl",
    ]  # fmt: skip
    assert {rule.access for rule in edits.rules} == {"rw"}
    assert [mount.destination for mount in edits.mounts] == [
        "/usr/bin/nvidia-smi",
        f"{folder}/libcuda.so.1",
        f"{folder}/libcuda.so.570.158.01",
        f"{folder}/libnvidia-ml.so.570.158.01",
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "it is neither YAML nor JSON"),
        ("[]", "it is wrong at the top"),
        (cdi("9.9.0"), "its format is version '9.9.0'; 0.3 to 1.1 are understood"),
        (cdi("0.5.0", surprise=1), "it is wrong at devices.0.containerEdits.deviceNodes.0.surprise: Extra inputs"),
    ],
)
def test_a_cdi_file_that_is_wrong_is_left_out_with_a_finding(text: str, sentence: str) -> None:
    found = two_gpus(**{"/etc/cdi/nvidia.json": text})
    assert any(sentence in finding.sentence for finding in found.findings)
    assert attach(found, Placement("machine"), Request(gpus=(0,))).devices


def test_a_gpu_that_is_cut_into_parts_is_no_whole_gpu() -> None:
    machine = Machine("mig", {0: "0-7"}, route="eth0")
    machine.gpu("0000:10:01.0/0000:11:00.0", mig_mode=[1, 1])
    with pytest.raises(HostFault, match="GPU 0 of mig is cut into MIG devices"):
        attach(read(*machine.capture()), Placement("machine"), Request(gpus=(0,)))


# The operator's file -----------------------------------------------------------------------------------------------


def test_the_operator_names_ports_to_use_and_to_leave() -> None:
    left = with_file(DGX, "/etc/astraeus/machine.toml", '[ports]\nleave = ["mlx5_3"]\n')
    assert "mlx5_3:1" in dict(left.excluded)
    used = with_file(DGX, "/etc/astraeus/machine.toml", '[ports]\nuse = ["mlx5_1", "mlx5_7:1"]\n')
    assert used.training == ("mlx5_1:1", "mlx5_7:1")


def test_the_operators_rate_stands_above_what_the_kernel_does_not_know() -> None:
    machine = Machine("xdr", {0: "0-7"}, route="eth0")
    machine.rdma("mlx5_0", "0000:10:01.0/0000:11:00.0", model="MT4131", rate="10 Gb/sec (4X SDR)")
    machine.file("/etc/astraeus/machine.toml", "[gbps]\nmlx5_0 = 800")
    found = read(*machine.capture())
    assert "mlx5_0:1" in env_of(attach(found, Placement("infiniband"), Request(min_gbps=800)))["NCCL_IB_HCA"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[fabrics]\n", "[fabrics] is not known"),
        ("[fabric]\nname = 3\n", "fabric.name is 3; it should be a word"),
        ("[ports]\nuse = 'mlx5_0'\n", "ports.use is 'mlx5_0'; it should be a list"),
        ("[gbps]\nmlx5_0 = 'fast'\n", "gbps.mlx5_0 is 'fast'; it should be a number"),
        ("[ports\n", "it is no TOML"),
    ],
)
def test_a_wrong_operators_file_is_a_finding_that_names_the_field(text: str, sentence: str) -> None:
    found = with_file(DGX, "/etc/astraeus/machine.toml", text)
    assert found.overrides == Overrides()
    assert any(sentence in finding.sentence for finding in found.findings)
