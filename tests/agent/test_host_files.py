"""hosts and resolv.conf of containers."""

from __future__ import annotations

from pathlib import Path

import pytest

from astra_agent import host_files

DEBIAN = "127.0.0.1 localhost\n127.0.1.1 gpu-1.lan gpu-1\n::1 ip6-localhost\n10.0.0.9 files files.lan # NFS\n"


def names(text: str) -> dict[str, str]:
    """What each name means: the first line that has it."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        address, *aliases = line.split()
        for alias in aliases:
            found.setdefault(alias, address)
    return found


def test_the_workers_own_name_is_never_loopback() -> None:
    text = host_files.hosts("gpu-1", "10.83.0.3", {"gpu-1": "127.0.1.1", "gpu-2": "10.83.0.4"}, DEBIAN)
    assert names(text)["gpu-1"] == "10.83.0.3"
    assert names(text)["gpu-2"] == "10.83.0.4"
    assert "127.0.1.1" not in text


def test_localhost_stays_loopback() -> None:
    assert names(host_files.hosts("w", "10.0.0.1", {}))["localhost"] == "127.0.0.1"
    assert "::1 localhost" in host_files.hosts("w", "10.0.0.1", {})


def test_other_machines_of_the_machines_own_file_stay() -> None:
    found = names(host_files.hosts("w", "10.0.0.1", {}, DEBIAN))
    assert (found["files"], found["files.lan"]) == ("10.0.0.9", "10.0.0.9")


def test_the_machines_file_does_not_say_where_workers_are() -> None:
    text = host_files.hosts("w", "10.0.0.1", {"peer": "10.0.0.2"}, "10.9.9.9 w peer other\nnonsense\n\n")
    assert (names(text)["w"], names(text)["peer"], names(text)["other"]) == ("10.0.0.1", "10.0.0.2", "10.9.9.9")


STUB = "nameserver 127.0.0.53\noptions edns0\nsearch lan\n"
REAL = "# by resolved\nnameserver 10.0.0.53\nnameserver fe80::1%eth0\nsearch lan\n"


@pytest.mark.parametrize(
    ("texts", "reachable", "expected"),
    [
        ((REAL,), False, "nameserver 10.0.0.53\nnameserver fe80::1%eth0\nsearch lan\n"),
        ((STUB, REAL), False, "nameserver 10.0.0.53\nnameserver fe80::1%eth0\nsearch lan\n"),
        ((STUB, REAL), True, STUB),
        ((STUB,), False, "options edns0\nsearch lan\n"),
        ((), False, ""),
        (("",), True, ""),
        (("nameserver\nnameserver nonsense\n",), False, ""),
    ],
)
def test_a_resolv_conf_names_servers_that_the_container_can_reach(
    texts: tuple[str, ...], reachable: bool, expected: str
) -> None:
    assert host_files.resolv_conf(texts, loopback_reachable=reachable) == expected


def test_the_stub_resolvers_own_list_comes_after_the_machines_file(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "run/systemd/resolve").mkdir(parents=True)
    (tmp_path / "run/systemd/resolve/resolv.conf").write_text(REAL)
    (tmp_path / "etc/resolv.conf").write_text(STUB)
    assert host_files.machine_resolv_confs(tmp_path) == (STUB, REAL)
    assert host_files.machine_resolv_confs(tmp_path / "nothing") == ()
