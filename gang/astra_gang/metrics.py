"""What the coordinator knows, for Prometheus: few series, however many runs there have been. Values in, text out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from astra_gang.core import Outcome, Phase, RunState
from astra_gang.engine import Machine
from astra_gang.view import phase

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LIVE = ("Pending", "Starting", "Running", "Stopping")
Labels = tuple[tuple[str, str], ...]


def text(
    runs: Iterable[RunState], machines: Iterable[Machine] | None, *, workspaces: Iterable[str], term: int, ok: bool
) -> str:
    """
    Args:
        runs: All that are remembered, ended ones too.
        machines: None: the engine does not say; then nothing is said of them.
        ok: Whether records can be written.
    """
    told, there = tuple(runs), tuple(machines or ())
    lines: list[str] = []
    _add(lines, "coordinator_up", "Whether its records can be written.", {(): int(ok)})
    _add(lines, "coordinator_term", "Of this coordinator; it grows whenever another one takes over.", {(): term})
    _add(lines, "runs", "Runs that have not ended, by phase.", _live(told, workspaces))
    _add(lines, "runs_ended", "Runs that have ended and are remembered.", _ended(told, workspaces))
    _add(lines, "run_attempts", "Attempts of runs that have not ended: one, and one for each restart.", _attempts(told))
    _add(lines, "engine_up", "Whether the engine says which machines there are.", {(): int(machines is not None)})
    if machines is None:
        return "\n".join(lines) + "\n"
    _add(lines, "machines", "Machines, by whether work may go there.", _states(there))
    held = ((m, len(m.facts.gpus) - len(m.free_gpus)) for m in there)
    _add(lines, "machine_gpus", "GPUs that a machine offers.", _each((m, len(m.facts.gpus)) for m in there))
    _add(lines, "machine_gpus_held", "GPUs of a machine that slots hold.", _each(held))
    _add(lines, "machine_slots", "Slots on a machine.", _each((m, len(m.slots)) for m in there))
    _add(lines, "machine_findings", "What is wrong with a machine, by how bad it is.", _findings(there))
    return "\n".join(lines) + "\n"


def _live(runs: Iterable[RunState], workspaces: Iterable[str]) -> Mapping[Labels, int]:
    counts = Counter((run.workspace, phase(run)) for run in runs if run.phase is not Phase.ENDED)
    return {
        (("workspace", workspace), ("phase", word)): counts[workspace, word]
        for workspace in sorted(workspaces)
        for word in _LIVE
    }


def _ended(runs: Iterable[RunState], workspaces: Iterable[str]) -> Mapping[Labels, int]:
    counts = Counter((run.workspace, str(run.outcome)) for run in runs if run.phase is Phase.ENDED)
    return {
        (("workspace", workspace), ("outcome", str(outcome))): counts[workspace, str(outcome)]
        for workspace in sorted(workspaces)
        for outcome in Outcome
    }


def _attempts(runs: Iterable[RunState]) -> Mapping[Labels, int]:
    live = (run for run in runs if run.phase is not Phase.ENDED)
    return {(("workspace", run.workspace), ("run", run.name)): run.attempt + 1 for run in live}


def _states(machines: Iterable[Machine]) -> Mapping[Labels, int]:
    counts = Counter(_state(machine) for machine in machines)
    return {(("state", state),): counts[state] for state in ("usable", "out_of_use", "silent", "not_connected")}


def _state(machine: Machine) -> str:
    if not machine.connected:
        return "not_connected"
    if machine.silent:
        return "silent"
    return "usable" if machine.out_of_use is None and machine.facts.out_of_use is None else "out_of_use"


def _findings(machines: Iterable[Machine]) -> Mapping[Labels, int]:
    found: dict[Labels, int] = {}
    for machine in machines:
        counts = Counter(finding.level for finding in machine.facts.findings)
        for level in ("fault", "warning"):
            found[("machine", machine.facts.name), ("level", level)] = counts[level]
    return found


def _each(values: Iterable[tuple[Machine, int]]) -> Mapping[Labels, int]:
    return {(("machine", machine.facts.name),): value for machine, value in values}


def _add(lines: list[str], name: str, about: str, values: Mapping[Labels, int]) -> None:
    lines += [f"# HELP astra_{name} {about}", f"# TYPE astra_{name} gauge"]
    for labels, value in values.items():
        shown = ",".join(f'{label}="{_escaped(word)}"' for label, word in labels)
        lines.append(f"astra_{name}{{{shown}}} {value}" if shown else f"astra_{name} {value}")


def _escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
