"""
A third machine for the proof of a run of two, which are compared with nobody else: of a link that is slow both ways it
would not be known whose it is. Values in, values out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from astra_agent.wire import MachineFacts
from astra_netprobe.readings import Evidence
from astra_netprobe.verdict import Asked, Verdict, judge

ENOUGH = 3
"""Machines that are each other's measure."""


def choose(facts: Sequence[MachineFacts], idle: Iterable[MachineFacts]) -> MachineFacts | None:
    """
    Args:
        facts: Of the run's machines.
        idle: Machines that nothing runs on; one of them may take the place of a machine that is to blame.
    """
    if len(facts) >= ENOUGH:
        return None
    wanted = {(tier, name) for found in facts for tier, name in found.domains.items()}
    names = {found.name for found in facts}
    others = [found for found in idle if found.name not in names and found.out_of_use is None]
    return max(others, key=lambda found: len(wanted.intersection(found.domains.items())), default=None)


def verdict(evidence: Evidence, witness: str | None, asked: Asked | None = None) -> Verdict:
    """
    On the run's own machines, by what it asked for. Of the witness only rates count, to compare with: who can't reach
    it, or is not reached by it, may be as sound as it is.
    """
    if witness is None:
        return judge(evidence, asked)
    own = evidence.without(witness)
    compared = replace(
        evidence,
        reaches=own.reaches,
        packets=own.packets,
        wrongs=own.wrongs,
        ports=own.ports,
        absent=own.absent,
        rdma=own.rdma,
    )
    found = judge(compared, asked)
    if set(found.blamed) - {witness} or (found.state == "unmeasured" and witness not in evidence.absent):
        return found
    return judge(own, asked)
