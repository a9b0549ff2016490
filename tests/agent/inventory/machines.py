"""
Machines of our own, each with what has to come out. The answers were worked out by hand from what the drivers
guarantee; each says how.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.fakes.machine import ALONE, UNSUPPORTED, Machine

Written = tuple[Machine, dict[str, Any]]

NDR = "400 Gb/sec (4X NDR)"
ROCE_200 = "200 Gb/sec (4X HDR)"
DEAD = "10 Gb/sec (4X SDR)"
REFUSED = {"refuse": "no usable port at 400 Gb/s or more; never emit an empty NCCL_IB_HCA"}


def no_rdma() -> Written:
    """
    Two PCIe cards on one socket, and no RDMA subsystem at all. There is one node with processors, so the formula's two
    GPUs for each node are right; the cards have no fabric registration.
    """
    machine = Machine("l40s", {0: "0-31"}, route="eno1")
    for place in ("0000:01:01.0/0000:02:00.0", "0000:41:01.0/0000:42:00.0"):
        machine.gpu(place, name="NVIDIA L40S", fabric=dict(UNSUPPORTED))
    machine.netdev(
        "eno1", machine.function("0000:61:01.0/0000:62:00.0", vendor=0x8086, kind=0x020000, driver="ice", numa=0)
    )
    return machine, {
        "class": "ethernet",
        "excluded_ports": {},
        "down_ports": {},
        "fabric": {"kind": "ethernet", "key": None, "needs_label": False},
        "nvlink_domain": {
            "key": None,
            "usable": False,
            "spans_machines": False,
            "reason": "fabric state is NOT_SUPPORTED: this GPU has no fabric registration",
        },
        "gpu_numa": {"0": 0, "1": 0},
        "gpu_cpus": {"0": "0-31", "1": "0-31"},
        "numa_formula": {"gpus_per_numa": 2, "gives": {"0": 0, "1": 0}, "right": True},
    }


def ports_without_a_subnet_manager() -> Written:
    """
    Four rails in the four states that a port can hang in, and an Ethernet card that is up. INIT and ARMED mean that the
    link is there and nobody has taken the port; only ACTIVE carries traffic, and Ethernet never takes over.
    """
    machine = Machine("init-armed", {0: "0-15", 1: "16-31"}, route="eth0")
    states: tuple[dict[str, Any], ...] = (
        {"state": 4},
        {"state": 2, "lid": 0xFFFF, "sm_lid": 0},
        {"state": 3, "sm_lid": 0},
        {"state": 1, "physical": 2, "rate": DEAD, "lid": 0xFFFF, "sm_lid": 0},
    )
    for at, state in enumerate(states):
        numa = at // 2
        switch = f"0000:{at + 1}0:01.0/0000:{at + 1}1:00.0"
        machine.gpu(f"{switch}/0000:{at + 1}2:00.0", numa=numa)
        machine.rdma(f"mlx5_{at}", f"{switch}/0000:{at + 1}3:00.0", numa=numa, **state)
    machine.roce("mlx5_4", "0000:61:01.0/0000:62:00.0", "eth0", "0a00:0001", rate=ROCE_200)
    return machine, {
        "class": "infiniband",
        "down_ports": {f"mlx5_{at}:1": "not ACTIVE" for at in (1, 2, 3)},
        "fabric": {
            "kind": "infiniband",
            "key": "ib:fe80000000000000:0x1",
            "groups": [{"subnet_prefix": "fe80:0000:0000:0000", "sm_lid": "0x1", "ports": ["mlx5_0:1"]}],
            "needs_label": True,
            "why": "in its own words",
        },
        "excluded_ports": {"mlx5_4:1": "in its own words"},
        "gpu_nics": {str(at): [f"mlx5_{at}"] for at in range(4)},
        "degraded": {
            "gpus_without_a_live_nearby_port": [1, 2, 3],
            "policy": "three of four rails are dead: usable, but tell the operator",
        },
    }


def all_ports_in_init() -> Written:
    """No subnet manager at all: an InfiniBand machine with a fault, whose storage-side Ethernet stays out of it."""
    machine = Machine("all-init", {0: "0-15"}, route="eth9")
    for at in range(2):
        machine.rdma(f"mlx5_{at}", f"0000:{at + 1}0:01.0/0000:{at + 1}1:00.0", state=2, lid=0xFFFF, sm_lid=0)
    machine.roce("mlx5_2", "0000:61:01.0/0000:62:00.0", "eth1", "0a00:0001", rate=NDR)
    return machine, {
        "class": "infiniband",
        "down_ports": {"mlx5_0:1": "not ACTIVE", "mlx5_1:1": "not ACTIVE"},
        "excluded_ports": {"mlx5_2:1": "in its own words"},
        "fabric": {"kind": "infiniband", "key": None, "groups": [], "needs_label": True, "why": "in its own words"},
    }


def bond_of_rdma_ports() -> Written:
    """
    Two bonds whose members are RDMA devices of their own (no link aggregation in the card): bond0 carries the default
    route, so both its members are management, though neither netdev is named by a route. bond1's members are training
    ports; each carries what it negotiated, not the bond's sum, since its GIDs are not the bond's.
    """
    machine = Machine("bond", {0: "0-15"}, route="bond0")
    for at in range(4):
        switch = f"0000:{at + 1}0:01.0/0000:{at + 1}1:00.0"
        machine.gpu(f"{switch}/0000:{at + 1}2:00.0")
        machine.roce(f"mlx5_{at}", f"{switch}/0000:{at + 1}3:00.0", f"eth{at}", f"0a01:000{at}", rate=ROCE_200)
    machine.netdev("bond0", speed=400000, lower=("eth0", "eth1"))
    machine.netdev("bond1", speed=400000, lower=("eth2", "eth3"))
    return machine, {
        "class": "roce",
        "excluded_ports": {"mlx5_0:1": "in its own words", "mlx5_1:1": "in its own words"},
        "down_ports": {},
        "fabric": {
            "kind": "roce",
            "key": None,
            "needs_label": True,
            "rocev2_ipv4_gid_index": {f"mlx5_{at}:1": 3 for at in range(4)},
            "why": "in its own words",
        },
    }


def aggregated_bond() -> Written:
    """One device for both ports of a card, whose GIDs are the bond's: it carries what the bond does."""
    machine = Machine("lag", {0: "0-15"}, route="eno1")
    switch = "0000:10:01.0/0000:11:00.0"
    machine.gpu(f"{switch}/0000:12:00.0")
    machine.netdev(
        "eth0", machine.function(f"{switch}/0000:13:00.1", vendor=0x15B3, kind=0x020000, driver="mlx5_core", numa=0)
    )
    machine.roce("mlx5_bond_0", f"{switch}/0000:13:00.0", "eth1", "0a01:0001", rate=ROCE_200)
    machine.netdev("bond0", speed=400000, lower=("eth0", "eth1"))
    port = "/sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:13:00.0/infiniband/mlx5_bond_0/ports/1"
    for slot in range(4):
        machine.file(f"{port}/gid_attrs/ndevs/{slot}", "bond0")
    return machine, {
        "class": "roce",
        "bond_rate": {
            "sysfs_gbps": 200,
            "bond_netdev_gbps": 400,
            "rule": "for a device whose GID netdev is a bond take the larger of ports/N/rate and the bond netdev's "
            "speed",
        },
    }


