"""
The store in one SQLite file: write-ahead log, every commit flushed to the disk before it is acted on.

SQLite blocks, so it lives in one thread of its own, which makes calls strictly one after the other. One coordinator
has a state directory: a lock on a file in it, which the kernel drops when the process ends in whatever way.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from astra_agent.errors import AstraError, Conflict, InvalidRequest, Unavailable
from astra_gang.clock import Reading
from astra_gang.core import RunState
from astra_gang.engines.book import BookEntry
from astra_gang.spec import Spec
from astra_gang.store import EVENTS_KEPT, Batch, Loaded, RunEvent, RunRecord

SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE term (one INTEGER PRIMARY KEY CHECK (one = 1), term INTEGER NOT NULL);
INSERT INTO term VALUES (1, 0);
CREATE TABLE readings (
    boot TEXT PRIMARY KEY, seconds REAL NOT NULL, boottime_s REAL NOT NULL, wall_s REAL NOT NULL
);
CREATE TABLE runs (
    uid TEXT PRIMARY KEY, submitted_at REAL NOT NULL, spec TEXT NOT NULL, state TEXT NOT NULL
);
CREATE TABLE events (
    uid TEXT NOT NULL, id INTEGER NOT NULL, at REAL NOT NULL, level TEXT NOT NULL, sentence TEXT NOT NULL,
    rank INTEGER, attempt INTEGER, PRIMARY KEY (uid, id)
) WITHOUT ROWID;
CREATE TABLE book (slot TEXT PRIMARY KEY, entry TEXT NOT NULL);
"""
BUSY_TIMEOUT_S = 5.0
"""How long a commit waits for another program that has the file locked."""
_T = TypeVar("_T")
_STATES = TypeAdapter(RunState)
_SPECS = TypeAdapter(Spec)
_ENTRIES = TypeAdapter(BookEntry)


