"""
Leads a probe of machines with several ports: over each port by itself, then over all at once.

Each port has ways to the machines, and processes on them, of its own: one process does not fill several ports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from astra_netprobe.channel import Endpoint
from astra_netprobe.conductor import Conductor
from astra_netprobe.rails import Rails
from astra_netprobe.readings import Evidence
from astra_netprobe.settings import Settings
from astra_netprobe.verdict import judge


async def probe(
    endpoints: Mapping[str, Sequence[Endpoint]],
    settings: Settings,
    watch: Callable[[str, Evidence], None] | None = None,
) -> Rails:
    """
    Args:
        endpoints: By the name of the port. The time is shared out: as much for each port, and for all at once.
        watch: Is told after every step, with the port's name.
    """
    told = watch or (lambda device, evidence: None)
    share = replace(settings, budget_s=settings.budget_s / (len(endpoints) + 1))

    numbers = {device: number for number, device in enumerate(endpoints)}

    async def one(device: str) -> Evidence:
        def tell(evidence: Evidence) -> None:
            told(device, evidence)

        return await Conductor(endpoints[device], replace(share, device=device, rail=numbers[device]), tell).run()

    alone = {device: await one(device) for device in endpoints}
    sound = [device for device in endpoints if judge(alone[device]).state not in ("sick", "unmeasured")]
    found = await asyncio.gather(*(one(device) for device in sound)) if len(sound) > 1 else []
    return Rails(alone, dict(zip(sound, found, strict=False)))
