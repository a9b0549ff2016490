"""
The names of a run's workers, for the hosts file of each and for the name servers of their machines: a name resolves
before the program that may ask for it starts.
"""

from __future__ import annotations

from astra_agent import wire
from astra_gang.core.state import RunState, Worker


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


def run_names(run: RunState, *, term: int, version: int) -> wire.RunNames:
    """What name servers answer for the run: a worker without an address has its name, and no record."""
    addresses = {worker.name: _addresses(worker) for worker in run.workers}
    slot = run.leader.slot
    return wire.RunNames(
        workspace=run.workspace,
        run=run.name,
        addresses=addresses,
        leader=run.leader.name if addresses[run.leader.name] else "",
        port=slot.port or 0 if slot is not None else 0,
        attempt=run.attempt,
        world_size=len(run.workers),
        term=term,
        version=version,
    )


def _addresses(worker: Worker) -> tuple[str, ...]:
    return () if worker.slot is None or worker.slot.address is None else (worker.slot.address,)