class SqliteStore:
    """
    Made by `open_store`. Closing waits for the call that is under way.

    A commit is never given up half way: a caller that is cancelled or tired of waiting leaves it to finish.
    """

    def __init__(self, path: Path, lock_fd: int, busy_timeout_s: float) -> None:
        self._path = path
        self._lock_fd = lock_fd
        self._busy_timeout_s = busy_timeout_s
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._db: sqlite3.Connection | None = None

    async def open(self) -> None:
        """
        Raises:
            InvalidRequest: The file was written by a newer version, or is none of ours.
            Unavailable: It can't be read or written.
        """
        await self._do(self._open)

    async def close(self) -> None:
        """Idempotent."""
        if self._lock_fd < 0:
            return
        await asyncio.to_thread(self._thread.shutdown)
        if self._db is not None:
            self._db.close()
        os.close(self._lock_fd)
        self._lock_fd = -1

    async def begin_term(self) -> int:
        return await self._do(self._begin_term)

    async def load(self) -> Loaded:
        return await self._do(self._load)

    async def commit(self, batch: Batch) -> None:
        await self._do(lambda db: _write(db, batch))

    async def events(self, uid: str, after: int, limit: int) -> tuple[RunEvent, ...]:
        query = "SELECT * FROM events WHERE uid = ? AND id > ? ORDER BY id LIMIT ?"
        rows = await self._do(lambda db: db.execute(query, (uid, after, limit)).fetchall())
        return tuple(RunEvent(*row) for row in rows)

    async def _do(self, call: Callable[[sqlite3.Connection], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._in_thread, call)

    def _in_thread(self, call: Callable[[sqlite3.Connection], _T]) -> _T:
        """One transaction around *call*: all of it or nothing."""
        try:
            db = self._connection()
            db.execute("BEGIN IMMEDIATE")
            try:
                result = call(db)
                db.execute("COMMIT")
                return result
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise self._explain(error) from error

    def _connection(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = sqlite3.connect(
                self._path, timeout=self._busy_timeout_s, isolation_level=None, check_same_thread=False
            )
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
        return self._db

    def _open(self, db: sqlite3.Connection) -> None:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise InvalidRequest(
                f"{self._path} was written by a newer version (schema {version}; this one reads {SCHEMA_VERSION}): "
                "start that version, or use another state_dir",
                field="state_dir",
            )
        if version == 0:
            for statement in _SCHEMA.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _begin_term(self, db: sqlite3.Connection) -> int:
        term: int = db.execute("UPDATE term SET term = term + 1 RETURNING term").fetchall()[0][0]
        return term

    def _load(self, db: sqlite3.Connection) -> Loaded:
        try:
            return _read(db)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise InvalidRequest(
                f"a record in {self._path} can't be read ({error.title}: {where}: {first['msg']}): "
                "it was written by another version, or damaged",
                field="state_dir",
            ) from error

    def _explain(self, error: sqlite3.Error) -> AstraError:
        text = str(error)
        if "full" in text:
            return Unavailable(f"the disk of {self._path.parent} is full; nothing was recorded: make room")
        if "locked" in text or "busy" in text:
            return Unavailable(f"{self._path} is locked by another program; nothing was recorded: close that program")
        if "not a database" in text or "malformed" in text:
            return InvalidRequest(f"{self._path} is damaged or no store of Astraeus ({text})", field="state_dir")
        return Unavailable(f"{self._path} can't be read or written ({text})")


async def open_store(state_dir: Path, busy_timeout_s: float = BUSY_TIMEOUT_S) -> SqliteStore:
    """
    The store in *state_dir*, which is made when it is not there.

    Raises:
        Conflict: Another coordinator has this state directory.
        InvalidRequest, Unavailable: As `SqliteStore.open`.
    """
    lock_fd = await asyncio.to_thread(_lock, state_dir)
    store = SqliteStore(state_dir / "coordinator.db", lock_fd, busy_timeout_s)
    try:
        await store.open()
    except BaseException:
        await store.close()
        raise
    return store


def _lock(state_dir: Path) -> int:
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(state_dir / "coordinator.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unavailable(f"state_dir {state_dir} can't be used ({error.strerror}): it must be writable") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(fd, 20, 0).decode(errors="replace").strip()
        os.close(fd)
        raise Conflict(f"state_dir {state_dir} is in use by another coordinator (process {holder})") from error
    os.truncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _write(db: sqlite3.Connection, batch: Batch) -> None:
    reading = batch.reading
    db.execute(
        "INSERT OR REPLACE INTO readings VALUES (?, ?, ?, ?)",
        (reading.boot, reading.seconds, reading.boottime_s, reading.wall_s),
    )
    db.executemany(
        "INSERT INTO runs VALUES (?, ?, ?, ?) ON CONFLICT (uid) DO UPDATE SET state = excluded.state",
        (
            (
                run.state.uid,
                run.state.submitted_at,
                _SPECS.dump_json(run.spec).decode(),
                _STATES.dump_json(run.state).decode(),
            )
            for run in batch.runs
        ),
    )
    db.executemany(
        "INSERT OR REPLACE INTO events VALUES (?, ?, ?, ?, ?, ?, ?)",
        ((e.uid, e.id, e.at, e.level, e.sentence, e.rank, e.attempt) for e in batch.events),
    )
    newest = {event.uid: event.id for event in batch.events}
    db.executemany(
        "DELETE FROM events WHERE uid = ? AND id <= ?",
        ((uid, last - EVENTS_KEPT) for uid, last in newest.items() if last > EVENTS_KEPT),
    )
    db.executemany(
        "INSERT OR REPLACE INTO book VALUES (?, ?)",
        ((entry.slot, _ENTRIES.dump_json(entry).decode()) for entry in batch.book),
    )
    db.executemany("DELETE FROM runs WHERE uid = ?", ((uid,) for uid in batch.forget_runs))
    db.executemany("DELETE FROM events WHERE uid = ?", ((uid,) for uid in batch.forget_runs))
    db.executemany("DELETE FROM book WHERE slot = ?", ((slot,) for slot in batch.forget_slots))


def _read(db: sqlite3.Connection) -> Loaded:
    runs = db.execute("SELECT spec, state FROM runs ORDER BY submitted_at, rowid").fetchall()
    return Loaded(
        readings=tuple(Reading(*row) for row in db.execute("SELECT * FROM readings ORDER BY seconds")),
        runs=tuple(RunRecord(_SPECS.validate_json(spec), _STATES.validate_json(state)) for spec, state in runs),
        last_event=dict(db.execute("SELECT uid, max(id) FROM events GROUP BY uid")),
        book=tuple(_ENTRIES.validate_json(entry) for (entry,) in db.execute("SELECT entry FROM book ORDER BY slot")),
    )
