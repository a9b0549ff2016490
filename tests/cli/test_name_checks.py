"""What can be seen of names without an agent: five forms of a resolv.conf, dead servers, loops, who has the port."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from astra_cli import name_checks
from astra_dns.client import Client
from tests.fakes.eventually import until
from tests.fakes.upstream import FakeUpstream, address, bound_pair, silence

STUB = "nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch corp.example\n"
BEHIND_STUB = "127.0.0.1, the servers behind systemd-resolved's 127.0.0.53"
BEHIND = "nameserver 127.0.0.1\nsearch corp.example\n"


def machine(folder: Path, text: str, link: str = "") -> Path:
    """A root with *text* as its etc/resolv.conf, a link when *link* says where to."""
    (folder / "etc").mkdir()
    (folder / "run/systemd/resolve").mkdir(parents=True)
    if link:
        (folder / "run/systemd/resolve/stub-resolv.conf").write_text(text)
        (folder / "run/systemd/resolve/resolv.conf").write_text(BEHIND)
        target = link if link.startswith("..") else str(folder) + link
        (folder / "etc/resolv.conf").symlink_to(target)
    else:
        (folder / "etc/resolv.conf").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("text", "link", "good"),
    [
        (STUB, "/run/systemd/resolve/stub-resolv.conf", "127.0.0.1, the servers behind systemd-resolved's 127.0.0.53"),
        (
            STUB,
            "../run/systemd/resolve/stub-resolv.conf",
            "127.0.0.1, the servers behind systemd-resolved's 127.0.0.53",
        ),
        ("nameserver\t127.0.0.1\nnameserver fe80::1%nowhere # gateway\n; old: nameserver 10.9.9.9\n", "", "127.0.0.1"),
        ("nameserver 127.0.0.1\nnameserver ::1\n", "", "127.0.0.1"),
    ],
)
async def test_names_outside_are_asked_of_whoever_answers(tmp_path: Path, text: str, link: str, good: str) -> None:
    async with FakeUpstream(address("192.0.2.1")).serve() as upstream:
        found = await asyncio.to_thread(name_checks.outside, machine(tmp_path, text, link), upstream.port)
    assert found == ((), f"names outside are asked of {good}")


@pytest.fixture
async def looping(tmp_path: Path) -> AsyncIterator[tuple[Path, int]]:
    """A `proc` with a name server of ours whose upstream is itself, and its port."""
    control, proc = tmp_path / "names.sock", tmp_path / "proc"
    udp, tcp = bound_pair()
    port = udp.getsockname()[1]
    words = ("--control", str(control), "--upstream", "127.0.0.1", "--upstream-port", str(port))
    process = await asyncio.create_subprocess_exec(sys.executable, "-P", "-m", "astra_dns", *words)
    try:
        await until(control.exists)
        with udp, tcp, Client(control) as client:
            client.listen("udp", "nlp", udp.fileno())
            client.listen("tcp", "nlp", tcp.fileno())
            await until(lambda: client.show()["loops"])
            proc.mkdir()
            (proc / str(process.pid)).symlink_to(f"/proc/{process.pid}")
            yield proc, port
    finally:
        process.terminate()
        await process.wait()


async def test_a_server_that_sends_our_questions_back_is_a_complaint(tmp_path: Path, looping: tuple[Path, int]) -> None:
    proc, port = looping
    root = machine(tmp_path, "nameserver 127.0.0.1\n")
    (complaint,), _ = await asyncio.to_thread(name_checks.outside, root, port, proc)
    assert complaint == (
        "the machine's name server 127.0.0.1 sends our questions back to us; take ours out of its own list"
    )
    assert await asyncio.to_thread(name_checks.outside, root, port, tmp_path / "nobody runs") == (
        (), "names outside are asked of 127.0.0.1",
    )  # fmt: skip


async def test_servers_that_say_nothing_are_a_complaint(tmp_path: Path) -> None:
    async with FakeUpstream(silence).serve() as upstream:
        root = machine(tmp_path, "nameserver 127.0.0.1\nnameserver ::1\n")
        (complaint,), _ = await asyncio.to_thread(name_checks.outside, root, upstream.port)
    wanted = "outside names will not resolve in workers: no answer from 127.0.0.1, ::1; correct /etc/resolv.conf"
    assert complaint == wanted


@pytest.mark.parametrize("text", ["", "nameserver 169.254.53.53\n", "search corp.example\n"])
def test_a_machine_without_servers_is_a_complaint(tmp_path: Path, text: str) -> None:
    (complaint,), _ = name_checks.outside(machine(tmp_path, text))
    assert complaint.startswith("outside names will not resolve in workers: /etc/resolv.conf names no usable server")
