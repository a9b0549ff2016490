"""
The agent's records as files: one per slot, tombstones of ended ones, its own terms and epochs.

Every write is one small file, written beside and renamed, on the event loop's own thread: the order "recorded before
done" is then the order of the code, and nothing can be cancelled between a record and its memory.

A slot's record outlives the agent, not the machine: what ran is gone after a boot, and so the record is dropped then.
It is therefore not synced to the disk, which would cost every step of a start some milliseconds. What must outlive the
machine is: terms, epochs and tombstones.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from astra_agent.errors import HostFault
from astra_agent.records import AgentRecord, SlotRecord, Tombstone

TOMBSTONES_KEPT = 4096

_SLOT = TypeAdapter(SlotRecord)
_STONE = TypeAdapter(Tombstone)
_AGENT = TypeAdapter(AgentRecord)


@dataclass(slots=True)
class Book:
    """The folder of records. One agent at a time uses it (`astra_agent.main` holds the lock)."""

    state_dir: Path
    unreadable: set[str] = field(default_factory=set)
    """Slots whose record can't be read: nothing of theirs is touched."""
    fault: str | None = None
    """Why the last write failed; None when it did not."""

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
        if before.boot != boot:
            self._drop_torn()
        record = replace(before, boot=boot, epoch=before.epoch + 1)
        self.save_agent(record)
        return record

    def save_agent(self, record: AgentRecord) -> None:
        self._write(self.state_dir / "agent.json", _AGENT.dump_json(record))

    def load(self) -> tuple[SlotRecord, ...]:
        records = []
        for path in sorted(self._slots.glob("*.json")):
            try:
                records.append(_SLOT.validate_json(path.read_bytes()))
            except (OSError, ValidationError):
                self.unreadable.add(path.stem)
        return tuple(records)

    def save(self, record: SlotRecord) -> None:
        """It outlives the agent when it returns. Raises: HostFault, and the old record stands."""
        self._write(self._slots / f"{record.request.slot}.json", _SLOT.dump_json(record), synced=False)

    def bury(self, slot: str, stone: Tombstone) -> None:
        """The slot's record makes room for its tombstone. Idempotent; works for a slot that was never there."""
        self._write(self._ended / f"{slot}.json", _STONE.dump_json(stone))
        with contextlib.suppress(FileNotFoundError):
            (self._slots / f"{slot}.json").unlink()
        self._forget_oldest()

    def tombstone(self, slot: str) -> Tombstone | None:
        try:
            return _STONE.validate_json((self._ended / f"{slot}.json").read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError):
            return Tombstone(code=1, reason="its tombstone can't be read")

    def _drop_torn(self) -> None:
        """What a crash of the machine left of records that were being written: nothing of theirs runs any more."""
        self.load()
        for slot in self.unreadable:
            (self._slots / f"{slot}.json").unlink(missing_ok=True)
        self.unreadable.clear()

    def _write(self, path: Path, data: bytes, *, synced: bool = True) -> None:
        try:
            replace_file(path, data, synced=synced)
        except HostFault as error:
            self.fault = str(error)
            raise
        self.fault = None

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


def replace_file(path: Path, data: bytes, *, synced: bool) -> None:
    """
    Replace *path* by *data*: whoever reads it, also after the death of this process, finds the old or the new, whole.

    Args:
        synced: Also after a crash of the machine.
    Raises:
        HostFault: It can't be written; the old file stands.
    """
    beside = path.with_suffix(".new")
    try:
        beside.touch(mode=0o600)
        with beside.open("wb") as file:
            file.write(data)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
        if not synced:
            return
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise HostFault(f"{path} can't be written: {error.strerror}; make room on that disk") from error
