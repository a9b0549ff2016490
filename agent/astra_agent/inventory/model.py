"""
What a machine has: the inventory and the records that it is made of.

Facts only, as the machine's own files and its driver's library gave them, plus what follows from them. Rates are
Gbit/s, sizes bytes. What could not be found out is None (never zero), with a `Finding` that says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from astra_agent.inventory.cdi_spec import CdiSpec

Level = Literal["fault", "warning", "note"]
"""`fault`: something does not work that should; `warning`: it works, worse than it could; `note`: good to know."""

Tier = Literal["nvlink", "infiniband", "rdma", "ethernet"]
Transport = Literal["efa", "infiniband", "roce", "ethernet"]
"""What kind of network the machine's training ports are, by what is present; `ethernet`: no RDMA that NCCL can use."""

INFINIBAND = "InfiniBand"
ETHERNET = "Ethernet"
ACTIVE = 4


@dataclass(frozen=True, slots=True)
class Finding:
    """
    A sentence for the operator. *subject* is the thing (`mlx5_3:1`, `GPU 5`, `IMEX`), *fix* empty where none is known.
    """

    level: Level
    subject: str
    sentence: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class CharDevice:
    """A character device; *path* as it is called on the machine and in a container."""

    path: str
    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class NumaNode:
    """*cores* are its processors by the core that they share, in order; none where that is not known."""

    number: int
    cpus: frozenset[int]
    has_memory: bool
    memory_bytes: int | None = None
    cores: tuple[frozenset[int], ...] = ()


@dataclass(frozen=True, slots=True)
class PciFunction:
    """*path* is its place below `/sys/devices`: functions that share bridges share the start of it."""

    address: str
    path: str
    vendor: int
    kind: int
    """PCI class, 24 bits."""
    driver: str
    numa_node: int | None
    """None where the firmware does not say (-1)."""
    cpus: frozenset[int] | None
    is_virtual_function: bool = False


@dataclass(frozen=True, slots=True)
class Netdev:
    name: str
    pci: str | None
    up: bool
    speed_gbps: float | None
    """None when it is down, or does not say."""
    lower: tuple[str, ...]
    """Network devices that this one is made of: members of a bond, what a VLAN or a bridge lies on."""
    is_bond: bool


@dataclass(frozen=True, slots=True)
class Gid:
    index: int
    value: str
    kind: str
    """`RoCE v2`, `IB/RoCE v1`, or empty where it can't be read."""
    netdev: str


@dataclass(frozen=True, slots=True)
class Port:
    """
    One port of an RDMA device.

    Attributes:
        state: 0 unknown, 1 down, 2 initialising, 3 armed, 4 active, 5 active deferred; only 4 can be used.
        physical_state: 5 is link up.
        rate_gbps: As negotiated, which says nothing while the port is not active; None when the kernel does not know.
        gbps: What the port really carries: *rate_gbps*, or the speed of the bond that the port belongs to.
        gids: Those that are set, in order of index.
        gid: Index of the GID that traffic can be routed with, on Ethernet.
    """

    device: str
    number: int
    state: int
    physical_state: int
    rate_gbps: float | None
    gbps: float | None
    link_layer: str
    lid: int
    sm_lid: int
    gids: tuple[Gid, ...]
    gid: int | None
    management_nodes: tuple[CharDevice, ...]
    """umad and issm: they can send management packets, no worker gets them."""
    link_downed: int | None

    @property
    def name(self) -> str:
        return f"{self.device}:{self.number}"

    @property
    def is_active(self) -> bool:
        return self.state == ACTIVE

    @property
    def subnet(self) -> tuple[str, int] | None:
        """Subnet prefix and LID of the subnet manager; None where no subnet manager has taken the port."""
        if self.link_layer != INFINIBAND or not self.is_active or not self.gids:
            return None
        return self.gids[0].value[:19], self.sm_lid


@dataclass(frozen=True, slots=True)
class RdmaDevice:
    """
    Attributes:
        driver: Of its PCI function; empty for a virtual device, such as soft-RoCE's.
        node_type: `1: CA`, `4: RNIC` (iWARP), … as the kernel writes it, or empty.
        model: `MT4129`, …; empty where the driver gives none.
        netdevs: Network devices of the same function, or the one that a virtual device sits on.
        verbs: Its uverbs node.
    """

    name: str
    driver: str
    node_type: str
    model: str
    pci: str | None
    path: str
    numa_node: int | None
    is_virtual_function: bool
    netdevs: tuple[str, ...]
    verbs: CharDevice | None
    ports: tuple[Port, ...]

    @property
    def is_iwarp(self) -> bool:
        return self.node_type.startswith("4:")


@dataclass(frozen=True, slots=True)
class Fabric:
    """What the driver says of a GPU's NVLink fabric. *state* 0 not supported, 1 not started, 2 in progress, 3 done."""

    state: int
    status: int
    """An NVML return code; meaningful in state 3."""
    cluster: str
    clique: int
    health_mask: int
    health_summary: int


@dataclass(frozen=True, slots=True)
class MigDevice:
    uuid: str
    gpu_instance: int
    compute_instance: int
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """
    A GPU that the driver answers for.

    Attributes:
        node: `/dev/nvidia<minor>`; None when the node or its number is not known.
        numa_node: The memory node with processors that it is next to; None when nothing says.
        cpus: Processors of that node; all of the machine's when nothing says.
        memory_node: Where its own memory is a node without processors, as on Grace.
        mig: Whether it is cut into MIG devices now.
    """

    index: int
    uuid: str
    name: str
    node: CharDevice | None
    memory_bytes: int | None
    pci: str
    path: str
    numa_node: int | None
    cpus: frozenset[int]
    memory_node: int | None
    mig: bool
    mig_devices: tuple[MigDevice, ...]
    fabric: Fabric | None


