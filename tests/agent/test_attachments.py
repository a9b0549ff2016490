"""What one attempt gets of its machine, and what keeps it from being armed there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from astra_agent.attach import Edits
from astra_agent.attachments import attached
from astra_agent.errors import HostFault
from astra_agent.inventory import Inventory
from astra_agent.wire import Placed, Tier
from tests.agent.inventory.captured import inventory
from tests.agent.machine import request


def edits(found: Inventory, tier: Tier) -> Edits:
    return attached(found, request(), Placed(tier=tier), is_played=False, can_raise_memlock=True)


def without_connection_manager(name: str) -> Inventory:
    return replace(inventory(name), rdma_cm=None)


@pytest.mark.parametrize(
    ("name", "tier", "machine"),
    [("dgx-h100-ndr", "infiniband", "gpu-dgx-01"), ("oci-h100-roce", "rdma", "gpu-oci-06"), ("vm-rxe", "rdma", "vm12")],
)
def test_infiniband_and_roce_need_the_connection_managers_node(name: str, tier: Tier, machine: str) -> None:
    assert any(device.path == "/dev/infiniband/rdma_cm" for device in edits(inventory(name), tier).devices)
    with pytest.raises(HostFault) as caught:
        edits(without_connection_manager(name), tier)
    assert str(caught.value) == (
        f"/dev/infiniband/rdma_cm is not on {machine}, and programs connect over {tier} through it: modprobe rdma_ucm"
    )


def test_the_ports_come_first() -> None:
    """It is no use to load a module for a network whose ports are down."""
    found = without_connection_manager("dgx-h100-ndr")
    with pytest.raises(HostFault, match="no port of gpu-dgx-01 has 800 Gb/s"):
        attached(found, request(), Placed(tier="infiniband", min_gbps=800), is_played=False, can_raise_memlock=True)


@pytest.mark.parametrize(("name", "tier"), [("aws-p5-efa", "rdma"), ("gb200-nvl72-tray", "nvlink")])
def test_efa_and_nvlink_do_without_it(name: str, tier: Tier) -> None:
    assert edits(without_connection_manager(name), tier).devices
