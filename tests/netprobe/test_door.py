"""The door of a member: greetings of the probe come in, everything else is cut off, packets are told apart."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_netprobe import greeting
from astra_netprobe.calling import Caller, Unreached
from astra_netprobe.door import Door
from astra_netprobe.greeting import Greeting, Purpose
from astra_netprobe.messages import Peer

SECRET = b"s" * 16
BOUND_S = 10.0
RANKS = st.integers(0, 32767)


@pytest.fixture
def door() -> Iterator[Door]:
    with Door("127.0.0.1", 3, SECRET) as opened:
        yield opened


def caller(secret: bytes = SECRET) -> Caller:
    return Caller(rank=1, address="127.0.0.1", secret=secret)


def peer(door: Door, rank: int = 3) -> Peer:
    return Peer(rank=rank, address="127.0.0.1", port=door.port, packet_port=door.packet_port)


def test_a_caller_of_the_probe_gets_its_connections(door: Door) -> None:
    made = caller().call(peer(door), Purpose.FLOW, tag=7, streams=2, limit_s=BOUND_S)
    for stream, connection in enumerate(made):
        taken = door.take((Purpose.FLOW, 1, stream, 7), time.monotonic() + BOUND_S)
        assert taken is not None
        connection.sendall(b"x")
        assert taken.recv(1) == b"x"
        taken.close()
        connection.close()


def test_a_connection_that_nobody_makes_is_waited_for_with_a_bound(door: Door) -> None:
    assert door.take((Purpose.FLOW, 1, 0, 8), time.monotonic() + 0.1) is None


@pytest.mark.parametrize(("secret", "rank"), [(b"t" * 16, 3), (SECRET, 4)], ids=["another secret", "another machine"])
def test_a_stranger_is_cut_off(door: Door, secret: bytes, rank: int) -> None:
    with pytest.raises(Unreached) as refused:
        caller(secret).call(peer(door, rank), Purpose.FLOW, tag=1, streams=1, limit_s=BOUND_S)
    assert refused.value.outcome == "stranger"


def test_how_connections_end_is_told_apart(door: Door) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        peers = [
            peer(door),
            Peer(rank=4, address="127.0.0.1", port=closed.getsockname()[1]),
            Peer(rank=5, address="127.0.0.1", port=mute.getsockname()[1]),
        ]
        outcomes = caller().reach(peers, 1.0)
    assert outcomes == {3: "reached", 4: "refused", 5: "silent"}


def test_packets_of_the_probe_are_answered_and_others_are_not(door: Door) -> None:
    assert caller().packets([peer(door)], 1500, BOUND_S) == ({3}, {3})
    assert caller(b"t" * 16).packets([peer(door)], 1500, 0.3) == (set(), set())


def test_nonsense_does_not_close_the_door(door: Door) -> None:
    chance = random.Random(3)
    for _ in range(100):
        with socket.create_connection(("127.0.0.1", door.port)) as connection:
            connection.sendall(chance.randbytes(chance.choice((0, 1, 39, 40, 41, 400))))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
            sending.sendto(chance.randbytes(chance.randrange(1400)), ("127.0.0.1", door.packet_port))
    assert caller().reach([peer(door)], BOUND_S) == {3: "reached"}


@given(
    st.sampled_from(Purpose),
    RANKS,
    RANKS,
    st.integers(0, 63),
    st.integers(0, 2**32 - 1),
    st.binary(min_size=8, max_size=8),
)
def test_a_greeting_is_read_as_it_was_written(
    purpose: Purpose, source: int, target: int, stream: int, tag: int, nonce: bytes
) -> None:
    said = Greeting(purpose, source, target, stream, tag, nonce)
    raw = greeting.encode(said, SECRET)
    assert len(raw) == greeting.GREETING_BYTES
    assert greeting.decode(raw, SECRET) == said
    assert greeting.decode(raw, b"t" * 16) is None


@given(st.binary(max_size=100))
def test_other_bytes_are_no_greeting_and_no_packet(raw: bytes) -> None:
    assert greeting.decode(raw, SECRET) is None
    assert greeting.packet_number(raw, 3, SECRET) is None
