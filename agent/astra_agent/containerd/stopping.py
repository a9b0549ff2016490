"""
Whom a stop asks to end: a pure decision over the processes of a container.

Top down from the container's first process: one that handles SIGTERM gets it, and looks after its descendants itself
(torchrun must not have its workers asked a second time). One that does not handle it gets it too, and so do its
children, by the same rule: `bash -c 'train; echo done'` dies at once, and train is asked on its own. Parents come
before their children, so that a shell dies before it can go on with its next command.

One exception: what reads the output of a process that is asked and handles it, such as tee in `train | tee log`, is
spared. It ends by itself when its writer has, and until then what the writer says about its checkpoint is not lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

STOP_SIGNAL = 40
"""Tells init of one process that is asked to end; the same number in `astra_agent/init/init.c`."""


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    parent: int
    inner_pid: int
    """Its ID inside the container."""
    handles_term: bool
    """Has a handler for SIGTERM, or blocks it to take it from a queue."""
    zombie: bool = False
    reads: str = ""
    """The pipe that is its standard input (`pipe:[4711]`), or empty."""
    writes: frozenset[str] = frozenset()
    """The pipes that are its standard output and error."""


def whom_to_ask(processes: Iterable[Process], init: int) -> tuple[Process, ...]:
    """Those to send SIGTERM to, in this order. *init* is the container's first process, which is never asked itself."""
    children: defaultdict[int, list[Process]] = defaultdict(list)
    for process in processes:
        if not process.zombie:
            children[process.parent].append(process)
    reached = tuple(_reached(children, init))
    heard = frozenset[str]().union(*(process.writes for process in reached if process.handles_term))
    return tuple(process for process in reached if process.handles_term or process.reads not in heard)


def _reached(children: dict[int, list[Process]], parent: int) -> Iterator[Process]:
    for process in sorted(children.get(parent, ()), key=lambda process: process.pid):
        yield process
        if not process.handles_term:
            yield from _reached(children, process.pid)
