"""What a probe found, as a document to keep and to compare, and as text to read. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from astra_cli.netcheck.program import Ran
from astra_netprobe import localise, matrix, rdma_verdict, stats, tables
from astra_netprobe.rails import Rails
from astra_netprobe.readings import Evidence
from astra_netprobe.verdict import Asked, Verdict, judge

Json = dict[str, Any]

FORMAT = 1
WARN_SHARE, FAIL_SHARE = 0.95, 0.90
"""Of the last good result: below the first it is told, below the second it is worse."""


def document(evidence: Evidence, verdict: Verdict, ran: Ran | None, *, at: str) -> Json:
    """Everything: the verdict, every sample, who took part. Rates are bits per second, times seconds."""
    found = tables.plateau(evidence.sizes)
    return {
        "format": FORMAT,
        "at": at,
        "transport": "tcp and rdma" if evidence.rdma else "tcp",
        "machines": list(evidence.machines),
        "state": verdict.state,
        "sentence": verdict.sentence,
        "more": list(verdict.more),
        "notes": list(verdict.notes),
        "blamed": list(verdict.blamed),
        "exit": verdict.exit,
        "plateau": None
        if found is None
        else {"size_bytes": found.size_bytes, "bus_bits_per_s": 8 * found.bus_bytes_per_s},
        "pair_bits_per_s": stats.median(list(localise.best_rates(evidence).values())),
        "program": None if ran is None else _program(ran),
        "evidence": dataclasses.asdict(evidence),
    }


def text(evidence: Evidence, verdict: Verdict, ran: Ran | None = None) -> str:
    """The verdict first, then the table, the matrix, and what else there is to say."""
    return "\n".join([*_said(verdict), *_measured(evidence, ran)]) + "\n"


def rails_document(found: Rails, verdict: Verdict, asked: Asked, *, at: str) -> Json:
    """As `document`, for each port by itself and for all at once."""
    return {
        "format": FORMAT,
        "at": at,
        "state": verdict.state,
        "sentence": verdict.sentence,
        "more": list(verdict.more),
        "notes": list(verdict.notes),
        "blamed": list(verdict.blamed),
        "exit": verdict.exit,
        "alone": {
            device: document(evidence, judge(evidence, asked), None, at=at) for device, evidence in found.alone.items()
        },
        "together": {
            device: document(evidence, judge(evidence, asked), None, at=at)
            for device, evidence in found.together.items()
        },
    }


def rails_text(found: Rails, verdict: Verdict) -> str:
    """The verdict on all ports, then what was measured on each by itself."""
    parts = _said(verdict)
    for device, evidence in found.alone.items():
        parts += ["", f"{device} by itself", *_measured(evidence, None)]
    return "\n".join(parts) + "\n"


def _said(verdict: Verdict) -> list[str]:
    return [verdict.sentence, *verdict.more, *(f"note: {note}" for note in verdict.notes)]


def _measured(evidence: Evidence, ran: Ran | None) -> list[str]:
    parts: list[str] = []
    if evidence.sizes:
        others = {} if ran is None else {ran.title: ran.reading.rows}
        parts += ["", tables.render(evidence.sizes, others).rstrip()]
    if evidence.rings or evidence.rounds:
        parts += ["", matrix.render(matrix.of(evidence)).rstrip()]
    if evidence.rdma:
        parts += ["", rdma_verdict.table(evidence.rdma)]
    return [*parts, "", rdma_verdict.told(evidence.rdma, evidence.no_rdma, evidence.rdma_left)]


def comparison(now: Json, before: Mapping[str, Any]) -> str | None:
    """A sentence about *before*, the last good result of the same machines; None when nothing can be compared."""
    if before.get("format") != FORMAT or before.get("machines") != now["machines"]:
        return None
    if _bounds(before) != _bounds(now):
        return None
    pairs = [
        ("bus bandwidth", _plateau(now), _plateau(before)),
        ("pairs", now["pair_bits_per_s"], before.get("pair_bits_per_s")),
    ]
    for what, current, last in pairs:
        if current and last:
            share = current / last
            word = "as good as" if share >= WARN_SHARE else "less than" if share >= FAIL_SHARE else "much less than"
            return f"{what} at {share:.2f} of the last good result of these machines ({before.get('at')}): {word} then"
    return None


def _bounds(report: Mapping[str, Any]) -> Any:
    """What machines kept back by their own setting; an older report has none."""
    evidence = report.get("evidence")
    return evidence.get("bounds", {}) if isinstance(evidence, dict) else {}


def _program(ran: Ran) -> Json:
    return {
        "image": ran.image,
        "backend": ran.backend,
        "machines": list(ran.machines),
        "promised": ran.promised,
        "failure": ran.failure,
        "ranks": ran.reading.ranks,
        "rows": [dataclasses.asdict(row) for row in ran.reading.rows],
        "nccl": [dataclasses.asdict(library) for library in ran.libraries],
    }


def _plateau(report: Mapping[str, Any]) -> float | None:
    found = report.get("plateau")
    return float(found["bus_bits_per_s"]) if isinstance(found, dict) else None
