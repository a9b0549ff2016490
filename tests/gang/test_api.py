"""The HTTP API as its callers meet it: documents, and a sentence for everything that is wrong."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from astra_agent.wire import LookAhead
from astra_gang.api import BODY_MAX
from astra_netprobe.messages import Open
from tests.fakes.cluster import OPERATOR, FakeCluster
from tests.fakes.eventually import until
from tests.fakes.runs import document


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[FakeCluster]:
    async with FakeCluster(tmp_path, machines=2) as made:
        await made.connected()
        yield made
        assert made.wrong() == []


async def run_of_two(cluster: FakeCluster, name: str = "llama") -> None:
    status, answer = await cluster.request("POST", "jobs", json=document(name))
    assert status == 201, answer
    await cluster.until_phase("running", name)


async def complete(cluster: FakeCluster, name: str = "llama", code: int = 0) -> None:
    for rank in range(2):
        agent, slot = cluster.slot(f"{name}-{rank}")
        await agent.exit(slot, code)
    await cluster.until_phase("Completed", name)


# Documents -----------------------------------------------------------------------------------------------------------


async def test_a_submitted_run_is_answered_with_its_whole_document(cluster: FakeCluster) -> None:
    status, job = await cluster.request("POST", "jobs", json=document())
    assert status == 201
    assert set(job) == {"metadata", "spec", "status"}
    assert job["metadata"]["name"] == "llama"
    assert job["metadata"]["workspace"] == "default"
    assert job["metadata"]["submitted_at"] == "2025-01-01T00:16:40.000Z"
    assert (job["spec"]["start"], job["spec"]["on_failure"]) == ("Gang", "RestartJob")
    assert (job["status"]["phase"], job["status"]["total"]) == ("Pending", 2)
    assert [worker["name"] for worker in job["status"]["workers"]] == ["llama-0", "llama-1"]


async def test_what_a_machine_knows_not_to_be_there_is_refused_and_nothing_is_recorded(cluster: FakeCluster) -> None:
    sentence = 'there is no image "pytorch:26"'
    for agent in cluster.agents.values():
        agent.looked_ahead = LookAhead(refusal=sentence, field="image")
    status, answer = await cluster.request("POST", "jobs", json=document())
    assert status == 400
    expected = {"message": sentence, "field": "spec.task_template.image", "code": "InvalidRequest"}
    assert answer["error"] == expected
    _, answer = await cluster.request("GET", "jobs")
    assert answer["items"] == []


async def test_a_machine_that_does_not_say_is_no_reason_to_refuse(cluster: FakeCluster) -> None:
    for agent in cluster.agents.values():
        agent.looked_ahead = None
    await run_of_two(cluster)


async def test_a_running_job_says_where_each_worker_is(cluster: FakeCluster) -> None:
    await run_of_two(cluster)
    status, job = await cluster.request("GET", "jobs/llama")
    assert (status, job["status"]["phase"], job["status"]["ready"]) == (200, "Running", 2)
    worker = job["status"]["workers"][0]
    agent, slot = cluster.slot("llama-0")
    assert worker == {
        "rank": 0,
        "name": "llama-0",
        "machine": agent.name,
        "state": "Running",
        "detail": "",
        "address": agent.facts.address,
        "slot": slot,
        "attempt": 0,
        "code": None,
        "failures": 0,
    }


async def test_an_ended_job_still_says_how_each_worker_ended_and_where(cluster: FakeCluster) -> None:
    await run_of_two(cluster)
    agent, _ = cluster.slot("llama-1")
    await complete(cluster)
    _, job = await cluster.request("GET", "jobs/llama")
    worker = job["status"]["workers"][1]
    assert (worker["state"], worker["code"], worker["machine"]) == ("Completed", 0, agent.name)
    assert job["status"]["ended_at"].endswith("Z")


async def test_a_list_has_the_newest_run_of_each_name(cluster: FakeCluster) -> None:
    await run_of_two(cluster, "a")
    await complete(cluster, "a")
    cluster.clock.advance(1)
    await run_of_two(cluster, "b")
    await complete(cluster, "b")
    cluster.clock.advance(1)
    await run_of_two(cluster, "a")
    _, answer = await cluster.request("GET", "jobs")
    found = [(item["metadata"]["name"], item["status"]["phase"]) for item in answer["items"]]
    assert found == [("b", "Completed"), ("a", "Running")]


async def test_an_older_run_of_a_name_is_found_by_its_uid(cluster: FakeCluster) -> None:
    await run_of_two(cluster)
    older = cluster.run().state.uid
    await complete(cluster)
    await run_of_two(cluster)
    _, newest = await cluster.request("GET", "jobs/llama")
    _, found = await cluster.request("GET", f"jobs/llama?uid={older}")
    assert (newest["status"]["phase"], found["status"]["phase"]) == ("Running", "Completed")
    status, answer = await cluster.request("GET", "jobs/llama?uid=00000000")
    assert (status, answer["error"]["code"]) == (404, "NotFound")


async def test_a_second_live_run_of_a_name_is_refused(cluster: FakeCluster) -> None:
    await run_of_two(cluster)
    status, answer = await cluster.request("POST", "jobs", json=document())
    assert (status, answer["error"]["code"]) == (409, "Conflict")
    assert answer["error"]["message"].startswith("run llama in workspace default has not ended")


async def test_a_run_that_is_called_like_another_ones_worker_is_refused(cluster: FakeCluster) -> None:
    await run_of_two(cluster)
    status, answer = await cluster.request("POST", "jobs", json=document("llama-1", machines=1))
    assert (status, answer["error"]["code"]) == (409, "Conflict")
    assert answer["error"]["message"].startswith("run llama-1 would have the name of worker llama-1 of run llama")
    assert (await cluster.request("POST", "jobs", json=document("llama-2", machines=1)))[0] == 201


async def test_of_two_submits_at_the_same_moment_one_wins(cluster: FakeCluster) -> None:
    answers = await asyncio.gather(*(cluster.request("POST", "jobs", json=document()) for _ in range(5)))
    assert sorted(status for status, _ in answers) == [201, 409, 409, 409, 409]


async def test_stopping_is_idempotent_also_after_the_end(cluster: FakeCluster) -> None:
    await run_of_two(cluster)
    for _ in range(3):
        status, _ = await cluster.request("POST", "jobs/llama/stop")
        assert status == 202
    await cluster.until_phase("Stopped")
    status, job = await cluster.request("POST", "jobs/llama/stop")
    assert (status, job["status"]["phase"]) == (202, "Stopped")


async def test_events_are_told_after_the_one_that_is_known(cluster: FakeCluster) -> None:
    await run_of_two(cluster)
    _, all_of_them = await cluster.request("GET", "jobs/llama/events")
    assert all_of_them["items"][0] == {
        "id": 1,
        "at": "2025-01-01T00:16:40.000Z",
        "level": "info",
        "sentence": "Submitted",
        "rank": None,
        "attempt": None,
    }
    _, rest = await cluster.request("GET", "jobs/llama/events?after=2")
    assert rest["items"] == all_of_them["items"][2:]


async def test_followed_events_come_as_they_happen_and_end_with_the_run(cluster: FakeCluster) -> None:
    await run_of_two(cluster)
    url = f"{cluster.url}/v1/workspaces/default/jobs/llama/events?follow=true"
    async with cluster.session.get(url) as answer:
        first = json.loads(await answer.content.readline())
        assert first["sentence"] == "Submitted"
        await complete(cluster)
        rest = [json.loads(line) async for line in answer.content]
    assert rest[-1]["sentence"] == "Completed"
    _, everything = await cluster.request("GET", "jobs/llama/events")
    assert [first, *rest] == everything["items"]


async def test_ranks_tell_who_was_where_in_each_attempt(cluster: FakeCluster) -> None:
    await run_of_two(cluster)
    agent, slot = cluster.slot("llama-1")
    await agent.exit(slot, 3)
    await until(lambda: all(1 in held.attempts for a in cluster.agents.values() for held in a.held.values()))
    cluster.clock.advance(11)
    await until(lambda: cluster.run().state.attempt == 1 and cluster.phase() == "running")
    _, first = await cluster.request("GET", "jobs/llama/ranks?attempt=0")
    assert (first["attempt"], first["attempts"]) == (0, [0, 1])
    assert [item["rank"] for item in first["items"]] == [0, 1]
    failed = first["items"][1]
    assert (failed["code"], failed["machine"], failed["slot"]) == (3, agent.name, slot)
    assert failed["started_at"] <= failed["ended_at"]
    assert "llama-1 failed" in first["ended_why"]
    _, newest = await cluster.request("GET", "jobs/llama/ranks")
    assert (newest["attempt"], newest["items"][1]["code"]) == (1, None)
    assert newest["opened_at"] is not None
    status, answer = await cluster.request("GET", "jobs/llama/ranks?attempt=7")
    assert (status, answer["error"]["message"]) == (
        404,
        "run llama has no record of attempt 7: there are attempts 0 to 1",
    )


async def test_machines_are_shown_with_what_is_free(cluster: FakeCluster) -> None:
    await cluster.request("POST", "jobs", json=document(machines=1, gpus=3))
    await cluster.until_phase("running")
    await cluster.agents["m2"].disconnect()
    await until(lambda: cluster.parts.links.connected() == ("m1",))
    _, answer = await cluster.request("GET", "/v1/machines")
    one, two = answer["items"]
    assert (one["name"], one["gpus"], one["free_gpus"], len(one["slots"])) == ("m1", 8, 5, 1)
    assert (one["cpu_cores"], one["free_cpu_cores"], one["connected"]) == (16.0, 15.0, True)
    assert (two["name"], two["connected"], two["slots"]) == ("m2", False, [])
    _, within = await cluster.request("GET", "machines")
    assert [item["name"] for item in within["items"]] == ["m1", "m2"]
    assert (await cluster.request("GET", "machines/m2"))[1]["name"] == "m2"
    assert (await cluster.request("GET", "health"))[1]["status"] == "ok"
    assert (await cluster.request("GET", "/v1/workspaces/nowhere/machines"))[0] == 404


async def test_a_configured_machine_that_never_came_is_shown_with_the_reason(tmp_path: Path) -> None:
    async with FakeCluster(tmp_path, machines=1) as cluster:
        await cluster.agents["m1"].disconnect()
        await cluster.restart()
        _, answer = await cluster.request("GET", "/v1/machines")
        assert answer["items"][0]["out_of_use"] == "its agent has not connected since the coordinator started"


async def test_one_machine_is_shown_with_what_its_agent_says_that_it_has(cluster: FakeCluster) -> None:
    status, answer = await cluster.request("GET", "/v1/machines/m1")
    assert (status, answer["name"], answer["inventory"]) == (200, "m1", {"machine": "m1"})
    await cluster.agents["m1"].disconnect()
    await until(lambda: cluster.parts.links.connected() == ("m2",))
    status, answer = await cluster.request("GET", "/v1/machines/m1")
    assert (status, answer["connected"], answer["inventory"]) == (200, False, None)
    status, answer = await cluster.request("GET", "/v1/machines/m9")
    assert (status, answer["error"]["message"]) == (404, "there is no machine m9: there are m1, m2")


async def test_one_machine_says_what_a_drain_of_it_would_cost(cluster: FakeCluster) -> None:
    assert (await cluster.request("GET", "machines/m1"))[1]["drain"] == []
    await cluster.request("POST", "jobs", json=document())
    await cluster.until_phase("running")
    sentence = "draining it restarts llama (2 workers); no other machine has room now: llama then waits"
    cost = {"workspace": "default", "run": "llama", "workers": 2, "sentence": sentence}
    assert (await cluster.request("GET", "machines/m1"))[1]["drain"] == [cost]
    assert "drain" not in (await cluster.request("GET", "machines"))[1]["items"][0]


async def test_health_needs_no_token(cluster: FakeCluster) -> None:
    async with aiohttp.ClientSession() as nobody, nobody.get(f"{cluster.url}/v1/health") as answer:
        assert answer.status == 200
        health = await answer.json()
    assert (health["status"], health["term"]) == ("ok", 1)


# Logs and exec -------------------------------------------------------------------------------------------------------


async def log(cluster: FakeCluster, query: str = "") -> bytes:
    async with cluster.session.get(f"{cluster.url}/v1/workspaces/default/jobs/llama/logs{query}") as answer:
        assert answer.status == 200, await answer.text()
        assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
        return await answer.read()


async def test_a_log_comes_as_it_was_written_also_after_the_end(cluster: FakeCluster) -> None:
    await run_of_two(cluster)
    agent, slot = cluster.slot("llama-1")
    agent.logs[slot, 0] = written = bytes(range(256)) * 40_000
    assert await log(cluster, "?rank=1") == written
    await complete(cluster)
    assert await log(cluster, "?rank=1&attempt=0&follow=true") == written


async def test_a_log_is_taken_from_its_agent_only_as_fast_as_the_caller_reads(cluster: FakeCluster) -> None:
    await run_of_two(cluster)
    agent, slot = cluster.slot("llama-0")
    agent.logs[slot, 0] = written = bytes(96 * 2**20)
    async with cluster.session.get(f"{cluster.url}/v1/workspaces/default/jobs/llama/logs") as answer:
        sent = -1
        while sent < agent.log_sent:
            sent = agent.log_sent
            await asyncio.sleep(0.2)
        assert sent < len(written) // 2, "what nobody reads stays with the agent"
        received = 0
        async for piece in answer.content.iter_any():
            received += len(piece)
    assert received == len(written)


async def test_a_caller_who_leaves_a_log_ends_it_at_the_agent(cluster: FakeCluster) -> None:
    await run_of_two(cluster)
    agent, slot = cluster.slot("llama-0")
    agent.logs[slot, 0] = bytes(96 * 2**20)
    url = f"{cluster.url}/v1/workspaces/default/jobs/llama/logs"
    async with aiohttp.ClientSession(headers=cluster.session.headers) as session:
        async with session.get(url) as answer:
            await answer.content.read(1)
            assert agent.streams_open() == 1
    await until(lambda: agent.streams_open() == 0)


async def test_following_a_log_before_the_start_waits_for_it(cluster: FakeCluster) -> None:
    slow = cluster.agents["m2"]
    slow.slow = True
    await cluster.request("POST", "jobs", json=document())
    await until(lambda: slow.held)
    reading = asyncio.ensure_future(log(cluster, "?follow=1"))
    await asyncio.sleep(0.05)
    agent, slot = cluster.slot("llama-0")
    agent.logs[slot, 0] = b"hello\n"
    await slow.ready(next(iter(slow.held)))
    assert await reading == b"hello\n"


async def test_a_log_that_never_began_ends_empty_and_then_is_none(cluster: FakeCluster) -> None:
    slow = cluster.agents["m2"]
    slow.slow = True
    await cluster.request("POST", "jobs", json=document())
    await until(lambda: slow.held)
    reading = asyncio.ensure_future(log(cluster, "?follow=true"))
    await cluster.request("POST", "jobs/llama/stop")
    assert await reading == b""
    status, answer = await cluster.request("GET", "jobs/llama/logs?tail_bytes=0")
    assert (status, answer["error"]["message"]) == (404, "llama-0 never started: there is no log")


@pytest.mark.parametrize(
    ("query", "status", "sentence"),
    [
        ("?rank=2", 404, "run llama has no rank 2: it has ranks 0 to 1"),
        ("?rank=-1", 400, "rank is '-1': it must be a whole number from 0"),
        ("?rank=one", 400, "rank is 'one': it must be a whole number from 0"),
        ("?attempt=5", 404, "run llama has no attempt 5 yet: the newest is 0"),
        ("?follow=maybe", 400, "follow is 'maybe': it must be true or false"),
        ("?tail_bytes=99999999999999999999999", 400, "tail_bytes is"),
        ("?lines=5", 400, "lines is no parameter: there are attempt, follow, rank, tail_bytes, uid"),
        ("", 404, "there is no attempt with a log on this machine"),
    ],
)
async def test_a_log_that_can_not_be_had_is_refused(
    cluster: FakeCluster, query: str, status: int, sentence: str
) -> None:
    await run_of_two(cluster)
    found, answer = await cluster.request("GET", f"jobs/llama/logs{query}")
    assert (found, answer["error"]["message"][: len(sentence)]) == (status, sentence)


async def test_a_log_on_a_machine_that_is_away_is_refused_with_its_name(cluster: FakeCluster) -> None:
    await run_of_two(cluster)
    agent, _ = cluster.slot("llama-0")
    await agent.disconnect()
    await until(lambda: agent.name not in cluster.parts.links.connected())
    status, answer = await cluster.request("GET", "jobs/llama/logs")
    assert (status, answer["error"]["message"]) == (
        503,
        f"machine {agent.name} is not connected: its agent does not run, or can't reach us",
    )


async def test_a_log_that_breaks_off_does_not_look_like_one_that_ended(cluster: FakeCluster) -> None:
    await run_of_two(cluster)
    agent, slot = cluster.slot("llama-0")
    agent.logs[slot, 0] = b"half of it"
    agent.break_off = True
    with pytest.raises(aiohttp.ClientPayloadError):
        await log(cluster)


async def test_exec_joins_the_caller_and_the_program(cluster: FakeCluster) -> None:
    await run_of_two(cluster)
    url = f"{cluster.url}/v1/workspaces/default/jobs/llama/exec?rank=1&stdin=1&command=cat&command=-"
    async with cluster.session.ws_connect(url) as socket:
        assert await socket.receive_bytes() == b"\1cat -"
        await socket.send_bytes(b"hello")
        assert await socket.receive_bytes() == b"\1hello"
        await socket.send_json({"kind": "stdin_end"})
        assert await socket.receive_json() == {"kind": "exec_exit", "code": 7, "error": ""}
        assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
        assert socket.close_code == 1000


@pytest.mark.parametrize(
    ("query", "status", "sentence"),
    [
        ("", 400, "command must be given once for each word"),
        ("?command=sh&width=0", 400, "width is '0': it must be a whole number from 1"),
        ("?command=sh", 400, "exec needs a WebSocket"),
        ("?command=sh&rank=9", 404, "run llama has no rank 9"),
    ],
)
async def test_an_exec_that_can_not_be_had_is_refused(
    cluster: FakeCluster, query: str, status: int, sentence: str
) -> None:
    await run_of_two(cluster)
    found, answer = await cluster.request("GET", f"jobs/llama/exec{query}")
    assert (found, answer["error"]["message"][: len(sentence)]) == (status, sentence)


async def test_exec_into_a_worker_that_does_not_run_is_refused(cluster: FakeCluster) -> None:
    await run_of_two(cluster)
    await complete(cluster)
    status, answer = await cluster.request("GET", "jobs/llama/exec?command=sh")
    assert (status, answer["error"]["message"]) == (409, "llama-0 does not run now: it is Completed")


async def take_part(cluster: FakeCluster, machine: str, slot: str) -> tuple[int, str]:
    """Of a probe's first question, the status of the hand-shake or 101, and the answer."""
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    url = f"{cluster.url}/v1/machines/{machine}/probe?slot={slot}"
    async with aiohttp.ClientSession(headers=headers) as session:
        try:
            async with session.ws_connect(url) as socket:
                await socket.send_str(Open(rank=0, secret="0" * 32, address="10.0.0.1").model_dump_json())
                return 101, (await socket.receive()).data
        except aiohttp.WSServerHandshakeError as error:
            return error.status, error.message


