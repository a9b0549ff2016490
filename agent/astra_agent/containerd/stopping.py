"""
Whom a stop asks to end: a pure decision over the processes of a container.

Top down from the container's first process: one that handles SIGTERM gets it, and looks after its descendants itself
(torchrun must not have its workers asked a second time). One that does not handle it gets it too, and so do its
children, by the same rule: `bash -c 'train; echo done'` dies at once, and train is asked on its own. Parents come
before their children, so that a shell dies before it can go on with its next command.

One exception: what reads the output of a process that is asked and handles it, such as both in
`train | grep -v warning | tee log`, is spared. It ends by itself when its writer has, and until then the writer can say
what it does: a broken pipe would end it in the middle of its checkpoint.

What has a handler and dies of SIGTERM nevertheless looked after nobody (bash with a trap on EXIT): init, which sees how
its children end, asks what is left of it.
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


@dataclass(frozen=True, slots=True)
class Asking:
    """
    Attributes:
        asked: Those to send SIGTERM to, in this order.
        spared: Those that are left alone, and are not to be asked later either.
    """

    asked: tuple[Process, ...]
    spared: tuple[Process, ...]


def whom_to_ask(processes: Iterable[Process], init: int) -> Asking:
    """*init* is the container's first process, which is never asked itself."""
    children: defaultdict[int, list[Process]] = defaultdict(list)
    for process in processes:
        if not process.zombie:
            children[process.parent].append(process)
    reached = tuple(_reached(children, init))
    spared = _readers(reached)
    return Asking(tuple(process for process in reached if process not in spared), spared)


def _readers(reached: tuple[Process, ...]) -> tuple[Process, ...]:
    """What reads the output of those that handle the stop, and whatever reads the output of that."""
    heard = frozenset[str]().union(*(process.writes for process in reached if process.handles_term))
    readers: tuple[Process, ...] = ()
    while True:
        others = (process for process in reached if not process.handles_term and process not in readers)
        if not (more := tuple(process for process in others if process.reads in heard)):
            return readers
        readers = (*readers, *more)
        heard = heard.union(*(process.writes for process in more))


def _reached(children: dict[int, list[Process]], parent: int) -> Iterator[Process]:
    for process in sorted(children.get(parent, ()), key=lambda process: process.pid):
        yield process
        if not process.handles_term:
            yield from _reached(children, process.pid)
