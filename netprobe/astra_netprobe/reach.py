"""
Who can't reach whom, and why: a refusal, a firewall that drops, a machine that is dead.

A probe's port is open on every machine that takes part, so a reset does not mean that nothing listens: somebody on the
way refuses. Silence towards a machine that others reach, or that answers its control channel, is a firewall's; silence
towards one that nobody reaches is the machine's own.
"""

from __future__ import annotations

from collections.abc import Sequence

from astra_netprobe.readings import Evidence, Outcome, Reach

_WHAT: dict[Outcome, str] = {
    "refused": "is refused, though {target} listens: a firewall on the way rejects it",
    "rejected": "is rejected on the way: a firewall or a router says that it may not",
    "silent": "is dropped without a word, though {target} is up: a firewall, or a way that leads nowhere",
    "no_neighbour": "finds nobody at the address of {target}: a cable, a VLAN or an address is wrong",
    "stranger": "is answered by somebody else: two machines have the address of {target}",
}


def findings(evidence: Evidence) -> list[tuple[str, tuple[str, ...]]]:
    """Sentences with whom they blame: the machine that most failures have in common first."""
    failed = [reach for reach in evidence.reaches if reach.outcome != "reached"]
    found: list[tuple[str, tuple[str, ...]]] = []
    broken = {hop.receiver for hops in evidence.rings for hop in hops if hop.broken} | {
        flow.receiver for flow in evidence.flows if flow.broken
    }
    for name in _lost(evidence, failed, broken):
        found.append((f"{name} is lost: nobody reaches it any more and it does not answer", (name,)))
        failed = [reach for reach in failed if name not in (reach.source, reach.target)]
    for name in _cut_off(evidence, failed):
        found.append((f"{name} is cut off: nobody reaches it and it reaches nobody, though it is up", (name,)))
        failed = [reach for reach in failed if name not in (reach.source, reach.target)]
    blamed: list[str] = []
    while failed:
        name, towards = _most_common(failed)
        mine = [reach for reach in failed if (reach.target if towards else reach.source) == name]
        failed = [reach for reach in failed if reach not in mine]
        known = next((one for one in blamed if all(one in (reach.source, reach.target) for reach in mine)), None)
        blamed.append(known or name)
        found.append((_sentence(mine, name, evidence), (known or name,)))
    return found


def _lost(evidence: Evidence, failed: Sequence[Reach], broken: set[str]) -> list[str]:
    """Machines that stopped answering, and that nobody reaches."""
    reached = {reach.target for reach in evidence.reaches if reach.outcome == "reached"}
    unreachable = {reach.target for reach in failed} - reached
    return [name for name in evidence.machines if name in unreachable | broken and name in evidence.absent]


def _cut_off(evidence: Evidence, failed: Sequence[Reach]) -> list[str]:
    """Machines none of whose connections is made, in either direction, where others reach one another."""
    working = {end for reach in evidence.reaches if reach.outcome == "reached" for end in (reach.source, reach.target)}
    sources, targets = {reach.source for reach in failed}, {reach.target for reach in failed}
    return [name for name in evidence.machines if name in sources & targets and name not in working and working]


def _most_common(failed: Sequence[Reach]) -> tuple[str, bool]:
    """The machine with most failures at one of its ends, and whether that is as a target."""
    counts: dict[tuple[str, bool], int] = {}
    for reach in failed:
        for end in ((reach.target, True), (reach.source, False)):
            counts[end] = counts.get(end, 0) + 1
    return max(counts, key=lambda end: (counts[end], end[1]))


def _sentence(mine: Sequence[Reach], name: str, evidence: Evidence) -> str:
    first = mine[0]
    others = len(evidence.machines) - 1
    if len(mine) > 1:
        is_target = first.target == mine[1].target
        who = f"{len(mine)} of {others} machines" if is_target else name
        whom = name if is_target else "the others"
    else:
        who, whom = first.source, first.target
    return f"a connection from {who} to {whom} {_WHAT[first.outcome].format(target=whom)}"
