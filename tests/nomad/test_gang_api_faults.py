"""
Nomad's API answers what it should not, or not at all, while a gang runs: errors, a silent event stream, a token that is
none any more, a right that is missing. Workers go on, the user reads why nothing happens, and afterwards all goes on by
itself. The real Nomad is behind all of it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from astra_gang.engines.nomad.engine import LOOK_S
from tests.containers.dev_cluster import kill
from tests.fakes.eventually import eventually
from tests.house.tree import ROOT
from tests.nomad.cluster import NomadCluster
from tests.nomad.gangs import NomadGangs, nomad_gangs
from tests.nomad.loopback import token_with
from tests.nomad.proxy import Fault, Proxy
from tests.runs_over_http import Diary, Json, check_nothing_started_twice

pytestmark = pytest.mark.timeout(300)

PROXY_PORT = 4900
OUTLASTS_LOCK_S = 26.0
"""Nomad gives a lock that is not renewed to another after 21 s."""
NOTICED_S = LOOK_S + 10.0
"""What only Nomad knows, without a stream: the bound of deploy/nomad/README.md, and a slow test machine."""


def begun(gangs: NomadGangs, name: str, machines: int) -> Diary:
    """A gang that runs, and lets go when it is asked to."""
    diary = gangs.submit(name, machines=machines)
    diary.let_go()
    gangs.running(name, diary)
    return diary


def fails(gangs: NomadGangs, name: str, rank: int, attempt: int = 0) -> None:
    kill([gangs.program(name, rank, attempt)])


def restarted(gangs: NomadGangs, name: str, diary: Diary, allocations: list[str], attempt: int = 1) -> None:
    """Together, in the same allocations, and each worker runs."""
    status = gangs.running(name, diary, attempt)
    assert status["attempt"] == attempt, gangs.story(name)
    diary.work_on(attempt=attempt)
    assert gangs.running_allocations(gangs.job_of(name), len(allocations)) == allocations


def completes(gangs: NomadGangs, name: str, diary: Diary) -> None:
    diary.finish()
    gangs.ended(name, "Completed")
    check_nothing_started_twice(gangs, name, diary)
    gangs.settled()


def told(gangs: NomadGangs, name: str, sentence: str) -> None:
    """By the run's status, its command, and the health that machines look at."""
    status = gangs.until(name, lambda status: re.search(sentence, status["reason"]), f"{name} says {sentence}")
    assert status["phase"] in ("Running", "Pending"), status
    assert re.search(sentence, " ".join(gangs.astra("status", name).stdout.split()))
    code, said = gangs.coordinator.health()
    assert code == 503
    assert re.search(sentence, said), said


def no_more(gangs: NomadGangs, sentence: str) -> None:
    eventually(lambda: gangs.coordinator.health() == (200, "ok"), "nothing is wrong any more")
    for job in gangs.known("/workspaces/default/jobs")["items"]:
        assert not re.search(sentence, job["status"]["reason"])


def refused(gangs: NomadGangs, name: str, sentence: str) -> None:
    """A run that is submitted now does not exist, and its user reads why."""
    status, answer = gangs.ask("/workspaces/default/jobs", gangs.document(name, 1))
    assert status == 503, answer
    assert re.search(sentence, answer["error"]["message"]), answer
    assert not gangs.is_there(name)


# Answers -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def proxied(binary: Path) -> Iterator[tuple[NomadGangs, Proxy]]:
    with ExitStack() as stack:
        made: list[Proxy] = []

        def engine(cluster: NomadCluster) -> dict[str, str]:
            made.append(stack.enter_context(Proxy(cluster.netns, cluster.http, PROXY_PORT)))
            return {"address": made[0].url}

        gangs = stack.enter_context(nomad_gangs(binary, engine=engine, policy={"stop_grace_s": 2.0}))
        yield gangs, made[0]


@pytest.fixture
def gangs(proxied: tuple[NomadGangs, Proxy]) -> Iterator[NomadGangs]:
    yield proxied[0]
    proxied[0].stop_all()


@pytest.fixture
def proxy(proxied: tuple[NomadGangs, Proxy]) -> Proxy:
    return proxied[1]


