"""What every store promises the coordinator: the one in memory, SQLite, and Variables of Nomad 1.6 and 2.0."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from astra_agent.errors import Conflict, InvalidRequest, Stale, Unavailable
from astra_agent.wire import RunRef, SlotRequest
from astra_gang.clock import Reading
from astra_gang.core import AttemptSeen, Phase, Proof, Slot
from astra_gang.engines.book import BookEntry, Hold
from astra_gang.engines.nomad.api import NomadApi
from astra_gang.engines.nomad.shelf import Shelf
from astra_gang.engines.nomad.store import NomadStore
from astra_gang.engines.nomad.transport import Access
from astra_gang.sqlite_store import SCHEMA_VERSION, SqliteStore, open_store
from astra_gang.store import EVENTS_KEPT, Batch, RunEvent, RunRecord, Store
from tests.fakes.nomad.cluster import FakeNomad
from tests.fakes.nomad.recorded import VERSIONS
from tests.fakes.nomad.server import NomadServer
from tests.fakes.runs import record
from tests.fakes.store import MemoryStore

NOW = Reading("boot-1", seconds=100.0, boottime_s=50.0, wall_s=1_700_000_000.0)


class Case:
    """A store under test; `again` closes it, as a kill would, and opens it anew."""

    def __init__(self, open_it: Callable[[AsyncExitStack], Awaitable[Store]]) -> None:
        self._open = open_it
        self._stack = AsyncExitStack()
        self.store: Store

    async def start(self) -> Store:
        self.store = await self._open(self._stack)
        return self.store

    async def again(self) -> Store:
        await self.close()
        return await self.start()

    async def close(self) -> None:
        await self._stack.aclose()


@pytest.fixture(params=["memory", "sqlite", *(f"nomad-{version}" for version in VERSIONS)])
async def case(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Case]:
    kind: str = request.param
    async with AsyncExitStack() as outlives:
        if kind == "memory":
            made = Case(always(MemoryStore()))
        elif kind == "sqlite":
            made = Case(lambda stack: sqlite_store(stack, tmp_path))
        else:
            server = NomadServer(FakeNomad(kind.removeprefix("nomad-")))
            await outlives.enter_async_context(server.serving())
            made = Case(lambda stack: nomad_store(stack, server))
        await made.start()
        yield made
        await made.close()


def always(store: Store) -> Callable[[AsyncExitStack], Awaitable[Store]]:
    async def opened(_: AsyncExitStack) -> Store:
        return store

    return opened


async def sqlite_store(stack: AsyncExitStack, folder: Path) -> Store:
    store = await open_store(folder)
    stack.push_async_callback(store.close)
    return store


async def nomad_store(stack: AsyncExitStack, server: NomadServer, **more: Any) -> NomadStore:
    """As a coordinator has it: with a term, and what was there before."""
    api = await stack.enter_async_context(NomadApi(Access(server.url), patience_s=0.3))
    store = NomadStore(Shelf(api), "astra", **{"carried_max": 600, "patience_s": 1.0, **more})
    await store.begin_term()
    await store.load()
    putting = asyncio.ensure_future(store.run())

    async def stop() -> None:
        putting.cancel()
        with suppress(asyncio.CancelledError, Stale):
            await putting

    stack.push_async_callback(stop)
    return store


def event(uid: str, number: int, sentence: str = "said") -> RunEvent:
    return RunEvent(uid, number, 100.0 + number, "info", sentence, rank=1, attempt=0)


def entry(slot: str, hold: Hold = Hold.HELD) -> BookEntry:
    request = SlotRequest(
        slot=slot, run=RunRef(workspace="default", name="llama", uid="u1"), worker="llama-0", image="host", gpus=(0, 3)
    )
    return BookEntry(slot, "m1", "u1/1", request, hold, since=3.5, code=143, reason="the run ended")


async def test_a_new_store_is_empty(case: Case) -> None:
    loaded = await case.store.load()
    assert (loaded.readings, loaded.runs, loaded.book, loaded.last_event) == ((), (), (), {})


async def test_every_term_is_higher_than_all_before_also_after_a_restart(case: Case) -> None:
    terms = [await case.store.begin_term(), await case.store.begin_term(), await (await case.again()).begin_term()]
    assert terms == sorted(set(terms))


async def test_what_was_committed_is_there_after_a_restart_as_it_was(case: Case) -> None:
    run = record(machines=3, gpus=6)
    slot = Slot("llama-u1-0", "m1", gpus=(1, 2), attempts=(AttemptSeen(0, "exited", code=137, oom=True),), rev=4)
    workers = (replace(run.state.workers[0], slot=slot), *run.state.workers[1:])
    proof = Proof(("llama-u1-0", "llama-u1-1"), 11.5, "sick", "m2 is slow", blamed=("m2",))
    state = replace(run.state, workers=workers, avoid=(("m2", 12.5),), phase=Phase.RUNNING, proof=proof)
    run = RunRecord(run.spec, replace(state, policy=replace(state.policy, preflight=True, prove_s=7.5)))
    await case.store.commit(Batch(NOW, runs=(run,), events=(event("u1", 1),), book=(entry("llama-u1-0"),)))
    loaded = await (await case.again()).load()
    assert loaded.runs == (run,)
    assert loaded.book == (entry("llama-u1-0"),)
    assert loaded.readings == (NOW,)
    assert loaded.last_event == {"u1": 1}


async def test_writing_a_batch_twice_leaves_what_writing_it_once_does(case: Case) -> None:
    batch = Batch(NOW, runs=(record(),), events=(event("u1", 1), event("u1", 2)), book=(entry("a"),))
    await case.store.commit(batch)
    once = await case.store.load()
    await case.store.commit(batch)
    assert await case.store.load() == once
    assert len(await case.store.events("u1", 0, 10)) == 2


async def test_a_newer_state_replaces_the_older_and_runs_stay_in_order_of_submission(case: Case) -> None:
    first, second = record("a", uid="u1", now=1.0), record("b", uid="u2", now=2.0)
    await case.store.commit(Batch(NOW, runs=(first, second)))
    changed = RunRecord(first.spec, replace(first.state, phase=Phase.RUNNING))
    await case.store.commit(Batch(NOW, runs=(changed,)))
    assert (await case.store.load()).runs == (changed, second)


async def test_events_come_in_order_after_the_one_that_is_known(case: Case) -> None:
    await case.store.commit(Batch(NOW, events=(*(event("u1", n) for n in range(1, 8)), event("u2", 1))))
    assert [e.id for e in await case.store.events("u1", 2, 3)] == [3, 4, 5]
    assert await case.store.events("u1", 7, 3) == ()
    assert await case.store.events("nobody", 0, 3) == ()


async def test_a_forgotten_run_leaves_nothing(case: Case) -> None:
    await case.store.commit(Batch(NOW, runs=(record(),), events=(event("u1", 1),), book=(entry("a"),)))
    await case.store.commit(Batch(NOW, forget_runs=("u1",), forget_slots=("a",)))
    loaded = await case.store.load()
    assert (loaded.runs, loaded.last_event, loaded.book) == ((), {}, ())
    assert await case.store.events("u1", 0, 10) == ()


async def test_the_newest_reading_of_each_boot_is_kept_oldest_boot_first(case: Case) -> None:
    later, other = replace(NOW, seconds=130.0, boottime_s=80.0), Reading("boot-2", 140.0, 1.0, 1_700_000_100.0)
    for reading in (NOW, later, other):
        await case.store.commit(Batch(reading))
    assert (await case.store.load()).readings == (later, other)


# SQLite alone --------------------------------------------------------------------------------------------------------


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await open_store(tmp_path)
    yield store
    await store.close()


async def test_a_second_coordinator_on_the_same_state_dir_is_refused(sqlite: SqliteStore, tmp_path: Path) -> None:
    with pytest.raises(Conflict, match=rf"state_dir {tmp_path} is in use by another coordinator \(process \d+\)"):
        await open_store(tmp_path)


async def test_a_store_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    await (await open_store(tmp_path)).close()
    with sqlite3.connect(tmp_path / "coordinator.db") as db:
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    db.close()
    with pytest.raises(InvalidRequest, match=f"newer version \\(schema {SCHEMA_VERSION + 1}"):
        await open_store(tmp_path)


async def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "coordinator.db").write_bytes(b"not a database at all, " * 100)
    with pytest.raises(InvalidRequest, match="damaged or no store"):
        await open_store(tmp_path)


async def test_a_record_that_can_not_be_read_is_named(sqlite: SqliteStore, tmp_path: Path) -> None:
    await sqlite.commit(Batch(NOW, runs=(record(),)))
    with sqlite3.connect(tmp_path / "coordinator.db") as db:
        db.execute("UPDATE runs SET state = replace(state, 'pending', 'dreaming')")
    db.close()
    with pytest.raises(InvalidRequest, match="phase"):
        await sqlite.load()


async def test_a_full_disk_is_a_sentence_and_leaves_no_half_batch(sqlite: SqliteStore) -> None:
    await sqlite.commit(Batch(NOW, runs=(record("a", uid="u1"),)))
    limit = "PRAGMA max_page_count = 1"  # as a full disk does: SQLITE_FULL
    await sqlite._do(lambda db: db.execute(limit).fetchall())
    long = tuple(event("u1", n, "x" * 4000) for n in range(1, 200))
    with pytest.raises(Unavailable, match="is full; nothing was recorded: make room"):
        await sqlite.commit(Batch(NOW, runs=(record("b", uid="u2"),), events=long))
    await sqlite._do(lambda db: db.execute("PRAGMA max_page_count = 1073741823").fetchall())
    assert [run.state.uid for run in (await sqlite.load()).runs] == ["u1"]
    assert await sqlite.events("u1", 0, 10) == ()
    await sqlite.commit(Batch(NOW, runs=(record("b", uid="u2"),), events=long))
    assert len((await sqlite.load()).runs) == 2


async def test_a_file_that_another_program_locks_is_a_sentence(tmp_path: Path) -> None:
    store = await open_store(tmp_path, busy_timeout_s=0.05)
    other = sqlite3.connect(tmp_path / "coordinator.db", isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="locked by another program"):
            await store.commit(Batch(NOW))
        other.execute("ROLLBACK")
        await store.commit(Batch(NOW))
    finally:
        other.close()
        await store.close()


async def test_a_state_dir_that_can_not_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match=r"state_dir .* can't be used"):
        await open_store(tmp_path / "file" / "below")


async def test_a_commit_whose_caller_is_cancelled_is_whole(sqlite: SqliteStore) -> None:
    batch = Batch(NOW, runs=(record(),), events=tuple(event("u1", n) for n in range(1, 500)))
    task = asyncio.ensure_future(sqlite.commit(batch))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    loaded = await sqlite.load()
    assert (len(loaded.runs), loaded.last_event) in ((1, {"u1": 499}), (0, {}))


async def test_only_the_newest_events_of_a_run_are_kept(sqlite: SqliteStore) -> None:
    await sqlite.commit(Batch(NOW, events=tuple(event("u1", n) for n in range(1, EVENTS_KEPT + 51))))
    kept = await sqlite.events("u1", 0, EVENTS_KEPT + 100)
    assert (kept[0].id, len(kept)) == (51, EVENTS_KEPT)


def test_every_commit_reaches_the_disk_before_it_returns(tmp_path: Path) -> None:
    """The settings that make it so, as SQLite itself names them."""

    async def setting(store: SqliteStore, name: str) -> object:
        return (await store._do(lambda db: db.execute(f"PRAGMA {name}").fetchone()))[0]

    async def settings() -> SimpleNamespace:
        store = await open_store(tmp_path)
        try:
            return SimpleNamespace(**{name: await setting(store, name) for name in ("synchronous", "journal_mode")})
        finally:
            await store.close()

    found = asyncio.run(settings())
    assert (found.synchronous, found.journal_mode) == (2, "wal")
