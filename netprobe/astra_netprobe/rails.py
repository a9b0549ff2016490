"""The judgement on machines with several ports: each by itself, then all at once. Pure; `rail_rounds` measures."""

from __future__ import annotations

from dataclasses import dataclass

from astra_netprobe import localise, stats, tables
from astra_netprobe.readings import Evidence
from astra_netprobe.verdict import Asked, Verdict, judge

TOGETHER_MIN = 0.80
"""Of the sum of what ports reach by themselves: less is a limit that they share."""
PEERS_MIN = 0.80
"""A port of all machines below this share of the median of the ports is worth a note: they may be of two kinds."""
_WORST = ("sick", "below", "unmeasured", "sound")


@dataclass(frozen=True, slots=True)
class Rails:
    """Evidence by the name of the port, in the order that was asked for."""

    alone: dict[str, Evidence]
    together: dict[str, Evidence]


def judge_all(rails: Rails, asked: Asked | None = None) -> Verdict:
    """Of each port by itself; the worst goes first. What is slower all at once is no machine's fault, and a note."""
    verdicts = {device: judge(evidence, asked) for device, evidence in rails.alone.items()}
    ordered = sorted(verdicts, key=lambda device: _WORST.index(verdicts[device].state))
    sentences = [f"{device}: {verdicts[device].sentence}" for device in ordered]
    more = [f"{device}: {sentence}" for device in ordered for sentence in verdicts[device].more]
    notes = [f"{device}: {note}" for device in ordered for note in verdicts[device].notes]
    blamed = tuple(dict.fromkeys(name for device in ordered for name in verdicts[device].blamed))
    return Verdict(
        verdicts[ordered[0]].state, sentences[0], (*sentences[1:], *more), (*notes, *_uneven(rails), *_shared(rails)),
        blamed,
    )  # fmt: skip


def _uneven(rails: Rails) -> list[str]:
    rates = {device: rate(evidence) for device, evidence in rails.alone.items()}
    middle = stats.median([found for found in rates.values() if found])
    return [
        f"{device} reaches {tables.rate_text(found)} on all machines, the ports' median {tables.rate_text(middle)}"
        for device, found in rates.items()
        if 0 < found < PEERS_MIN * middle
    ]


def _shared(rails: Rails) -> list[str]:
    """A limit that ports share: a processor, a bus, an uplink."""
    if not rails.together:
        return []
    alone = sum(rate(rails.alone[device]) for device in rails.together)
    together = sum(rate(evidence) for evidence in rails.together.values())
    said = f"all {len(rails.together)} ports at once reach {tables.rate_text(together)}"
    if alone and together < TOGETHER_MIN * alone:
        return [f"{said}, {together / alone:.2f} of what they reach by themselves: they share a limit"]
    return [said]


def rate(evidence: Evidence) -> float:
    """Bits per second in pairs, else on the plateau; 0.0 where neither was measured."""
    if best := localise.best_rates(evidence):
        return stats.median(list(best.values()))
    found = tables.plateau(evidence.sizes)
    return 8 * found.bus_bytes_per_s if found is not None else 0.0
