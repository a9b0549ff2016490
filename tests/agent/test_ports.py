"""Ports and addresses that nobody else has."""

from __future__ import annotations

import socket

import pytest

from astra_agent import ports
from astra_agent.config import OwnNetwork
from astra_agent.errors import HostFault


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_port_that_somebody_listens_on_is_left_out(family: int, host: str) -> None:
    free = ports.free_port(None, frozenset())
    with socket.socket(family) as busy:
        busy.bind((host, free))
        busy.listen()
        assert ports.free_port(None, frozenset()) != free


def test_a_port_that_is_held_is_left_out() -> None:
    free = ports.free_port(None, frozenset())
    assert ports.free_port(None, {free}) != free


def network(gateway: str = "10.83.3.1") -> OwnNetwork:
    return OwnNetwork(bridge="br0", subnet="10.83.3.0/29", prefix_len=16, gateway=gateway)


def test_addresses_leave_out_the_gateway_the_machine_and_who_has_one() -> None:
    assert ports.free_address(network(), "10.83.3.2", {"10.83.3.3"}) == "10.83.3.4"


def test_a_full_subnet_is_said() -> None:
    held = {f"10.83.3.{last}" for last in range(2, 7)}
    with pytest.raises(HostFault, match=r"no address of own_network.subnet 10.83.3.0/29 is free: 5 slots"):
        ports.free_address(network(), "10.83.0.1", held)
