"""/dev/shm, which NCCL and data loaders work through."""

from __future__ import annotations

from collections.abc import Sequence

from astra_agent.attach.edits import Edits
from astra_agent.attach.request import Request
from astra_agent.inventory.model import Gpu

_EACH_GPU_BYTES = 1 << 30
"""What NCCL and a data loader take for each GPU, at the least; 64 MiB, the usual size, ends in bus errors."""


def shm(gpus: Sequence[Gpu], request: Request) -> Edits:
    """
    The size that was asked for; else half of the memory, or what the GPUs need if that is more. It counts as the
    worker's memory, so it never has all of it. Without a limit it stays as it is, half of the machine's memory.
    """
    if request.shm_bytes:
        return Edits(shm_bytes=request.shm_bytes)
    if not request.memory_bytes or not gpus:
        return Edits()
    wanted = max(request.memory_bytes // 2, len(gpus) * _EACH_GPU_BYTES)
    return Edits(shm_bytes=min(wanted, request.memory_bytes * 3 // 4))
