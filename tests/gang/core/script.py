"""
Scripts that read as stories: a command on each line, and under it, behind `> `, exactly what the core answers.

Commands (ranks are numbers, behind them come the spares; `*` is all ranks):

    submit NAME WORKERS [field=value ...]   fields of `Policy`
    placed M ... | not-placed SENTENCE | reserved | not-reserved SENTENCE
    proved sound|sick|below|unmeasured SENTENCE [M ...]   the machines that are blamed
    ready R ... | preparing R SENTENCE | failed R user|machine SENTENCE
    armed R ... | running R ... | exited R CODE|unknown|oom|cut-off
    arm-failed R user|machine SENTENCE | stuck R SENTENCE
    ended R | again R | over R: the engine ends a slot, puts it again, or never will
    lost M | withdrawn M SENTENCE | gone R | given-back | left M CODE | changed | stop | wait SECONDS

`given-back` answers every slot that is being given back; `left` ends the program in one on this machine. `wait` moves
the clock, with a tick at each deadline.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import fields, replace

from astra_gang.core import (
    SPARE,
    Arm,
    Assignment,
    AttemptSeen,
    ClusterChanged,
    Decision,
    Event,
    GiveBack,
    GivenBack,
    Ignore,
    MachineLost,
    MachineWithdrawn,
    NotPlaced,
    NotReserved,
    OnFailure,
    Place,
    Placed,
    Policy,
    Prove,
    Proved,
    Reserve,
    Reserved,
    RunState,
    SlotGone,
    SlotSeen,
    Start,
    Stop,
    StopAsked,
    Tell,
    Tick,
    Worker,
    begin,
    deadline,
    outstanding,
    step,
)
from astra_gang.core.check import check

Observer = Callable[[RunState, Event, float], RunState]


class Story:
    """Plays commands; *meddle* sees each event before it is stepped and may step others first."""

    def __init__(self, meddle: Observer | None = None) -> None:
        self.now = 0.0
        self.state: RunState | None = None
        self.seen: dict[str, SlotSeen] = {}
        self.out: list[str] = []
        self.meddle = meddle

    def play(self, line: str) -> list[str]:
        self.out = []
        command, *words = shlex.split(line)
        if command == "submit":
            self._submit(words)
        elif command == "wait":
            self._wait(float(words[0]))
        else:
            for event in self._events(command, words):
                self._feed(event)
        return self.out

    @property
    def run(self) -> RunState:
        assert self.state is not None, "a story begins with submit"
        return self.state

    def stopped(self, slot: str) -> SlotSeen:
        """The report of a slot in which everything has ended, as after a SIGTERM."""
        seen = self.seen[slot]
        self.seen[slot] = replace(seen, rev=seen.rev + 1, attempts=_all_over(seen))
        return self.seen[slot]

    def _submit(self, words: list[str]) -> None:
        name, count, *settings = words
        known = {f.name: f for f in fields(Policy)}
        chosen: dict[str, object] = {}
        for setting in settings:
            field, value = setting.split("=")
            assert field in known, f"{field} is no field of Policy"
            chosen[field] = (
                OnFailure(value)
                if field == "on_failure"
                else value == "true"
                if field == "preflight"
                else int(value)
                if field in ("budget", "faults_limit", "spares")
                else float(value)
            )
        workers = tuple(Worker(rank, f"{name}-{rank}") for rank in range(int(count)))
        self.state = begin(
            workspace="nlp", name=name, uid="u1", policy=Policy(**chosen), workers=workers, now=0.0  # type: ignore[arg-type]
        )  # fmt: skip
        self._say_state(None)
        self.out += [_show(decision) for decision in outstanding(self.state)]

    def _wait(self, seconds: float) -> None:
        until = self.now + seconds
        while (due := deadline(self.run)) is not None and due <= until:
            self.now = max(self.now, due)
            self._feed(Tick())
            after = deadline(self.run)
            assert after is None or after > self.now, "a tick that is due moves the run"
        self.now = until

    def _feed(self, event: Event) -> None:
        before = self.run
        if self.meddle is not None:
            self.state = self.meddle(before, event, self.now)
        self.state, decisions = step(self.run, event, self.now)
        check(self.state)
        self._say_state(before)
        self.out += [_show(decision) for decision in decisions]

    def _say_state(self, before: RunState | None) -> None:
        if before is None or (before.phase, before.reason) != (self.run.phase, self.run.reason):
            refused = " (refused)" if self.run.refused else ""
            self.out.append(f"{self.now:g} s {self.run.phase}: {self.run.reason}{refused}")

    def _events(self, command: str, words: list[str]) -> list[Event]:
        number = self.run.reservation
        match command, words:
            case "placed", machines:
                asked = next(d for d in outstanding(self.run) if isinstance(d, Place))
                ranks = (*asked.ranks, *(SPARE,) * asked.spares)
                chosen = tuple(Assignment(rank, machine) for rank, machine in zip(ranks, machines, strict=True))
                return [Placed(number, chosen, "ethernet", "lan", f"{len(machines)} machines on lan")]
            case "not-placed", [sentence]:
                return [NotPlaced(number, sentence)]
            case "reserved", []:
                return [Reserved(number)]
            case "not-reserved", [sentence]:
                return [NotReserved(number, sentence)]
            case "proved", [verdict, sentence, *blamed]:
                slots = self.run.proof.slots if self.run.proof is not None else ()
                return [Proved(slots, verdict, sentence, tuple(blamed))]
            case "lost", [machine]:
                return [MachineLost(machine)]
            case "withdrawn", [machine, sentence]:
                return [MachineWithdrawn(machine, sentence)]
            case "over", [rank]:
                return [SlotGone(self._slot(int(rank)), for_good=True)]
            case "gone", [rank]:
                return [SlotGone(self._slot(int(rank)))]
            case "given-back", []:
                return [GivenBack(slot.id) for slot in self.run.leaving]
            case "left", [machine, code]:
                slot = next(slot.id for slot in self.run.leaving if slot.machine == machine)
                seen = _exited(self.seen[slot], code)
                self.seen[slot] = replace(seen, rev=seen.rev + 1)
                return [self.seen[slot]]
            case "changed", []:
                return [ClusterChanged()]
            case "stop", []:
                return [StopAsked()]
            case _:
                return self._reports(command, words)

    def _reports(self, command: str, words: list[str]) -> list[Event]:
        if command in ("ready", "armed", "running"):
            ranks = range(len(self.run.workers)) if words == ["*"] else [int(word) for word in words]
            return [self._report(rank, command, []) for rank in ranks]
        return [self._report(int(words[0]), command, words[1:])]

    def _report(self, rank: int, command: str, words: list[str]) -> SlotSeen:
        slot, attempt = self._slot(rank), self.run.attempt
        if rank < len(self.run.workers):
            attempt = self.run.workers[rank].attempt
        seen = self.seen.get(slot, SlotSeen(slot, 0, "preparing", incarnation="1"))
        seen = replace(seen, rev=seen.rev + 1, detail="", fault=None)
        match command, words:
            case "ready", []:
                seen = replace(seen, phase="ready", address=f"10.0.0.{rank}", port=29500)
            case "preparing", [sentence]:
                seen = replace(seen, detail=sentence)
            case "failed", [fault, sentence]:
                seen = replace(seen, phase="failed", fault=fault, detail=sentence)
            case "armed" | "running", []:
                seen = _with(seen, AttemptSeen(attempt, command))
            case "exited", [how]:
                seen = _exited(seen, how)
            case "arm-failed", [fault, sentence]:
                seen = replace(seen, arm_failed=attempt, fault=fault, detail=sentence)
            case "ended", []:
                seen = replace(seen, phase="finished", attempts=_all_over(seen), incarnation=seen.incarnation or "1")
            case "again", []:
                use = str(int(seen.incarnation or "1") + 1)
                seen = replace(seen, phase="preparing", attempts=(), incarnation=use)
            case "stuck", [sentence]:
                seen = replace(seen, stuck=sentence)
            case _:
                raise AssertionError(f"no such command: {command} {words}")
        self.seen[slot] = seen
        return seen

    def _slot(self, rank: int) -> str:
        held = [*(worker.slot for worker in self.run.workers), *self.run.spares]
        slot = held[rank]
        assert slot is not None, f"worker {rank} has no slot"
        return slot.id


def _all_over(seen: SlotSeen) -> tuple[AttemptSeen, ...]:
    return tuple(a if a.state == "exited" else replace(a, state="exited", code=143) for a in seen.attempts)


def _with(seen: SlotSeen, attempt: AttemptSeen) -> SlotSeen:
    others = tuple(a for a in seen.attempts if a.attempt != attempt.attempt)
    return replace(seen, attempts=(*others, attempt))


def _exited(seen: SlotSeen, how: str) -> SlotSeen:
    """The oldest attempt of the slot that has not ended yet ends."""
    attempt = next(a.attempt for a in sorted(seen.attempts, key=lambda a: a.attempt) if a.state != "exited")
    match how:
        case "unknown":
            ended = AttemptSeen(attempt, "exited", code_unknown=True)
        case "oom":
            ended = AttemptSeen(attempt, "exited", 137, oom=True, detail="Out of memory (limit 2 GiB)")
        case "cut-off":
            ended = AttemptSeen(attempt, "exited", 143, fault="machine", detail="Cut off for longer than 30 s")
        case _:
            ended = AttemptSeen(attempt, "exited", int(how))
    return _with(seen, ended)


def _show(decision: Decision) -> str:
    match decision:
        case Tell():
            who = "" if decision.rank is None else f" [{decision.rank}]"
            return f"tell{who}: {decision.sentence}"
        case Place():
            extra = f" keep {' '.join(decision.keep)}" if decision.keep else ""
            extra += f" avoid {' '.join(decision.avoid)}" if decision.avoid else ""
            extra += f" spares {decision.spares}" if decision.spares else ""
            return f"place {' '.join(map(str, decision.ranks))}{extra}"
        case Reserve():
            held = (f"{'spare' if a.rank == SPARE else a.rank}:{a.machine}" for a in decision.assignments)
            return "reserve " + " ".join(held)
        case Prove():
            return f"prove {' '.join(decision.machines)}"
        case Arm():
            return f"arm {decision.rank} on {decision.machine}, attempt {decision.attempt}"
        case Start():
            return f"start {decision.slot}, attempt {decision.attempt}"
        case Stop():
            return f"stop {decision.slot}, up to attempt {decision.attempt}, grace {decision.grace_s:g} s"
        case GiveBack():
            return f"give back {decision.slot} on {decision.machine}, code {decision.code}"
        case Ignore():
            return f"ignored: {decision.reason}"