def virtual_functions() -> Written:
    """
    Two cards and a virtual function of each. A virtual function without a GUID has its link up and is down: it is no
    port to use, and what to do about it is not what one does about a cable.
    """
    machine = Machine("sriov", {0: "0-15"}, route="eno1")
    for at in range(2):
        switch = f"0000:{at + 1}0:01.0/0000:{at + 1}1:00.0"
        machine.gpu(f"{switch}/0000:{at + 1}2:00.0")
        machine.rdma(f"mlx5_{at}", f"{switch}/0000:{at + 1}3:00.0")
        machine.rdma(f"mlx5_{at + 2}", f"{switch}/0000:{at + 1}3:00.2", model="MT4130", state=1, lid=0xFFFF, sm_lid=0)
        card = f"/sys/devices/pci0000:{at + 1}0/{switch}/0000:{at + 1}3:00"
        machine.link(f"{card}.2/physfn", f"{card}.0")
    return machine, {
        "class": "infiniband",
        "down_ports": {"mlx5_2:1": "not ACTIVE", "mlx5_3:1": "not ACTIVE"},
        "excluded_ports": {},
        "gpu_nics": {"0": ["mlx5_0", "mlx5_2"], "1": ["mlx5_1", "mlx5_3"]},
    }


def two_fabrics() -> Written:
    """
    A virtual machine, so nothing shares a bridge: six ports on one subnet, two on another. The smaller one is storage;
    prefixes that somebody chose prove which fabric it is, so no label is needed.
    """
    machine = Machine("two-fabrics", {0: "0-15"}, route="eth0")
    machine.gpu("/LNXSYSTM:00/pci0001:00/0001:00:00.0")
    for at in range(8):
        prefix = "fec0:0000:0000:0001" if at not in (2, 5) else "fec0:0000:0000:0002"
        machine.rdma(f"mlx5_{at}", f"/LNXSYSTM:00/pci010{at}:00/010{at}:00:00.0", prefix=prefix)
    ours = [f"mlx5_{at}:1" for at in (0, 1, 3, 4, 6, 7)]
    return machine, {
        "class": "infiniband",
        "excluded_ports": {"mlx5_2:1": "in its own words", "mlx5_5:1": "in its own words"},
        "fabric": {
            "kind": "infiniband",
            "key": "ib:fec0000000000001:0x1",
            "groups": [
                {"subnet_prefix": "fec0:0000:0000:0001", "sm_lid": "0x1", "ports": ours},
                {"subnet_prefix": "fec0:0000:0000:0002", "sm_lid": "0x1", "ports": ["mlx5_2:1", "mlx5_5:1"]},
            ],
            "needs_label": False,
        },
    }


