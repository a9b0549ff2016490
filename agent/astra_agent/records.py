"""
What the agent remembers across its own death: a record per slot, tombstones of ended ones, its terms and its epochs.

Every write is one small file, written beside, synced and renamed, on the event loop's own thread: the order "recorded
before done" is then the order of the code, and nothing can be cancelled between a record and its memory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from astra_agent.errors import HostFault
from astra_agent.runtime import PreparedImage
from astra_agent.wire import Fault, SlotRequest

ENDED_ATTEMPTS_KEPT = 8
TOMBSTONES_KEPT = 4096


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """How an attempt ended. *code* None with *never_started*: its program never ran; else: nobody could see how."""

    code: int | None
    oom: bool = False
    never_started: bool = False


@dataclass(frozen=True, slots=True)
class StopWish:
    """
    Attributes:
        deadline_s: When SIGTERM turns into SIGKILL, on the clock of `astra_agent.lease.now`.
        why: A sentence when the agent itself wants it; empty: it was told to.
    """

    grace_s: float
    deadline_s: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """
    Attributes:
        armed: Its container has been there, waiting.
        start_wanted: Start was told.
        start_begun: The container may have been started: from here on, a container that is not there has ended.
        started: The runtime has said so.
        failed: Why it could not be armed or started.
        killed: SIGKILL was needed after the grace time.
        removed: Its container is gone for good.
    """

    number: int
    env: Mapping[str, str]
    hosts: Mapping[str, str]
    armed: bool = False
    start_wanted: bool = False
    start_begun: bool = False
    started: bool = False
    stop: StopWish | None = None
    failed: str | None = None
    killed: bool = False
    exit: ExitRecord | None = None
    removed: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that a slot has once it is ready; every attempt of it uses the same."""

    image: PreparedImage
    args: tuple[str, ...]
    working_dir: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Ending:
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """
    Attributes:
        term: The highest of any directive for it.
        newest: The highest attempt that was ever armed; -1: none.
        stopped_through: Attempts up to this one are stopped, armed yet or not; -1: none.
        arm_failed: The newest attempt that could not be armed or started.
    """

    request: SlotRequest
    boot: str
    phase: Literal["preparing", "ready", "failed"] = "preparing"
    detail: str = ""
    fault: Fault | None = None
    prepared: Prepared | None = None
    term: int = 0
    newest: int = -1
    stopped_through: int = -1
    arm_failed: int | None = None
    attempts: tuple[AttemptRecord, ...] = ()
    ending: Ending | None = None

    def attempt(self, number: int) -> AttemptRecord | None:
        return next((attempt for attempt in self.attempts if attempt.number == number), None)

    def with_attempt(self, attempt: AttemptRecord) -> SlotRecord:
        """With *attempt* in the place of the one of its number, or added; the oldest that are gone are dropped."""
        others = [other for other in self.attempts if other.number != attempt.number]
        kept = sorted([*others, attempt], key=lambda one: one.number)
        while len(kept) > ENDED_ATTEMPTS_KEPT and kept[0].removed:
            kept.pop(0)
        return replace(self, attempts=tuple(kept))


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """*epoch* grows with each start of the agent, *term* is the highest of any coordinator that it obeyed."""

    boot: str = ""
    epoch: int = 0
    term: int = 0


_SLOT = TypeAdapter(SlotRecord)
_ENDING = TypeAdapter(Ending)
_AGENT = TypeAdapter(AgentRecord)


@dataclass(slots=True)
class Book:
    """The folder of records. One agent at a time uses it (`astra_agent.main` holds the lock)."""

    state_dir: Path
    unreadable: set[str] = field(default_factory=set)
    """Slots whose record can't be read: nothing of theirs is touched."""

    def open(self, boot: str) -> AgentRecord:
        """Make the folders, and begin a new epoch. Raises: HostFault."""
        for folder in (self.state_dir, self._slots, self._ended):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self.state_dir / "agent.json"
        try:
            before = _AGENT.validate_json(path.read_bytes())
        except FileNotFoundError:
            before = AgentRecord()
        except (OSError, ValidationError) as error:
            raise HostFault(f"{path} can't be read: {error}; restore it, or remove {self.state_dir} whole") from error
        record = replace(before, boot=boot, epoch=before.epoch + 1)
        self.save_agent(record)
        return record

    def save_agent(self, record: AgentRecord) -> None:
        write_durably(self.state_dir / "agent.json", _AGENT.dump_json(record))

    def load(self) -> tuple[SlotRecord, ...]:
        records = []
        for path in sorted(self._slots.glob("*.json")):
            try:
                records.append(_SLOT.validate_json(path.read_bytes()))
            except (OSError, ValidationError):
                self.unreadable.add(path.stem)
        return tuple(records)

    def save(self, record: SlotRecord) -> None:
        """Durable when it returns. Raises: HostFault, and the old record stands."""
        write_durably(self._slots / f"{record.request.slot}.json", _SLOT.dump_json(record))

    def bury(self, slot: str, ending: Ending) -> None:
        """The slot's record makes room for its tombstone. Idempotent; works for a slot that was never there."""
        write_durably(self._ended / f"{slot}.json", _ENDING.dump_json(ending))
        with contextlib.suppress(FileNotFoundError):
            (self._slots / f"{slot}.json").unlink()
        self._forget_oldest()

    def tombstone(self, slot: str) -> Ending | None:
        try:
            return _ENDING.validate_json((self._ended / f"{slot}.json").read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError):
            return Ending(code=1, reason="its tombstone can't be read")

    def _forget_oldest(self) -> None:
        stones = list(self._ended.iterdir())
        if len(stones) > TOMBSTONES_KEPT:
            for path in sorted(stones, key=lambda path: path.stat().st_mtime)[: TOMBSTONES_KEPT // 4]:
                path.unlink()

    @property
    def _slots(self) -> Path:
        return self.state_dir / "records"

    @property
    def _ended(self) -> Path:
        return self.state_dir / "ended"


def write_durably(path: Path, data: bytes) -> None:
    """Replace *path* by *data*: after a crash it holds the old or the new, whole. Raises: HostFault."""
    beside = path.with_suffix(".new")
    try:
        beside.touch(mode=0o600)
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise HostFault(f"{path} can't be written: {error.strerror}; make room on that disk") from error
