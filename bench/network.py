"""
The probe's all-reduce between four network namespaces: against the line that it goes over, Gloo, and Open MPI over TCP;
and how long the questions and answers of a probe of 64 machines take, with machines that answer at once.

Each round starts processes of its own, in turn; an iteration takes as long as its slowest rank took.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from astra_netprobe.conductor import Conductor
from astra_netprobe.readings import Evidence
from astra_netprobe.settings import MIB, Settings
from bench.asked_machines import control_plane_s
from bench.figure import Figure, against_goal, against_peer
from tests.containers import shaped
from tests.containers.shaped import Lab, members
from tests.levels import FRAMEWORKS

MACHINES = 4
LARGE_BYTES, SMALL_BYTES = 64 * MIB, 8
ROUNDS = 3
LARGE_ITERATIONS, SMALL_ITERATIONS = 6, 500
LINE_BPS = 1e9
BURST = "256kb"
"""What a shaped link lets through at once after a pause: 2 ms of it, for processes that wait for a core."""
FRAME_SHARE = 1448 / 1514
"""Of what the kernel counts of a frame, with an MTU of 1500, what is not Ethernet's, IP's or TCP's own."""
LINE_GOAL, GLOO_GOAL, MPI_GOAL, LATENCY_GOAL, CONTROL_GOAL_S = 1 / 0.95, 1 / 1.5, 1.0, 1.0, 20.0
RUN_S = 180
TRIES = 5
"""Of a round of ours: on a busy machine a process may start too late to take part."""
PROGRAMS = Path(__file__).parent / "programs"

Tool = Callable[[Lab, Path, int, int], Sequence[float]]
"""Seconds of each iteration of one size."""


async def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="astra-bench-") as folder:
        return [
            await asyncio.to_thread(_line, Path(folder) / "line"),
            *await asyncio.to_thread(_peers, Path(folder) / "peers"),
            against_goal(
                "preflight-control", "questions and answers of a probe of 64 machines, one of them sick", "s",
                [await control_plane_s(64) for _ in range(ROUNDS)], CONTROL_GOAL_S,
            ),
        ]  # fmt: skip


def _line(folder: Path) -> Figure:
    folder.mkdir()
    shaped._BURST = BURST
    lab = Lab(folder, MACHINES, rate="1gbit")
    try:
        lab.build()
        took = [median(_ours(lab, folder, LARGE_BYTES, LARGE_ITERATIONS)) for _ in range(ROUNDS)]
    finally:
        lab.remove()
    bytes_each = LARGE_BYTES * 2 * (MACHINES - 1) / MACHINES
    on_line = 8 * bytes_each / FRAME_SHARE / LINE_BPS
    return against_peer(
        "allreduce-line", "all-reduce of 64 MiB over 4 machines at 1 Gbit/s, against its frames on the line", "ms",
        [1e3 * seconds for seconds in took], [1e3 * on_line] * ROUNDS, LINE_GOAL,
    )  # fmt: skip


def _peers(folder: Path) -> list[Figure]:
    """Links as fast as the processors are."""
    folder.mkdir()
    tools: dict[str, Tool] = {"ours": _ours, "Gloo": _gloo, "Open MPI": _open_mpi}
    took: dict[tuple[str, int], list[float]] = {}
    lab = Lab(folder, MACHINES, rate="")
    try:
        lab.build()
        _prepare_open_mpi(lab, folder)
        for _ in range(ROUNDS):
            for size, iterations in ((LARGE_BYTES, LARGE_ITERATIONS), (SMALL_BYTES, SMALL_ITERATIONS)):
                for name, tool in tools.items():
                    took.setdefault((name, size), []).append(median(tool(lab, folder, size, iterations)))
    finally:
        lab.remove()
    figures = []
    for peer, goal in (("Gloo", GLOO_GOAL), ("Open MPI", MPI_GOAL)):
        for size, words, unit, scale, bound in (
            (LARGE_BYTES, "64 MiB", "ms", 1e3, goal),
            (SMALL_BYTES, "8 B", "µs", 1e6, LATENCY_GOAL),
        ):
            figures.append(
                against_peer(
                    f"allreduce-{words.replace(' ', '')}-{peer.replace(' ', '')}".lower(),
                    f"all-reduce of {words} over 4 machines, unshaped, {peer}", unit,
                    [scale * seconds for seconds in took["ours", size]],
                    [scale * seconds for seconds in took[peer, size]], bound,
                )
            )  # fmt: skip
    return figures