async def test_a_machine_takes_part_in_the_network_of_a_slot_that_is_named(cluster: FakeCluster) -> None:
    await run_of_two(cluster)
    agent, slot = cluster.slot("llama-0")
    status, answer = await take_part(cluster, agent.name, slot)
    assert (status, json.loads(answer)["kind"], agent.probed_slots) == (101, "opened", [slot])
    status, answer = await take_part(cluster, agent.name, "gone")
    assert (status, json.loads(answer)["sentence"]) == (101, f"there is no slot gone on {agent.name}")
    assert (await take_part(cluster, agent.name, "NO%20SLOT"))[0] == 400
    assert agent.probed_slots == [slot, "gone"]


# What is wrong -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic abc", "Bearer \xff"])
@pytest.mark.parametrize("path", ["jobs", "jobs/llama", "/v1/machines", "/v1/machines/m-1/probe", "/v1/nothing"])
async def test_without_the_operators_token_nothing_is_answered(
    cluster: FakeCluster, token: str | None, path: str
) -> None:
    url = cluster.url + (path if path.startswith("/") else f"/v1/workspaces/default/{path}")
    headers = {} if token is None else {"Authorization": token}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        assert answer.status == 401
        assert (await answer.json())["error"]["code"] == "Unauthorized"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "the body is no JSON: Expecting value (line 1, column 1)"),
        (b"{", "the body is no JSON: Expecting property name"),
        (b'{"a": 1,}', "the body is no JSON"),
        (b"\xff\xfe", "the body is no UTF-8 (byte 0): JSON is written in it"),
        (b"NaN", "NaN is no number of JSON"),
        (b'{"metadata": {}, "metadata": {}}', "metadata is given twice in one object: keep one of them"),
        (b"[" * 100_000 + b"]" * 100_000, "the body is nested too deeply to be a run"),
        (b"1" * 5000, "the body can't be read: Exceeds the limit"),
    ],
)
async def test_a_body_that_is_no_json_is_refused(cluster: FakeCluster, body: bytes, sentence: str) -> None:
    status, answer = await cluster.request("POST", "jobs", data=body)
    assert (status, answer["error"]["code"]) == (400, "InvalidRequest")
    assert answer["error"]["message"][: len(sentence)] == sentence


