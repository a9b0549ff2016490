"""Many packets at once: each gets its own answer, whatever the others beside it are."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from astra_dns.burst import BURST, Asker, Burst

LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
REFUSED = 5


@dataclass
class Desk:
    """Answers what begins with `a`, forgets what begins with `f`, asks `rare` for the rest."""

    server: socket.socket
    burst: Burst
    failures: list[str]
    rcodes: list[int] = field(default_factory=lambda: [0] * 16)
    rare: list[tuple[bytes, Asker]] = field(default_factory=list)

    def turn(self) -> int:
        return self.burst.turn(self.server, self._said, self.rcodes, self._rare)

    def _said(self, asked: bytes) -> bytes | None:
        return bytes((0, REFUSED)) + asked * 3 if asked.startswith(b"a") else None

    def _rare(self, packet: bytes, asker: Asker) -> bytes | None:
        self.rare.append((packet, asker))
        return None if packet[2:].startswith(b"f") else b"rare " + packet[2:]


@contextlib.contextmanager
def opened(
    family: socket.AddressFamily = socket.AF_INET, askers: int = 1
) -> Iterator[tuple[Desk, list[socket.socket]]]:
    with contextlib.ExitStack() as stack:
        server, *others = (stack.enter_context(socket.socket(family, socket.SOCK_DGRAM)) for _ in range(1 + askers))
        server.setblocking(False)
        server.bind((LOOPBACK[family], 0))
        for other in others:
            other.settimeout(5.0)
            other.connect(server.getsockname())
        failures: list[str] = []
        yield Desk(server, Burst(failures.append), failures), others


@pytest.mark.parametrize("family", LOOPBACK)
def test_each_asker_gets_its_own_answer_with_its_own_id(family: socket.AddressFamily) -> None:
    with opened(family, askers=8) as (desk, askers):
        for _ in range(3):
            for number, asker in enumerate(askers):
                asker.send(b"%02d" % number + (b"a" if number % 2 else b"x") + b"%d" % number)
            assert desk.turn() == len(askers)
            for number, asker in enumerate(askers):
                wanted = b"\0\5" + b"a%d" % number * 3 if number % 2 else b"rare x%d" % number
                assert asker.recv(4096) == b"%02d" % number + wanted
        assert desk.rare[0] == (b"00x0", askers[0].getsockname())
        assert desk.rcodes[REFUSED] == 12


@pytest.mark.parametrize("family", LOOPBACK)
def test_one_that_is_alone_is_answered_as_one_of_many_is(family: socket.AddressFamily) -> None:
    with opened(family) as (desk, (asker,)):
        for many in (1, 1, 3, 2, 1, 1, 4):
            sent = [b"%02d" % number + (b"a", b"x", b"f")[number % 3] for number in range(many)]
            for packet in sent:
                asker.send(packet)
            assert desk.turn() == many
            said = {b"a": b"\0\5aaa", b"x": b"rare x"}
            for packet in sent:
                if (wanted := said.get(packet[2:])) is not None:
                    assert asker.recv(4096) == packet[:2] + wanted
            assert desk.turn() == 0
        assert {asker for _, asker in desk.rare} == {asker.getsockname()}
        assert desk.rcodes[REFUSED] == 8
        asker.send(b"00f")
        assert (desk.turn(), desk.rare[-1][0]) == (1, b"00f")
        asker.setblocking(False)
        with pytest.raises(BlockingIOError):
            asker.recv(4096)
        assert desk.failures == []


def test_what_gets_no_answer_leaves_no_gap_and_no_answer_to_others() -> None:
    with opened() as (desk, (asker,)):
        for number in range(BURST):
            asker.send(b"%02d" % number + (b"f" if number % 3 else b"a"))
        assert desk.turn() == BURST
        for number in range(0, BURST, 3):
            assert asker.recv(4096) == b"%02d\0\5aaa" % number
        asker.settimeout(0.05)
        with pytest.raises(TimeoutError):
            asker.recv(4096)


def test_a_turn_is_bounded_and_the_rest_is_the_next_ones() -> None:
    with opened() as (desk, (asker,)):
        for _ in range(BURST + 5):
            asker.send(b"00a")
        assert [desk.turn() for _ in range(3)] == [BURST, 5, 0]


def test_a_long_packet_after_a_short_answer_is_whole() -> None:
    with opened() as (desk, (asker,)):
        for size in (1, 1000, 2, 0):
            asker.send(b"00" + b"a" * size)
            desk.turn()
            assert len(asker.recv(4096)) == (4 + 3 * size if size else 2 + len(b"rare "))
        asker.send(b"x")
        desk.turn()
        assert desk.rare[-1][0] == b"x"


def test_answers_that_can_not_be_sent_are_told_each_and_the_turn_ends() -> None:
    def closing(packet: bytes, _: Asker) -> bytes:
        desk.server.close()
        return packet[2:]

    with opened() as (desk, (asker,)):
        for _ in range(2):
            asker.send(b"00a")
        assert desk.turn() == 2
        for _ in range(3):
            asker.send(b"00x")
        assert desk.burst.turn(desk.server, lambda _: None, desk.rcodes, closing) == 3
        assert desk.failures == ["Bad file descriptor"] * 3


def test_one_answer_that_can_not_be_sent_is_told() -> None:
    with opened() as (desk, (asker,)):
        asker.send(b"00x")
        too_long = bytes(70_000)
        assert desk.burst.turn(desk.server, lambda _: None, desk.rcodes, lambda _, __: too_long) == 1
        assert desk.failures == ["Message too long"]


def test_a_closed_socket_is_an_error_of_the_turn() -> None:
    with opened() as (desk, _):
        desk.server.close()
        with pytest.raises(OSError, match="file descriptor"):
            desk.turn()
