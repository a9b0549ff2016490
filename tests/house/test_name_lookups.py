"""
No rank, address or variable of a worker comes from a name that was looked up: names come from ranks, never the other
way round, and what a machine's resolver says of itself is often wrong (127.0.1.1).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.house.tree import ROOT, tracked_files

LOOK_UPS = frozenset(
    "gethostbyname gethostbyname_ex gethostbyaddr getfqdn getaddrinfo getnameinfo".split()  # noqa: SIM905  # words
)
RESOLVERS = frozenset({"aiodns", "dns.asyncresolver", "dns.resolver", "pycares"})
PARTS = ("gang", "agent")


def look_ups(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if name in LOOK_UPS:
                yield f"line {node.lineno}: {name}()"
        elif isinstance(node, ast.Import):
            yield from (f"line {node.lineno}: {alias.name}" for alias in node.names if alias.name in RESOLVERS)
        elif isinstance(node, ast.ImportFrom):
            named = {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
            yield from (f"line {node.lineno}: {name}" for name in sorted(named & RESOLVERS))


def test_neither_the_coordinator_nor_an_agent_looks_up_a_name() -> None:
    files = [file for file in tracked_files() if file.suffix == ".py" and file.relative_to(ROOT).parts[0] in PARTS]
    assert len(files) > 100, "the parts are where they were"
    found = [f"{file.relative_to(ROOT)}, {where}" for file in files for where in look_ups(file.read_text())]
    assert found == []


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("import socket\nsocket.gethostbyname(name)", ["line 2: gethostbyname()"]),
        ("from socket import getfqdn\nrank = int(getfqdn()[-1])", ["line 2: getfqdn()"]),
        ("async def f(loop):\n    await loop.getaddrinfo('llama-0', 0)", ["line 2: getaddrinfo()"]),
        ("import dns.resolver", ["line 1: dns.resolver"]),
        ("from dns import resolver", ["line 1: dns.resolver"]),
        ("import socket\nsocket.gethostname()", []),
    ],
)
def test_the_checker_tells_a_look_up_from_what_is_none(line: str, what: list[str]) -> None:
    assert list(look_ups(line)) == what
