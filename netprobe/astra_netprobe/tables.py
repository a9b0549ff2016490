"""
Tables in the form of nccl-tests, and the reading of such tables as launchers and other processes leave them.

Written: one line for a size, with time in microseconds and bandwidth in GB/s (10⁹ bytes), both of the median; behind
what everybody's tables have, the fastest iteration and the 99th percentile, in 100 columns. Read: the output of
nccl-tests, with or without a launcher's prefix, our own, and that of the `allreduce.py` of our examples.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astra_netprobe import stats
from astra_netprobe.readings import Sized

GB = 1e9
_FLOAT_BYTES = 4

_HEAD = (
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     min     p99",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)           (us)    (us)",
)

_PREFIX = re.compile(r"^(?:\[\d+,\d+\](?:<std(?:out|err)>)?:\s?|\[\d+\]:?\s?|\d+:\s|[\w.-]+-\d+\s*\|\s?)")
"""Open MPI's `[1,0]<stdout>:`, torchrun's `[0]:`, srun's `0: `, ours `llama-0 |`."""
_NUMBER = r"(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
_ROW = re.compile(
    rf"^\s*(\d+)\s+(\d+)\s+(\w+)\s+(\w+)\s+(-?\d+)\s+{_NUMBER}\s+{_NUMBER}\s+{_NUMBER}\s+(\d+|N/A)"
    rf"(?:\s+{_NUMBER}\s+{_NUMBER}\s+{_NUMBER}\s+(\d+|N/A)|\s+{_NUMBER}\s+{_NUMBER})?\s*$"
)
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\s+.*?\bon\s+(\S+)\s+device\s+(\d+)\s+(?:\[[^\]]*\]\s*)?(.*?)\s*$")
_TORCH = re.compile(r"^bus bandwidth: (\d+(?:\.\d+)?) GB/s over (\d+) (?:GPUs|ranks)(?:, (\d+) bytes)?\s*$")


@dataclass(frozen=True, slots=True)
class Row:
    """
    One size. Bandwidths in bytes per second; *wrong* None where the tool did not check. *time_s* is the median of ours
    and the mean of nccl-tests, which has no *min_s* and *p99_s*: 0.0.
    """

    size_bytes: int
    count: int
    time_s: float
    alg_bytes_per_s: float
    bus_bytes_per_s: float
    wrong: int | None
    min_s: float = 0.0
    p99_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Reading:
    """
    What an output says. *rows* has the better of out-of-place and in-place for each size; what was not whole is left
    out and counted.
    """

    rows: tuple[Row, ...]
    ranks: int
    machines: int
    devices: tuple[str, ...]
    """Kinds of devices, each once."""
    wrong: int
    broken_lines: int

    @property
    def plateau(self) -> stats.Plateau | None:
        return stats.plateau([(row.size_bytes, row.bus_bytes_per_s) for row in self.rows])


def render(sizes: Sequence[Sized], others: Mapping[str, Sequence[Row]] | None = None) -> str:
    """
    The table that people know; ends with what decides, never with an average over sizes.

    Args:
        others: What other tools measured, by a title of theirs; below ours, and nothing is decided from it here.
    """
    lines = list(_HEAD)
    for sized in sizes:
        lines.append(_line(_measured(sized)))
    wrong = sum(sized.wrong for sized in sizes)
    lines.append(f"# Out of bounds values : {wrong} {'OK' if wrong == 0 else 'FAILED'}")
    lines.append(f"# {decides(sizes)}")
    for title, rows in (others or {}).items():
        lines += [f"# {title}:", *(_line(row) for row in rows)]
    return "\n".join(lines) + "\n"


def decides(sizes: Sequence[Sized]) -> str:
    """Which size the verdict rests on, in a sentence with its unit."""
    found = plateau(sizes)
    if found is None:
        largest = max((sized.size_bytes for sized in sizes), default=0)
        return f"No plateau: sizes too small to judge (the largest is {size_text(largest)})"
    return f"Bus bandwidth {found.bus_bytes_per_s / GB:.3f} GB/s on the plateau, at {size_text(found.size_bytes)}"


def plateau(sizes: Sequence[Sized]) -> stats.Plateau | None:
    return stats.plateau(
        [
            (sized.size_bytes, stats.busbw("all_reduce", sized.size_bytes, stats.median(sized.times_s), sized.ranks))
            for sized in sizes
            if sized.times_s
        ]
    )