# Tools ---------------------------------------------------------------------------------------------------------------


def _ours(lab: Lab, folder: Path, size: int, iterations: int) -> Sequence[float]:
    """A whole probe, as users make it; of its all-reduces the last one of *size*."""
    small, large = ((size,), (MIB,)) if size < MIB else ((SMALL_BYTES,), (size, size))
    settings = Settings(
        small_sizes=small, large_sizes=large, small_iterations=SMALL_ITERATIONS, iterations=iterations,
        budget_s=60.0, pair_s=0.1, trips=5, reach_s=20.0, stall_s=20.0,
    )  # fmt: skip

    async def probe() -> Evidence:
        async with members(lab) as endpoints:
            return await Conductor(endpoints, settings).run()

    for _ in range(TRIES):
        evidence = asyncio.run(probe())
        if found := [sized.times_s for sized in evidence.sizes if sized.size_bytes == size]:
            return found[-1]
    raise RuntimeError(f"the probe measured nothing: {evidence.absent or evidence.reaches}")


def _gloo(lab: Lab, folder: Path, size: int, iterations: int) -> Sequence[float]:
    python = FRAMEWORKS / "torch" / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(f"{python} is not there: run scripts/setup frameworks")
    environment = {
        **os.environ, "GLOO_SOCKET_IFNAME": "eth0", "MASTER_ADDR": lab.address(lab.names[0]), "MASTER_PORT": "29500",
        "WORLD_SIZE": str(MACHINES), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [str(python), str(PROGRAMS / "allreduce_gloo.py"), str(size), str(iterations)]
    ranks = [
        subprocess.Popen(
            _inside(lab, name, *command), env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        for rank, name in enumerate(lab.names)
    ]  # fmt: skip
    try:
        written = [rank.communicate(timeout=RUN_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return _times("Gloo", written[0])


def _prepare_open_mpi(lab: Lab, folder: Path) -> None:
    """The program, and what takes the place of ssh: a host is a network namespace with a host name of its own."""
    if shutil.which("mpicc") is None:
        raise FileNotFoundError("Open MPI is not installed: run scripts/setup bench")
    subprocess.run(["mpicc", "-O2", "-o", folder / "allreduce", PROGRAMS / "allreduce.c"], check=True)
    cases = "".join(f"{lab.address(name)}) name={name} ;;\n" for name in lab.names)
    agent = folder / "agent"
    agent.write_text(
        f'#!/bin/sh\ncase "$1" in\n{cases}esac\nshift\n'
        f'exec nsenter --net={folder}/$name.net unshare --uts sh -c "hostname $name; $*"\n'
    )
    agent.chmod(0o755)


def _open_mpi(lab: Lab, folder: Path, size: int, iterations: int) -> Sequence[float]:
    """Its own choice of algorithm; ranks that wait give their core away, since there are more of them than cores."""
    command = [
        "unshare", "--uts", "sh", "-c", f'hostname {lab.names[0]}; exec "$@"', "sh",
        "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(MACHINES),
        "--host", ",".join(lab.address(name) for name in lab.names),
        "--mca", "plm_rsh_agent", str(folder / "agent"), "--mca", "plm_rsh_no_tree_spawn", "1",
        "--mca", "btl", "tcp,self", "--mca", "pml", "ob1", "--mca", "btl_tcp_if_include", "eth0",
        "--mca", "oob_tcp_if_include", "eth0", "--mca", "mpi_yield_when_idle", "1",
        str(folder / "allreduce"), str(size), str(iterations),
    ]  # fmt: skip
    done = subprocess.run(
        _inside(lab, lab.names[0], *command), capture_output=True, text=True, timeout=RUN_S, check=False
    )
    return _times("Open MPI", done.stdout, done.stderr)


def _inside(lab: Lab, name: str, *command: str) -> list[str]:
    return ["nsenter", f"--net={lab.netns(name)}", *command]


def _times(tool: str, written: str, complained: str = "") -> Sequence[float]:
    found = [float(line.split()[1]) / 1e6 for line in written.splitlines() if line.startswith("took ")]
    if not found:
        raise RuntimeError(f"{tool} measured nothing: {(written + complained)[-500:]}")
    return found
