"""The event stream: a reason to look, never the truth; refused in silence, cut, repeated, full of others' business."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from astra_agent.errors import Unavailable
from astra_gang.engines.nomad.api import NomadApi
from astra_gang.engines.nomad.transport import Access
from astra_gang.engines.nomad.wake import EVERYTHING, Wake, Wakes, wakes
from tests.fakes.eventually import until
from tests.fakes.nomad import recorded
from tests.fakes.nomad.cluster import FakeNomad
from tests.fakes.nomad.server import NomadServer


@pytest.fixture(params=recorded.VERSIONS)
async def server(request: pytest.FixtureRequest) -> AsyncIterator[NomadServer]:
    made = NomadServer(FakeNomad(request.param))
    async with made.serving():
        yield made


class Ears:
    def __init__(self) -> None:
        self.heard: list[Wake] = []
        self.stream: Wakes

    def jobs(self) -> list[str]:
        return [wake.job for wake in self.heard if wake.topic == "Job"]


@asynccontextmanager
async def listening(server: NomadServer, namespace: str = "default") -> AsyncIterator[Ears]:
    ears = Ears()
    async with NomadApi(Access(server.url)) as api:
        ears.stream = Wakes(api.transport, ears.heard.append, namespace=namespace, first_line_s=0.2, again_first_s=0.02)
        running = asyncio.ensure_future(ears.stream.run())
        yield ears
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def test_after_every_start_everybody_looks_once(server: NomadServer) -> None:
    async with listening(server) as ears:
        await until(lambda: ears.heard == [EVERYTHING])


async def test_what_happens_to_a_job_wakes_who_waits_for_it(server: NomadServer) -> None:
    async with listening(server) as ears:
        await until(lambda: bool(ears.heard))
        server.nomad.bump("Allocation", "a1", "default", "llama-u1-1")
        await until(lambda: Wake("Allocation", "a1", "default", "llama-u1-1") in ears.heard)
        assert ears.stream.trouble is None


async def test_other_namespaces_are_none_of_our_business(server: NomadServer) -> None:
    """1.6 delivers the events of all of them to a token that may read one."""
    async with listening(server, "team-a") as ears:
        await until(lambda: bool(ears.heard))
        server.nomad.bump("Job", "theirs", "team-b", "theirs")
        server.nomad.bump("Job", "ours", "team-a", "ours")
        await until(lambda: "ours" in ears.jobs())
        assert "theirs" not in ears.jobs()


async def test_a_stream_without_a_first_line_is_refused(server: NomadServer) -> None:
    server.stream = "silent"
    async with listening(server) as ears:
        await until(lambda: ears.stream.trouble)
        assert "refuses its event stream without a word (no line within 0.2 s)" in str(ears.stream.trouble)
        assert ears.heard == []


async def test_a_refusal_in_words_is_told(server: NomadServer) -> None:
    server.stream = "refused"
    async with listening(server) as ears:
        await until(lambda: ears.stream.trouble)


async def test_a_refusal_of_1_6_names_the_rights_and_the_identities_that_it_does_not_take() -> None:
    """It refuses both in the same words."""
    server = NomadServer(FakeNomad(recorded.VERSIONS[0]))
    server.stream = "refused"
    async with server.serving(), listening(server) as ears:
        await until(lambda: ears.stream.trouble)
        said = str(ears.stream.trouble)
        assert 'it lacks read-job or node read; its policy needs the line node { policy = "read" }' in said
        assert "the identity of a job follows events from Nomad 1.9.6 on only" in said


@pytest.mark.parametrize("end", ["cut", "words"])
async def test_a_stream_that_ends_in_whatever_way_is_taken_up_again_and_everybody_looks(
    server: NomadServer, end: str
) -> None:
    server.stream = end
    async with listening(server) as ears:
        await until(lambda: len(ears.heard) >= 2)
        server.stream = "open"
        await until(lambda: ears.stream.trouble is None and len(ears.heard) >= 3)
        server.nomad.bump("Job", "j", "default", "j")
        await until(lambda: "j" in ears.jobs())
        assert ears.heard.count(EVERYTHING) >= 3


@pytest.mark.parametrize("version", recorded.VERSIONS)
def test_the_lines_of_a_real_stream_are_read(version: str) -> None:
    heard = [wake for line in recorded.body(version, "event-stream") for wake in wakes(json.dumps(line).encode())]
    assert {wake.topic for wake in heard} <= {"Job", "Evaluation", "Allocation", "Node"}
    assert all(wake.job for wake in heard if wake.topic != "Node")


@pytest.mark.parametrize("line", [b"event dropped from buffer", b'{"Events":[{"Filt', b"[1]", b'{"Events":[1]}'])
def test_a_line_that_is_no_event_is_the_end_of_the_stream(line: bytes) -> None:
    with pytest.raises(Unavailable, match="Nomad ended its event stream"):
        wakes(line)


@pytest.mark.parametrize("line", [b"{}", b"", b'{"Index":7}', b'{"Events":null}'])
def test_a_heartbeat_wakes_nobody(line: bytes) -> None:
    assert wakes(line) == []