def planes() -> Written:
    """Two groups of one size are planes with a subnet manager each: all ports are for training."""
    machine = Machine("planes", {0: "0-15"}, route="eth0")
    for at in range(4):
        switch = f"0000:{at + 1}0:01.0/0000:{at + 1}1:00.0"
        machine.gpu(f"{switch}/0000:{at + 1}2:00.0")
        machine.rdma(f"mlx5_{at}", f"{switch}/0000:{at + 1}3:00.0", sm_lid=1 + at % 2)
    return machine, {"class": "infiniband", "excluded_ports": {}, "down_ports": {}}


def grace() -> Written:
    """
    One GPU whose memory is node 1, without processors. Its PCI function says node 1 here, which nothing can be bound
    to: the driver's affinity has the node with processors.
    """
    machine = Machine("gh200", {0: "0-71"}, memory="0-1", route="eth0")
    gpu = machine.gpu(
        "0009:00:00.0/0009:01:00.0", numa=1, name="NVIDIA GH200 480GB", numa_node_id=1, cpu_affinity="0-71",
        memory_affinity_nodes=[0], fabric=dict(UNSUPPORTED),
    )  # fmt: skip
    assert gpu["pci_bus_id"] == "00000009:01:00.0"
    machine.rdma("mlx5_0", "0002:00:00.0/0002:01:00.0/0002:02:00.0/0002:03:00.0")
    return machine, {
        "gpu_numa": {"0": 0},
        "gpu_cpus": {"0": "0-71"},
        "gpu_memory_numa": {"0": 1},
        "cpuset_mems": {"0": "0"},
        "numa_formula": {"gpus_per_numa": 1, "gives": {"0": 0}, "right": True},
        "nvlink_domain": {
            "key": None,
            "usable": False,
            "spans_machines": False,
            "reason": "fabric state is NOT_SUPPORTED: this GPU has no fabric registration",
        },
        "excluded_ports": {},
    }


def split_sockets() -> Written:
    """Eight GPUs on four nodes, three of them on the first and on the third: the formula wants two on each."""
    machine = Machine("snc", {0: "0-15", 1: "16-31", 2: "32-47", 3: "48-63"}, route="eth0")
    for at, numa in enumerate((0, 0, 0, 1, 2, 2, 2, 3)):
        machine.gpu(f"0000:{at + 1}0:01.0/0000:{at + 1}1:00.0", numa=numa)
    return machine, {
        "gpu_numa": dict(zip("01234567", (0, 0, 0, 1, 2, 2, 2, 3), strict=True)),
        "numa_formula": {
            "gpus_per_numa": 2,
            "gives": dict(zip("01234567", (0, 0, 1, 1, 2, 2, 3, 3), strict=True)),
            "right": False,
        },
    }


