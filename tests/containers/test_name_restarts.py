"""Names while gangs restart and agents are killed, in real containers: what a program sees at its first instruction."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from astra_agent.wire import Arm, Finish, RunNames, Start, Stop
from tests.containers.agent_daemon import ADDRESS, AgentDaemon
from tests.containers.name_machine import storm
from tests.fakes.eventually import until

RESTARTS = int(os.environ.get("ASTRA_RESTARTS", "10"))
SERVER = "169.254.53.53"
SLOTS = ("llama-0", "llama-1")
SCRIPT = """
for name in llama-0.default llama-1.default llama llama-1.default.astra.internal; do
    getent ahostsv4 "$name" | awk 'NR == 1 {printf "%s ", $1}'
done
echo
sleep 1000
"""


def addresses(attempt: int) -> dict[str, tuple[str, ...]]:
    """As if both workers had been swapped."""
    return {f"llama-{rank}": (f"10.84.{attempt % 250}.{rank + 1}",) for rank in range(len(SLOTS))}


def arm(slot: str, attempt: int) -> Arm:
    names = RunNames(
        workspace="default", run="llama", addresses=addresses(attempt), leader=f"llama-{attempt % 2}", port=29500,
        attempt=attempt, world_size=len(SLOTS), term=1, version=attempt + 1,
    )  # fmt: skip
    return Arm(slot=slot, term=1, attempt=attempt, env={}, hosts={}, names=names)


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[AgentDaemon]:
    made = AgentDaemon(tmp_path)
    try:
        await made.start()
        yield made
    finally:
        await made.clean()


async def restart(daemon: AgentDaemon, attempt: int) -> None:
    """In place, as a coordinator does it: all are armed, the old ones end, all start."""
    for slot in SLOTS:
        await daemon.coordinator.tell(arm(slot, attempt))
    for slot in SLOTS:
        await daemon.attempt(slot, attempt, "armed")
    if attempt:
        for slot in SLOTS:
            await daemon.coordinator.tell(Stop(slot=slot, term=1, attempt=attempt - 1, grace_s=0.0))
        for slot in SLOTS:
            await daemon.attempt(slot, attempt - 1, "exited")
    for slot in SLOTS:
        await daemon.coordinator.tell(Start(slot=slot, term=1, attempt=attempt))
    for slot in SLOTS:
        await until(lambda slot=slot: daemon.log(slot, attempt).endswith("\n"))  # type: ignore[misc]


@pytest.mark.timeout(60 + 5 * RESTARTS)
async def test_no_program_ever_sees_an_address_of_an_attempt_before_its_own(daemon: AgentDaemon) -> None:
    for slot in SLOTS:
        assert (await daemon.ready(slot, SCRIPT)).phase == "ready"
    for attempt in range(RESTARTS + 1):
        await restart(daemon, attempt)
        found = addresses(attempt)
        (first,), (second,) = found["llama-0"], found["llama-1"]
        leader = (first, second)[attempt % 2]
        for slot in SLOTS:
            assert daemon.log(slot, attempt).split() == [first, second, leader, second], f"attempt {attempt} of {slot}"


async def test_an_agent_that_is_killed_in_a_storm_of_questions_loses_and_refuses_none(daemon: AgentDaemon) -> None:
    for slot in SLOTS:
        await daemon.ready(slot, SCRIPT)
    await restart(daemon, 0)
    asked = [asyncio.create_task(asyncio.to_thread(storm, daemon.netns, SERVER, 4.0)) for _ in range(2)]
    for _ in range(2):
        await asyncio.sleep(0.3)
        daemon.kill_agent()
        await asyncio.sleep(0.3)
        await daemon.start_agent()
    await restart(daemon, 1)
    for seen in await asyncio.gather(*asked):
        assert seen.answered > 100
        assert (seen.refused, seen.lost) == (0, 0)
    for slot in SLOTS:
        assert daemon.log(slot, 1).split()[:2] == ["10.84.1.1", "10.84.1.2"]
        await daemon.coordinator.tell(Finish(slot=slot, term=1, code=0))
    assert ADDRESS not in daemon.log(SLOTS[0], 1)
