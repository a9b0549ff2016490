"""What misleads on a machine, in sentences: where a plain look at its files would give a wrong answer. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from astra_agent.inventory.model import INFINIBAND, Inventory
from astra_agent.inventory.order import natural
from astra_agent.inventory.training import usable

_PLUGIN = (
    "the container image (or a mount) must bring libfabric and the aws-ofi-nccl plugin; NCCL's own IB transport skips "
    "ports whose link layer is Unknown"
)


def remarks(inventory: Inventory, bounds: Sequence[int]) -> dict[str, str]:
    found = _sums(inventory, bounds)
    if inventory.transport == "efa":
        found["plugin"] = _PLUGIN
    traps = "; ".join(_traps(inventory))
    return {**found, "trap": traps} if traps else found


def hides_pcie(inventory: Inventory) -> bool:
    """A virtual machine that gives every function a root of its own; a rack-scale machine looks so, and is not one."""
    return bool(inventory.gpus and inventory.training) and not inventory.sees_bridges and not inventory.rack_scale


def _sums(inventory: Inventory, bounds: Sequence[int]) -> dict[str, str]:
    """The lowest bound that no port meets and all of them together would."""
    active = usable(inventory.ports(), inventory.training, 0)
    rates = [port.gbps or 0 for port in active]
    for bound in sorted(bounds):
        if rates and max(rates) < bound <= sum(rates):
            each = (
                f"each port is {max(rates):g} Gb/s" if min(rates) == max(rates) else f"the fastest has {max(rates):g}"
            )
            return {
                f"note_min_{bound}": f"{each}; a min_gbps of {bound} must refuse here although the machine has "
                f"{sum(rates):g} Gb/s in all"
            }
    return {}


def _traps(inventory: Inventory) -> Iterator[str]:
    if not inventory.rdma:
        yield "/sys/class/infiniband does not exist: a missing class is 'no RDMA', not an error"
    yield from _of_ports(inventory)
    memories = ", ".join(str(gpu.memory_node) for gpu in inventory.gpus if gpu.memory_node is not None)
    if memories:
        nodes = " or ".join(str(node.number) for node in inventory.numa)
        yield (f"nvmlDeviceGetNumaNodeId gives the GPU's own memory node ({memories}); the CPU node is {nodes}")
    if hides_pcie(inventory):
        yield (
            "every PCI function has a root of its own, and nothing in sysfs pairs GPU and NIC: pairing comes from the "
            "topology file"
        )


def _of_ports(inventory: Inventory) -> Iterator[str]:
    up = {netdev.name: netdev.up for netdev in inventory.netdevs}
    down = [
        name
        for device in inventory.rdma
        if any(port.is_active and port.link_layer == INFINIBAND for port in device.ports)
        for name in device.netdevs
        if not up.get(name, True)
    ]
    if down:
        names = ", ".join(sorted(down, key=natural))
        yield f"operstate of {names} is down on ports that are ACTIVE: judge a port by its state, never by the netdev"
    if any(len(device.ports) > 1 for device in inventory.rdma):
        yield "one device has several ports: the port number matters"
    others = sorted(
        {device.driver for device in inventory.rdma if device.driver[:4] not in ("", "efa", "mlx4", "mlx5")}
    )
    if others:
        yield f"a driver other than mlx4/mlx5 ({', '.join(others)}) is its own fabric"
    if any(device.is_iwarp for device in inventory.rdma):
        yield "link_layer says Ethernet, but node_type is 4: RNIC: iWARP, which NCCL can't use; look at node_type"
    elif any(device.pci is None for device in inventory.rdma):
        yield (
            "a virtual RDMA device has no device link, so no PCI address, no driver and no NUMA node; its netdev is "
            "in the parent file and in gid_attrs/ndevs; its rate says little about what it carries"
        )