@dataclass(frozen=True, slots=True)
class LostGpu:
    """
    A GPU that is in the machine and can't be used.

    Attributes:
        address: Empty where not even that is known.
        gone: It is lost to programs that had it open as well, which a driver that does not answer need not mean.
    """

    address: str
    reason: str
    gone: bool = False


@dataclass(frozen=True, slots=True)
class NvlinkDomain:
    """*key*: `<cluster UUID>.<clique>`, both parts, since racks share default cliques. *reason*: why there is none."""

    key: str | None
    reason: str | None
    broken: bool = False
    """The GPUs are made for a domain and are in none."""


@dataclass(frozen=True, slots=True)
class Imex:
    """
    Memory sharing across machines of an NVLink domain.

    Attributes:
        major: Of the channels' devices, different on each machine.
        channels: How many the driver offers; 0 when it is turned off, None when it does not say.
        present: Channels whose nodes are there.
        management: The capability that only the IMEX service needs.
        nodes: Addresses in the service's node list; None when there is no list.
        service: What the service says of itself (`READY`, …); None when nobody asked it.
    """

    major: int
    channels: int | None
    present: tuple[int, ...]
    management: CharDevice | None
    nodes: tuple[str, ...] | None
    service: str | None


@dataclass(frozen=True, slots=True)
class SubnetGroup:
    """Active InfiniBand ports with one subnet prefix and one subnet manager."""

    prefix: str
    sm_lid: int
    ports: tuple[str, ...]

    @property
    def key(self) -> str:
        return f"ib:{self.prefix.replace(':', '')}:{self.sm_lid:#x}"


@dataclass(frozen=True, slots=True)
class Evidence:
    """That the machine is on a network of *tier*. *domain* None: which one, nothing proves; *why* says what would."""

    tier: Tier
    domain: str | None
    why: str


@dataclass(frozen=True, slots=True)
class Driver:
    """
    The NVIDIA driver.

    Attributes:
        loaded: Version of the kernel module.
        library: Version of the user library on disk.
        files: What programs need of it: its libraries by all their names, and its tools.
    """

    loaded: str | None
    library: str | None
    cuda: str | None
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Overrides:
    """
    What the operator wrote about this machine; stands above what was found.

    Attributes:
        fabric: Name of the RDMA network that the training ports are on.
        use: Ports (`mlx5_0`, `mlx5_0:1`) that training uses, and no others; empty: as found.
        leave: Ports that training never uses.
        gbps: Rates of ports whose kernel does not know them.
        env: Variables for workers that use RDMA, such as NCCL_IB_TC.
        exclusive_channels: Each run in the NVLink domain has an IMEX channel of its own.
        nccl_topology: Path of the topology file that NCCL needs here.
    """

    fabric: str | None = None
    use: tuple[str, ...] = ()
    leave: tuple[str, ...] = ()
    gbps: tuple[tuple[str, float], ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    exclusive_channels: bool = False
    nccl_topology: str | None = None


@dataclass(frozen=True, slots=True)
class NcclTopology:
    """A file that tells NCCL what hangs together, of the machine's own kind: where it is, and what is in it."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """
    Attributes:
        out_of_use: A sentence when no worker with GPUs may come here; else None.
        gpu_nodes: Device nodes that every worker with a GPU needs.
        training: Names of the ports that training may use, whatever their state and rate now.
        excluded: All other RDMA ports, each with the reason.
        near: For each GPU, by index, the names of the training devices that are nearest to it.
        sees_bridges: Whether any training device shares a PCIe bridge with a GPU: *near* means more than a node then.
        nccl_topology: For NCCL, where the machine's bus does not show it; None: NCCL looks for itself.
    """

    machine: str
    transport: Transport
    driver: Driver
    gpus: tuple[Gpu, ...]
    lost: tuple[LostGpu, ...]
    out_of_use: str | None
    gpu_nodes: tuple[CharDevice, ...]
    rdma: tuple[RdmaDevice, ...]
    rdma_cm: CharDevice | None
    netdevs: tuple[Netdev, ...]
    default_route: tuple[str, ...]
    training: tuple[str, ...]
    excluded: tuple[tuple[str, str], ...]
    near: tuple[tuple[int, tuple[str, ...]], ...]
    sees_bridges: bool
    groups: tuple[SubnetGroup, ...]
    nvlink: NvlinkDomain
    rack_scale: bool
    imex: Imex | None
    numa: tuple[NumaNode, ...]
    cdi: tuple[CdiSpec, ...]
    overrides: Overrides
    tiers: tuple[Evidence, ...]
    findings: tuple[Finding, ...]
    nccl_topology: NcclTopology | None = None

    def ports(self) -> tuple[Port, ...]:
        """Every RDMA port, in order of name."""
        return tuple(port for device in self.rdma for port in device.ports)

    def device_of(self, port: str) -> RdmaDevice:
        """The device of a port by its name, such as `mlx5_0:1`."""
        name = port.rpartition(":")[0]
        return next(device for device in self.rdma if device.name == name)

    def domain(self, tier: Tier) -> str | None:
        return next((evidence.domain for evidence in self.tiers if evidence.tier == tier), None)
