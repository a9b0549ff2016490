"""What records in Nomad Variables promise beside what every store does: one term at a time, nothing half written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

from astra_agent.errors import InvalidRequest, Stale, Unavailable
from astra_gang.clock import Reading
from astra_gang.engines.nomad.api import NomadApi
from astra_gang.engines.nomad.documents import is_part
from astra_gang.engines.nomad.office import LeaseOffice, LockOffice, Office, office
from astra_gang.engines.nomad.shelf import Shelf
from astra_gang.engines.nomad.store import NomadStore
from astra_gang.engines.nomad.transport import Access
from astra_gang.store import EVENTS_KEPT, Batch, RunEvent
from tests.fakes.eventually import until
from tests.fakes.nomad.cluster import FakeNomad
from tests.fakes.nomad.recorded import VERSIONS
from tests.fakes.nomad.server import NomadServer
from tests.fakes.runs import record

NOW = Reading("boot-1", seconds=100.0, boottime_s=50.0, wall_s=1_700_000_000.0)


@pytest.fixture(params=VERSIONS)
async def server(request: pytest.FixtureRequest) -> AsyncIterator[NomadServer]:
    made = NomadServer(FakeNomad(request.param))
    async with made.serving():
        yield made


@asynccontextmanager
async def coordinator(server: NomadServer, carried_max: int = 10**6) -> AsyncIterator[NomadStore]:
    """Its records, in a new term. Nothing is put into its own place unless *carried_max* is small."""
    async with NomadApi(Access(server.url), patience_s=0.1) as api:
        store = NomadStore(Shelf(api), "astra", carried_max=carried_max, patience_s=0.3)
        await store.begin_term()
        await store.load()
        putting = asyncio.ensure_future(store.run())
        yield store
        putting.cancel()
        with suppress(asyncio.CancelledError, Stale):
            await putting


def event(number: int, sentence: str = "said") -> RunEvent:
    return RunEvent("u1", number, 100.0 + number, "info", sentence)


async def uids(server: NomadServer) -> list[str]:
    async with coordinator(server) as store:
        return [run.state.uid for run in (await store.load()).runs]


# One term at a time --------------------------------------------------------------------------------------------------


async def test_a_coordinator_of_an_older_term_can_record_nothing_any_more(server: NomadServer) -> None:
    async with coordinator(server) as old, coordinator(server) as new:
        with pytest.raises(Stale, match=r"another coordinator has taken over \(term 2, this one had 1\)"):
            await old.commit(Batch(NOW, runs=(record("a", uid="u1"),)))
        await new.commit(Batch(NOW, runs=(record("b", uid="u2"),)))
        assert [run.state.uid for run in (await new.load()).runs] == ["u2"]


async def test_what_an_older_coordinator_still_puts_away_does_no_harm(server: NomadServer) -> None:
    async with coordinator(server) as old:
        await old.commit(Batch(NOW, runs=(record("a", uid="u1"),)))
        async with coordinator(server) as new:
            await new.commit(Batch(NOW, forget_runs=("u1",), runs=(record("b", uid="u2"),)))
            await old._put_away()
            await new.commit(Batch(NOW, runs=(record("c", uid="u3"),)))
    assert await uids(server) == ["u2", "u3"]


async def test_terms_that_begin_at_the_same_moment_differ(server: NomadServer) -> None:
    async with NomadApi(Access(server.url)) as api:
        stores = [NomadStore(Shelf(api), "astra") for _ in range(4)]
        assert sorted(await asyncio.gather(*(store.begin_term() for store in stores))) == [1, 2, 3, 4]


async def test_every_record_carries_the_term_that_wrote_it(server: NomadServer) -> None:
    async with coordinator(server, carried_max=0) as store:
        await store.commit(Batch(NOW, runs=(record("a", uid="u1"),)))
        await until(lambda: "astra/runs/u1" in server.variables.paths)
    assert {server.variables.items(path)["written"].split("-")[0] for path in server.variables.paths} == {"1"}


# Nothing half written ------------------------------------------------------------------------------------------------


async def test_a_batch_is_there_whole_or_not_at_all_wherever_it_is_cut_short(server: NomadServer) -> None:
    """Its coordinator is killed after every number of writes, big documents in several parts included."""
    large = tuple(record(f"large-{i}", machines=64, uid=f"large{i}") for i in range(3))
    batch = Batch(NOW, runs=large, events=tuple(event(n, "x" * 900) for n in range(1, 130)))
    for survived_writes in range(40):
        fresh = NomadServer(FakeNomad(server.nomad.version))
        async with fresh.serving():
            async with coordinator(fresh, carried_max=0) as store:
                fresh.variables.writes_left = survived_writes
                done = False
                with suppress(Unavailable):
                    await store.commit(batch)
                    done = True
                fresh.variables.writes_left = None
            async with coordinator(fresh) as next_one:
                loaded = await next_one.load()
                assert (len(loaded.runs), loaded.last_event) in ((3, {"u1": 129}), (0, {})), survived_writes
                assert loaded.runs == large or not done
                assert len(await next_one.events("u1", 0, 500)) == loaded.last_event.get("u1", 0)


async def test_an_answer_that_was_lost_is_no_failure(server: NomadServer) -> None:
    async with coordinator(server) as store:
        server.variables.lost_answers = 1
        await store.commit(Batch(NOW, runs=(record("a", uid="u1"),)))
        await store.commit(Batch(NOW, runs=(record("b", uid="u2"),)))
    assert await uids(server) == ["u1", "u2"]


async def test_what_was_refused_to_its_caller_is_gone_with_the_next_commit(server: NomadServer) -> None:
    """Nomad wrote it and nobody heard: the coordinator has said that it is not recorded."""
    async with coordinator(server) as store:
        server.variables.lost_answers = 1
        server.variables.deaf_after_loss = True
        with pytest.raises(Unavailable, match="nothing is recorded: Nomad does not answer at"):
            await store.commit(Batch(NOW, runs=(record("a", uid="u1"),)))
        server.variables.deaf_after_loss = False
        server.down = False
        await store.commit(Batch(NOW, runs=(record("b", uid="u2"),)))
    assert await uids(server) == ["u2"]


@pytest.mark.parametrize(
    ("status", "text", "sentence"),
    [
        (500, "No cluster leader", "Nomad has no leader now, so it can't write variable astra/head"),
        (
            500,
            "rpc error: failed to get conn: dial tcp 127.0.0.1:4757: connect: connection refused",
            r"write variable astra/head: the server that it asks for that does not answer \(rpc error: failed to get",
        ),
        (429, "", "Nomad is too busy to write variable astra/head"),
        (
            403,
            "Permission denied",
            r'it lacks variables write; its policy needs the line namespace "default" \{ variables \{ path "astra/\*"',
        ),
        (403, "ACL token expired", "does not know a caller without a token: it has expired .* .ACL token expired."),
    ],
)
async def test_while_nomad_refuses_nothing_is_recorded_and_the_reason_is_told(
    server: NomadServer, status: int, text: str, sentence: str
) -> None:
    async with coordinator(server) as store:
        server.variables.refusing = (status, text)
        with pytest.raises(Unavailable, match=sentence):
            await store.commit(Batch(NOW, runs=(record("a", uid="u1"),)))
        server.variables.refusing = None
        await store.commit(Batch(NOW, runs=(record("b", uid="u2"),)))
    assert await uids(server) == ["u2"]


# Size ----------------------------------------------------------------------------------------------------------------


async def test_a_run_of_a_thousand_workers_fits_and_its_old_parts_go(server: NomadServer) -> None:
    run = record("large", machines=1000, uid="u1")
    async with coordinator(server, carried_max=0) as store:
        for _ in range(3):
            await store.commit(Batch(NOW, runs=(run,)))
        await until(lambda: "astra/runs/u1" in server.variables.paths)
        await store.commit(Batch(NOW))
        assert (await store.load()).runs == (run,)
    async with coordinator(server):
        parts = [path for path in server.variables.paths if is_part(path)]
        of_now = {path.rpartition("/part-")[2].rpartition("-")[0] for path in parts if "/runs/" in path}
        assert len(of_now) <= 1, "parts of older writings are gone"


async def test_an_idle_head_carries_little_and_documents_are_put_in_their_places(server: NomadServer) -> None:
    async with coordinator(server, carried_max=2000) as store:
        for i in range(30):
            await store.commit(Batch(NOW, runs=(record(f"r{i}", uid=f"u{i}"),)))
        await until(lambda: sum("/runs/" in path for path in server.variables.paths) >= 25)
        await store.commit(Batch(NOW))
        assert len(json.dumps(server.variables.items("astra/head"))) < 20_000
    assert len(await uids(server)) == 30


async def test_only_the_newest_events_of_a_run_are_kept(server: NomadServer) -> None:
    last = EVENTS_KEPT + 251
    async with coordinator(server, carried_max=0) as store:
        for first in range(1, last + 1, 2000):
            numbers = range(first, min(first + 2000, last + 1))
            await store.commit(Batch(NOW, events=tuple(event(n) for n in numbers)))
        kept = await store.events("u1", 0, EVENTS_KEPT + 100)
        assert (kept[0].id, len(kept)) == (252, EVENTS_KEPT)
    assert "astra/events/u1/0" not in server.variables.paths


# Damage --------------------------------------------------------------------------------------------------------------


async def test_records_of_a_newer_version_are_refused_and_left_as_they_are(server: NomadServer) -> None:
    async with NomadApi(Access(server.url)) as api:
        text = json.dumps({"term": 3, "schema": 2})
        await api.put_variable("astra/head", {"json": text, "written": "3-0"}, cas=0)
        with pytest.raises(InvalidRequest, match=r"written by a newer version .schema 2; this one reads 1"):
            await NomadStore(Shelf(api), "astra").begin_term()
    assert server.variables.items("astra/head")["json"] == text


async def test_a_variable_that_somebody_wrote_by_hand_is_named(server: NomadServer) -> None:
    async with NomadApi(Access(server.url)) as api:
        await api.put_variable("astra/runs/u1", {"note": "hello"}, cas=0)
        store = NomadStore(Shelf(api), "astra")
        await store.begin_term()
        with pytest.raises(InvalidRequest, match="variable astra/runs/u1 is damaged"):
            await store.load()


# The office ----------------------------------------------------------------------------------------------------------


def quick(api: NomadApi, version: str, name: str) -> Office:
    if version.startswith("1.6"):
        return LeaseOffice(api, "astra/lease", name, lease_s=0.3, look_s=0.02, renew_s=0.05)
    return LockOffice(api, "astra/lock", name, look_s=0.02, renew_s=0.05)


@pytest.fixture
async def offices(server: NomadServer) -> AsyncIterator[tuple[Office, Office]]:
    async with AsyncExitStack() as stack:
        apis = [await stack.enter_async_context(NomadApi(Access(server.url), patience_s=0.1)) for _ in range(2)]
        yield quick(apis[0], server.nomad.version, "one"), quick(apis[1], server.nomad.version, "two")


async def test_of_two_coordinators_that_start_at_once_one_waits(offices: tuple[Office, Office]) -> None:
    taking = [asyncio.ensure_future(office.take()) for office in offices]
    done, waiting = await asyncio.wait(taking, timeout=0.2, return_when=asyncio.ALL_COMPLETED)
    assert (len(done), len(waiting)) == (1, 1)
    for task in waiting:
        task.cancel()


async def test_one_that_is_killed_is_followed_by_the_one_that_waits(offices: tuple[Office, Office]) -> None:
    one, two = offices
    await one.take()
    keeping = asyncio.ensure_future(one.keep())
    waiting = asyncio.ensure_future(two.take())
    await asyncio.sleep(0.6)
    assert not waiting.done(), "the office is renewed"
    keeping.cancel()
    async with asyncio.timeout(5):
        await waiting


async def test_one_that_ends_in_order_is_followed_at_once(offices: tuple[Office, Office]) -> None:
    one, two = offices
    await one.take()
    await one.leave()
    async with asyncio.timeout(0.25):
        await two.take()


async def test_one_that_lost_it_while_it_was_away_ends(server: NomadServer, offices: tuple[Office, Office]) -> None:
    one, two = offices
    await one.take()
    server.variables.expire_locks()
    async with asyncio.timeout(5):
        await two.take()
        with pytest.raises(Stale, match="this one ends; workers go on"):
            await one.keep()


@pytest.fixture
async def lapsed(server: NomadServer, offices: tuple[Office, Office]) -> AsyncIterator[asyncio.Task[None]]:
    """The keeping of the first office, which Nomad has refused for longer than it lasts, and does not any more."""
    one, _ = offices
    await one.take()
    keeping = asyncio.create_task(one.keep())
    server.variables.refusing = (403, "Permission denied")
    await asyncio.sleep(2 * server.variables.lock_lasts_s)
    server.variables.refusing = None
    yield keeping
    keeping.cancel()


async def test_one_that_lost_it_to_nobody_while_nomad_refused_it_has_it_again(
    offices: tuple[Office, Office], lapsed: asyncio.Task[None]
) -> None:
    _, two = offices
    await asyncio.sleep(0.2)
    waiting = asyncio.create_task(two.take())
    await asyncio.sleep(0.2)
    assert (lapsed.done(), waiting.done()) == (False, False)
    waiting.cancel()


async def test_one_that_lost_it_to_one_who_has_left_again_ends(
    offices: tuple[Office, Office], lapsed: asyncio.Task[None]
) -> None:
    """Whoever had it may have begun a term."""
    one, two = offices
    lapsed.cancel()
    await two.take()
    await two.leave()
    with pytest.raises(Stale, match=r"another coordinator has (had )?the (lock|lease)"):
        async with asyncio.timeout(5):
            await one.keep()


async def test_while_nomad_is_away_the_office_is_kept(server: NomadServer, offices: tuple[Office, Office]) -> None:
    one, _ = offices
    await one.take()
    keeping = asyncio.ensure_future(one.keep())
    server.variables.lock_lasts_s = 60.0
    server.nomad.broken = [(500, "No cluster leader")] * 2
    await asyncio.sleep(0.3)
    assert not keeping.done()
    keeping.cancel()


async def test_one_whose_renewal_was_not_answered_still_has_it(
    server: NomadServer, offices: tuple[Office, Office]
) -> None:
    one, _ = offices
    await one.take()
    keeping = asyncio.ensure_future(one.keep())
    server.variables.lost_answers = 1
    await asyncio.sleep(0.3)
    assert not keeping.done()
    keeping.cancel()


@pytest.mark.parametrize(
    ("version", "kind"), [((1, 6, 5), LeaseOffice), ((1, 7, 0), LockOffice), ((2, 0, 5), LockOffice)]
)
async def test_a_lock_is_asked_for_only_where_servers_have_locks(version: tuple[int, int, int], kind: type) -> None:
    """1.6 answers a lock request with 200, locks nothing, and overwrites the variable: every contender would win."""
    assert isinstance(office(NomadApi(Access("http://127.0.0.1:1")), version, "astra", "me"), kind)


async def test_a_lock_that_a_server_does_not_give_is_none() -> None:
    server = NomadServer(FakeNomad("1.6.5"))
    async with server.serving(), NomadApi(Access(server.url), patience_s=0.1) as api:
        taking = asyncio.ensure_future(LockOffice(api, "astra/lock", "me", look_s=0.02).take())
        await asyncio.sleep(0.1)
        assert not taking.done()
        taking.cancel()
