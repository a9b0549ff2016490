"""
What a worker was promised, and whether it holds inside its own container before it starts (rule 8). Pure: trials for
the container's first program to make, and its answers to sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from astra_agent.attach import Edits
from astra_agent.attach.memlock import IPC_LOCK

_IPC_LOCK_BIT = 14
_NO_DRIVER = ("ENXIO", "ENODEV")
"""What opening a node answers behind which there is nothing: right on a simulated machine, a fault on any other."""


@dataclass(frozen=True, slots=True)
class Trial:
    """
    Attributes:
        word: As `init.c` knows it. Its answer is `ok` or the system's word for an error.
        thing: What it is about, for sentences.
    """

    word: str
    thing: str


@dataclass(frozen=True, slots=True)
class Promise:
    """
    Attributes:
        trials: In the order of the answers.
        ports: That the worker was told to use.
    """

    trials: tuple[Trial, ...] = ()
    ports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where it is checked: *worker* on *machine*."""

    worker: str
    machine: str
    is_played: bool = field(default=False)


def promise(edits: Edits) -> Promise:
    trials = [
        Trial(f"open:{device.major}:{device.minor}:{device.path}", device.path)
        for device in edits.devices
        if device.kind == "c"
    ]
    if IPC_LOCK in edits.capabilities:
        trials += [Trial(f"capability:{_IPC_LOCK_BIT}", IPC_LOCK), Trial("lock", "locked memory")]
    return Promise(tuple(trials), promised_ports(edits))


def promised_ports(edits: Edits) -> tuple[str, ...]:
    return tuple(name for name in dict(edits.env).get("NCCL_IB_HCA", "").lstrip("=").split(",") if name)


def broken(trials: Sequence[Trial], answers: Sequence[str], place: Place) -> str | None:
    """Why the worker must not start: what is missing, and where; None when all holds."""
    for trial, answer in zip(trials, answers, strict=True):
        if answer != "ok" and not (place.is_played and answer in _NO_DRIVER):
            return _sentence(trial, answer, place)
    return None


def _sentence(trial: Trial, answer: str, place: Place) -> str:
    where = f"the container of {place.worker} on {place.machine}"
    if trial.thing == IPC_LOCK:
        return f"{IPC_LOCK} is not effective in {where}: its runtime has not got it to give"
    if trial.word == "lock":
        return (
            f"no program may lock 1 GiB of memory in {where} ({answer}), which RDMA needs: "
            "set LimitMEMLOCK=infinity in containerd's unit"
        )
    if answer == "ENOENT":
        return f"{trial.thing} is not in {where}"
    if answer == "ESTALE":
        return f"{trial.thing} in {where} is another device than the machine's"
    if answer in _NO_DRIVER:
        return f"nothing answers behind {trial.thing} of {place.machine} ({answer}): is its driver loaded?"
    if answer == "EPERM":
        return f"{trial.thing} may not be opened in {where} ({answer}): its device cgroup forbids it"
    return f"{trial.thing} can't be opened in {where} ({answer})"
