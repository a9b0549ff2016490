"""`make bench`, `make bench ONLY=slots`: prints a table of ratios and writes build/bench/NAME.json for each figure."""

from __future__ import annotations

import asyncio
import os
import sys

from bench import gang, idle, inventory, names, network, nomad, slots
from bench.figure import record, table

MEASUREMENTS = {
    "slots": slots.measure,
    "restart": gang.measure,
    "spread": gang.measure,
    "idle": idle.measure,
    "names": names.measure,
    "inventory": inventory.measure,
    "nomad": nomad.measure,
    "network": network.measure,
}
"""By the name that ONLY takes; `spread` comes out of the rounds of `restart`."""


def main(names: list[str]) -> int:
    """Returns: 0 when everything was measured, whether or not a goal was met; 2 for a name that is none."""
    if unknown := [name for name in names if name not in MEASUREMENTS]:
        print(f"there is no figure {unknown[0]!r}; there are: {', '.join(MEASUREMENTS)}", file=sys.stderr)
        return 2
    if os.geteuid() != 0:
        print("the bench starts real containers: run it as root, or with sudo", file=sys.stderr)
        return 2
    figures = []
    for measure in dict.fromkeys(MEASUREMENTS[name] for name in names or MEASUREMENTS):
        for figure in asyncio.run(measure()):
            record(figure)
            figures.append(figure)
    print(table(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
