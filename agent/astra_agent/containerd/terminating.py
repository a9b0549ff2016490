"""
A stop: ask the processes of one container to end, and tell its init of each, so that it stays as long as they work.

On the machine's side and without containerd, which may be away. Who is asked is decided in `stopping`.
"""

from __future__ import annotations

import asyncio
import signal

from astra_agent.containerd import proc
from astra_agent.containerd.spec import INIT
from astra_agent.containerd.stopping import STOP_SIGNAL, whom_to_ask

_PASS_S = 0.01
_PASSES = 100
"""A second in all: for an init that has not begun its program yet, and for what is forked while we look."""
_PASSES_UNSTARTED = 10
"""How long the runtime's own process, which init replaces at the start, is taken for one that is just being started."""


async def terminate(cgroups: proc.Cgroups, cgroup: str) -> None:
    """
    Returns when all have been asked; they may take their time to end. Nobody is asked twice by one call. A container
    whose program has not started is killed. Nothing happens when nothing runs.
    """
    seen: set[int] = set()
    asked_any = False
    for number in range(_PASSES):
        asked = await asyncio.to_thread(_ask, cgroups, cgroup, seen, number < _PASSES_UNSTARTED)
        if asked is None or (asked_any and not asked):
            return
        asked_any = asked_any or asked > 0
        await asyncio.sleep(_PASS_S)


def _ask(cgroups: proc.Cgroups, cgroup: str, seen: set[int], may_be_starting: bool) -> int | None:
    """
    One look. Processes in *seen* have been judged by an earlier one: what another has been asked to look after stays so
    when that one is gone. Returns: how many were asked now; None when there is nobody to ask.
    """
    pids = cgroups.processes(cgroup)
    init = next((pid for pid in pids if proc.is_init(pid)), None)
    if init is None:
        return None
    if not proc.runs(init, INIT):
        if may_be_starting:
            return 0
        # It waits for a Start that will not come.
        proc.send(init, signal.SIGKILL, cgroup)
        return None
    processes = [found for pid in pids if (found := proc.process(pid)) is not None]
    asking = whom_to_ask(processes, init)
    asked = [process for process in asking.asked if process.pid not in seen]
    seen.update(process.pid for process in processes)
    for process in asking.spared:
        proc.queue(init, STOP_SIGNAL, -process.inner_pid)
    for process in asked:
        proc.queue(init, STOP_SIGNAL, process.inner_pid)
    for process in asked:
        proc.send(process.pid, signal.SIGTERM, cgroup)
    return len(asked)
