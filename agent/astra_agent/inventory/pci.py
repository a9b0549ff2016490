"""PCI functions, and how near they are to each other."""

from __future__ import annotations

import re

from astra_agent.inventory.model import PciFunction
from astra_agent.inventory.order import parse_list
from astra_agent.inventory.tree import Reader

NVIDIA = 0x10DE
AMAZON = 0x1D0F
_GPU_KINDS = (0x0302, 0x0300)
"""3D controller and VGA controller: the upper 16 bits of a PCI class."""
UNKNOWN_NODE = -1
"""What firmware that does not say leaves in `numa_node`; usual in virtual machines."""
_ADDRESS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")


def normal_address(text: str) -> str | None:
    """An address as the kernel writes it, `0000:1b:00.0`, from any other form of it; None when it is none."""
    match = _ADDRESS.fullmatch(text.strip().strip("\0"))
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus.lower()}:{device.lower()}.{function}"


def read_functions(reader: Reader) -> dict[str, PciFunction]:
    """By address. Functions whose vendor can't be read are left out, with a finding."""
    functions: dict[str, PciFunction] = {}
    for address in reader.root.names("/sys/bus/pci/devices"):
        function = _read_function(reader, address)
        if function is not None:
            functions[address] = function
    return functions


def _read_function(reader: Reader, address: str) -> PciFunction | None:
    path = reader.root.resolve(f"/sys/bus/pci/devices/{address}")
    subject = f"PCI {address}"
    vendor = reader.parsed(f"{path}/vendor", subject, "its vendor", _hex)
    kind = reader.parsed(f"{path}/class", subject, "its class", _hex)
    if vendor is None or kind is None:
        return None
    node, cpus = None, None
    if is_of_interest(vendor, kind):
        node = reader.parsed(f"{path}/numa_node", subject, "its NUMA node", _node)
        cpus = reader.parsed(f"{path}/local_cpulist", subject, "its processors", parse_list)
    driver = reader.root.link(f"{path}/driver") or ""
    return PciFunction(
        address,
        path,
        vendor,
        kind,
        driver.rpartition("/")[2],
        None if node == UNKNOWN_NODE else node,
        cpus,
        reader.root.link(f"{path}/physfn") is not None,
    )


def is_of_interest(vendor: int, kind: int) -> bool:
    """GPUs and everything that is a network: what the NUMA node matters of."""
    return (vendor == NVIDIA and kind >> 8 in _GPU_KINDS) or kind >> 16 == 0x02


def is_gpu(function: PciFunction) -> bool:
    return function.vendor == NVIDIA and function.kind >> 8 in _GPU_KINDS


def shared_bridges(one: str, other: str) -> int:
    """
    Bridges that lie above both of two functions, by their paths. The root complex (`pci0000:15`) is none: what meets
    only there is no nearer than any other two functions of that socket.
    """
    shared = 0
    for mine, theirs in zip(_bridges(one), _bridges(other), strict=False):
        if mine != theirs:
            break
        shared += 1
    return shared


def _bridges(path: str) -> list[str]:
    """The whole way down to each bridge above a function: bridges of two machines' buses may have one address."""
    pieces = path.split("/")
    return ["/".join(pieces[: at + 1]) for at, piece in enumerate(pieces[:-1]) if _ADDRESS.fullmatch(piece)]


def _node(text: str) -> int | None:
    return int(text) if re.fullmatch(r"-1|[0-9]{1,5}", text.strip()) else None


def _hex(text: str) -> int | None:
    return int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]{1,8}", text.strip()) else None
