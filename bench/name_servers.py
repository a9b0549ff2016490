"""Name servers to measure: ours, unbound with local data, dnsmasq with a hosts file. Each on loopback, on one core."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import dns.exception
import dns.message
import dns.query

from astra_dns.client import Client
from astra_dns.records import RunNames

ZONE = "bench.astra.internal"
HOST = "127.0.0.1"
Result = TypeVar("Result")

_UP_S = 20.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class NameServer:
    """*upstream*: where it forwards what is not its own; nobody answers there unless somebody listens."""

    name: str
    port: int
    pid: int

    def cpu_s(self) -> float:
        """Seconds of processor that it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def at_once(core: int) -> list[str]:
    """In front of a command: on *core* alone, before every ordinary program, so that other work does not count."""
    return ["chrt", "--fifo", "10", "taskset", "-c", str(core)]


def address(number: int) -> str:
    return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


def write_hosts(folder: Path, count: int) -> Path:
    file = folder / "hosts"
    file.write_text("".join(f"{address(number)} llama-{number}.{ZONE}\n" for number in range(count)))
    return file


def run_names(count: int, *, first: int = 0, run: str = "llama") -> RunNames:
    return RunNames("bench", run, {f"{run}-{number}": (address(first + number),) for number in range(count)}, "", 1)


@contextlib.asynccontextmanager
async def ours(folder: Path, names: int, core: int, upstream: int) -> AsyncIterator[tuple[NameServer, Client]]:
    control = folder / "names.sock"
    command = [sys.executable, "-P", "-m", "astra_dns", "--control", str(control)]
    command += ["--upstream", HOST, "--upstream-port", str(upstream)]
    async with process(folder, command, core) as running:
        client = await _until(lambda: Client(control))
        with client, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((HOST, 0))
            client.put(run_names(names))
            client.publish()
            client.listen("udp", "bench", sock.fileno())
            server = NameServer("astra", sock.getsockname()[1], running.pid)
            await answers(server)
            yield server, client


@contextlib.asynccontextmanager
async def unbound(folder: Path, names: int, core: int, upstream: int) -> AsyncIterator[NameServer]:
    port = free_port()
    lines = [f'local-data: "llama-{number}.{ZONE}. 1 IN A {address(number)}"' for number in range(names)]
    (folder / "unbound.conf").write_text(
        f"""
server:
  directory: "{folder}"
  chroot: ""
  username: ""
  pidfile: ""
  interface: {HOST}@{port}
  do-not-query-localhost: no
  num-threads: 1
  use-syslog: no
  local-zone: "{ZONE}." static
  {chr(10).join("  " + line for line in lines)}
forward-zone:
  name: "."
  forward-addr: {HOST}@{upstream}
remote-control:
  control-enable: no
"""
    )
    async with process(folder, ["unbound", "-d", "-c", str(folder / "unbound.conf")], core) as running:
        server = NameServer("unbound", port, running.pid)
        await answers(server)
        yield server


@contextlib.asynccontextmanager
async def dnsmasq(folder: Path, names: int, core: int, upstream: int) -> AsyncIterator[NameServer]:
    port = free_port()
    hosts = write_hosts(folder, names)
    command = ["dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--no-hosts", "--no-resolv", "--no-daemon"]
    command += [f"--port={port}", f"--listen-address={HOST}", "--bind-interfaces", f"--addn-hosts={hosts}"]
    command += [f"--server={HOST}#{upstream}", "--pid-file=", "--cache-size=10000", "--user=root"]
    command += [f"--local=/{ZONE}/"]
    async with process(folder, command, core) as running:
        server = NameServer("dnsmasq", port, running.pid)
        await answers(server)
        yield server


@contextlib.asynccontextmanager
async def process(folder: Path, command: list[str], core: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A server on *core*, with its output in *folder*; ended with the block."""
    found = shutil.which(command[0], path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        raise FileNotFoundError(f"{command[0]} is not installed: run scripts/setup bench")
    with (folder / f"{Path(found).name}.log").open("wb") as output:
        running = await asyncio.create_subprocess_exec(
            *at_once(core), found, *command[1:], stdout=output, stderr=output
        )
    try:
        yield running
    finally:
        running.terminate()
        await running.wait()


async def answers(server: NameServer) -> None:
    query = dns.message.make_query(f"llama-0.{ZONE}", "A")
    await _until(lambda: dns.query.udp(query, HOST, 0.5, server.port))


async def _until(work: Callable[[], Result]) -> Result:
    deadline_s = time.monotonic() + _UP_S
    while True:
        try:
            return await asyncio.to_thread(work)
        except (OSError, dns.exception.DNSException):
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(0.1)


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
