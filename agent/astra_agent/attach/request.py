"""What an attachment is made for: where the worker was placed, and what it asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

PlacedOn = Literal["machine", "nvlink", "infiniband", "rdma", "ethernet"]


@dataclass(frozen=True, slots=True)
class Placement:
    """
    Attributes:
        domain: The name that the coordinator placed the run by; None: it named none, so nothing is held against it.
        channel: The run's IMEX channel in an NVLink domain.
    """

    tier: PlacedOn
    domain: str | None = None
    channel: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """
    Attributes:
        gpus: Indexes of this machine's GPUs, in the order of the worker's local ranks.
        min_gbps: What each port has to carry.
        env: The user's own variables: none of these is ever set by an attachment.
        cpu_cores: 0: no limit.
        shm_bytes: Wanted size of /dev/shm; 0: sized for the GPUs.
        memory_bytes: The worker's memory limit; 0: none.
        can_raise_memlock: Whether the runtime can give an unlimited RLIMIT_MEMLOCK. Where it can't, an ambient IPC_LOCK
            does the same.
    """

    gpus: tuple[int, ...] = ()
    min_gbps: float = 0.0
    env: Mapping[str, str] = field(default_factory=dict)
    cpu_cores: float = 0.0
    shm_bytes: int = 0
    memory_bytes: int = 0
    can_raise_memlock: bool = True
