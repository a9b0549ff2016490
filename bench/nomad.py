"""
On a real Nomad, where `nomad` is on the PATH: the cluster of the tests, with four clients and a coordinator.

One task against raw_exec, from `nomad job run` to the program's first instruction; fifty at once on one client; the
plugins' memory meanwhile; a gang of four from its submission to its last first instruction, and its restart in place.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from bench.figure import Figure, against_goal, against_peer
from bench.program import build_program, first_instruction_ns
from tests.fakes.eventually import eventually
from tests.nomad.cluster import binaries
from tests.nomad.gangs import NomadGangs, nomad_gangs

PAIRS = 8
UNCOUNTED = 2
GANGS = 4
RESTARTS = 6
TASKS = 50
WORKERS = 4
RUN_GOAL = 1.5
MEMORY_GOAL_MIB = 60.0
GANG_GOAL_S = 3.0
RESTART_GOAL_S = 1.0
_PLUGINS = ("astra-nomad-driver", "astra-nomad-device")


async def measure() -> list[Figure]:
    found = binaries()
    if not found:
        print("the figures on Nomad were not taken: there is no nomad on the PATH", file=sys.stderr)
        return []
    return await asyncio.to_thread(_measure, found[0])


def _measure(binary: Path) -> list[Figure]:
    with nomad_gangs(binary, policy={"backoff_first_s": 0.0}) as gangs:
        build_program(gangs.drive)
        (gangs.drive / "started").mkdir()
        return [*_gang(gangs), _one_task(gangs), *_fifty(gangs)]


# One task ------------------------------------------------------------------------------------------------------------


def _one_task(gangs: NomadGangs) -> Figure:
    ours, peer = [], []
    for number in range(UNCOUNTED + PAIRS):
        one, other = _run(gangs, "astra", 2 * number), _run(gangs, "raw_exec", 2 * number + 1)
        if number >= UNCOUNTED:
            ours.append(one)
            peer.append(other)
    what = "nomad job run to first instruction, against raw_exec"
    return against_peer("nomad-task", what, "s", ours, peer, RUN_GOAL)


def _run(gangs: NomadGangs, driver: str, number: int) -> float:
    folder = "/bench" if driver == "astra" else str(gangs.drive)
    config = f'command = "{folder}/first"\n args = ["{folder}/started"]'
    if driver == "astra":
        config += f'\n image = "host"\n mount {{\n source = "{gangs.drive}"\n target = "/bench"\n }}'
    name = f"one-{number}"
    path = gangs.cluster.folder / f"{name}.nomad.hcl"
    path.write_text(_job(name, driver, config, env=f'RANK = "{number}"'))
    began = time.monotonic_ns()
    gangs.cluster.nomad("job", "run", "-detach", str(path))
    took_s = (first_instruction_ns(gangs.drive / "started", rank=number) - began) / 1e9
    gangs.cluster.nomad("job", "stop", "-purge", name)
    return took_s


# Fifty ---------------------------------------------------------------------------------------------------------------


def _fifty(gangs: NomadGangs) -> list[Figure]:
    on_one = 'constraint {\n attribute = "${node.unique.name}"\n value = "m-1"\n }'
    config = 'image = "host"\n command = "sleep"\n args = ["600"]'
    path = gangs.cluster.folder / "fifty.nomad.hcl"
    path.write_text(_job("fifty", "astra", config, group=f"count = {TASKS}\n {on_one}", cpu=20))
    gangs.cluster.nomad("job", "run", "-detach", str(path))
    away: set[str] = set()

    def decided() -> bool:
        nodes = json.loads(gangs.cluster.nomad("node", "status", "-json"))
        away.update(node["Name"] for node in nodes if node["Status"] != "ready")
        states = [a["ClientStatus"] for a in gangs.cluster.allocations("fifty")]
        return len(states) >= TASKS and "pending" not in states

    eventually(decided, f"{TASKS} tasks have started, or failed", within_s=300)
    whole = [a for a in gangs.cluster.allocations("fifty") if a["ClientStatus"] == "running" and not _restarts(a)]
    memory = [sum(map(_resident_mib, gangs.client("m-1").plugin_pids(name))) for name in _PLUGINS]  # one process each
    gangs.cluster.nomad("job", "stop", "-purge", "fifty")
    return [
        against_goal("nomad-fifty", "of 50 tasks at once on one client, not running", "", [TASKS - len(whole)], 0),
        against_goal("nomad-heartbeats", "clients that missed a heartbeat meanwhile", "", [len(away)], 0),
        against_goal("nomad-plugins", "each plugin's resident memory, with 50 tasks", "MiB", memory, MEMORY_GOAL_MIB),
    ]


def _restarts(allocation: dict[str, Any]) -> int:
    return sum(int(state["Restarts"]) for state in (allocation["TaskStates"] or {}).values())


def _resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


# A gang --------------------------------------------------------------------------------------------------------------


def _gang(gangs: NomadGangs) -> list[Figure]:
    starts, restarts, evaluated = [], [], []
    for number in range(GANGS):
        name = f"gang-{number}"
        diary = gangs.drive / name
        diary.mkdir()
        began = time.monotonic_ns()
        template = {"command": "/diary/first", "args": [f"/diary/{name}", "stay"], "env": {}}
        status, answer = gangs.ask("/workspaces/default/jobs", gangs.document(name, WORKERS, **template))
        if status != 201:
            raise RuntimeError(f"{name} was not taken: {answer}")
        starts.append((_last(gangs, name, 0) - began) / 1e9)
        gangs.until(name, lambda status: status["phase"] == "Running", f"{name} runs")
        if number == GANGS - 1:
            job = gangs.job_of(name)
            before = gangs.evaluations(job)
            for attempt in range(RESTARTS):
                victim = gangs.program(name, rank=attempt % WORKERS, attempt=attempt)
                killed = time.monotonic_ns()
                os.kill(victim, signal.SIGKILL)
                restarts.append((_last(gangs, name, attempt + 1) - killed) / 1e9)
                gangs.until(name, lambda status: status["phase"] == "Running", f"{name} runs again")
            evaluated.append(gangs.evaluations(job) - before)
        gangs.stop(name)
        gangs.ended(name, "Stopped")
        gangs.settled()
    return [
        against_goal("nomad-gang", "gang of four on Nomad, submit to last first instruction", "s", starts, GANG_GOAL_S),
        against_goal("nomad-restart", "its restart in place, back-off 0", "s", restarts, RESTART_GOAL_S),
        against_goal("nomad-evaluations", "evaluations of Nomad during all of these", "", evaluated, 0),
    ]


def _last(gangs: NomadGangs, name: str, attempt: int) -> int:
    """When the last of the four was started, in nanoseconds."""
    try:
        return max(first_instruction_ns(gangs.drive / name, rank, attempt) for rank in range(WORKERS))
    except TimeoutError as error:
        raise RuntimeError(f"{error}\n{gangs.story(name)}") from error


def _job(name: str, driver: str, config: str, *, env: str = "", group: str = "", cpu: int = 100) -> str:
    return f"""
job "{name}" {{
  type = "batch"
  group "g" {{
    {group}
    ephemeral_disk {{
      size = 20
    }}
    restart {{
      attempts = 0
      mode = "fail"
    }}
    task "w" {{
      driver = "{driver}"
      config {{
        {config}
      }}
      env {{
        {env}
      }}
      logs {{
        max_files = 1
        max_file_size = 10
      }}
      resources {{
        cpu = {cpu}
        memory = 16
      }}
    }}
  }}
}}
"""
