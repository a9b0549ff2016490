"""
NCCL's topology file, which a virtual machine needs whose PCI bus does not show how things really hang together.

Nothing here makes one: what the bus does not show can't be known, and a wrong file is worse than none. It is the file
of the machine's own kind, from where NCCL itself looks for it or from where the operator says; and it counts only if it
has every GPU that the machine has, which another kind's file does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from astra_agent.inventory.model import Gpu, NcclTopology, Transport
from astra_agent.inventory.pci import normal_address
from astra_agent.inventory.tree import AbsentError, Reader, UnreadableError

USUAL = "/var/run/nvidia-topologyd/virtualTopology.xml"
LARGEST_BYTES = 1 << 20


def read_topology(reader: Reader, said: str | None, gpus: Sequence[Gpu], transport: Transport) -> NcclTopology | None:
    """
    Args:
        said: Where the operator says that it is; None: nowhere.
    """
    path = said or USUAL
    if not gpus or (transport == "efa" and said is None):
        return None  # the plugin of EFA brings its own
    try:
        text = reader.root.read(path).decode()
        known = _functions(text)
    except AbsentError:
        if said is not None:
            reader.found("fault", path, "the operator's file names it as NCCL's topology, and it is not there")
        return None
    except (UnreadableError, UnicodeDecodeError, ElementTree.ParseError, ValueError) as error:
        reader.found("fault", path, f"NCCL's topology file is not used: {error}")
        return None
    missing = next((gpu for gpu in gpus if gpu.pci not in known), None)
    if missing is not None:
        sentence = (
            f"NCCL's topology file is another kind of machine's: it has no GPU at {missing.pci or 'that address'}"
        )
        reader.found("fault", path, f"{sentence}, as GPU {missing.index} of this one; it is not used")
        return None
    return NcclTopology(path, text)


def _functions(text: str) -> frozenset[str]:
    """Addresses on the bus. Raises: ParseError, ValueError."""
    if len(text) > LARGEST_BYTES:
        raise ValueError(f"it is larger than {LARGEST_BYTES} bytes")
    root = ElementTree.fromstring(text)
    if root.tag != "system":
        raise ValueError(f"it is a <{root.tag}>, where NCCL reads a <system>")
    addresses = (normal_address(element.get("busid") or "") for element in root.iter("pci"))
    return frozenset(address for address in addresses if address is not None)
