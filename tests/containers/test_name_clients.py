"""
Who asks, and what they got: programs and C libraries as users have them, against the name server's real process.

Each runs in a network namespace with our resolv.conf over /etc/resolv.conf and an empty hosts file. A client that is
not installed is skipped by name.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from astra_agent import host_files
from astra_agent.wire import RunNames
from tests.containers.test_name_server import Machine, machine

__all__ = ["machine"]

CLIENTS = Path(__file__).parent / "clients"
BUILD_S = 100
RUN_S = 30
FOUND = {
    "llama-0": "10.0.0.1",
    "llama-1": "10.0.0.2",
    "llama": "10.0.0.1",
    "llama-1.nlp": "10.0.0.2",
    "llama-1.nlp.astra.internal": "10.0.0.2",
    "LLAMA-0": "10.0.0.1",
}
MISSING = ("llama-7", "llama-0.vision.astra.internal", "llama-7.nlp.astra.internal")


@dataclass(frozen=True, slots=True)
class Client:
    """A command that prints `NAME ADDRESS...`, or `NAME no-name`, for each of its arguments."""

    command: tuple[str, ...]


def built_c(folder: Path, compiler: str) -> Client:
    program = folder / f"resolve-{compiler}"
    subprocess.run([compiler, "-o", program, CLIENTS / "resolve.c"], check=True, timeout=BUILD_S)
    return Client((str(program),))


def built_go(folder: Path) -> Client:
    program = folder / "resolve-go"
    go = shutil.which("go", path="/usr/local/go/bin:/usr/bin:/usr/local/bin") or "go"
    environment = {"GOCACHE": str(folder / "go"), "GO111MODULE": "off", "CGO_ENABLED": "0", "HOME": str(folder)}
    subprocess.run([go, "build", "-o", program, CLIENTS / "resolve.go"], check=True, timeout=BUILD_S, env=environment)
    return Client((str(program),))


def shell(line: str) -> Client:
    """*line* prints the addresses of `$1`."""
    script = (
        f'for name; do set -- "$name"; printf "%s" "$name"; found=$({line}); '
        'printf " %s" ${found:-no-name}; echo; done'
    )
    return Client(("sh", "-c", script, "sh"))


PYTHON = """
import socket, sys
for name in sys.argv[1:]:
    try:
        found = sorted({item[4][0] for item in socket.getaddrinfo(name, 80)})
    except socket.gaierror as error:
        found = ["no-name"] if error.errno in (socket.EAI_NONAME, socket.EAI_NODATA) else [str(error)]
    print(name, *found)
"""

MAKERS: dict[str, tuple[str, Callable[[Path], Client]]] = {
    "glibc": ("gcc", lambda folder: built_c(folder, "gcc")),
    "musl": ("musl-gcc", lambda folder: built_c(folder, "musl-gcc")),
    "getent": ("getent", lambda _: shell("getent ahosts \"$1\" | awk '!seen[$1]++ {print $1}'")),
    "dig": ("dig", lambda _: shell('dig +short +search "$1"')),
    "go": ("go", built_go),
    "java": ("javac", lambda _: Client(("java", "-Djava.net.preferIPv4Stack=false", str(CLIENTS / "Resolve.java")))),
    "python": ("python3", lambda _: Client(("python3", "-c", PYTHON))),
}  # fmt: skip


@pytest.fixture
async def asking(machine: Machine) -> AsyncIterator[Machine]:
    server = await machine.names.serve("a", "nlp", machine.own)
    theirs = await machine.names.serve("b", "vision", machine.netns)
    assert server and theirs
    both = {"nlp": ("10.0.0.1", "10.0.0.2"), "vision": ("10.0.9.9",)}
    for slot, (workspace, addresses) in zip("ab", both.items(), strict=True):
        workers = {f"llama-{rank}": (one,) for rank, one in enumerate(addresses)}
        names = RunNames(workspace=workspace, run="llama", addresses=workers, leader="llama-0", port=29500, term=1)
        machine.names.publish(slot, names)
    await machine.names.settled()
    (machine.folder / "resolv.conf").write_text(host_files.own_resolv_conf(server, ("nlp.astra.internal",)))
    (machine.folder / "hosts").write_text("127.0.0.1 localhost\n")
    yield machine


def run(machine: Machine, *command: str) -> subprocess.CompletedProcess[str]:
    """In the slot's network, with a mount namespace of its own for the two files."""
    binds = "; ".join(
        f'mount --bind "{machine.folder / name}" "$(readlink -f /etc/{name})"' for name in ("resolv.conf", "hosts")
    )
    script = f'set -e; mount --make-rprivate /; {binds}; exec "$@"'
    return subprocess.run(
        ["nsenter", f"--net={machine.own}", "unshare", "--mount", "sh", "-c", script, "sh", *command],
        capture_output=True, text=True, timeout=RUN_S, check=False,
    )  # fmt: skip


def made(name: str, folder: Path) -> Client:
    needs, make = MAKERS[name]
    if shutil.which(needs, path="/usr/local/bin:/usr/bin:/bin:/usr/local/go/bin") is None:
        pytest.skip(f"{needs} is not installed")
    return make(folder)


async def said(machine: Machine, client: Client, *names: str) -> dict[str, str]:
    result = await asyncio.to_thread(run, machine, *client.command, *names)
    lines = (line.partition(" ") for line in result.stdout.splitlines())
    return {name: found for name, _, found in lines} or {"": result.stderr}


@pytest.mark.parametrize("name", MAKERS)
async def test_a_client_finds_workers_by_each_name_and_nobody_elses(asking: Machine, name: str, tmp_path: Path) -> None:
    client = await asyncio.to_thread(made, name, tmp_path)
    assert await said(asking, client, *FOUND) == FOUND
    assert await said(asking, client, *MISSING) == dict.fromkeys(MISSING, "no-name")


async def test_drill_and_dig_see_clean_packets(asking: Machine) -> None:
    for tool in ("drill", "dig"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
        for kind, wanted in (("A", "10.0.0.2"), ("AAAA", "ANSWER: 0"), ("TXT", "ANSWER: 0")):
            result = await asyncio.to_thread(
                run, asking, tool, "llama-1.nlp.astra.internal", kind, f"@{asking.config.name_server}"
            )
            assert wanted in result.stdout
            assert "NOERROR" in result.stdout
            assert "malformed" not in result.stdout.lower()
            assert "warning" not in result.stdout.lower()


async def test_the_loop_of_the_seed_page_ends(asking: Machine) -> None:
    script = """
    LEADER="${ASTRAEUS_LEADER_TASK_NAME#*.}"          # llama-0
    until getent hosts "$LEADER" >/dev/null; do sleep 1; done
    export MASTER_ADDR="$LEADER"
    getent hosts $MASTER_ADDR
    """
    result = await asyncio.to_thread(run, asking, "env", "ASTRAEUS_LEADER_TASK_NAME=nlp.llama-0", "sh", "-c", script)
    assert result.stdout.split()[0] == "10.0.0.1"
