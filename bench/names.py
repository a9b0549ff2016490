"""
Own names against others' servers: questions a second, the slowest of a hundred, a dead upstream, big changes, a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from astra_dns.client import Client
from bench.coredns import build, coredns
from bench.figure import Figure, against_goal, against_peer
from bench.name_servers import HOST, ZONE, NameServer, at_once, dnsmasq, ours, run_names, unbound
from tests.containers import name_machine

ROUNDS = 7
ROUND_S = 3
NAMES = 10_000
BIG = 100_000
SERVER_CORE, CLIENT_CORE = 0, 1
DEAD_SHARE = 100
"""One question in so many is about a name outside, and its upstream is dead."""
DEAD_PORT = 9
LIGHT_PER_S = 2000
STALL_GOAL_MS = 5.0
STORM_S = 2.0
BACK_GOAL_S = 1.0
ASKER_UP_S = 1.0
BREATH_S = 0.04


@dataclass(frozen=True, slots=True)
class Load:
    """A round as fast as it goes: *cpu_us* is the server's own processor time for each question."""

    per_s: float
    cpu_us: float


async def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="astra-bench-") as text:
        folder = Path(text)
        _write_questions(folder)
        figures = await _against_others(folder)
        figures += await _with_a_dead_upstream(folder)
        figures.append(await _big_change(folder))
        figures.append(await _killed(folder / "killed"))
    return figures


def _write_questions(folder: Path) -> None:
    """60 % that hit, 25 % AAAA without data, 15 % that do not exist; the second file with names outside in between."""
    own = []
    for number in range(NAMES):
        kind = "AAAA" if number % 20 < 5 else "A"
        name = f"nobody-{number}" if number % 20 >= 17 else f"llama-{number * 7919 % NAMES}"
        own.append(f"{name}.{ZONE} {kind}")
    (folder / "own").write_text("\n".join(own) + "\n")
    mixed = [f"host-{at}.example.com A" if at % DEAD_SHARE == 0 else line for at, line in enumerate(own)]
    (folder / "mixed").write_text("\n".join(mixed) + "\n")
    (folder / "one").write_text(f"llama-1.{ZONE} A\n")


async def _against_others(folder: Path) -> list[Figure]:
    others = (unbound, dnsmasq) if await asyncio.to_thread(build) is None else (unbound, dnsmasq, coredns)
    async with contextlib.AsyncExitStack() as stack:
        (mine, _) = await stack.enter_async_context(ours(folder, NAMES, SERVER_CORE, DEAD_PORT))
        servers = [mine]
        for other in others:
            servers.append(await stack.enter_async_context(other(folder, NAMES, SERVER_CORE, DEAD_PORT)))
        loads: dict[str, list[Load]] = {server.name: [] for server in servers}
        loaded: dict[str, list[float]] = {server.name: [] for server in servers}
        slowest: dict[str, list[float]] = {server.name: [] for server in servers}
        for _ in range(ROUNDS):
            for server in servers:
                loads[server.name].append(await _load(server, folder / "own"))
                loaded[server.name].append(await _loaded_p99_ms(server, folder / "own"))
                slowest[server.name].append(await _p99_ms(server, folder / "own"))
    figures = []
    for peer in [server.name for server in servers if server is not mine]:
        figures += [
            against_peer(
                f"names-rate-{peer.lower()}", f"microseconds between answers under full load, {peer}", "µs",
                [1e6 / load.per_s for load in loads["astra"]], [1e6 / load.per_s for load in loads[peer]], 1.0,
            ),
            against_peer(
                f"names-cpu-{peer.lower()}", f"processor time for an answer, {peer}", "µs",
                [load.cpu_us for load in loads["astra"]], [load.cpu_us for load in loads[peer]], 1.0,
            ),
            against_peer(
                f"names-p99-{peer.lower()}", f"slowest of 100 answers under full load, {peer}", "ms",
                loaded["astra"], loaded[peer], 1.0,
            ),
            against_peer(
                f"names-p99-light-{peer.lower()}", f"slowest of 100 answers at {LIGHT_PER_S} a second, {peer}", "ms",
                slowest["astra"], slowest[peer], 1.0,
            ),
        ]  # fmt: skip
    return figures


