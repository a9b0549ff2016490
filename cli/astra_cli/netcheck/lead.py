"""Lead one probe from the command line and tell of it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.text import Text

from astra_agent.errors import InvalidRequest
from astra_cli.client import Client
from astra_cli.netcheck import plot, program, report
from astra_cli.netcheck.endpoints import Place, opened
from astra_cli.netcheck.program import Ran
from astra_cli.output import Output
from astra_netprobe import matrix
from astra_netprobe.conductor import Conductor
from astra_netprobe.readings import Evidence
from astra_netprobe.settings import Settings
from astra_netprobe.verdict import Asked, judge

RunProgram = Callable[[], Awaitable[Ran]]


async def lead(
    output: Output,
    client: Client | None,
    places: Sequence[Place],
    *,
    token: str,
    asked: Asked,
    settings: Settings,
    save: Path | None,
    drawing: Path | None = None,
    run_program: RunProgram | None = None,
) -> int:
    """
    Probe the network between *places*, print what was found and draw *drawing*. Returns the exit status.

    Args:
        run_program: What follows on a network that blames nobody; on another one it would only hang.
    """
    draw = plot.to(drawing) if drawing is not None else None
    if len(places) < 2:
        raise InvalidRequest("a probe needs two machines or more: one alone has no network to measure")
    with picture(output) as live:

        def watch(evidence: Evidence) -> None:
            if live is not None and evidence.rounds:
                live.update(Text(matrix.render(matrix.of(evidence))))

        async with opened(client, places, token) as endpoints:
            conductor = Conductor(endpoints, settings, watch)
            evidence = await conductor.run()
    verdict = judge(evidence, asked)
    if draw is not None:
        draw(matrix.of(evidence), verdict.sentence, verdict.blamed)
    ran = None
    if run_program is not None and verdict.state != "sick" and not evidence.absent:
        ran = await run_program()
        verdict = program.joined(verdict, program.judge(ran, asked))
    elif run_program is not None:
        verdict = replace(verdict, notes=(*verdict.notes, "PyTorch was not started: this has to be put right first"))
    document = report.document(evidence, verdict, ran, at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    compared = _compare_and_save(document, save)
    if output.as_json:
        output.document(document | ({"comparison": compared} if compared else {}))
    else:
        output.out.file.write(report.text(evidence, verdict, ran) + (f"{compared}\n" if compared else ""))
    return verdict.exit


def picture(output: Output) -> AbstractContextManager[Live | None]:
    """That changes in its place while a probe goes on; None where nobody would see it."""
    return Live(console=output.err, transient=True, refresh_per_second=4) if output.on_terminal else nullcontext()


def _compare_and_save(document: dict[str, Any], save: Path | None) -> str | None:
    """Compare with what is there, then keep this one when it is good."""
    if save is None:
        return None
    try:
        before = json.loads(save.read_text()) if save.exists() else None
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"--save {save} holds no earlier result: {error}; name another file", "--save") from error
    compared = report.comparison(document, before) if isinstance(before, dict) else None
    if document["exit"] == 0:
        save.write_text(json.dumps(document) + "\n")
    return compared
