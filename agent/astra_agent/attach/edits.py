"""
`Edits`: what the spec of a worker's container gains. Records, and how two of them become one.

Everything is a sorted tuple without doubles, so that equal edits are equal and print alike, whatever order their parts
came in. Hooks alone keep their order, since they run in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from astra_agent.errors import Conflict
from astra_agent.inventory.order import format_list, natural

T = TypeVar("T")

UNLIMITED = 2**64 - 1
"""No limit, as the OCI spec writes it."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device node to be made in the container. *uid* and *gid* None: the container's own user."""

    path: str
    kind: str
    major: int
    minor: int
    mode: int = 0o666
    uid: int | None = 0
    gid: int | None = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """What the device cgroup allows. *access* is letters of `rwm`."""

    kind: str
    major: int
    minor: int
    access: str


@dataclass(frozen=True, slots=True)
class Mount:
    destination: str
    source: str
    kind: str
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rlimit:
    kind: str
    soft: int
    hard: int


@dataclass(frozen=True, slots=True)
class Hook:
    """*stage* is the runtime's name for when it runs, such as `createContainer`."""

    stage: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout_s: int | None = None


@dataclass(frozen=True, slots=True)
class File:
    """A file that the agent writes and the container sees, read-only."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Edits:
    """
    Attributes:
        capabilities: In every set, the ambient one as well, so that a user who is not root has them too.
        groups: Additional group IDs of the first process.
        shm_bytes: Size of /dev/shm; None: as it is.
        cpus: Processors that the container may run on, and *memory_nodes* that it may allocate from; None: all.
    """

    env: tuple[tuple[str, str], ...] = ()
    devices: tuple[Device, ...] = ()
    rules: tuple[Rule, ...] = ()
    mounts: tuple[Mount, ...] = ()
    rlimits: tuple[Rlimit, ...] = ()
    capabilities: tuple[str, ...] = ()
    hooks: tuple[Hook, ...] = ()
    groups: tuple[int, ...] = ()
    files: tuple[File, ...] = ()
    shm_bytes: int | None = None
    cpus: frozenset[int] | None = None
    memory_nodes: frozenset[int] | None = None


def merge(*edits: Edits) -> Edits:
    """
    One record of them all. Associative, idempotent, with `Edits()` neutral; in no case does one side win.

    Raises:
        Conflict: Two sides want different things of one variable, path, limit or size; the message names both.
    """
    mounts = _by_key((mount for one in edits for mount in one.mounts), lambda mount: mount.destination, "the mount")
    shm_bytes = _one("the size of /dev/shm", (one.shm_bytes for one in edits), str)
    for mount in mounts:
        if mount.destination == "/dev/shm" and shm_bytes is not None:
            raise Conflict(f"/dev/shm is given in two ways: a size of {shm_bytes} bytes and {mount}")
    return Edits(
        env=_by_key((pair for one in edits for pair in one.env), lambda pair: pair[0], "the variable"),
        devices=_by_key((device for one in edits for device in one.devices), lambda device: device.path, "the device"),
        rules=_rules(rule for one in edits for rule in one.rules),
        mounts=mounts,
        rlimits=_by_key((limit for one in edits for limit in one.rlimits), lambda limit: limit.kind, "the limit"),
        capabilities=tuple(sorted({name for one in edits for name in one.capabilities})),
        hooks=tuple(dict.fromkeys(hook for one in edits for hook in one.hooks)),
        groups=tuple(sorted({group for one in edits for group in one.groups})),
        files=_by_key((file for one in edits for file in one.files), lambda file: file.path, "the file"),
        shm_bytes=shm_bytes,
        cpus=_one("the processors", (one.cpus for one in edits), format_list),
        memory_nodes=_one("the memory nodes", (one.memory_nodes for one in edits), format_list),
    )


def _by_key(items: Iterable[T], key: Callable[[T], str], what: str) -> tuple[T, ...]:
    found: dict[str, T] = {}
    for item in items:
        other = found.setdefault(key(item), item)
        if other != item:
            raise Conflict(f"{what} {key(item)} is given in two ways: {other} and {item}")
    return tuple(found[name] for name in sorted(found, key=natural))


def _rules(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """One for each device, with all the letters that anybody wants."""
    access: dict[tuple[str, int, int], str] = {}
    for rule in rules:
        device = (rule.kind, rule.major, rule.minor)
        access[device] = "".join(letter for letter in "rwm" if letter in access.get(device, "") + rule.access)
    return tuple(Rule(*device, access[device]) for device in sorted(access))


def _one(what: str, values: Iterable[T | None], shown: Callable[[T], str]) -> T | None:
    """The one value that is not None."""
    found: T | None = None
    for value in values:
        if value is not None and found is not None and value != found:
            raise Conflict(f"{what} is given in two ways: {shown(found)} and {shown(value)}")
        found = value if found is None else found
    return found
