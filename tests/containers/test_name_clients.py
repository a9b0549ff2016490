"""
Who asks, and what they got: programs and C libraries as users have them, against the name server's real process.

Each runs in a network namespace with our resolv.conf over /etc/resolv.conf and an empty hosts file. A client that is
not installed is skipped by name.
"""

from __future__ import annotations

import asyncio
import ipaddress
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from astra_agent import host_files
from astra_agent.wire import RunNames
from tests.containers import musl
from tests.containers.name_machine import Machine
from tests.containers.test_name_server import machine

__all__ = ["machine"]

CLIENTS = Path(__file__).parent / "clients"
BUILD_S = 100
RUN_S = 30
ROOT = Path(__file__).parents[2]
RESOLVED_PLACES = ("usr/lib/systemd/systemd-resolved", "lib/systemd/systemd-resolved")
"""In Debian's packages from 13 on, and before."""
FOUND = {
    "llama-0": "10.0.0.1",
    "llama-1": "10.0.0.2",
    "llama": "10.0.0.1",
    "llama-1.nlp": "10.0.0.2",
    "llama-1.nlp.astra.internal": "10.0.0.2",
    "LLAMA-0": "10.0.0.1",
    "llama-2": "10.0.0.3 fd00::3",
}
IPV4_ONLY = ("getent", "dig")
"""The first does not ask for IPv6 on a machine without an address of that kind, the second when it is not told to."""
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

C_ARES = """
import sys, pycares
channel = pycares.Channel()
for name in sys.argv[1:]:
    said = []
    channel.getaddrinfo(name, 80, callback=lambda result, error: said.append((result, error)))
    channel.wait(10)
    result, error = said[0]
    missing = error in (pycares.errno.ARES_ENOTFOUND, pycares.errno.ARES_ENODATA)
    found = ["no-name"] if missing else [pycares.errno.strerror(error)] if error else {
        node.addr[0].decode() if isinstance(node.addr[0], bytes) else node.addr[0] for node in result.nodes
    }
    print(name, *sorted(found), flush=True)
"""


def with_pycares() -> Client:
    pytest.importorskip("pycares")
    return Client((sys.executable, "-c", C_ARES))


RESOLVED = """
set -e
program=$1 libraries=$2; shift 2
# It asks nobody while no device but loopback is up and has an address.
if ! ip link show up0 >/dev/null 2>&1; then
    ip link add up0 type veth peer name up1
    ip address add 192.0.2.1/24 dev up0
    ip link set up0 up
    ip link set up1 up
fi
mount -t tmpfs none /run
mkdir -p /run/systemd/resolved.conf.d
sed -n 's/^nameserver /DNS=/p; s/^search /Domains=/p' /etc/resolv.conf >/run/servers
{ echo '[Resolve]'; cat /run/servers; } >/run/systemd/resolved.conf.d/ours.conf
{ cat /etc/passwd; echo 'systemd-resolve:x:65533:65533::/:/bin/false'; } >/run/passwd
mount --bind /run/passwd /etc/passwd
LD_LIBRARY_PATH=$libraries timeout "$RUN_S" "$program" >&2 &
trap "kill $!" EXIT
stub=/run/systemd/resolve/stub-resolv.conf
until [ -e "$stub" ]; do kill -0 $!; sleep 0.1; done
mount --bind "$stub" "$(readlink -f /etc/resolv.conf)"
"$@"
"""
"""
systemd-resolved between a client and us: told of our server where `/etc/resolv.conf` has it, in whose place comes the
address of its own.
"""


def behind_resolved(folder: Path) -> Client:
    """The service of `scripts/setup test`, or else this machine's, without the rest of systemd."""
    unpacked = ROOT / "build/systemd-resolved"
    programs = [root / place for root in (unpacked, Path("/")) for place in RESOLVED_PLACES]
    program = next((one for one in programs if one.is_file()), None)
    if program is None:
        pytest.skip("systemd-resolved is not there: run scripts/setup test")
    libraries = ":".join(map(str, unpacked.glob("usr/lib/*/systemd"))) if program.is_relative_to(unpacked) else ""
    tried = subprocess.run(
        [program, "--version"], env={"LD_LIBRARY_PATH": libraries}, capture_output=True, text=True, timeout=RUN_S,
        check=False,
    )  # fmt: skip
    if tried.returncode:
        pytest.skip(f"systemd-resolved does not run here: {tried.stderr.strip()}")
    script = RESOLVED.replace("$RUN_S", str(RUN_S))
    return Client(("sh", "-c", script, "sh", str(program), libraries, *built_c(folder, "gcc").command))