@pytest.mark.parametrize("body", [b"null", b"[]", b"1", b'"run"', b"{}", b'{"metadata": 1, "spec": 2}'])
async def test_json_that_is_no_run_is_refused(cluster: FakeCluster, body: bytes) -> None:
    status, answer = await cluster.request("POST", "jobs", data=body)
    assert (status, answer["error"]["code"]) == (400, "InvalidRequest")
    assert answer["error"]["message"]


async def test_a_wrong_field_is_named(cluster: FakeCluster) -> None:
    run = document()
    run["spec"]["task_template"]["imagee"] = "host"
    status, answer = await cluster.request("POST", "jobs", json=run)
    assert status == 400
    assert answer["error"]["field"] == "spec.task_template.imagee"


async def test_a_drive_that_is_not_there_is_refused_with_those_that_are(cluster: FakeCluster) -> None:
    run = document()
    run["spec"]["task_template"]["datavolume_refs"] = [{"name": "dataset", "mount_path": "/data"}]
    status, answer = await cluster.request("POST", "jobs", json=run)
    assert (status, answer["error"]["field"]) == (400, "spec.task_template.datavolume_refs[0].name")
    assert answer["error"]["message"].endswith(
        "dataset, which is no drive of this cluster: there are checkpoints, datasets"
    )


