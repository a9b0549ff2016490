"""
Asks the NVIDIA driver's library (NVML, by `nvidia-ml-py`) what it has; answers as values for the inventory.

Each call is on its own: what a GPU or an older driver does not know leaves one field empty. Only a GPU that is lost, or
must be reset, is left out as a whole, with the code. Blocks, for seconds on a sick GPU: to be called in one thread that
is not the event loop's; calls at the same time wait for each other, since starting and stopping count by process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pynvml

from astra_agent.inventory.library import LOST, RESET_REQUIRED, GpuReading, LibraryReading
from astra_agent.inventory.model import Fabric, MigDevice
from astra_agent.inventory.order import format_list

T = TypeVar("T")

_CPU_WORDS = 64
"""64-bit words of a processor mask: 4096 processors."""
_NODE_WORDS = 16
_MOST_LINKS = 36
_WHOLE_GPU = (LOST, RESET_REQUIRED)
"""Codes that say something of the GPU, not of one call."""

_lock = threading.Lock()


def read_library() -> LibraryReading:
    """Never raises for what the driver answers: the code of a library that can't be started is in the reading."""
    with _lock:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            return LibraryReading(error=int(error.value), detail=str(error))
        try:
            return _read()
        finally:
            _maybe(pynvml.nvmlShutdown)


def _read() -> LibraryReading:
    count = _maybe(pynvml.nvmlDeviceGetCount) or 0
    gpus: list[GpuReading] = []
    chassis = ""
    for index in range(count):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            gpus.append(_gpu(index, handle))
            chassis = chassis or _chassis(handle)
        except pynvml.NVMLError as error:
            gpus.append(GpuReading(index, error=int(error.value)))
    cuda = _maybe(pynvml.nvmlSystemGetCudaDriverVersion_v2)
    driver = _maybe(pynvml.nvmlSystemGetDriverVersion)
    library = _maybe(pynvml.nvmlSystemGetNVMLVersion)
    return LibraryReading(
        driver=driver,
        library=library.partition(".")[2] if library else driver,
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
        count=count,
        gpus=tuple(gpus),
        chassis=chassis,
    )


def _gpu(index: int, handle: Any) -> GpuReading:
    """Raises: NVMLError when the whole GPU is lost, or has not even a UUID."""
    mig = _maybe(pynvml.nvmlDeviceGetMigMode, handle)
    rows = _maybe(pynvml.nvmlDeviceGetRemappedRows, handle)
    memory = _maybe(pynvml.nvmlDeviceGetMemoryInfo, handle)
    pci = _maybe(pynvml.nvmlDeviceGetPciInfo, handle)
    return GpuReading(
        index=index,
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        name=_maybe(pynvml.nvmlDeviceGetName, handle),
        minor=_maybe(pynvml.nvmlDeviceGetMinorNumber, handle),
        pci=pci.busId if pci is not None else None,
        memory_bytes=int(memory.total) if memory is not None else None,
        cpus=_cpus(handle),
        memory_nodes=_memory_nodes(handle),
        memory_node=_maybe(pynvml.nvmlDeviceGetNumaNodeId, handle),
        mig=bool(mig[0]) if mig is not None else None,
        mig_devices=_mig_devices(handle) if mig is not None and mig[0] else (),
        fabric=_fabric(handle),
        recovery=_recovery(handle),
        failed_rows=bool(rows[3]) if rows is not None else None,
        links=_links(handle),
    )


def _maybe(call: Callable[..., T], *arguments: object) -> T | None:
    """
    What a call answers; None where the GPU does not support it, or the library lacks it.

    Raises: NVMLError when the GPU itself is gone.
    """
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _WHOLE_GPU:
            raise
        return None
    except UnicodeDecodeError:
        return None


def _cpus(handle: Any) -> str | None:
    words = _maybe(
        pynvml.nvmlDeviceGetCpuAffinityWithinScope, handle, _CPU_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE
    ) or _maybe(pynvml.nvmlDeviceGetCpuAffinity, handle, _CPU_WORDS)
    return format_list(_bits(words)) if words is not None else None


def _memory_nodes(handle: Any) -> tuple[int, ...] | None:
    words = _maybe(pynvml.nvmlDeviceGetMemoryAffinity, handle, _NODE_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE)
    return tuple(_bits(words)) if words is not None else None


def _bits(words: Iterable[int]) -> list[int]:
    return [at * 64 + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1]


def _fabric(handle: Any) -> Fabric | None:
    """The newest form that the driver knows: an unknown one is answered with a version mismatch."""
    for form in (pynvml.c_nvmlGpuFabricInfo_v3_t, pynvml.c_nvmlGpuFabricInfo_v2_t):
        info = form()
        if _maybe(pynvml.nvmlDeviceGetGpuFabricInfoV, handle, pynvml.byref(info)) is not None:
            digits = bytes(info.clusterUuid).hex()
            uuid = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
            summary = int(getattr(info, "healthSummary", 0))
            return Fabric(int(info.state), int(info.status), uuid, int(info.cliqueId), int(info.healthMask), summary)
    return None


def _mig_devices(handle: Any) -> tuple[MigDevice, ...]:
    found = []
    for place in range(_maybe(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        device = _maybe(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place)
        uuid = _maybe(pynvml.nvmlDeviceGetUUID, device) if device is not None else None
        if uuid is not None:
            memory = _maybe(pynvml.nvmlDeviceGetMemoryInfo, device)
            found.append(
                MigDevice(
                    uuid,
                    _maybe(pynvml.nvmlDeviceGetGpuInstanceId, device) or 0,
                    _maybe(pynvml.nvmlDeviceGetComputeInstanceId, device) or 0,
                    int(memory.total) if memory is not None else None,
                )
            )
    return tuple(found)


def _recovery(handle: Any) -> int | None:
    values = _maybe(pynvml.nvmlDeviceGetFieldValues, handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    return int(values[0].value.uiVal) if values is not None and values[0].nvmlReturn == 0 else None


def _links(handle: Any) -> tuple[int, int] | None:
    states: list[int] = []
    for link in range(_MOST_LINKS):
        state = _maybe(pynvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:
            break
        states.append(int(state))
    return (len(states), sum(states)) if states else None


def _chassis(handle: Any) -> str:
    """
    The serial number of the rack. Read as bytes: the package declares it as text, which ends at the first zero byte and
    may be no text at all.
    """
    info = pynvml.c_nvmlPlatformInfo_v2_t()
    if _maybe(pynvml.nvmlDeviceGetPlatformInfo, handle, pynvml.byref(info)) is None:
        return ""
    start = pynvml.c_nvmlPlatformInfo_v2_t.chassisSerialNumber.offset
    size = pynvml.c_nvmlPlatformInfo_v2_t.chassisSerialNumber.size
    return bytes(info)[start : start + size].split(b"\0")[0].decode("ascii", "replace").strip()
