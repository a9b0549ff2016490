"""What a service manager hears of a daemon, by a real socket of datagrams; and nothing where there is none."""

from __future__ import annotations

import array
import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from astra_agent.service_manager import ServiceManager
from tests.agent.daemon import Daemon
from tests.fakes.eventually import until


class Listener:
    """A service manager's end, as systemd has it."""

    def __init__(self, address: str | bytes) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.setblocking(False)

    def heard(self) -> list[str]:
        """Every datagram so far."""
        found = []
        while True:
            try:
                found.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return found


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    made = Listener(str(tmp_path / "notify"))
    yield made
    made.socket.close()


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": str(tmp_path / "notify"), **more}


def test_it_is_told_of_readiness_and_of_the_end(listener: Listener, tmp_path: Path) -> None:
    manager = ServiceManager.of_process(environment(tmp_path))
    manager.ready("3 slots\nlinked")
    manager.stopping()
    manager.close()
    assert listener.heard() == ["READY=1\nSTATUS=3 slots linked", "STOPPING=1"]


def test_a_status_is_told_when_it_is_another_one(listener: Listener, tmp_path: Path) -> None:
    manager = ServiceManager.of_process(environment(tmp_path))
    for text in ("one", "one", "two"):
        manager.status(text)
    manager.close()
    assert listener.heard() == ["STATUS=one", "STATUS=two"]


def test_an_abstract_address_is_reached(tmp_path: Path) -> None:
    name = f"astraeus-test-{os.getpid()}"
    listener = Listener(b"\0" + name.encode())
    manager = ServiceManager.of_process({"NOTIFY_SOCKET": f"@{name}"})
    manager.ready("here")
    manager.close()
    assert listener.heard() == ["READY=1\nSTATUS=here"]
    listener.socket.close()


async def test_without_a_manager_nothing_happens() -> None:
    manager = ServiceManager.of_process({})
    manager.ready("here")
    manager.store("names", [0])
    await asyncio.wait_for(manager.watched(lambda: "here"), 10)
    manager.stopping()
    assert manager.take_stored() == {}


def test_one_that_does_not_listen_ends_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = ServiceManager.of_process(environment(tmp_path))
    manager.ready("here")
    manager.close()
    assert "service_manager_not_told word=READY=1 reason=No such file or directory" in caplog.text


def test_its_variables_are_for_no_child(listener: Listener, tmp_path: Path) -> None:
    variables = environment(tmp_path, WATCHDOG_USEC="5000000", LISTEN_FDS="1", PATH="/bin")
    ServiceManager.of_process(variables).close()
    assert variables == {"PATH": "/bin"}


@pytest.mark.parametrize(
    ("pid", "usec", "expected"),
    [("", "30000000", 30.0), (str(os.getpid()), "500000", 0.5), ("1", "30000000", 0.0), ("", "soon", 0.0), ("", "", 0)],
)
def test_a_watchdog_is_ours_or_it_is_none(pid: str, usec: str, expected: float) -> None:
    manager = ServiceManager.of_process({"WATCHDOG_PID": pid, "WATCHDOG_USEC": usec})
    assert manager.watchdog_s == expected


async def test_signs_of_life_come_from_the_loop(listener: Listener, tmp_path: Path) -> None:
    manager = ServiceManager.of_process(environment(tmp_path, WATCHDOG_USEC="20000"))
    watched = asyncio.create_task(manager.watched(lambda: "alive"))
    heard: list[str] = []

    def several() -> bool:
        heard.extend(listener.heard())
        return heard.count("WATCHDOG=1") >= 3

    await until(several)
    watched.cancel()
    manager.close()
    assert heard[:2] == ["WATCHDOG=1", "STATUS=alive"]
    assert heard.count("STATUS=alive") == 1


def test_descriptors_are_handed_over_by_name(listener: Listener, tmp_path: Path) -> None:
    manager = ServiceManager.of_process(environment(tmp_path))
    reading, writing = os.pipe()
    manager.store("names-0", [reading, writing])
    manager.close()
    data, rights, _, _ = listener.socket.recvmsg(4096, socket.CMSG_SPACE(8))
    assert data.decode().splitlines() == ["FDSTORE=1", "FDNAME=names-0", "FDPOLL=0"]
    received = array.array("i", rights[0][2])
    os.write(received[1], b"x")
    assert os.read(reading, 1) == b"x"
    for descriptor in (reading, writing, *received):
        os.close(descriptor)


KEPT = """
import json, os, sys
os.environ["LISTEN_PID"] = str(os.getpid()) if sys.argv[1] == "mine" else "1"
from astra_agent.service_manager import ServiceManager
manager = ServiceManager.of_process()
found = manager.take_stored()
print(json.dumps([found, manager.take_stored(), [os.get_inheritable(fd) for one in found.values() for fd in one]]))
"""


@pytest.mark.parametrize(
    ("whose", "expected"),
    [("mine", [{"names-0": [3, 4], "names-1": [5]}, {}, [False, False, False]]), ("other", [{}, {}, []])],
)
def test_what_was_kept_comes_back_once_by_name(whose: str, expected: object, tmp_path: Path) -> None:
    """In a process of its own, since they come as descriptors 3, 4 and 5."""
    script = f"exec 3</dev/null 4</dev/null 5</dev/null; exec {sys.executable} -c '{KEPT}' {whose}"
    variables = environment(tmp_path, LISTEN_FDS="3", LISTEN_FDNAMES="names-0:names-0:names-1")
    done = subprocess.run(
        ["sh", "-c", script], env={**os.environ, **variables}, capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(done.stdout) == expected


async def test_an_agent_tells_what_it_holds_and_whether_it_is_linked(listener: Listener, tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "m1")
    daemon.manager = ServiceManager.of_process(environment(tmp_path, WATCHDOG_USEC="20000"))
    await daemon.start()
    heard: list[str] = []

    def hears(line: str) -> bool:
        heard.extend(listener.heard())
        return line in heard

    try:
        await until(lambda: hears("READY=1\nSTATUS=0 slots; no coordinator is configured"))
        await until(lambda: hears("WATCHDOG=1"))
        await daemon.ready()
        await until(lambda: hears("STATUS=1 slot; no coordinator is configured"))
        daemon.stop.set()
        await until(lambda: hears("STOPPING=1"))
    finally:
        await daemon.crash()
        daemon.manager.close()