def read(text: str) -> Reading:
    """Read a tool's output. Lines that two processes have written into one another are left out, never guessed."""
    rows: dict[int, Row] = {}
    places: dict[int, str] = {}
    devices: list[str] = []
    broken, wrong = 0, 0
    torch_ranks = 0
    for raw in text.splitlines():
        line = _PREFIX.sub("", raw)
        if (rank := _RANK.match(line)) is not None:
            places[int(rank[1])] = rank[2]
            devices.append(rank[4])
        elif (torch := _TORCH.match(line)) is not None:
            torch_ranks = int(torch[2])
            _keep(rows, _torch_row(float(torch[1]) * GB, torch_ranks, int(torch[3] or 256 << 20)))
        elif (match := _ROW.match(line)) is not None:
            row = _row(match)
            _keep(rows, row)
            wrong += row.wrong or 0
        elif re.match(r"^\s*\d+\s+\d+\s+(?:float|half|double|bfloat16|u?int\w*)\b", line):
            broken += 1
    return Reading(
        rows=tuple(rows[size] for size in sorted(rows)),
        ranks=len(places) or torch_ranks,
        machines=len(set(places.values())),
        devices=tuple(dict.fromkeys(devices)),
        wrong=wrong,
        broken_lines=broken,
    )


def size_text(size_bytes: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size_bytes >= 1 << shift:
            value = size_bytes / (1 << shift)
            return f"{value:.0f} {unit}" if value == int(value) else f"{value:.1f} {unit}"
    return f"{size_bytes} B"


def rate_text(bits_per_s: float) -> str:
    for unit, scale in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bits_per_s >= 0.1 * scale:
            return f"{bits_per_s / scale:.2f} {unit}"
    return f"{bits_per_s / 1e3:.0f} kbit/s"


def _measured(sized: Sized) -> Row:
    spread = stats.spread(sized.times_s)
    return Row(
        size_bytes=sized.size_bytes,
        count=sized.size_bytes // _FLOAT_BYTES,
        time_s=spread.median_s,
        alg_bytes_per_s=stats.algbw(sized.size_bytes, spread.median_s),
        bus_bytes_per_s=stats.busbw("all_reduce", sized.size_bytes, spread.median_s, sized.ranks),
        wrong=sized.wrong,
        min_s=spread.min_s,
        p99_s=spread.p99_s,
    )


def _line(row: Row) -> str:
    tail = f" {_short(row.min_s * 1e6):>7} {_short(row.p99_s * 1e6):>7}" if row.p99_s else ""
    return (
        f"{row.size_bytes:>12}  {row.count:>12}     float     sum      -1 {_digits(row.time_s * 1e6):>8}"
        f" {row.alg_bytes_per_s / GB:>7.3f} {row.bus_bytes_per_s / GB:>7.3f} "
        f"{'N/A' if row.wrong is None else row.wrong:>6}{tail}"
    )


def _row(match: re.Match[str]) -> Row:
    out = (float(match[6]), float(match[7]), float(match[8]))
    inside = (float(match[10]), float(match[11]), float(match[12])) if match[10] else out
    time_us, alg, bus = max(out, inside, key=lambda reading: reading[2])
    counted = [int(word) for word in (match[9], match[13]) if word and word != "N/A"]
    return Row(
        size_bytes=int(match[1]),
        count=int(match[2]),
        time_s=time_us / 1e6,
        alg_bytes_per_s=alg * GB,
        bus_bytes_per_s=bus * GB,
        wrong=sum(counted) if counted else None,
        min_s=float(match[14]) / 1e6 if match[14] else 0.0,
        p99_s=float(match[15]) / 1e6 if match[15] else 0.0,
    )


def _torch_row(bus: float, ranks: int, size_bytes: int) -> Row:
    alg = bus / stats.bus_factor("all_reduce", ranks) if ranks > 1 else bus
    return Row(size_bytes, size_bytes // _FLOAT_BYTES, size_bytes / alg if alg else 0.0, alg, bus, None)


def _keep(rows: dict[int, Row], row: Row) -> None:
    known = rows.get(row.size_bytes)
    if known is None or row.bus_bytes_per_s > known.bus_bytes_per_s:
        rows[row.size_bytes] = row


def _short(microseconds: float) -> str:
    """In seven columns up to ten seconds."""
    return f"{microseconds:.2f}" if microseconds < 1000 else f"{microseconds:.0f}"


def _digits(microseconds: float) -> str:
    return (
        f"{microseconds:.2f}"
        if microseconds < 1000
        else f"{microseconds:.1f}"
        if microseconds < 1e6
        else (f"{microseconds:.0f}")
    )