async def _with_a_dead_upstream(folder: Path) -> list[Figure]:
    """Questions about outside names wait and fail; own names must not notice."""
    without, beside = [], []
    async with ours(folder, NAMES, SERVER_CORE, DEAD_PORT) as (server, _):
        for _ in range(ROUNDS):
            without.append(await _p99_ms(server, folder / "own"))
            beside.append(await _p99_ms(server, folder / "mixed"))
    return [against_peer("names-p99-dead", "slowest of 100 answers beside a dead upstream", "ms", beside, without, 1.2)]


async def _load(server: NameServer, questions: Path) -> Load:
    before = server.cpu_s()
    text = await _dnsperf(server, questions)
    used_s = server.cpu_s() - before
    completed = int(_found(r"Queries completed:\s+(\d+)", text))
    return Load(float(_found(r"Queries per second:\s+([\d.]+)", text)), used_s * 1e6 / completed)


async def _p99_ms(server: NameServer, questions: Path) -> float:
    """Of own names, at a rate that every server keeps up with."""
    async with _asking(server, questions) as took_ms:
        await asyncio.sleep(ROUND_S)
    return sorted(took_ms)[int(len(took_ms) * 0.99)]


async def _loaded_p99_ms(server: NameServer, questions: Path) -> float:
    """By dnsperf's clock, as fast as it goes; in a round of its own, since telling each answer takes dnsperf time."""
    text = await _dnsperf(server, questions, "-v")
    took_s = sorted(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith("> "))
    return 1e3 * took_s[int(len(took_s) * 0.99)]


async def _dnsperf(server: NameServer, questions: Path, *options: str) -> str:
    # Not real-time as the servers are: it waits for its turn without giving way, and on one core that is for ever.
    command = ["nice", "-n", "-20", "taskset", "-c", str(CLIENT_CORE), "dnsperf", "-s", HOST, "-p", str(server.port)]
    command += ["-d", str(questions), "-l", str(ROUND_S), *options]
    # A file, since whoever reads a pipe meanwhile needs dnsperf's core.
    with tempfile.TemporaryFile() as written:
        await (await asyncio.create_subprocess_exec(*command, stdout=written, stderr=written)).wait()
        written.seek(0)
        return written.read().decode()


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise RuntimeError(f"dnsperf does not say {pattern}: {text[-500:]}")
    return match[1]


async def _big_change(folder: Path) -> Figure:
    """A snapshot of 100,000 names takes the place of another one, while somebody asks all the time."""
    slowest = []
    async with ours(folder, BIG, SERVER_CORE, DEAD_PORT) as (server, client):
        for turn in range(ROUNDS):
            async with _asking(server, folder / "one") as took_ms:
                await asyncio.to_thread(_replace, client, turn)
                await asyncio.sleep(0.5)
            slowest.append(max(took_ms))
    return against_goal("names-change", "slowest answer while 100,000 names are replaced", "ms", slowest, STALL_GOAL_MS)


async def _killed(folder: Path) -> Figure:
    """The name server is killed with -9 while somebody asks; nobody is refused, since the agent holds the sockets."""
    folder.mkdir()
    slowest = []
    async with name_machine.made(folder) as machine:
        address, _ = await name_machine.two_workspaces(machine)
        for _ in range(ROUNDS):
            asked = asyncio.create_task(asyncio.to_thread(name_machine.storm, machine.netns, address, STORM_S))
            await asyncio.sleep(STORM_S / 4)
            os.kill(machine.pid, signal.SIGKILL)
            seen = await asked
            if seen.refused or seen.lost:
                raise RuntimeError(f"questions were lost: {seen}")
            slowest.append(seen.slowest_s)
    return against_goal(
        "names-back", "slowest answer while the name server is killed and comes back", "s", slowest, BACK_GOAL_S
    )


def _replace(client: Client, turn: int) -> None:
    for part in range(BIG // 1000):
        client.put(run_names(1000, first=part * 1000 + turn + 1, run=f"r{part}"))
        # The kernel takes the core away from a real-time program that uses all of it.
        time.sleep(BREATH_S)
    client.publish()


@contextlib.asynccontextmanager
async def _asking(server: NameServer, questions: Path) -> AsyncIterator[list[float]]:
    """Milliseconds that each answer took during the block, there once it is over."""
    took_ms: list[float] = []
    command = [sys.executable, "-m", "bench.asker", HOST, str(server.port), str(questions), str(LIGHT_PER_S), ZONE]
    asker = await asyncio.create_subprocess_exec(
        *at_once(CLIENT_CORE), *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    await asyncio.sleep(ASKER_UP_S)
    try:
        yield took_ms
    finally:
        said, _ = await asker.communicate(b"")
        took_ms += map(float, said.split())
