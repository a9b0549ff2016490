"""Who has the port where workers would ask, as `astra doctor` sees it in a network namespace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from astra_agent import namespaces

HOLD = """
import socket, sys
held = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
held.setsockopt(socket.IPPROTO_IP, 15, 1)  # IP_FREEBIND
held.bind((sys.argv[1], 53))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ("0.0.0.0", "port 53 of every address is taken by python"),
        ("::", "port 53 of every address is taken by python"),
        ("169.254.53.53", "port 53 of 169.254.53.53 can't be had (python"),
        ("127.0.0.53", ""),
    ],
)
def test_who_has_the_port_is_named(tmp_path: Path, held: str, said: str) -> None:
    netns = tmp_path / "net"
    namespaces.make(netns)
    command = ["nsenter", f"--net={netns}", sys.executable, "-c", HOLD, held]
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            look = [sys.executable, "-c", "from astra_cli import name_checks as n; print(*n.port())"]
            seen = subprocess.run(
                ["nsenter", f"--net={netns}", *look], capture_output=True, text=True, check=True, timeout=30
            )
            holder.communicate(b"", timeout=10)
    finally:
        namespaces.remove(netns)
    assert seen.stdout.startswith(said)
    assert bool(seen.stdout.strip()) == bool(said)
