"""Logs: reading, rotating under a writer's hands, and what is kept of ended slots."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from astra_agent.logs import Logs, older

LINE = b"x" * 99 + b"\n"


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A disk's file system can cut a piece off a file's front; the memory's can't."""
    if request.param == "disk":
        yield tmp_path
        return
    memory = Path("/dev/shm") / f"astra-test-{os.getpid()}"
    memory.mkdir()
    try:
        yield memory
    finally:
        for path in sorted(memory.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        memory.rmdir()


def logs(folder: Path, max_bytes: int = 10_000, keep_bytes: int = 10**9) -> tuple[Logs, Path]:
    made = Logs(folder, max_bytes, keep_bytes)
    path = made.path("llama-0", 0)
    path.parent.mkdir()
    path.touch()
    return made, path


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


async def read(made: Logs, path: Path, **how: object) -> bytes:
    return b"".join([piece async for piece in made.read(path, **how)])  # type: ignore[arg-type]


async def test_a_rotated_log_is_read_from_its_older_part_on(folder: Path) -> None:
    made, path = logs(folder)
    append(path, LINE * 90)
    made.rotate(path)
    assert older(path).exists()
    assert path.stat().st_size < 9000
    append(path, b"end\n")
    assert await read(made, path) == LINE * 90 + b"end\n"
    assert await read(made, path, tail_bytes=104) == LINE + b"end\n"


async def test_a_writer_that_appends_goes_on_in_a_rotated_log(folder: Path) -> None:
    made, path = logs(folder)
    with path.open("ab", buffering=0) as writer:
        writer.write(LINE * 100)
        made.rotate(path)
        writer.write(b"after\n")
    assert await read(made, path) == LINE * 100 + b"after\n"


async def test_one_older_part_is_kept_and_no_more_than_the_bound(folder: Path) -> None:
    made, path = logs(folder, max_bytes=20_000)
    for number in range(5):
        append(path, bytes(str(number), "ascii") * 20_000)
        made.rotate(path)
    assert older(path).stat().st_size <= 20_000
    assert sorted(p.name for p in path.parent.iterdir()) == ["a0.log", "a0.log.1"]


async def test_a_reader_keeps_its_place_over_rotations(folder: Path) -> None:
    made, path = logs(folder)
    ended = False
    reader = made.read(path, follow_until=lambda: ended)
    got = b""
    for number in range(4):
        append(path, bytes(str(number), "ascii") * 9000)
        while len(got) < 9000 * (number + 1):
            got += await anext(reader)
        made.rotate(path)
    ended = True
    got += b"".join([piece async for piece in reader])
    assert got == b"".join(bytes(str(number), "ascii") * 9000 for number in range(4))


async def test_a_reader_that_is_left_behind_goes_on_with_the_oldest_that_is_kept(folder: Path) -> None:
    made, path = logs(folder)
    reader = made.read(path, follow_until=lambda: True)
    append(path, b"a" * 9000)
    first = await anext(reader)
    for letter in (b"b", b"c", b"d"):
        append(path, letter * 9000)
        made.rotate(path)
    rest = b"".join([piece async for piece in reader])
    assert first == b"a" * 9000
    assert rest.endswith(b"d" * 9000)
    assert len(rest) < 27_000


async def test_an_agent_that_starts_anew_reads_both_parts(folder: Path) -> None:
    made, path = logs(folder)
    append(path, LINE * 90)
    made.rotate(path)
    append(path, b"end\n")
    assert await read(Logs(folder, 10_000, 0), path) == LINE * 90 + b"end\n"


def test_the_oldest_logs_of_ended_slots_go_first(tmp_path: Path) -> None:
    made = Logs(tmp_path, 10_000, keep_bytes=2500)
    paths = []
    for number in range(4):
        path = made.path(f"slot-{number}", 0)
        path.parent.mkdir()
        path.write_bytes(b"x" * 1000)
        os.utime(path, (number, number))
        paths.append(path)
    made.prune({paths[0]})
    assert [path.exists() for path in paths] == [True, False, True, True]
    assert not paths[1].parent.exists()


def test_the_newest_attempt_with_a_log_is_found(tmp_path: Path) -> None:
    made = Logs(tmp_path, 10_000, 0)
    assert made.newest("nobody") is None
    made.path("llama-0", 9).parent.mkdir()
    for number in (2, 10, 9):
        made.path("llama-0", number).touch()
    assert made.newest("llama-0") == 10
