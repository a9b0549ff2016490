"""Whom a stop asks, by the tree of processes."""

from __future__ import annotations

import pytest

from astra_agent.containerd.stopping import Process, whom_to_ask

INIT = 100


def process(
    pid: int, parent: int, *, handles: bool = False, reads: str = "", writes: str = "", zombie: bool = False
) -> Process:
    return Process(
        pid=pid,
        parent=parent,
        inner_pid=pid - 99,
        handles_term=handles,
        zombie=zombie,
        reads=reads,
        writes=frozenset({writes} - {""}),
    )


CASES: dict[str, tuple[list[Process], list[int], list[int]]] = {
    "a program with a handler looks after its own children": (
        [process(101, INIT, handles=True), process(102, 101), process(103, 101, handles=True)],
        [101],
        [],
    ),
    "under one without a handler its children are asked, after it": (
        [process(103, 102, handles=True), process(102, 101), process(101, INIT), process(104, 103, handles=True)],
        [101, 102, 103],
        [],
    ),
    "orphans are asked as the program is": ([process(101, INIT, handles=True), process(105, INIT)], [101, 105], []),
    "nobody asks the dead": ([process(101, INIT, handles=True), process(102, INIT, zombie=True)], [101], []),
    "what came from outside, as an exec does, is not asked": ([process(101, INIT), process(900, 1)], [101], []),
    "readers of what a handler writes are spared, down the pipeline": (
        [
            process(101, INIT),
            process(102, 101, handles=True, writes="pipe:[1]"),
            process(103, 101, reads="pipe:[1]", writes="pipe:[2]"),
            process(104, 101, reads="pipe:[2]"),
        ],
        [101, 102],
        [103, 104],
    ),
    "a pipeline in which nobody has a handler is asked as a whole": (
        [process(101, INIT), process(102, 101, writes="pipe:[1]"), process(103, 101, reads="pipe:[1]")],
        [101, 102, 103],
        [],
    ),
    "a reader with a handler is asked": (
        [
            process(101, INIT),
            process(102, 101, handles=True, writes="pipe:[1]"),
            process(103, 101, handles=True, reads="pipe:[1]"),
        ],
        [101, 102, 103],
        [],
    ),
    "nothing runs": ([], [], []),
}


@pytest.mark.parametrize(("processes", "asked", "spared"), CASES.values(), ids=CASES.keys())
def test_a_stop_asks(processes: list[Process], asked: list[int], spared: list[int]) -> None:
    asking = whom_to_ask(processes, INIT)
    assert [one.pid for one in asking.asked] == asked
    assert [one.pid for one in asking.spared] == spared
