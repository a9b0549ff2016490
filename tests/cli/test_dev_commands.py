"""`astra dev …` as programs read it: each --json document, against a supervisor that answers on its socket."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from astra_agent.errors import InvalidRequest
from astra_cli.dev import control, files
from astra_cli.dev.plan import ClusterPlan, Layout, layout
from astra_cli.dev.requests import Boot, Kill, LinkRequest, Request
from astra_cli.dev.topology import uniform
from astra_cli.main import invoke

Json = dict[str, Any]

STATUS: Json = {
    "cluster": "0a1b2c3d", "state": "/s", "api": "http://127.0.0.1:7410", "coordinator": {"pid": 7},
    "containerd": {"pid": None, "socket": "/s/c.sock"}, "slot_network": "host", "drives": {"d": "/d"},
    "machines": [{
        "name": "m-1", "address": "10.83.1.1", "off": False, "agent": {"pid": 8, "socket": "/s/a.sock"},
        "link": {"up": True, "rate_bit_s": 200_000_000}, "log": "/s/log/m-1.log",
    }],
}  # fmt: skip


@pytest.fixture
def where(monkeypatch: pytest.MonkeyPatch) -> Iterator[Layout]:
    """A state folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("ASTRA_DEV_STATE", folder)
        yield layout(Path(folder))


async def supervised(request: Request) -> Json:
    """The answers of a supervisor that has the machine m-1."""
    if getattr(request, "machine", "m-1") != "m-1":
        raise InvalidRequest("the dev cluster has no machine 'm-9'; it has m-1")
    match request:
        case LinkRequest(machine=name, rate_bit_s=rate, up=up):
            return {"machine": name, "rate_bit_s": rate or 0, "up": up is not False}
        case Kill(machine=name):
            return {"machine": name, "off": True}
        case Boot(machine=name):
            return {"machine": name, "off": False}
    return STATUS


@contextmanager
def supervisor_of(where: Layout) -> Iterator[None]:
    """It serves in a thread, as the commands have an event loop of their own."""
    where.run.mkdir(exist_ok=True)
    loop, ready = asyncio.new_event_loop(), threading.Event()
    ended = asyncio.Event()

    async def serve() -> None:
        server = await control.serve(where, supervised)
        ready.set()
        await ended.wait()
        server.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(30)
        yield
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


@pytest.mark.parametrize(
    ("words", "document"),
    [
        (["status"], STATUS),
        (["link", "--machine", "m-1", "--down"], {"name": "m-1", "link": {"up": False, "rate_bit_s": 0}}),
        (["link", "--machine", "m-1", "--rate", "1gbit"], {"name": "m-1", "link": {"up": True, "rate_bit_s": 10**9}}),
        (["kill", "--machine", "m-1"], {"name": "m-1", "off": True}),
        (["start", "--machine", "m-1"], {"name": "m-1", "off": False}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_json_is_the_supervisors_document_or_the_part_that_changed(
    where: Layout, capsys: pytest.CaptureFixture[str], words: list[str], document: Json
) -> None:
    with supervisor_of(where):
        assert invoke(["dev", *words, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == document
    assert captured.err == ""


def test_what_a_supervisor_refuses_is_its_sentence(where: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    with supervisor_of(where):
        assert invoke(["dev", "kill", "--machine", "m-9", "--json"]) == 2
    assert capsys.readouterr() == ("", "astra: the dev cluster has no machine 'm-9'; it has m-1\n")


def test_env_says_how_to_reach_it(where: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    files.write_all(ClusterPlan(uniform(1, 0)), where, 7410, Path("/s"), Path("/r"))
    files.write_client(where, 7410)
    assert invoke(["dev", "env", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "API": "http://127.0.0.1:7410/v1/workspaces/default",
        "ASTRA_API": "http://127.0.0.1:7410",
        "ASTRA_TOKEN": files.token(where, "operator"),
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a dev cluster is root's, also one that is not there")
@pytest.mark.parametrize("words", [[], ["--purge"]], ids=["stop", "purge"])
def test_stop_says_what_there_was_and_tells_people_on_standard_error(
    where: Layout, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    state = where.state / "none"
    assert invoke(["dev", "stop", "--state", str(state), *words, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"state": str(state), "was_running": False, "purged": False}
    assert captured.err == f"no dev cluster with its state in {state} was running\n"
