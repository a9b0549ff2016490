"""Lead a probe over several ports of each machine, one after the other and all at once, and tell of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime

from rich.text import Text

from astra_agent.errors import InvalidRequest
from astra_cli.client import Client
from astra_cli.netcheck import report
from astra_cli.netcheck.endpoints import Place, opened
from astra_cli.netcheck.lead import picture
from astra_cli.output import Output
from astra_netprobe import matrix, rail_rounds, rails
from astra_netprobe.readings import Evidence
from astra_netprobe.settings import Settings
from astra_netprobe.verdict import Asked


async def lead_rails(
    output: Output,
    client: Client | None,
    places: Sequence[Place],
    devices: Sequence[str],
    *,
    token: str,
    asked: Asked,
    settings: Settings,
) -> int:
    """Returns the exit status: that of the worst port."""
    if len(places) < 2:
        raise InvalidRequest("a probe needs two machines or more: one alone has no network to measure")
    if len(set(devices)) < len(devices):
        raise InvalidRequest(f"--rail names a port twice: {', '.join(devices)}", "--rail")
    async with AsyncExitStack() as stack:
        endpoints = {device: await stack.enter_async_context(opened(client, places, token)) for device in devices}
        with picture(output) as live:

            def watch(device: str, evidence: Evidence) -> None:
                if live is not None and evidence.rounds:
                    live.update(Text(f"{device}\n{matrix.render(matrix.of(evidence))}"))

            found = await rail_rounds.probe(endpoints, settings, watch)
    verdict = rails.judge_all(found, asked)
    if output.as_json:
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        output.document(report.rails_document(found, verdict, asked, at=at))
    else:
        output.out.file.write(report.rails_text(found, verdict))
    return verdict.exit
