"""
What `astra doctor` says of names, without an agent: whether the port where workers would ask can be had, and whether
anybody answers about names outside. Looks, asks the machine's name servers for the root's, once, and a name server of
ours that runs here which of them send our questions back.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from astra_agent import name_findings
from astra_agent.config import NAME_SERVER
from astra_dns import lookup, resolv_conf
from astra_dns.client import Client

PORT = 53
ANSWER_S = 1.0
"""For all servers together; they are asked at once."""


def port(proc: Path = Path("/proc"), address: str = NAME_SERVER) -> Iterator[str]:
    """Who keeps workers on the machine's network from asking there; nobody: nothing. A sentence, its fix at the end."""
    for where, inode in _bound(proc):
        if where.is_unspecified:
            yield (
                f"port {PORT} of every address is taken by {_program(proc, inode)}: workers on the machine's network "
                "would have their names in hosts files only; let it listen on addresses of its own, as dnsmasq does "
                "with bind-interfaces and listen-address"
            )
        elif str(where) == address and "astra_dns" not in _command(proc, inode):
            yield name_findings.taken(address, PORT, f"{_program(proc, inode)} has it")


def outside(root: Path = Path("/"), port: int = PORT, proc: Path = Path("/proc")) -> tuple[tuple[str, ...], str]:
    """What keeps names outside from resolving, as the agent would say it; and the sentence when nothing does."""
    machine, resolved = (_text(root / name) for name in ("etc/resolv.conf", "run/systemd/resolve/resolv.conf"))
    servers = resolv_conf.upstreams(machine, resolved, {NAME_SERVER})
    answering = _answering(servers, port)
    stub = resolv_conf.STUBS.intersection(resolv_conf.parse(machine).servers) - {*servers}
    behind = f", the servers behind systemd-resolved's {min(stub)}" if stub else ""
    listed = ", ".join(server for server, good in answering.items() if good)
    complaints = name_findings.of_upstreams(answering, sorted(set(_loops(proc))))
    return tuple(complaints), f"names outside are asked of {listed}{behind}"


# Sockets of this machine ---------------------------------------------------------------------------------------------


def _bound(proc: Path) -> Iterator[tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, str]]:
    """Addresses at which somebody has the UDP port, and the socket's inode."""
    for name in ("udp", "udp6"):
        for line in _text(proc / "net" / name).splitlines()[1:]:
            words = line.split()
            where, _, number = words[1].rpartition(":")
            if int(number, 16) == PORT:
                yield _address(where), words[9]


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """As the kernel prints it: 32-bit words, each in the machine's own order."""
    words = (int(text[at : at + 8], 16) for at in range(0, len(text), 8))
    return ipaddress.ip_address(struct.pack(f"={len(text) // 8}I", *words))


def _program(proc: Path, inode: str) -> str:
    process = _process(proc, inode)
    return f"{_text(process / 'comm').strip()} (process {process.name})" if process else "a program not seen from here"


def _command(proc: Path, inode: str) -> str:
    process = _process(proc, inode)
    return _text(process / "cmdline") if process else ""


def _process(proc: Path, inode: str) -> Path | None:
    """Who has this socket; None when that can't be seen."""
    for link in proc.glob("[0-9]*/fd/*"):
        try:
            if str(link.readlink()) == f"socket:[{inode}]":
                return link.parent.parent
        except OSError:
            continue
    return None


# Name servers of ours ------------------------------------------------------------------------------------------------


def _loops(proc: Path) -> Iterator[str]:
    """Whoever was seen to forward to one of our name servers that run here, by this user; nobody when none runs."""
    for process in proc.glob("[0-9]*"):
        words = _text(process / "cmdline").split("\0")
        if "astra_dns" not in words or "--control" not in words[:-1]:
            continue
        control = Path(words[words.index("--control") + 1])
        # A path from another user's process is a word of theirs: nothing is sent there.
        with contextlib.suppress(OSError, KeyError):
            if process.stat().st_uid == os.geteuid():
                with Client(control, ANSWER_S) as client:
                    yield from client.show()["loops"]


# Servers of this machine ---------------------------------------------------------------------------------------------


def _answering(servers: tuple[str, ...], port: int) -> dict[str, bool]:
    """Which of *servers* say anything at all."""
    asked = {server: _asked(server, port) for server in servers}
    deadline_s = time.monotonic() + ANSWER_S
    return {server: sock is not None and _said(sock, deadline_s) for server, sock in asked.items()}


def _asked(server: str, port: int) -> socket.socket | None:
    """A socket on which its answer will be; None when it can't be reached."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(server, port, type=socket.SOCK_DGRAM)[0]
        sock = socket.socket(family, kind)
    except OSError:
        return None
    try:
        sock.connect(address)
        sock.send(lookup.question(".", "NS"))
    except OSError:
        sock.close()
        return None
    return sock


def _said(sock: socket.socket, deadline_s: float) -> bool:
    with sock:
        sock.settimeout(max(deadline_s - time.monotonic(), 0.01))
        try:
            return bool(sock.recv(lookup.ANSWER_BYTES))
        except OSError:
            return False


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
