"""
Two halves with a thin way between them: found from two rings, where no topology is known.

A hop that was slow joins machines of different halves, every other hop machines of the same one. When all hops of both
rings agree with one such division, it is the division; a single bad port never does, since its ring would pass from one
half to the other an odd number of times.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from astra_netprobe.readings import Hop

_SIDE_MIN = 2
"""A side of one machine is a bad machine."""


def split(
    names: Sequence[str], rings: Sequence[Sequence[Hop]], slow: Collection[Hop]
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The two sides, each in the order of *names*, or None when the hops do not agree with any."""
    sides = _Sides(names)
    crossing = frozenset(slow)
    for hops in rings:
        for hop in hops:
            if not sides.join(hop.sender, hop.receiver, differ=hop in crossing):
                return None
    return _divided(names, sides)


def split_pairs(
    names: Sequence[str], slow: Mapping[tuple[str, str], bool]
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """
    The same from pairs, each with whether it was slow; None without one that was. Of a machine that was in no pair
    nothing is known, and of groups that no pair joins neither.
    """
    in_pairs = {name for pair in slow for name in pair}
    measured = [name for name in names if name in in_pairs]
    sides = _Sides(measured)
    if not any(slow.values()) or not all(sides.join(*pair, differ=differ) for pair, differ in slow.items()):
        return None
    return _divided(measured, sides) if len({sides.side(name)[0] for name in measured}) == 1 else None


def _divided(names: Sequence[str], sides: _Sides) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    one = tuple(name for name in names if sides.side(name) == sides.side(names[0]))
    other = tuple(name for name in names if name not in set(one))
    return (one, other) if min(len(one), len(other)) >= _SIDE_MIN else None


class _Sides:
    """Union-find in which each member knows whether it is on the side of its root."""

    def __init__(self, names: Sequence[str]) -> None:
        self._root = {name: (name, 0) for name in names}

    def join(self, one: str, other: str, *, differ: bool) -> bool:
        """False when that contradicts what was said before."""
        (root, parity), (other_root, other_parity) = self._find(one), self._find(other)
        crossing = parity ^ other_parity ^ int(differ)
        if root == other_root:
            return crossing == 0
        self._root[other_root] = (root, crossing)
        return True

    def side(self, name: str) -> tuple[str, int]:
        return self._find(name)

    def _find(self, name: str) -> tuple[str, int]:
        trail, parity = [], 0
        while self._root[name][0] != name:
            trail.append(name)
            name = self._root[name][0]
        for step in reversed(trail):
            above, own = self._root[step]
            parity = own ^ (self._root[above][1] if above != name else 0)
            self._root[step] = (name, parity)
        return name, (self._root[trail[0]][1] if trail else 0)