async def test_a_run_may_be_megabytes_but_not_more(cluster: FakeCluster) -> None:
    run = document()
    run["spec"]["task_template"]["args"] = ["x" * 1000] * (BODY_MAX // 1000 + 1)
    status, answer = await cluster.request("POST", "jobs", data=io.BytesIO(json.dumps(run).encode()))
    assert (status, answer["error"]["code"]) == (413, "InvalidRequest")


class Endless:
    """A body of 100 MB that counts what was taken of it."""

    size = 100 * 2**20

    def __init__(self) -> None:
        self.sent = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self.sent < self.size:
            self.sent += 65536
            yield b" " * 65536


@pytest.mark.parametrize("announced", [True, False], ids=["with its length", "in chunks"])
@pytest.mark.parametrize("expect", [True, False], ids=["asking first", "at once"])
async def test_a_body_of_100_mb_is_refused_without_being_read(
    cluster: FakeCluster, announced: bool, expect: bool
) -> None:
    body = Endless()
    headers = {"Content-Length": str(Endless.size)} if announced else {}
    try:
        status, answer = await cluster.request("POST", "jobs", data=body, headers=headers, expect100=expect)
    except aiohttp.ClientError:
        status, answer = 413, None  # cut off while sending, which curl shows as the answer that came before
    assert status == 413
    if announced and expect:
        assert body.sent == 0
    assert body.sent < Endless.size // 2
    assert answer is None or "larger than" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status", "sentence"),
    [
        ("GET", "/", 404, "there is nothing at /"),
        ("GET", "/v2/jobs", 404, "there is nothing at /v2/jobs"),
        ("GET", "jobs/nobody", 404, "there is no run nobody in workspace default"),
        ("POST", "jobs/nobody/stop", 404, "there is no run nobody in workspace default"),
        ("GET", "jobs/nobody/events", 404, "there is no run nobody"),
        ("GET", "jobs/nobody/logs", 404, "there is no run nobody"),
        ("GET", "jobs/%2e%2e", 404, "there is no"),
        ("GET", "jobs/" + "x" * 3000, 404, "there is no run"),
        ("GET", "/v1/workspaces/other/jobs", 404, "there is no workspace other: there are default"),
        ("DELETE", "jobs/llama", 405, "DELETE does not go with /v1/workspaces/default/jobs/llama: GET, HEAD does"),
        ("PUT", "jobs", 405, "PUT does not go with /v1/workspaces/default/jobs: GET, HEAD, POST does"),
        ("GET", "/v1/machines?x=1", 400, "x is no parameter: this endpoint has none"),
        ("GET", "/v1/agents/streams/abc", 401, "the agent token"),
    ],
)
async def test_what_is_not_there_is_said_in_json(
    cluster: FakeCluster, method: str, path: str, status: int, sentence: str
) -> None:
    found, answer = await cluster.request(method, path)
    assert set(answer["error"]) == {"message", "field", "code"}
    assert found == status, answer
    assert sentence.removeprefix("the agent token") in answer["error"]["message"]


