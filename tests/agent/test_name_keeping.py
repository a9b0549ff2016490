"""Which sockets a service manager keeps for the name server, and which come back."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from astra_agent.name_keeping import KeptSockets
from astra_agent.name_places import Place
from astra_agent.service_manager import ServiceManager

HERE = Place("default", "169.254.53.53", None)
THERE = Place("team a: b", "169.254.53.53", Path("/run/netns/x"))


class Manager(ServiceManager):
    """Keeps what it is given, as systemd does."""

    def __init__(self, kept: dict[str, list[int]] | None = None) -> None:
        super().__init__(stored=[(name, one) for name, several in (kept or {}).items() for one in several])
        self.kept = dict(kept or {})

    def store(self, name: str, descriptors: object) -> None:
        assert isinstance(descriptors, list)
        self.kept[name] = [os.dup(one) for one in descriptors]

    def remove(self, name: str) -> None:
        for one in self.kept.pop(name):
            os.close(one)


def pair() -> tuple[socket.socket, socket.socket]:
    made = socket.socket(type=socket.SOCK_DGRAM), socket.socket(type=socket.SOCK_STREAM)
    for one in made:
        one.bind(("127.0.0.1", 0))
    made[1].listen()
    return made


@pytest.fixture
def here() -> Iterator[tuple[socket.socket, socket.socket]]:
    made = pair()
    yield made
    for one in made:
        one.close()


def restarted(manager: Manager, *, reverse: bool = False) -> tuple[Manager, KeptSockets]:
    """What the next process finds: descriptors of its own, in whatever order."""
    found = {name: [os.dup(one) for one in several] for name, several in manager.kept.items()}
    following = Manager({name: several[::-1] if reverse else several for name, several in found.items()})
    following.kept = manager.kept
    return following, KeptSockets(following)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_place_gets_its_own_sockets_back(here: tuple[socket.socket, socket.socket], reverse: bool) -> None:
    manager, there = Manager(), pair()
    KeptSockets(manager).keep({HERE: here, THERE: there})
    _, kept = restarted(manager, reverse=reverse)
    claimed = kept.claim(HERE), kept.claim(THERE)
    assert [[one.getsockname() for one in two] for two in claimed] == [
        [one.getsockname() for one in two] for two in (here, there)
    ]
    assert kept.claim(HERE) == ()
    for one in (*claimed[0], *claimed[1], *there):
        one.close()
    KeptSockets(manager).close()
    for name in list(manager.kept):
        manager.remove(name)


def test_what_nobody_claims_is_let_go(here: tuple[socket.socket, socket.socket]) -> None:
    manager = Manager()
    KeptSockets(manager).keep({HERE: here})
    following, kept = restarted(manager)
    kept.keep({})
    assert following.kept == {}
    assert kept.claim(HERE) == ()


def test_what_is_wanted_still_is_not_given_twice_and_a_place_without_sockets_is_not_kept(
    here: tuple[socket.socket, socket.socket],
) -> None:
    manager = Manager()
    kept = KeptSockets(manager)
    kept.keep({HERE: here, THERE: ()})
    first = dict(manager.kept)
    kept.keep({HERE: here})
    assert manager.kept == first
    assert len(first) == 1
    kept.keep({})
    assert manager.kept == {}


def test_half_a_pair_is_no_place(here: tuple[socket.socket, socket.socket]) -> None:
    manager = Manager()
    KeptSockets(manager).keep({HERE: here[:1]})
    _, kept = restarted(manager)
    assert kept.claim(HERE) == ()
    kept.keep({})
    assert manager.kept == {}


def test_names_are_fit_for_a_manager() -> None:
    manager, two = Manager(), pair()
    KeptSockets(manager).keep({THERE: two})
    assert all(name.replace("-", "").isalnum() and len(name) < 64 for name in manager.kept)
    for name in list(manager.kept):
        manager.remove(name)
    for one in two:
        one.close()
