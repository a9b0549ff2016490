"""How a run is told while it is watched: live on a terminal, line by line in a pipe, as JSON when asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rich.status import Status
from rich.text import Text

from astra_cli import render
from astra_cli.documents import Event, Job
from astra_cli.output import Output
from astra_cli.render import STYLES, Cell

Json = dict[str, Any]


@dataclass(slots=True)
class Story:
    """Lines for events, for changes of phase that no event told, and for rank 0's output."""

    output: Output
    told: list[str] = field(default_factory=list)
    """Sentences since the last change of phase: what an event has told, the phase need not tell again."""
    shown: tuple[str, str] = ("", "")
    live: Status | None = field(default=None)

    def __enter__(self) -> Story:
        if self.output.on_terminal:
            self.live = self.output.out.status("")
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def phase(self, job: Job, document: Json) -> None:
        status = job.status
        reason = render.clean(status.reason)
        if self.live is not None:
            self.live.update(Text(f"{status.phase}  {reason}", style=STYLES.get(status.phase, "")))
        if (status.phase, reason) == self.shown:
            return
        changed = status.phase != self.shown[0]
        self.shown = (status.phase, reason)
        if self.output.as_json:
            self.output.record({"job": document})
            return
        new = "" if any(reason in sentence for sentence in self.told) else reason
        if new or (changed and status.phase not in self.told):
            self._tell(Cell(f"{status.phase}: " if new else status.phase, STYLES.get(status.phase, "")), Cell(new))
        self.told = [reason] if changed or new else [*self.told, reason]

    def event(self, event: Event, document: Json) -> None:
        if self.output.as_json:
            self.output.record({"event": document})
            return
        sentence = render.told(event)
        if sentence not in self.told[-1:]:
            self._tell(Cell(sentence, STYLES[event.level] or "dim"))
        self.told.append(sentence)

    def log(self, line: str) -> None:
        if self.output.as_json:
            self.output.record({"log": line})
        elif self.output.on_terminal:
            self.output.out.print(Text.from_ansi(line))
        else:
            self.output.out.file.write(line + "\n")
            self.output.out.file.flush()

    def note(self, sentence: str) -> None:
        self.output.note(sentence, "yellow")

    def _tell(self, *cells: Cell) -> None:
        self.output.line(*cells, between="")
        self.output.out.file.flush()


@dataclass(frozen=True, slots=True)
class Quiet:
    """Only notes, on standard error: for commands whose standard output is the data."""

    output: Output

    def phase(self, job: Job, document: Json) -> None: ...

    def event(self, event: Event, document: Json) -> None: ...

    def log(self, line: str) -> None: ...

    def note(self, sentence: str) -> None:
        self.output.note(sentence, "yellow")
