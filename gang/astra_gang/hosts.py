"""
The names of a run's workers, for the hosts file of each: a name resolves before the program that may ask for it starts.
"""

from __future__ import annotations

from astra_gang.core.state import RunState


def hosts(run: RunState) -> dict[str, str]:
    """
    Names to addresses: each worker by its name, the leader by the run's name too, all also with `.<workspace>` behind.

    A worker whose slot has no address yet is left out; in a gang's attempt every worker has one.
    """
    names: dict[str, str] = {}
    for worker in run.workers:
        if worker.slot is None or worker.slot.address is None:
            continue
        own = (worker.name, run.name) if worker is run.leader else (worker.name,)
        for name in own:
            names[name] = worker.slot.address
            names[f"{name}.{run.workspace}"] = worker.slot.address
    return names
