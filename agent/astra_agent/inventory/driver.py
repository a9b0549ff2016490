"""
The NVIDIA driver as it is loaded and as it is installed, and whether the two fit: an upgrade replaces the library under
a running module, and from then on everything new fails while what runs goes on.
"""

from __future__ import annotations

import re

from astra_agent.inventory.library import NO_DRIVER, NO_LIBRARY, SUCCESS, VERSIONS_DIFFER, LibraryReading, meaning
from astra_agent.inventory.model import Driver, LostGpu
from astra_agent.inventory.tree import Reader

LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
)
_TOOLS = ("/usr/bin/nvidia-smi", "/usr/bin/nvidia-cuda-mps-control", "/usr/bin/nvidia-debugdump")
_LIBRARY = "libnvidia-ml.so."
_VERSION = re.compile(r"[0-9]+\.[0-9]+(?:\.[0-9]+)?")


def read_driver(reader: Reader, reading: LibraryReading) -> Driver:
    text = reader.may("/proc/driver/nvidia/version", "NVIDIA driver", "its version")
    module = _VERSION.search(text.partition("Kernel Module")[2]) if text else None
    if text and module is None:
        reader.found(
            "fault", "NVIDIA driver", f"its version is not known: /proc/driver/nvidia/version says {text[:60]!r}"
        )
    loaded = module[0] if module else (reading.driver if reading.error == SUCCESS else None)
    return Driver(loaded, _library(reader), reading.cuda, _files(reader, loaded) if loaded else ())


def out_of_use(driver: Driver, reading: LibraryReading, lost: tuple[LostGpu, ...]) -> str | None:
    """
    Why no worker with GPUs may come here; None when one may, and for a machine without GPUs, which is no fault.

    Workers that run are left alone in any case: they have the old library open, and go on.
    """
    if driver.loaded is not None and driver.library is not None and driver.loaded != driver.library:
        return _differ(driver.loaded, driver.library)
    if reading.error == SUCCESS or (not lost and driver.loaded is None):
        return None
    if reading.error == VERSIONS_DIFFER:
        return _differ(driver.loaded or "of another version", driver.library or "of another version")
    if reading.error == NO_LIBRARY and driver.loaded is not None:
        return f"the NVIDIA library is missing, driver {driver.loaded} is loaded; install the driver's libraries again"
    if reading.error in (NO_DRIVER, NO_LIBRARY):
        gpus = f"{len(lost)} GPU{'s are' if len(lost) != 1 else ' is'} on the PCI bus"
        return f"the driver is not loaded, {gpus}; modprobe nvidia, or reboot"
    return (
        f"the driver does not answer: {reading.detail or meaning(reading.error)} ({reading.error}); it is asked again"
    )


def _differ(loaded: str, library: str) -> str:
    return f"driver {loaded} is loaded, the library is {library}; reload the driver or reboot"


def _library(reader: Reader) -> str | None:
    """
    The version of the library on disk, by the name of the file that programs are led to. A running agent has the one
    open that it started with, so what that one answers says nothing of this.
    """
    for folder in LIBRARY_FOLDERS:
        real = reader.root.resolve(f"{folder}/{_LIBRARY}1").rpartition("/")[2]
        match = _VERSION.fullmatch(real.removeprefix(_LIBRARY))
        if match is not None and reader.root.exists(f"{folder}/{_LIBRARY}1"):
            return match[0]
    return None


def _files(reader: Reader, version: str) -> tuple[str, ...]:
    """
    The driver's own files: every library whose name ends with its version, by each name that leads to it, and tools.
    """
    found: list[str] = []
    for folder in LIBRARY_FOLDERS:
        names = reader.root.names(folder)
        stems = {name.removesuffix(version) for name in names if name.endswith(f".so.{version}")}
        found += [f"{folder}/{name}" for name in names if _leads_to(name, stems, version)]
    found += [path for path in _TOOLS if reader.root.exists(path)]
    return tuple(found)


def _leads_to(name: str, stems: set[str], version: str) -> bool:
    """`libcuda.so.1` and `libcuda.so` are names of `libcuda.so.570.158.01`; `libcuda.so.550.90.07` is not."""
    stem = name.removesuffix(version)
    return stem in stems or re.sub(r"(?<=\.so)(?:\.[0-9]+)?$", ".", name) in stems
