"""
The coordinator's policy on a real server with ACLs: it is enough, and each line of it is needed, with a sentence that
names it.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
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
from tests.fakes.eventually import eventually
from tests.fakes.runs import record
from tests.house.tree import ROOT
from tests.nomad.cluster import NomadCluster, Ran, made
from tests.nomad.loopback import LoopbackServer, loopback_server, token_with

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


OTHERS = {name: (ROOT / f"deploy/nomad/{name}-policy.hcl").read_text() for name in ("user", "operator")}
JOB = (ROOT / "examples/nomad/hello.nomad.hcl").read_text()
POOL = (ROOT / "deploy/nomad/gpu-pool.hcl").read_text()
MAY = {
    "user": (("job", "run", "-detach", "-"), ("job", "status", "hello"), ("job", "status"), ("node", "status")),
    "operator": (
        ("node", "pool", "apply", "-"), ("job", "run", "-detach", "-"), ("job", "status", "hello"), ("job", "status"),
        ("var", "put", "-force", "nomad/jobs/astra-coordinator", "operator_token=x"),
    ),
}  # fmt: skip
"""Commands of the policies' own comments, as far as a server without clients can answer them."""


def as_user(server: LoopbackServer, token: str, words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NOMAD_ADDR": server.url, "NOMAD_TOKEN": token}
    given = POOL if words[:2] == ("node", "pool") else JOB if words[-1] == "-" else None
    return subprocess.run(
        (str(server.binary), *words), input=given, env=environment, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip


@pytest.mark.parametrize("who", sorted(MAY))
def test_people_may_do_what_their_policy_is_for_and_no_more(server: LoopbackServer, who: str) -> None:
    token = server.token_with(f"{who}-{uuid.uuid4().hex[:8]}", OTHERS[who])
    for words in MAY[who]:
        done = as_user(server, token, words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
    for words in (("acl", "token", "list"), ("operator", "scheduler", "set-config", "-memory-oversubscription=true")):
        assert "403" in as_user(server, token, words).stderr
    if who == "user":
        assert "403" in as_user(server, token, ("node", "pool", "apply", "-")).stderr
        assert as_user(server, token, ("var", "get", "nomad/jobs/astra-coordinator")).returncode != 0


# Each line of people's policies, with a client ------------------------------------------------------------------------

BY_BOTH = {
    "submit-job": ("job", "run", "-detach", "-"),
    "read-job": ("job", "status", "hello"),
    "list-jobs": ("job", "status"),
    "read-logs": ("alloc", "logs", "ALLOCATION"),
}
NEEDED_BY = {
    "user": {
        **BY_BOTH,
        "read-fs": ("alloc", "fs", "ALLOCATION", "alloc/logs/hello.stdout.0"),
        "alloc-exec": ("alloc", "exec", "-i=false", "-t=false", "ALLOCATION", "true"),
        "alloc-lifecycle": ("alloc", "restart", "ALLOCATION"),
        "node": ("node", "status"),
    },
    "operator": {
        **BY_BOTH,
        "node": ("node", "eligibility", "-enable", "NODE"),
        "node_pool": ("node", "pool", "apply", "-"),
        "write": ("var", "put", "-force", "nomad/jobs/astra-coordinator", "operator_token=x"),
        "read": ("var", "get", "nomad/jobs/astra-coordinator"),
        "destroy": ("var", "purge", "nomad/jobs/astra-coordinator"),
    },
}
"""A command for each line of a policy, named by its capability, or by the word that its block begins with."""
REFUSED = ("403", "ermission denied", "Variable not found")
"""The last by 1.6.5, of one that is there."""
LOGS_BY_FILES = ("user", "read-logs")
"""Nomad shows logs as well to whoever may read all files."""


def test_there_is_a_command_for_each_line() -> None:
    for who, needed in NEEDED_BY.items():
        there = re.findall(r'^\s+"([a-z-]+)",', OTHERS[who], re.MULTILINE)
        assert set(there) | {"node"} <= set(needed), who


def less(policy: str, line: str) -> str:
    """The policy without what is said in this line, or in the block that begins with it."""
    return re.sub(
        rf'^ *"{line}",[^\n]*$|^( *){line}\b[^\n]*\{{\n.*?^\1\}}$', "", policy, flags=re.MULTILINE | re.DOTALL
    )


@pytest.fixture(scope="module")
def cluster(binary: Path) -> Iterator[NomadCluster]:
    """With ACLs; on it the example runs, for long."""
    with made(binary, acl=True) as one:
        one.nomad("job", "run", "-detach", "-", stdin=JOB.replace("sleep 20", "sleep 3000"))
        one.reaches("hello", "running")
        one.nomad("var", "put", "nomad/jobs/astra-coordinator", "operator_token=x")
        yield one


def answered(cluster: NomadCluster, words: list[str], given: str, token: str) -> Ran | None:
    """None while a client that 1.6.5 has ended by its own panic, at the end of an exec, is not back."""
    ran = cluster.run(*words, stdin=given, token=token)
    return None if "No path to node" in ran.err else ran


@pytest.mark.parametrize(("who", "line"), [(who, line) for who, needed in NEEDED_BY.items() for line in needed])
def test_each_line_of_peoples_policies_is_needed(cluster: NomadCluster, who: str, line: str) -> None:
    names = {"ALLOCATION": cluster.allocation("hello")["ID"], "NODE": cluster.node()["ID"]}
    words = [names.get(word, word) for word in NEEDED_BY[who][line]]
    given = POOL if line == "node_pool" else JOB.replace('"hello"', '"other"') if words[-1] == "-" else ""
    without = less(OTHERS[who], line)
    assert without != OTHERS[who]
    if (who, line) == LOGS_BY_FILES:
        without = less(without, "read-fs")
    for policy in (without, OTHERS[who]):
        token = token_with(cluster.nomad, f"{who}-{uuid.uuid4().hex[:8]}", policy)
        done = eventually(lambda: answered(cluster, words, given, token), "Nomad has a way to the client")  # noqa: B023
        refused = done.code != 0 and any(word in done.err for word in REFUSED)
        assert refused == (policy == without), done
        assert refused or done.code == 0, done