def efa_with_other_cards() -> Written:
    """EFA beside two RoCE cards: one kind only, so the cards stay out, up and fast as they are."""
    machine = Machine("efa-roce", {0: "0-15"}, route="ens5")
    for at in range(2):
        switch = f"0000:{at + 1}0:01.0/0000:{at + 1}1:00.0"
        machine.gpu(f"{switch}/0000:{at + 1}2:00.0", name="NVIDIA B200")
        machine.rdma(
            f"rdmap{at + 1}s0", f"{switch}/0000:{at + 1}3:00.0", driver="efa", vendor=0x1D0F, node_type="", model="",
            layer="Unknown", rate="400 Gb/sec (8X HDR)", lid=0, sm_lid=0,
        )  # fmt: skip
        machine.roce(f"mlx5_{at}", f"{switch}/0000:{at + 1}4:00.0", f"eth{at}", f"0a00:000{at}", rate=NDR)
    return machine, {
        "class": "efa",
        "excluded_ports": {"mlx5_0:1": "in its own words", "mlx5_1:1": "in its own words"},
        "fabric": {"kind": "efa", "key": None, "needs_label": True, "why": "in its own words"},
    }


def unknown_rate() -> Written:
    """
    A card that is newer than its kernel: the kernel prints its slowest rate for one that it has no name for. No bound
    is met by a rate that nobody knows.
    """
    machine = Machine("xdr", {0: "0-15"}, route="eth0")
    switch = "0000:10:01.0/0000:11:00.0"
    machine.gpu(f"{switch}/0000:12:00.0")
    machine.rdma("mlx5_0", f"{switch}/0000:13:00.0", model="MT4131", rate=DEAD)
    return machine, {"class": "infiniband", "excluded_ports": {}, "down_ports": {}}


def unhealthy_domain() -> Written:
    """A rack-scale machine whose fabric is registered and says that it is unhealthy: no place for a domain's run."""
    machine = Machine("rack", {0: "0-71"}, route="eth0")
    fabric = {**ALONE, "cluster_uuid": "11111111-2222-4333-8444-555555555555", "clique_id": 7, "health_summary": 2}
    machine.gpu("0008:00:00.0/0008:01:00.0", name="NVIDIA GB200", fabric=fabric)
    return machine, {
        "nvlink_domain": {
            "key": None,
            "usable": False,
            "spans_machines": False,
            "reason": "the NVLink fabric of GPU 0 is unhealthy (health summary 2): refuse NVLink-domain placement",
        },
    }


ALL: tuple[Callable[[], Written], ...] = (
    no_rdma, ports_without_a_subnet_manager, all_ports_in_init, bond_of_rdma_ports, aggregated_bond, virtual_functions,
    two_fabrics, planes, grace, split_sockets, efa_with_other_cards, unknown_rate, unhealthy_domain,
)  # fmt: skip

CHOICES: dict[str, dict[int, list[str]]] = {
    "no_rdma": {100: []},
    "ports_without_a_subnet_manager": {400: ["mlx5_0:1"]},
    "all_ports_in_init": {100: []},
    "bond_of_rdma_ports": {200: ["mlx5_2:1", "mlx5_3:1"], 400: []},
    "aggregated_bond": {400: ["mlx5_bond_0:1"]},
    "virtual_functions": {400: ["mlx5_0:1", "mlx5_1:1"]},
    "two_fabrics": {400: [f"mlx5_{at}:1" for at in (0, 1, 3, 4, 6, 7)]},
    "planes": {400: [f"mlx5_{at}:1" for at in range(4)]},
    "grace": {400: ["mlx5_0:1"]},
    "split_sockets": {100: []},
    "efa_with_other_cards": {400: []},
    "unknown_rate": {100: []},
    "unhealthy_domain": {100: []},
}
"""Ports that NCCL is told to use, by min_gbps."""