MAKERS: dict[str, tuple[str, Callable[[Path], Client]]] = {
    "glibc": ("gcc", lambda folder: built_c(folder, "gcc")),
    "musl": (musl.COMPILER, lambda folder: built_c(folder, musl.COMPILER)),
    "getent": ("getent", lambda _: shell("getent ahosts \"$1\" | awk '!seen[$1]++ {print $1}'")),
    "dig": ("dig", lambda _: shell('dig +short +search "$1"')),
    "go": ("go", built_go),
    "java": ("javac", lambda _: Client(("java", "-Djava.net.preferIPv4Stack=false", str(CLIENTS / "Resolve.java")))),
    "c-ares": ("python3", lambda _: with_pycares()),
    "python": ("python3", lambda _: Client(("python3", "-c", PYTHON))),
    "systemd-resolved": ("gcc", behind_resolved),
}  # fmt: skip


@pytest.fixture
async def asking(machine: Machine) -> AsyncIterator[Machine]:
    server = await machine.names.serve("a", "nlp", machine.own)
    theirs = await machine.names.serve("b", "vision", machine.netns)
    assert server and theirs
    both = {"nlp": (("10.0.0.1",), ("10.0.0.2",), ("10.0.0.3", "fd00::3")), "vision": (("10.0.9.9",),)}
    for slot, (workspace, addresses) in zip("ab", both.items(), strict=True):
        workers = {f"llama-{rank}": several for rank, several in enumerate(addresses)}
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
    """Addresses in the order of their text: which one comes first is the client's business."""
    result = await asyncio.to_thread(run, machine, *client.command, *names)
    lines = (line.split(" ") for line in result.stdout.splitlines())
    return {name: " ".join(sorted(map(short, found))) for name, *found in lines} or {"": result.stderr}


def short(address: str) -> str:
    """As all but Java write it; what is no address stays."""
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return address


@pytest.mark.parametrize("name", MAKERS)
async def test_a_client_finds_workers_by_each_name_and_nobody_elses(asking: Machine, name: str, tmp_path: Path) -> None:
    client = await asyncio.to_thread(made, name, tmp_path)
    found = {asked: both.split()[0] for asked, both in FOUND.items()} if name in IPV4_ONLY else FOUND
    assert await said(asking, client, *FOUND) == found
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


def getent(library: str, folder: Path) -> str:
    """A PATH where it is glibc's own, or one that musl answers."""
    path = "/usr/bin:/bin"
    if library == "glibc":
        return path
    if shutil.which(musl.COMPILER) is None:
        pytest.skip(f"{musl.COMPILER} is not installed: run scripts/setup test")
    return f"{musl.getent(folder).parent}:{path}"


@pytest.mark.parametrize("library", ["glibc", "musl"])
async def test_the_loop_of_the_seed_page_ends(asking: Machine, library: str, tmp_path: Path) -> None:
    script = """
    LEADER="${ASTRAEUS_LEADER_TASK_NAME#*.}"          # llama-0
    until getent hosts "$LEADER" >/dev/null; do sleep 1; done
    export MASTER_ADDR="$LEADER"
    getent hosts $MASTER_ADDR
    """
    variables = ("ASTRAEUS_LEADER_TASK_NAME=nlp.llama-0", f"PATH={getent(library, tmp_path)}")
    result = await asyncio.to_thread(run, asking, "env", *variables, "sh", "-c", script)
    assert result.stdout.split()[0] == "10.0.0.1"


@pytest.mark.parametrize("library", ["glibc", "musl"])
async def test_an_address_is_a_workers_name_to_programs_that_ask_backwards(
    asking: Machine, library: str, tmp_path: Path
) -> None:
    path = f"PATH={getent(library, tmp_path)}"
    for address in ("10.0.0.3", "fd00::3"):
        result = await asyncio.to_thread(run, asking, "env", path, "getent", "hosts", address)
        assert result.stdout.split() == [address, "llama-2.nlp.astra.internal"]
    theirs = await asyncio.to_thread(run, asking, "env", path, "getent", "hosts", "10.0.9.9")
    assert (theirs.returncode, theirs.stdout) == (2, "")
