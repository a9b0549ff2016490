"""A real name server is sent random and broken packets and told names anew: what it holds does not grow."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import re
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import dns.message

from astra_dns.client import Client
from astra_dns.query import HEADER_BYTES, skip_name
from tests.dns.names_of_runs import ETL, LLAMA, OTHERS_LLAMA
from tests.dns.test_oracle import bent, whole
from tests.fakes.eventually import until
from tests.fakes.upstream import bound_pair

HALF = 50_000
"""Packets of each half; what the first one leaves is what the second one is held against."""
AT_ONCE = 50
PUBLISH_EVERY = 5_000
"""Packets. Answers that are ready are forgotten then, or they would grow to their own bound all the while."""
GROWTH_KIB = 1024
"""In the second half: as much as 21 bytes kept of each packet. It was 40 to 240, 20 in a third."""
WAIT_S = 20.0


def rss_kib(pid: int) -> int:
    found = re.search(r"^VmRSS:\s*(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def packets(rng: random.Random, count: int) -> Iterator[bytes]:
    made = [whole(rng) for _ in range(1000)]
    for _ in range(count):
        packet = rng.randbytes(2) + rng.choice(made)[2:]
        yield bent(rng, packet) if rng.random() < 0.5 else packet


@contextlib.contextmanager
def no_such_name() -> Iterator[int]:
    """An upstream, fast, whose answers are not kept. Its port."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            packet, asker = sock.recvfrom(4096)
            if not packet:
                return
            end = skip_name(packet, HEADER_BYTES) + 4
            sock.sendto(packet[:2] + b"\x81\x83\0\1" + bytes(6) + packet[HEADER_BYTES:end], asker)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield sock.getsockname()[1]
    finally:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", sock.getsockname())
        thread.join()
        sock.close()


@contextlib.asynccontextmanager
async def name_server(folder: Path, upstream_port: int) -> AsyncIterator[tuple[int, Client]]:
    """Its process, and who tells it names."""
    control = folder / "names.sock"
    words = ("--control", str(control), "--upstream", "127.0.0.1", "--upstream-port", str(upstream_port))
    process = await asyncio.create_subprocess_exec(sys.executable, "-P", "-m", "astra_dns", *words)
    try:
        await until(control.exists)
        with Client(control) as client:
            yield process.pid, client
    finally:
        process.terminate()
        await process.wait()


def send_half(asker: socket.socket, client: Client, rng: random.Random) -> None:
    """A few at once, and then one that nothing else asks, whose answer says that the others have been read."""
    for number in range(HALF // PUBLISH_EVERY):
        client.put(dataclasses.replace(LLAMA, attempt=number))
        client.publish()
        for sent, packet in enumerate(packets(rng, PUBLISH_EVERY), 1):
            asker.send(packet)
            if sent % AT_ONCE == 0:
                last = dns.message.make_query(f"read-{sent}.astra.internal", "A").to_wire()
                asker.send(last)
                while not asker.recv(4096)[HEADER_BYTES:].startswith(last[HEADER_BYTES:]):
                    pass


async def test_a_name_server_does_not_grow_by_what_it_is_sent(tmp_path: Path) -> None:
    rng = random.Random(1)
    with no_such_name() as upstream_port:
        async with name_server(tmp_path, upstream_port) as (pid, client):
            for run in (LLAMA, ETL, OTHERS_LLAMA):
                client.put(run)
            client.publish()
            udp, tcp = bound_pair()
            with udp, tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
                client.listen("udp", "nlp", udp.fileno())
                asker.settimeout(WAIT_S)
                asker.connect(udp.getsockname())
                await asyncio.to_thread(send_half, asker, client, rng)
                warm = rss_kib(pid)
                await asyncio.to_thread(send_half, asker, client, rng)
                grown = rss_kib(pid) - warm
            assert "astra_panics_total 0\n" in client.show()["metrics"]
    assert grown < GROWTH_KIB
