"""What an operator should know of an inventory as a whole: faults that show only once everything has been read."""

from __future__ import annotations

from dataclasses import replace

from astra_agent.inventory import cdi, fabric, imex
from astra_agent.inventory.model import Inventory, Port, RdmaDevice
from astra_agent.inventory.tree import Reader

_DOWN, _INIT, _ARMED = 1, 2, 3
_DISABLED, _LINK_UP = 3, 5
_NO_LID = 0xFFFF


def report(reader: Reader, inventory: Inventory) -> Inventory:
    """*inventory* with all findings: the reader's own, and those of the whole."""
    if inventory.out_of_use is not None:
        reader.found("fault", "NVIDIA driver", f"no new work: {inventory.out_of_use}")
    cdi.report(reader, inventory.cdi, inventory.driver)
    _ports(reader, inventory)
    _rails(reader, inventory)
    _planes(reader, inventory)
    _nvlink(reader, inventory)
    imex.report(reader, inventory.imex, inventory.nvlink)
    _nodes(reader, inventory)
    unknown = next((evidence for evidence in inventory.tiers if evidence.domain is None), None)
    if unknown is not None:
        reader.found("warning", unknown.tier, f"no run is placed over it: {unknown.why}")
    return replace(inventory, findings=tuple(reader.findings))


def down(inventory: Inventory) -> tuple[Port, ...]:
    """Training ports that are not active."""
    return tuple(port for port in inventory.ports() if port.name in inventory.training and not port.is_active)


def dead_rails(inventory: Inventory) -> tuple[int, ...]:
    """Indexes of GPUs none of whose nearest training devices has an active port."""
    alive = {port.device for port in inventory.ports() if port.name in inventory.training and port.is_active}
    return tuple(index for index, names in inventory.near if names and not alive & set(names))


def why_down(device: RdmaDevice, port: Port) -> str:
    """The fault behind a state: who repairs it differs."""
    if port.state in (_INIT, _ARMED):
        word = "initialising" if port.state == _INIT else "armed"
        lid = " (it has no LID)" if port.lid in (0, _NO_LID) else ""
        return f"the link is up, but the port is {word}: no subnet manager has taken it{lid}"
    if port.state == _DOWN and port.physical_state == _LINK_UP and device.is_virtual_function:
        return (
            "the link is up, but the virtual function is down: it has no GUID, or its card's SM virtualisation is off"
        )
    if port.state == _DOWN and port.physical_state == _DISABLED:
        return "it is disabled: its network device is down, or the port was switched off"
    if port.state == _DOWN:
        return "no link: cable, transceiver or switch port"
    return "its state is not known" if port.state == 0 else f"it is in state {port.state}, which carries no traffic"


def _ports(reader: Reader, inventory: Inventory) -> None:
    for port in down(inventory):
        reader.found(
            "fault", port.name, f"it is for training and not active: {why_down(inventory.device_of(port.name), port)}"
        )
    for port in inventory.ports():
        if inventory.transport == "roce" and port.name in inventory.training and port.is_active and port.gid is None:
            sentence = "it has no GID that RoCE v2 traffic can be routed with"
            reader.found("fault", port.name, sentence, "give its network device an address")
    known = {*(port.name for port in inventory.ports()), *(device.name for device in inventory.rdma)}
    said = inventory.overrides
    for name in (*said.use, *said.leave, *(name for name, _ in said.gbps)):
        if name not in known:
            reader.found("fault", name, "the operator's file names it, and the machine has no such port")
    if inventory.training and inventory.rdma_cm is None and inventory.transport in ("infiniband", "roce"):
        reader.found(
            "fault", "rdma_cm",
            "/dev/infiniband/rdma_cm is not there, through which UCX, NVSHMEM and storage clients connect: "
            "no worker starts on its RDMA ports",
            "modprobe rdma_ucm",
        )  # fmt: skip


def _rails(reader: Reader, inventory: Inventory) -> None:
    dead = dead_rails(inventory)
    if dead:
        gpus = ", ".join(str(index) for index in dead)
        reader.found("warning", "rails", f"no port near these GPUs is active: {gpus}; their traffic takes a longer way")


def _planes(reader: Reader, inventory: Inventory) -> None:
    """Several subnets among the training ports: planes or rails if each machine has the same, else a mix-up."""
    groups = [group for group in inventory.groups if set(group.ports) & set(inventory.training)]
    if len(groups) > 1:
        keys = ", ".join(group.key for group in groups)
        sentence = f"the training ports are on {len(groups)} subnets: {keys}"
        reader.found("note", "fabric", f"{sentence}; planes or rails, if every machine of the fabric shows the same")


def _nvlink(reader: Reader, inventory: Inventory) -> None:
    if inventory.nvlink.broken and inventory.nvlink.reason:
        reader.found("fault", "NVLink domain", inventory.nvlink.reason)
    for gpu in inventory.gpus:
        if inventory.nvlink.key is not None and gpu.fabric is not None and fabric.is_degraded(gpu.fabric):
            reader.found("warning", f"GPU {gpu.index}", "its NVLink fabric runs at less than its full bandwidth")


def _nodes(reader: Reader, inventory: Inventory) -> None:
    without = {gpu.numa_node for gpu in inventory.gpus} & {
        node.number for node in inventory.numa if not node.has_memory
    }
    for number in sorted(node for node in without if node is not None):
        reader.found(
            "warning", f"NUMA node {number}", "GPUs are next to it and it has no memory: one of its slots is empty?"
        )
