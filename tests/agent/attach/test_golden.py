"""
The complete edits for one worker of each captured machine in each tier: all its GPUs, the highest bound that its ports
meet, 256 GiB. `--rewrite` writes the files anew; they were reviewed by reading.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from astra_agent.attach import Placement, Request, attach
from astra_agent.attach.request import PlacedOn
from astra_agent.errors import AstraError
from astra_agent.inventory.training import usable
from tests.agent.attach.golden import text_of
from tests.agent.inventory.captured import NAMES, inventory

GOLDEN = Path(__file__).parent / "golden"
TIERS: tuple[PlacedOn, ...] = ("machine", "nvlink", "infiniband", "rdma", "ethernet")


def edits_of(name: str) -> str:
    found = inventory(name)
    fastest = max((port.gbps or 0 for port in usable(found.ports(), found.training, 0)), default=100)
    request = Request(
        gpus=tuple(gpu.index for gpu in found.gpus), min_gbps=fastest, cpu_cores=16, memory_bytes=256 << 30
    )
    pieces = []
    for tier in TIERS:
        try:
            text = text_of(attach(found, Placement(tier), request))
        except AstraError as error:
            text = f"refused   {type(error).__name__}: {error}\n"
        pieces.append(f"== {tier}\n{text}")
    return "\n".join(pieces)


@pytest.mark.parametrize("name", NAMES)
def test_the_complete_edits_of_a_worker_in_each_tier(name: str, request: pytest.FixtureRequest) -> None:
    file = GOLDEN / f"{name}.txt"
    found = edits_of(name)
    if request.config.getoption("--rewrite"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(found)
    assert found == file.read_text()