# Names ---------------------------------------------------------------------------------------------------------------


async def test_the_names_of_a_workspace_are_those_that_its_workers_are_told(cluster: FakeCluster) -> None:
    await run_of_two(cluster)
    status, answer = await cluster.request("GET", "names")
    assert status == 200
    (run,) = answer["items"]
    assert (run["run"], run["leader"], run["attempt"], run["world_size"]) == ("llama", "llama-0", 0, 2)
    assert sorted(run["addresses"]) == ["llama-0", "llama-1"]
    assert all(run["addresses"].values())
    await complete(cluster)
    assert (await cluster.request("GET", "names")) == (200, {"items": []})


async def test_a_name_is_looked_up_where_the_worker_is(cluster: FakeCluster) -> None:
    await run_of_two(cluster)
    agent, _ = cluster.slot("llama-1")
    status, answer = await cluster.request("GET", "jobs/llama/lookup?rank=1&name=llama-0&type=aaaa")
    assert (status, answer) == (
        200,
        {
            "as": "llama-1", "machine": agent.name, "name": "llama-0", "type": "AAAA", "server": "169.254.53.53",
            "rcode": "NOERROR", "took_s": 0.001,
            "records": [{"name": "llama-0.", "type": "AAAA", "ttl_s": 1, "data": "10.0.0.1"}],
        },
    )  # fmt: skip


@pytest.mark.parametrize(
    ("query", "status", "sentence"),
    [
        ("", 400, "name is '': it must be labels of 1 to 63 bytes with dots between"),
        (f"?name={'x' * 64}", 400, "name is"),
        ("?name=llama-0&type=HINFO", 400, "type is 'HINFO': it must be one of A, AAAA"),
        ("?name=llama-0&rank=9", 404, "run llama has no rank 9"),
        ("?name=nobody", 404, "the name server can't be asked: Connection refused"),
    ],
)
async def test_a_name_that_can_not_be_looked_up_is_refused(
    cluster: FakeCluster, query: str, status: int, sentence: str
) -> None:
    await run_of_two(cluster)
    found, answer = await cluster.request("GET", f"jobs/llama/lookup{query}")
    assert (found, answer["error"]["message"][: len(sentence)]) == (status, sentence)


async def test_a_worker_without_a_slot_asks_nobody(cluster: FakeCluster) -> None:
    await run_of_two(cluster)
    await complete(cluster)
    status, answer = await cluster.request("GET", "jobs/llama/lookup?name=llama-0")
    assert (status, answer["error"]["message"]) == (409, "llama-0 has no slot now: nobody asks for names there")
