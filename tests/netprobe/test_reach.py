"""Who reaches whom: how long the answer is waited for, however many machines there are."""

from __future__ import annotations

import math

import pytest

from astra_netprobe import calling
from astra_netprobe.channel import Endpoint
from astra_netprobe.conductor import Conductor
from astra_netprobe.messages import Answer, FindPeers, PeersFound, Question
from astra_netprobe.settings import Settings


class Waited:
    """A channel that only notes for how long it was waited for."""

    def __init__(self) -> None:
        self.limits_s: list[float] = []

    async def ask(self, question: Question, limit_s: float) -> Answer:
        assert isinstance(question, FindPeers) and len(question.peers) > 0
        self.limits_s.append(limit_s)
        return PeersFound(outcomes={})

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("count", [2, 257, 514, 1024])
async def test_an_answer_is_waited_for_as_long_as_silent_peers_take(count: int) -> None:
    waited = Waited()
    settings = Settings()
    await Conductor([Endpoint(f"m-{i}", "10.0.0.1", waited) for i in range(count)])._reach(settings.reach_s)
    batches = math.ceil((count - 1) / calling.AT_ONCE)
    assert len(waited.limits_s) == count
    assert batches * settings.reach_s + 1 <= min(waited.limits_s) <= max(waited.limits_s) <= (batches + 1) * 4
