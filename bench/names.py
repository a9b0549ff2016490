"""Own names against unbound and dnsmasq: questions a second, the slowest of a hundred, a dead upstream, big changes."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import dns.message

from astra_dns.client import Client
from bench.figure import Figure, against_goal, against_peer
from bench.name_servers import HOST, ZONE, NameServer, dnsmasq, ours, run_names, unbound

ROUNDS = 5
ROUND_S = 3
NAMES = 10_000
BIG = 100_000
SERVER_CORE, CLIENT_CORE = 0, 1
DEAD_SHARE = 100
"""One question in so many is about a name outside, and its upstream is dead."""
DEAD_PORT = 9
LIGHT_PER_S = 2000
STALL_GOAL_MS = 5.0


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


async def _against_others(folder: Path) -> list[Figure]:
    loads: dict[str, list[Load]] = {"astra": [], "unbound": [], "dnsmasq": []}
    slowest: dict[str, list[float]] = {name: [] for name in loads}
    async with contextlib.AsyncExitStack() as stack:
        (mine, _) = await stack.enter_async_context(ours(folder, NAMES, SERVER_CORE, DEAD_PORT))
        servers = [mine]
        for other in (unbound, dnsmasq):
            servers.append(await stack.enter_async_context(other(folder, NAMES, SERVER_CORE, DEAD_PORT)))
        for _ in range(ROUNDS):
            for server in servers:
                loads[server.name].append(await _load(server, folder / "own"))
                slowest[server.name].append(await _p99_ms(server, folder / "own"))
    figures = []
    for peer in ("unbound", "dnsmasq"):
        figures += [
            against_peer(
                f"names-rate-{peer}", f"microseconds between answers under full load, {peer}", "µs",
                [1e6 / load.per_s for load in loads["astra"]], [1e6 / load.per_s for load in loads[peer]], 1.0,
            ),
            against_peer(
                f"names-cpu-{peer}", f"processor time for an answer, {peer}", "µs",
                [load.cpu_us for load in loads["astra"]], [load.cpu_us for load in loads[peer]], 1.0,
            ),
            against_peer(
                f"names-p99-{peer}", f"slowest of 100 answers, {peer}", "ms",
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
    text = await _dnsperf(server, questions, "-v", "-Q", str(LIGHT_PER_S))
    took_s = sorted(float(found) for found in re.findall(rf"^> \w+ \S+\.{ZONE} \w+ ([\d.]+)", text, re.MULTILINE))
    return took_s[int(len(took_s) * 0.99)] * 1000


async def _dnsperf(server: NameServer, questions: Path, *options: str) -> str:
    command = ["taskset", "-c", str(CLIENT_CORE), "dnsperf", "-s", HOST, "-p", str(server.port), "-d", str(questions)]
    process = await asyncio.create_subprocess_exec(
        *command, "-l", str(ROUND_S), *options, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    return (await process.communicate())[0].decode()


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise RuntimeError(f"dnsperf does not say {pattern}: {text[-500:]}")
    return match[1]


async def _big_change(folder: Path) -> Figure:
    """A snapshot of 100,000 names takes the place of another one, while somebody asks all the time."""
    slowest = []
    async with ours(folder, BIG, SERVER_CORE, DEAD_PORT) as (server, client):
        for turn in range(3):
            async with _asking(server) as took:
                await asyncio.to_thread(_replace, client, turn)
                await asyncio.sleep(0.5)
            slowest.append(max(took) * 1000)
    return against_goal("names-change", "slowest answer while 100,000 names are replaced", "ms", slowest, STALL_GOAL_MS)


def _replace(client: Client, turn: int) -> None:
    for part in range(BIG // 1000):
        client.put(run_names(1000, first=part * 1000 + turn + 1, run=f"r{part}"))
    client.publish()


@contextlib.asynccontextmanager
async def _asking(server: NameServer) -> AsyncIterator[list[float]]:
    took: list[float] = []
    stop = threading.Event()

    def work() -> None:
        query = dns.message.make_query(f"llama-1.{ZONE}", "A").to_wire()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((HOST, server.port))
            sock.settimeout(5.0)
            while not stop.is_set():
                began = time.perf_counter()
                sock.send(query)
                sock.recv(4096)
                took.append(time.perf_counter() - began)
                time.sleep(0.0005)

    asking = asyncio.create_task(asyncio.to_thread(work))
    try:
        yield took
    finally:
        stop.set()
        await asking
