"""The machine's resolv.conf in the forms that machines have."""

from __future__ import annotations

import pytest

from astra_dns.resolv_conf import ResolvConf, parse, upstreams

STUB = "nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch corp.example\n"
BEHIND = "nameserver 10.0.0.53\nnameserver 10.0.1.53\nsearch corp.example\n"
REAL = """nameserver\t10.0.0.53
nameserver fe80::1%eth0 # gateway
; old: nameserver 10.9.9.9
domain corp.example
search a.example b.example
"""


@pytest.mark.parametrize(
    ("machine", "resolved", "servers"),
    [
        pytest.param(STUB, BEHIND, ("10.0.0.53", "10.0.1.53"), id="a stub, and what is behind it"),
        pytest.param(STUB, "", ("127.0.0.53",), id="a stub with nothing known behind it is asked itself"),
        pytest.param(REAL, "", ("10.0.0.53", "fe80::1%eth0"), id="real servers, one with a zone"),
        pytest.param("nameserver 127.0.0.1\nnameserver ::1\n", "", ("127.0.0.1", "::1"), id="a cache on loopback"),
        pytest.param("", "", (), id="an empty file"),
        pytest.param("nameserver 169.254.53.53\nnameserver 10.0.0.53\n", "", ("10.0.0.53",), id="ourselves"),
        pytest.param("nameserver\nnameserver x\nnameserver 1.2.3\n", "", (), id="no addresses"),
    ],
)
def test_upstreams_of_a_machine(machine: str, resolved: str, servers: tuple[str, ...]) -> None:
    assert upstreams(machine, resolved, {"169.254.53.53"}) == servers


def test_the_last_search_or_domain_counts() -> None:
    assert parse(REAL) == ResolvConf(("10.0.0.53", "fe80::1%eth0"), ("a.example", "b.example"))
    assert parse("search a\ndomain b\n").search == ("b",)
