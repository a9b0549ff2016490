"""
What the NVIDIA driver's library (NVML) answered, as values: the border between the inventory and whoever asked it.

Every field is on its own: a call that a GPU or an older driver does not know leaves its field None, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from astra_agent.inventory.model import Fabric, MigDevice

SUCCESS = 0
NO_DRIVER = 9
NO_LIBRARY = 12
LOST = 15
RESET_REQUIRED = 16
VERSIONS_DIFFER = 18
UNKNOWN = 999

MEANINGS = {
    1: "Uninitialized",
    2: "Invalid Argument",
    3: "Not Supported",
    4: "Insufficient Permissions",
    6: "Not Found",
    9: "Driver Not Loaded",
    10: "Timeout",
    12: "NVML Shared Library Not Found",
    13: "Function Not Found",
    15: "GPU is lost",
    16: "GPU requires reset",
    17: "Operating System Blocked the Request",
    18: "Driver/library version mismatch",
    20: "Insufficient Memory",
    23: "Insufficient Resources",
    25: "Argument Version Mismatch",
    999: "Unknown Error",
}


def meaning(code: int) -> str:
    """NVML's return code in its own words."""
    return MEANINGS.get(code, "an error that has no name here")


@dataclass(frozen=True, slots=True)
class GpuReading:
    """
    One GPU as the library has it.

    Attributes:
        error: Why there is no handle for it, or none that answers; 0 when all is well.
        pci: As the library writes it, such as `00000000:1B:00.0`.
        cpus: Of the nearest memory node, as a list (`0-55,112-167`).
        memory_nodes: The nearest memory nodes.
        memory_node: The node that its own memory is, on Grace.
        mig: Current mode.
        recovery: What the driver asks for: 0 nothing, 1 reset, 2 reboot, 3 drain peers, 4 drain and reset.
        failed_rows: Memory rows that could not be remapped: the memory is worn out.
    """

    index: int
    error: int = SUCCESS
    uuid: str | None = None
    name: str | None = None
    minor: int | None = None
    pci: str | None = None
    memory_bytes: int | None = None
    cpus: str | None = None
    memory_nodes: tuple[int, ...] | None = None
    memory_node: int | None = None
    mig: bool | None = None
    mig_devices: tuple[MigDevice, ...] = ()
    fabric: Fabric | None = None
    recovery: int | None = None
    failed_rows: bool | None = None
    links: tuple[int, int] | None = None
    """NVLinks that there are, and that are up."""


@dataclass(frozen=True, slots=True)
class LibraryReading:
    """
    Attributes:
        error: Why the library could not be started; 0 when it was.
        count: GPUs that it counts, also those that it gives no handle for.
        chassis: Serial number of the rack that the machine is in, for rack-scale products; empty elsewhere.
    """

    error: int = SUCCESS
    detail: str = ""
    driver: str | None = None
    library: str | None = None
    cuda: str | None = None
    count: int = 0
    gpus: tuple[GpuReading, ...] = ()
    chassis: str = ""


MISSING = LibraryReading(error=NO_LIBRARY)
