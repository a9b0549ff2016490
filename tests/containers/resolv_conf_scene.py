"""
One agent on a machine as `another_root` makes it. Its words: a folder, `host` or `own`, name servers of the machine.

A server for names outside answers at each of these. A worker in each kind of image looks up a worker, a name outside, a
wrong one and itself; what they printed is printed as JSON, by image, and what the agent
complains about.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

import aiohttp
import dns.message
import dns.rcode

from astra_agent.wire import Arm, RunNames, Start
from tests.containers import musl
from tests.containers.agent_daemon import ADDRESS, AgentDaemon
from tests.containers.images import File, Image, Link
from tests.fakes.upstream import FakeUpstream, address, code

PEER = "10.83.0.77"
OUTSIDE = "192.0.2.80"
PROGRAMS = ("/bin/sh", "/bin/cat", "/bin/date", "/bin/hostname", "/usr/bin/getent", "/usr/bin/awk")
STUB = "/run/systemd/resolve/stub-resolv.conf"
SCRIPT = """
ask() {
    least=
    for try in 1 2 3; do
        name=$2
        [ "$1" != outside ] || name=$try.$2  # what was asked before comes from the cache
        began=$(date +%s%N)
        found=$(getent ahostsv4 "$name" | awk 'NR == 1 {print $1}')
        took=$((($(date +%s%N) - began) / 1000000))
        [ "$least" ] || first=${found:-none}
        [ "${found:-none}" = "$first" ] || first=sometimes
        [ "$least" ] && [ "$least" -le $took ] || least=$took
        [ $took -lt 4000 ] || break
    done
    echo "$1 $first $least"
}
ask worker llama-1; ask outside www.example.com; ask wrong llama-9; ask nowhere nowhere.example.com
ask itself "$(hostname)"; ask fqdn "$(hostname -f)"
if command -v python3 >/dev/null; then
    python3 -c 'import socket as s; print("python", s.gethostbyname(s.gethostname()), s.getfqdn())'
fi
awk '$1 == "nameserver" {print "server", $2, 0}' /etc/resolv.conf
"""


def images(folder: Path) -> dict[str, str]:
    """By kind, as a slot asks for them; `musl`, where its compiler is, has a getent by that library."""
    plain = Image().with_programs(*PROGRAMS)
    kinds = {
        "plain": plain,
        "link": plain.layer({"etc/resolv.conf": Link(STUB)}),
        "relative-link": plain.layer({"etc/resolv.conf": Link(f"..{STUB}")}),
        "read-only": plain.layer({"etc/resolv.conf": File(b"nameserver 203.0.113.1\n", 0o444)}),
    }
    if shutil.which(musl.COMPILER):
        kinds["musl"] = plain.layer({"usr/bin/getent": File(musl.getent(folder).read_bytes(), 0o755)})
    for kind, image in kinds.items():
        image.write_oci_archive(folder / f"{kind}.tar")
    return {"host": "host"} | {kind: f"oci-archive:{folder / f'{kind}.tar'}" for kind in kinds}


def names(version: int) -> RunNames:
    addresses = {"llama-0": (ADDRESS,), "llama-1": (PEER,)}
    return RunNames(
        workspace="default", run="llama", addresses=addresses, leader="llama-0", port=29500, attempt=0, world_size=2,
        term=1, version=version,
    )  # fmt: skip


async def looked_up(daemon: AgentDaemon, kind: str, image: str) -> dict[str, list[str]]:
    """What the worker printed: a word, what it found each time, and how many milliseconds the fastest of three took."""
    slot = f"s-{kind}"
    ready = await daemon.ready(slot, SCRIPT, image=image, worker="llama-0")
    assert ready.phase == "ready", ready.detail
    await daemon.coordinator.tell(Arm(slot=slot, term=1, attempt=0, env={}, hosts={"llama-1": PEER}, names=names(1)))
    await daemon.attempt(slot, 0, "armed")
    await daemon.coordinator.tell(Start(slot=slot, term=1, attempt=0))
    await daemon.attempt(slot, 0, "exited")
    found = {words[0]: words[1:] for line in daemon.log(slot).splitlines() if len(words := line.split()) == 3}
    return found | {"address": [ready.address or ""]}


def outside(query: dns.message.Message) -> list[bytes]:
    """What is below `www.example.com` is there, everything else is not."""
    if str(query.question[0].name).lower().endswith(".www.example.com."):
        return address(OUTSIDE)(query)
    return code(dns.rcode.NXDOMAIN)(query)


async def findings(daemon: AgentDaemon) -> list[str]:
    """What the agent has to complain about."""
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=str(daemon.socket))) as session:
        async with session.get("http://agent/v1/health") as answer:
            document = await answer.json()
    return list(document["findings"])


async def main(folder: Path, network: Literal["host", "own"], servers: list[str]) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for server in servers:
            await stack.enter_async_context(FakeUpstream(outside).serve(server, 53))
        daemon = AgentDaemon(folder, network)
        stack.push_async_callback(daemon.clean)
        await daemon.start()
        made = await asyncio.to_thread(images, folder)
        found = {kind: await looked_up(daemon, kind, image) for kind, image in made.items()}
        print(json.dumps({"images": found, "findings": await findings(daemon)}))


if __name__ == "__main__":
    for server in {*sys.argv[3:]} - {"127.0.0.1"}:
        subprocess.run(["ip", "address", "add", f"{server}/32", "dev", "lo"], check=True)
    asyncio.run(main(Path(sys.argv[1]), "own" if sys.argv[2] == "own" else "host", sys.argv[3:]))
