from __future__ import annotations

import socket

import pytest

from astra_agent.errors import Conflict
from astra_cli.dev import ports


def test_two_clusters_that_start_together_get_ports_of_their_own() -> None:
    first = ports.reserve(range(47410, 47510))
    second = ports.reserve(range(47410, 47510))
    try:
        assert first.port != second.port
        assert ports.is_free(first.port), "the coordinator is to listen there"
    finally:
        first.give_back()
        second.give_back()


def test_a_port_that_something_else_listens_on_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Conflict, match="--port"):
            ports.reserve([port])


def test_a_port_that_was_given_back_can_be_had_again() -> None:
    first = ports.reserve(range(47410, 47510))
    first.give_back()
    again = ports.reserve([first.port])
    again.give_back()
    assert again.port == first.port
