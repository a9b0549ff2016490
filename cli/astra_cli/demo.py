"""
The demonstration: a cluster of four on this machine, the first gang, one worker killed, the second attempt in the same
slots, and nothing left behind. What it shows is what the commands of a user would show.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from astra_agent.errors import AstraError, HostFault
from astra_cli import context, documents, render
from astra_cli.client import Client
from astra_cli.dev import files
from astra_cli.dev.cluster import Cluster
from astra_cli.dev.plan import ClusterPlan, Layout
from astra_cli.dev.supervisor import Supervisor
from astra_cli.dev.topology import uniform
from astra_cli.follow import follow_run
from astra_cli.narrator import Story
from astra_cli.output import Output
from astra_cli.reading import read
from astra_cli.render import Cell

STATE = Path("/var/lib/astraeus/demo")
"""Always the same, so that the next demonstration finds what a killed one left."""

MACHINES = 4
VICTIM = 2
BACKOFF_S = 1
KILL_AFTER_LINES = 2
"""Lines of rank 0 until the worker is killed: the gang has met, and a round was right."""
KILL = ("sh", "-c", "kill -9 -1")
"""In the worker's own process namespace: everything but its first process, which passes the program's end on."""
LOG_LINES = 12

Json = dict[str, Any]


@dataclass(slots=True)
class Watching:
    """A story that also says when the gang is at work: it has been told that it runs, and what it writes."""

    story: Story
    at_work: asyncio.Event = field(default_factory=asyncio.Event)
    lines: int = 0
    running: bool = False

    def phase(self, job: documents.Job, document: Json) -> None:
        self.story.phase(job, document)
        self.running = job.status.phase == "Running"
        self._look()

    def event(self, event: documents.Event, document: Json) -> None:
        self.story.event(event, document)

    def log(self, line: str) -> None:
        self.story.log(f"    {line}")
        self.lines += 1
        self._look()

    def note(self, sentence: str) -> None:
        self.story.note(sentence)

    def _look(self) -> None:
        if self.running and self.lines >= KILL_AFTER_LINES:
            self.at_work.set()


@dataclass(slots=True)
class Demo:
    examples: Path
    layout: Layout
    output: Output
    step: int = 0

    async def run(self) -> bool:
        """
        Returns: False when it was interrupted. Nothing is left either way.
        Raises: AstraError: a step did not do what it should.
        """
        plan = ClusterPlan(
            machines=uniform(MACHINES, 0),
            drives={"examples": str(self.examples)},
            settings={"backoff_first_s": BACKOFF_S},
        )
        supervisor = Supervisor(plan, self.layout, lambda sentence: self.output.line(Cell(f"   {sentence}", "dim")))
        self._say("A cluster of four machines on this one: network namespaces on one bridge, a containerd of its own.")
        await supervisor.run(self._show)
        return not supervisor.interrupted

    async def _show(self, cluster: Cluster) -> None:
        token = files.token(cluster.layout, "operator")
        target = context.Target(f"http://127.0.0.1:{cluster.port}", token, "default", "the demonstration")
        async with Client(target) as client:
            submitted = await self._submit(client)
            name = documents.Metadata.model_validate(submitted["metadata"]).name
            await self._follow_and_kill(client, name, submitted)
            await self._compare(client, name)
        self._say("Stop and remove everything.")

    async def _submit(self, client: Client) -> Json:
        file = self.examples / "first-gang.json"
        self._say(
            "Submit four workers that start together and sum numbers over TCP.",
            f"astra run examples/{file.name} --follow",
        )
        submitted = await client.submit(read(file))
        self.output.line(Cell(f"   {render.submitted(documents.Job.model_validate(submitted))}", "dim"))
        return submitted

    async def _follow_and_kill(self, client: Client, name: str, submitted: Json) -> None:
        with Story(self.output) as story:
            watching = Watching(story)
            watching.phase(documents.Job.model_validate(submitted), submitted)
            killer = asyncio.create_task(self._kill(client, name, watching))
            try:
                job = await follow_run(client, name, watching)
                await killer
            finally:
                killer.cancel()
                with suppress(asyncio.CancelledError, AstraError):
                    await killer
        if job.status.phase != "Completed":
            raise HostFault(f"the run ended {job.status.phase} instead of Completed: {job.status.reason}")

    async def _kill(self, client: Client, name: str, watching: Watching) -> None:
        await watching.at_work.wait()
        self._say(
            f"Kill the program of {name}-{VICTIM}. The gang starts again in the same slots, after a back-off of "
            f"{BACKOFF_S} s (usually 10 s, short here on purpose).",
            f"astra exec {name} {VICTIM} -- sh -c 'kill -9 -1'",
        )
        async with client.exec(name, VICTIM, KILL, tty=False, stdin=False, width=80, height=24) as socket:
            async for message in socket:
                if message.type is aiohttp.WSMsgType.TEXT:
                    break

    async def _compare(self, client: Client, name: str) -> None:
        self._say("Completed. The ranks of both attempts:", f"astra ranks {name} --attempt 0; astra ranks {name}")
        attempts = [documents.Ranks.model_validate(await client.ranks(name, number)) for number in (0, 1)]
        for attempt in attempts:
            self.output.page(render.ranks(attempt))
            self.output.out.file.write("\n")
        slots = [[(row.rank, row.slot) for row in attempt.items] for attempt in attempts]
        if slots[0] != slots[1]:
            raise HostFault(f"the second attempt had other slots than the first: {slots}")
        self._say("The slots are the same. What rank 0 wrote in the second attempt:", f"astra logs {name}")
        text = b"".join([piece async for piece in client.logs(name, 0)]).decode(errors="replace")
        for line in text.splitlines()[-LOG_LINES:]:
            self.output.line(Cell(f"    {render.clean(line)}"))

    def _say(self, sentence: str, command: str = "") -> None:
        self.step += 1
        self.output.line(Cell(f"{self.step}. {sentence}", "bold"))
        if command:
            self.output.line(Cell(f"   $ {command}", "cyan"))
        self.output.out.file.flush()