_AWAY = rf"Nomad does not answer at http://127\.0\.0\.1:{PROXY_PORT} "
_BUSY = r"Nomad is too busy to .* \(HTTP 429\)"
ANSWERS = {
    "500": (Fault(status=500, text="rpc error: it broke"), r"Nomad can't .* \(HTTP 500: rpc error: it broke"),
    "429": (Fault(status=429, text="Your IP is issuing too many concurrent connections"), _BUSY),
    "429-retry-after": (Fault(status=429, headers={"Retry-After": "5"}), _BUSY),
    "no-answer": (Fault("hangs"), rf"{_AWAY}\(no answer within \d+ s"),
    "cut": (Fault("cuts"), _AWAY),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_whatever_nomad_answers_the_gang_runs_on_and_restarts_afterwards(
    gangs: NomadGangs, proxy: Proxy, kind: str
) -> None:
    fault, sentence = ANSWERS[kind]
    run = f"answered-{kind}"
    diary = begun(gangs, run, 3)
    before = gangs.running_allocations(gangs.job_of(run), 3)
    coordinator = gangs.coordinator.pid
    with proxy.failing(fault):
        back_s = time.monotonic() + (OUTLASTS_LOCK_S if kind == "500" else 0.0)
        fails(gangs, run, rank=1)
        told(gangs, run, sentence)
        refused(gangs, f"meanwhile-{kind}", sentence)
        time.sleep(max(0.0, back_s - time.monotonic()))
        diary.work_on(1)
        assert diary.ranks("start", 1) == [], "an attempt that is not on record"
        assert proxy.failed
    restarted(gangs, run, diary, before)
    no_more(gangs, sentence)
    assert gangs.coordinator.pid == coordinator
    completes(gangs, run, diary)


_ALL_BUT_RECORDS = r"^(?!\w+ /v1/vars?[/?])"


def test_a_gang_restarts_in_place_while_nomad_answers_nothing_about_jobs_and_nodes(
    gangs: NomadGangs, proxy: Proxy
) -> None:
    """Nomad is not asked for that; a run that waits for machines says what Nomad answers, and then gets them."""
    cores = next(iter(gangs.machines().values()))["cpu_cores"] * 0.9
    diary = gangs.submit("unasked", requested_resources={"machines": 3, "cpu_cores": cores})
    diary.let_go()
    gangs.running("unasked", diary)
    before = gangs.running_allocations(gangs.job_of("unasked"), 3)
    waiting = gangs.submit("waiting", requested_resources={"machines": 4, "cpu_cores": cores})
    waiting.let_go()
    gangs.until("waiting", lambda status: "cannot be placed" in status["reason"], "it waits for machines")
    with proxy.failing(Fault(status=500, text="not now", only=_ALL_BUT_RECORDS)):
        fails(gangs, "unasked", rank=1)
        gangs.running("unasked", diary, attempt=1)
        diary.work_on(attempt=1)
        assert gangs.coordinator.health() == (200, "ok")
        gangs.until("waiting", lambda status: "HTTP 500: not now" in status["reason"], "it says what it waits for")
        assert waiting.lines() == []
        assert proxy.failed
    restarted(gangs, "unasked", diary, before)
    diary.finish()
    gangs.ended("unasked", "Completed")
    status = gangs.running("waiting", waiting)
    assert "HTTP 500" not in status["reason"]
    completes(gangs, "waiting", waiting)
    check_nothing_started_twice(gangs, "unasked", diary)


def test_a_gang_ends_and_gives_back_its_machines_once_nomad_answers(gangs: NomadGangs, proxy: Proxy) -> None:
    diary = begun(gangs, "ending", 3)
    with proxy.failing(Fault(status=500, text="not now", only=_ALL_BUT_RECORDS)):
        diary.finish()
        eventually(lambda: diary.ranks("end", 0) == [0, 1, 2], "all workers have ended by themselves")
        eventually(lambda: proxy.failed, "Nomad is asked, and does not say")
    gangs.ended("ending", "Completed")
    check_nothing_started_twice(gangs, "ending", diary)
    gangs.settled()


# The event stream ----------------------------------------------------------------------------------------------------


def test_with_a_silent_stream_a_run_starts_and_a_stopped_allocation_is_noticed(gangs: NomadGangs, proxy: Proxy) -> None:
    with proxy.silent_stream():
        diary = begun(gangs, "unheard", 3)
        allocations = gangs.running_allocations(gangs.job_of("unheard"), 3)
        eventually(lambda: proxy.held_back, "the stream had something to say")
        gangs.cluster.nomad("alloc", "stop", "-detach", allocations[1])
        gangs.until("unheard", lambda status: status["attempt"] == 1, "its end is noticed")
        gangs.running("unheard", diary, attempt=1)
        assert [worker["failures"] for worker in gangs.status("unheard")["workers"]] == [0, 0, 0]
    completes(gangs, "unheard", diary)


def test_with_a_silent_stream_a_drain_is_noticed_by_the_clock(gangs: NomadGangs, proxy: Proxy) -> None:
    with proxy.silent_stream():
        diary = begun(gangs, "drained", 3)
        machine = gangs.ranks("drained")["items"][1]["machine"]
        seen = proxy.held_back
        gangs.nomad_node("drain", "-enable", "-deadline", "5m", machine)
        try:
            eventually(lambda: proxy.held_back > seen, "Nomad says so")
            eventually(lambda: 1 in diary.ranks("asked", 0), "the worker is asked", within_s=NOTICED_S)
            status = gangs.running("drained", diary, attempt=1)
            assert machine not in [worker["machine"] for worker in status["workers"]]
            assert [worker["failures"] for worker in status["workers"]] == [0, 0, 0]
        finally:
            gangs.nomad_node("drain", "-disable", machine)
            gangs.nomad_node("eligibility", "-enable", machine)
    completes(gangs, "drained", diary)


# The token -----------------------------------------------------------------------------------------------------------

POLICY = (ROOT / "deploy/nomad/coordinator-policy.hcl").read_text()
POLICY_NAME = "astra-coordinator"
SHORT_S = 5


class Token:
    """The file with the coordinator's token, and what its operator does."""

    def __init__(self, cluster: NomadCluster) -> None:
        self.file = cluster.folder / "nomad.token"
        self._cluster = cluster
        self._good = token_with(cluster.nomad, POLICY_NAME, POLICY)

    def write_good(self) -> None:
        self.file.write_text(f"{self._good}\n")

    def write_none(self, how: str) -> None:
        """One that expires, or is deleted, and is none from then on."""
        words = ("-type=client", f"-policy={POLICY_NAME}", f"-ttl={SHORT_S}s" if how == "expires" else "-ttl=1h")
        accessor, secret = self._cluster.nomad(
            "acl", "token", "create", *words, "-t={{.AccessorID}} {{.SecretID}}"
        ).split()  # fmt: skip
        self.file.write_text(f"{secret}\n")
        if how == "expires":
            time.sleep(SHORT_S + 1)
        else:
            self._cluster.nomad("acl", "token", "delete", accessor)

    def may(self, policy: str) -> None:
        self._cluster.nomad("acl", "policy", "apply", POLICY_NAME, "-", stdin=policy)


@pytest.fixture(scope="module")
def guarded(binary: Path) -> Iterator[tuple[NomadGangs, Token]]:
    """With ACLs, two machines."""
    made: list[Token] = []

    def engine(cluster: NomadCluster) -> dict[str, str]:
        made.append(Token(cluster))
        made[0].write_good()
        return {"token_file": str(made[0].file)}

    with nomad_gangs(binary, clients=2, cluster={"acl": True}, engine=engine, policy={"stop_grace_s": 2.0}) as gangs:
        yield gangs, made[0]


@pytest.fixture
def with_token(guarded: tuple[NomadGangs, Token]) -> Iterator[tuple[NomadGangs, Token]]:
    gangs, token = guarded
    yield gangs, token
    token.may(POLICY)
    token.write_good()
    gangs.stop_all()


@pytest.mark.parametrize("how", ["expires", "is-deleted"])
def test_a_token_that_is_none_any_more_is_named_and_a_new_one_in_its_file_is_enough(
    with_token: tuple[NomadGangs, Token], how: str
) -> None:
    gangs, token = with_token
    run = f"token-{how}"
    diary = begun(gangs, run, 2)
    before = gangs.running_allocations(gangs.job_of(run), 2)
    coordinator = gangs.coordinator.pid
    token.write_none(how)
    back_s = time.monotonic() + (OUTLASTS_LOCK_S if how == "expires" else 0.0)
    fails(gangs, run, rank=1)
    why = "expired" if how == "expires" else "was deleted"
    sentence = rf"Nomad does not know the token in {token.file}: it (has )?{why}.*; write a new one into the file"
    told(gangs, run, sentence)
    refused(gangs, f"meanwhile-{how}", sentence)
    time.sleep(max(0.0, back_s - time.monotonic()))
    diary.work_on(1)
    assert diary.ranks("start", 1) == []
    token.write_good()
    restarted(gangs, run, diary, before)
    no_more(gangs, sentence)
    assert gangs.coordinator.pid == coordinator
    completes(gangs, run, diary)


def without(line: str) -> str:
    found = re.sub(rf'^\s+"{line}",.*$', "", POLICY, flags=re.MULTILINE)
    assert found != POLICY
    return found


def test_without_the_right_to_write_records_the_gang_runs_on_and_its_line_is_named(
    with_token: tuple[NomadGangs, Token],
) -> None:
    gangs, token = with_token
    diary = begun(gangs, "unrecorded", 2)
    before = gangs.running_allocations(gangs.job_of("unrecorded"), 2)
    token.may(without("write"))
    fails(gangs, "unrecorded", rank=1)
    sentence = (
        rf"the token in {token.file} write variable astra/\S+: it lacks variables write; its policy needs the line "
        r'namespace "default" \{ variables \{ path "astra/\*" \{ capabilities = \["write"\] \} \} \}'
    )
    told(gangs, "unrecorded", sentence)
    refused(gangs, "meanwhile-unrecorded", sentence)
    diary.work_on(1)
    assert diary.ranks("start", 1) == []
    token.may(POLICY)
    restarted(gangs, "unrecorded", diary, before)
    no_more(gangs, sentence)
    completes(gangs, "unrecorded", diary)


@pytest.mark.parametrize(
    ("line", "doing", "rule"),
    [
        ("submit-job", "register job ", r'namespace "default" \{ capabilities = \["submit-job"\] \}'),
        ("read-job", "", r'namespace "\S+" \{ capabilities = \["read-job"\] \}'),
    ],
)
def test_without_a_right_about_jobs_a_gang_restarts_and_the_next_one_waits_with_its_line(
    with_token: tuple[NomadGangs, Token], line: str, doing: str, rule: str
) -> None:
    gangs, token = with_token
    run = f"lacks-{line}"
    diary = begun(gangs, run, 1)
    before = gangs.running_allocations(gangs.job_of(run), 1)
    token.may(without(line))
    fails(gangs, run, rank=0)
    restarted_alone(gangs, run, diary)
    sentence = rf"the token in {token.file} {doing}.*it lacks {line}; its policy needs the line {rule}"
    waiting, status, answer = asked(gangs, f"next-{line}")
    if status == 201:
        gangs.until(f"next-{line}", lambda status: re.search(sentence, status["reason"]), f"it says {sentence}")
    else:
        assert status == 503, answer
        assert re.search(sentence, answer["error"]["message"]), answer
    assert waiting.lines() == []
    diary.work_on(attempt=1)
    token.may(POLICY)
    if status != 201:
        status, answer = gangs.ask("/workspaces/default/jobs", gangs.document(f"next-{line}", 1))
        assert status == 201, answer
    gangs.running(f"next-{line}", waiting)
    restarted(gangs, run, diary, before)
    diary.finish()
    gangs.ended(run, "Completed")
    check_nothing_started_twice(gangs, run, diary)
    completes(gangs, f"next-{line}", waiting)


def restarted_alone(gangs: NomadGangs, name: str, diary: Diary) -> None:
    gangs.running(name, diary, attempt=1)
    diary.work_on(attempt=1)


def asked(gangs: NomadGangs, name: str) -> tuple[Diary, int, Json]:
    """A run of one worker, taken or refused."""
    diary = Diary(gangs.drive / name)
    diary.let_go()
    status, answer = gangs.ask("/workspaces/default/jobs", gangs.document(name, 1))
    return diary, status, answer
