"""
Values to text: tables, pages and sentences, pure. What a terminal or a pipe makes of them is `output`'s business.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from astra_cli.documents import Event, Job, Lookup, Machine, NamesOfRun, Ranks

STYLES = {
    "Pending": "yellow", "Starting": "cyan", "Running": "green", "Stopping": "yellow",
    "Completed": "bold green", "Failed": "bold red", "Stopped": "bold yellow", "Down": "bold red",
    "Preparing": "cyan", "ReadyToStart": "cyan", "Armed": "cyan",
    "warning": "yellow", "error": "bold red", "info": "",
}  # fmt: skip
"""Of phases, worker states and levels of events."""


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """*right*: indexes of columns that are aligned right, as numbers are."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    right: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """A few lines, then a table if there is one."""

    lines: tuple[Cell, ...]
    table: Table | None = None


def plain(table: Table) -> str:
    """Columns under their heads, two spaces apart, never wrapped: for pipes, `grep` and `awk`."""
    texts = [table.columns, *(tuple(cell.text or "-" for cell in row) for row in table.rows)]
    widths = [max(width(row[i]) for row in texts) for i in range(len(table.columns))]
    return "\n".join(_plain_row(row, widths, table.right) for row in texts)


def _plain_row(row: Sequence[str], widths: Sequence[int], right: tuple[int, ...]) -> str:
    cells = []
    for i, (text, wide) in enumerate(zip(row, widths, strict=True)):
        padding = " " * (wide - width(text))
        cells.append(padding + text if i in right else text + padding)
    return "  ".join(cells).rstrip()


def width(text: str) -> int:
    """Columns that *text* takes on a terminal."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def clean(text: str | None) -> str:
    """One line without control characters: what a program wrote must not move the reader's cursor."""
    return "".join(" " if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") else c for c in text or "").strip()


def jobs(documents: Iterable[Job], now: datetime) -> Table:
    rows = []
    for job in documents:
        status = job.status
        rows.append((
            Cell(job.metadata.name), Cell(status.phase, STYLES.get(status.phase, "")),
            Cell(str(status.total)), Cell(number(status.attempt)), Cell(age(job.metadata.submitted_at, now)),
            Cell(clean(status.reason)),
        ))  # fmt: skip
    return Table(("NAME", "PHASE", "WORKERS", "ATTEMPT", "AGE", "REASON"), tuple(rows), right=(2, 3, 4))


def job(document: Job, now: datetime) -> Page:
    status = document.status
    facts = [f"{status.total} worker{'s' if status.total != 1 else ''}", f"attempt {number(status.attempt)}"]
    if status.tier:
        facts.append(f"{status.tier} {clean(status.domain)}".strip())
    if document.metadata.submitted_at:
        facts.append(
            f"submitted {stamp(document.metadata.submitted_at)}, {age(document.metadata.submitted_at, now)} ago"
        )
    if status.ended_at:
        facts.append(f"ended {stamp(status.ended_at)}")
    lines = [Cell(f"{document.metadata.name}: {status.phase}", STYLES.get(status.phase, ""))]
    if status.reason:
        lines.append(Cell(clean(status.reason)))
    lines.append(Cell(" · ".join(facts), "dim"))
    return Page(tuple(lines), _workers(document))


def _workers(document: Job) -> Table:
    rows = tuple(
        (
            Cell(str(w.rank)), Cell(w.name), Cell(w.machine or ""), Cell(w.state, STYLES.get(w.state, "")),
            Cell(w.address or ""), Cell(number(w.code)), Cell(str(w.failures)), Cell(clean(w.detail)),
        )
        for w in document.status.workers
    )  # fmt: skip
    spares = tuple(
        (
            Cell(""), Cell("a spare"), Cell(spare.machine), Cell(spare.state, STYLES.get(spare.state, "")),
            Cell(""), Cell(""), Cell(""), Cell(clean(spare.detail)),
        )
        for spare in document.status.spares
    )  # fmt: skip
    columns = ("RANK", "WORKER", "MACHINE", "STATE", "ADDRESS", "CODE", "FAILURES", "DETAIL")
    return Table(columns, (*rows, *spares), right=(0, 5, 6))


def ranks(document: Ranks) -> Page:
    others = [str(n) for n in document.attempts if n != document.attempt]
    lines = [Cell(f"Attempt {document.attempt}" + (f" (also: {', '.join(others)})" if others else ""), "bold")]
    if document.opened_at:
        lines.append(Cell(f"The barrier opened {stamp(document.opened_at)}", "dim"))
    if document.ended_why:
        lines.append(Cell(clean(document.ended_why)))
    rows = tuple(
        (
            Cell(str(r.rank)), Cell(r.name), Cell(r.machine or ""), Cell(r.address or ""), Cell(r.slot or ""),
            Cell(clock(r.started_at)), Cell(clock(r.ended_at)), Cell(number(r.code)), Cell(clean(r.detail)),
        )
        for r in document.items
    )  # fmt: skip
    columns = ("RANK", "WORKER", "MACHINE", "ADDRESS", "SLOT", "STARTED", "ENDED", "CODE", "DETAIL")
    return Page(tuple(lines), Table(columns, rows, right=(0, 7)))


def event(document: Event) -> tuple[Cell, Cell]:
    """When, and what."""
    return Cell(stamp(document.at), "dim"), Cell(told(document), STYLES[document.level])


def told(document: Event) -> str:
    """Its sentence, with the rank that it is about where the sentence names no worker."""
    sentence = clean(document.sentence)
    named = document.rank is None or f"-{document.rank}" in sentence
    return sentence if named else f"rank {document.rank}: {sentence}"


def names(runs: Iterable[NamesOfRun]) -> Table:
    """Each worker's name with its addresses, and under the run's name the leader."""
    rows = []
    for run in runs:
        about = f"leader, attempt {run.attempt}, {run.world_size} workers"
        port = f", port {run.port}" if run.port else ""
        rows.append((Cell(run.run, "bold"), Cell(", ".join(run.addresses.get(run.leader, ()))), Cell(about + port)))
        rows += [(Cell(worker), Cell(", ".join(found)), Cell("")) for worker, found in run.addresses.items()]
    return Table(("NAME", "ADDRESSES", "IS"), tuple(rows))


def lookup(found: Lookup) -> Page:
    """What was said, by whom, to whom."""
    style = "green" if found.records else "yellow"
    said = f"{found.name} {found.type}: {found.rcode}{'' if found.records else ', no record'}"
    asked = f"asked as {found.asker} at {found.server} on {found.machine}, {found.took_s * 1000:.1f} ms"
    rows = tuple((Cell(r.name), Cell(r.type), Cell(str(r.ttl_s)), Cell(r.data)) for r in found.records)
    table = Table(("NAME", "TYPE", "TTL", "DATA"), rows, right=(2,)) if rows else None
    return Page((Cell(said, style), Cell(asked, "dim")), table)


def machines(documents: Iterable[Machine]) -> Table:
    rows = tuple(
        (
            Cell(m.name), Cell(m.address), machine_state(m),
            Cell(f"{m.free_cpu_cores:g}/{m.cpu_cores:g}"),
            Cell(f"{size(m.free_memory_bytes)}/{size(m.memory_bytes)}"),
            Cell(f"{m.free_gpus}/{m.gpus}" if m.gpus else ""),
            Cell(" ".join(f"{tier}={name}" for tier, name in sorted(m.domains.items()))),
            Cell(str(len(m.slots))),
        )
        for m in documents
    )  # fmt: skip
    columns = ("MACHINE", "ADDRESS", "STATE", "FREE CORES", "FREE MEMORY", "FREE GPUS", "DOMAINS", "SLOTS")
    return Table(columns, rows, right=(3, 4, 5, 7))


def machine_state(machine: Machine) -> Cell:
    if machine.out_of_use:
        return Cell(f"out of use: {clean(machine.out_of_use)}", "yellow")
    if machine.silent_s is not None:
        return Cell(f"does not answer since {machine.silent_s:.0f} s", "bold red")
    if not machine.connected:
        return Cell("not connected", "bold red")
    faults = sum(found.level == "fault" for found in machine.findings)
    if faults:
        return Cell(f"connected, {faults} fault{'s' if faults > 1 else ''}", "yellow")
    return Cell("connected", "green")


def drain(machine: Machine) -> tuple[Cell, ...]:
    """What a drain of it would cost, a line for each run."""
    if machine.drain is None:
        return ()
    if not machine.drain:
        return (Cell("draining it costs no run anything", "dim"),)
    return tuple(
        Cell(("" if cost.workspace == "default" else f"workspace {cost.workspace}: ") + clean(cost.sentence), "yellow")
        for cost in machine.drain
    )


def submitted(document: Job) -> str:
    total = document.status.total
    return f"{document.metadata.name} submitted: {total} worker{'s' if total != 1 else ''}."


def number(value: int | None) -> str:
    return "" if value is None else str(value)


def stamp(at: datetime) -> str:
    """Date and time in UTC, to the second."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def clock(at: datetime | None) -> str:
    """Time of day in UTC with milliseconds: what start skew is read from."""
    return at.astimezone(UTC).strftime("%H:%M:%S.%f")[:-3] + "Z" if at else ""


def age(since: datetime | None, now: datetime) -> str:
    return duration((now - since).total_seconds()) if since else ""


def duration(seconds: float) -> str:
    """The two largest units: `42s`, `3m 7s`, `5h 2m`, `2d 1h`."""
    left = max(0, int(seconds))
    parts: list[str] = []
    for name, unit in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, unit)
        if count or (name == "s" and not parts):
            parts.append(f"{count}{name}")
    return " ".join(parts[:2])


def size(count: int) -> str:
    """Binary units, one decimal where it says something: `512Mi`, `1.5Gi`."""
    value = float(count)
    for unit in ("", "Ki", "Mi", "Gi"):
        if value < 1024:
            return f"{value:.3g}{unit}" if value < 100 else f"{value:.0f}{unit}"
        value /= 1024
    return f"{value:.3g}Ti" if value < 100 else f"{value:.0f}Ti"
