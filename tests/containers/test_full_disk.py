"""The disk with the agent's state and the logs is full while a worker runs, speaks and ends."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from astra_agent.wire import Arm, DriveMount, Start
from tests.agent.machine import until
from tests.containers.agent_daemon import AgentDaemon
from tests.containers.small_disk import fill, small_disk

SLOT = "llama-0"
SPEAKS = """
i=0
while [ ! -e /out/end ]; do
  i=$((i+1)); echo "line $i $(head -c 2000 /dev/zero | tr '\\0' x)"; echo $i > /out/new; mv /out/new /out/count
  sleep 0.02
done
echo all said; exit 7
"""


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[AgentDaemon]:
    (tmp_path / "out").mkdir()
    with small_disk(tmp_path / "state", 8):
        made = AgentDaemon(tmp_path, drives={"out": tmp_path / "out"})
        try:
            await made.start()
            yield made
        finally:
            await made.clean()


async def test_a_worker_goes_on_and_what_its_log_lost_is_marked(daemon: AgentDaemon) -> None:
    def count() -> int:
        path = daemon.folder / "out" / "count"
        return int(path.read_text()) if path.exists() else 0

    drive = DriveMount(name="out", mount_path="/out")
    await daemon.ready(SLOT, SPEAKS, drives=(drive,))
    await daemon.coordinator.tell(Arm(slot=SLOT, term=1, attempt=0, env={}, hosts={}))
    await daemon.attempt(SLOT, 0, "armed")
    await daemon.coordinator.tell(Start(slot=SLOT, term=1, attempt=0))
    await until(lambda: count() > 20)
    filler = daemon.folder / "state" / "filler"
    fill(filler)
    before = count()
    await until(lambda: count() > before + 200)
    filler.unlink()
    after = count()
    await until(lambda: f"line {after + 20} " in daemon.log(SLOT))
    (daemon.folder / "out" / "end").touch()
    assert (await daemon.attempt(SLOT, 0, "exited")).code == 7
    said = daemon.log(SLOT)
    assert said.endswith("all said\n")
    lost = re.findall(r"^\[(\d.*) of output were dropped here: No space left on device\]$", said, re.MULTILINE)
    assert len(lost) == 1, lost
    numbers = [int(number) for number in re.findall(r"^line (\d+) x+$", said, re.MULTILINE)]
    missing = sorted(set(range(1, numbers[-1] + 1)) - set(numbers))
    assert missing and missing == list(range(missing[0], missing[-1] + 1)), "one piece, and nothing else"
