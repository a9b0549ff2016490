"""
The coordinator's policy on a real server with ACLs: it is enough, and each line of it is needed, with a sentence that
names it.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from astra_agent.errors import AstraError, Unavailable
from astra_gang.clock import Reading
from astra_gang.engines.nomad.api import NomadApi
from astra_gang.engines.nomad.office import office
from astra_gang.engines.nomad.shelf import Shelf
from astra_gang.engines.nomad.store import NomadStore
from astra_gang.engines.nomad.transport import Access
from astra_gang.engines.nomad.wake import Wake, Wakes
from astra_gang.store import Batch
from tests.fakes.runs import record
from tests.house.tree import ROOT
from tests.nomad.loopback import LoopbackServer, loopback_server

pytestmark = pytest.mark.timeout(180)
POLICY = (ROOT / "deploy/nomad/coordinator-policy.hcl").read_text()
LINES = re.findall(r'^\s+"([a-z-]+)",', POLICY, re.MULTILINE)


@pytest.fixture(scope="module")
def server(binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackServer]:
    with loopback_server(binary, tmp_path_factory.mktemp("acl"), acl=True) as found:
        yield found


def access(server: LoopbackServer, folder: Path, policy: str) -> Access:
    token_file = folder / "token"
    token_file.write_text(server.token_with(f"p-{uuid.uuid4().hex[:8]}", policy))
    return Access(server.url, token_file)


async def everything(access: Access) -> None:
    """What a coordinator asks of Nomad, once."""
    async with NomadApi(access, patience_s=0.2) as api:
        version = (await api.members()).version()
        assert version is not None
        await records(api)
        held = office(api, version, f"astra/{uuid.uuid4().hex}", "me")
        async with asyncio.timeout(5):
            await held.take()
        await held.leave()
        await api.nodes("default")
        await api.live_allocations()
        await api.jobs_with("astra_run")
        name = f"probe-{uuid.uuid4().hex[:8]}"
        job = {"ID": name, "Namespace": "default", "Type": "batch", "TaskGroups": [GROUP], "Datacenters": ["*"]}
        await api.register(job, modify_index=0)
        await api.evaluations(name, "default")
        await api.allocations(name, "default")
        assert await api.job(name, "default") is not None
        await api.deregister(name, "default")
        await stream(api)


GROUP = {"Name": "g", "Count": 0, "Tasks": [{"Name": "t", "Driver": "astra", "Config": {"image": "host"}}]}


async def records(api: NomadApi) -> None:
    store = NomadStore(Shelf(api), f"astra/{uuid.uuid4().hex[:8]}", patience_s=0.5)
    await store.begin_term()
    await store.load()
    now = Reading("b", 1.0, 1.0, 1.0)
    await store.commit(Batch(now, runs=(record("a", uid="u1"),)))
    await store._put_away()
    await store.commit(Batch(now, forget_runs=("u1",)))
    await store._put_away()


async def stream(api: NomadApi) -> None:
    heard: asyncio.Queue[Wake] = asyncio.Queue()
    wakes = Wakes(api.transport, heard.put_nowait, namespace="default")
    following = asyncio.ensure_future(wakes.run())
    try:
        async with asyncio.timeout(5):
            await heard.get()
    except TimeoutError:
        raise Unavailable(wakes.trouble or "no event stream") from None
    finally:
        following.cancel()


async def test_the_policy_is_enough(server: LoopbackServer, tmp_path: Path) -> None:
    await everything(access(server, tmp_path, POLICY))


@pytest.mark.parametrize("line", LINES)
async def test_each_line_is_needed_and_named_when_it_is_missing(
    server: LoopbackServer, tmp_path: Path, line: str
) -> None:
    without = re.sub(rf'^\s+"{line}",.*$', "", POLICY, flags=re.MULTILINE)
    with pytest.raises(AstraError) as refused:
        await everything(access(server, tmp_path, without))
    assert re.search(rf"lacks (variables )?{line}; its policy needs the line namespace", str(refused.value))


async def test_machines_can_not_be_seen_without_the_right_to(server: LoopbackServer, tmp_path: Path) -> None:
    without = POLICY.replace('node {\n  policy = "read"\n}', "")
    with pytest.raises(Unavailable, match=r'its policy needs the line node \{ policy = "read" \}'):
        await everything(access(server, tmp_path, without))


async def test_a_token_that_is_deleted_is_named_with_its_file(server: LoopbackServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(str(uuid.uuid4()))
    async with NomadApi(Access(server.url, tmp_path / "token"), patience_s=0.2) as api:
        with pytest.raises(Unavailable, match=str(tmp_path / "token")):
            await api.nodes("default")
