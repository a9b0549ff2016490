"""
A world for the gang core: machines, agents, an engine, links that lose and reorder, a coordinator that is killed.

Time is simulated, every choice comes from one seeded generator, so a seed and a number of steps is a whole history. The
world plays what is real (containers, what agents remember on disk, the engine's book); the rules of docs/design.md,
section 5, are checked on the world, not on what the coordinator believes.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

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
    MachineLost,
    NotPlaced,
    NotReserved,
    OnFailure,
    Phase,
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
    Tick,
    Worker,
    begin,
    deadline,
    outstanding,
    step,
)
from astra_gang.core.check import check
from astra_gang.core.record import find_attempt

LEASE_S = 30.0
MARGIN_S = 20.0
RESEND_S = 5.0


@dataclass
class Container:
    """One attempt in one slot, as it really is on its machine."""

    attempt: int
    state: str = "armed"
    code: int | None = None
    code_unknown: bool = False
    fault: str | None = None
    starts: int = 0


@dataclass
class SlotOnMachine:
    """What an agent has on disk of a slot, and the containers that really are there."""

    id: str
    rank: int
    phase: str = "preparing"
    rev: int = 0
    detail: str = ""
    fault: str | None = None
    term: int = 0
    highest: int = -1
    arm_failed: int | None = None
    stuck: str | None = None
    incarnation: int = 1
    containers: dict[int, Container] = field(default_factory=dict)

    def seen(self) -> SlotSeen:
        return SlotSeen(
            slot=self.id,
            rev=self.rev,
            phase=self.phase,
            detail=self.detail,
            fault=self.fault,
            address="10.0.0.1",
            port=29500,
            arm_failed=self.arm_failed,
            stuck=self.stuck,
            incarnation=str(self.incarnation),
            attempts=tuple(
                AttemptSeen(c.attempt, c.state, c.code, c.code_unknown, fault=c.fault)
                for _, c in sorted(self.containers.items())
            ),
        )


@dataclass
class Machine:
    name: str
    up: bool = True
    """The agent runs and its link is there."""
    heard_at: float = 0.0
    """When the coordinator last heard of it."""
    answered_at: float = 0.0
    """When the agent last had an answer."""
    bad_link: bool = False
    slots: dict[str, SlotOnMachine] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    """Tombstones."""


class World:
    def __init__(self, seed: int, machines: int = 6, faults: bool = True) -> None:
        self.random = random.Random(seed)
        self.faults = faults
        self.now = 0.0
        self.steps = 0
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.counter = 0
        self.machines = {f"m-{i}": Machine(f"m-{i}") for i in range(machines)}
        self.book: dict[str, str] = {}
        """The engine's book: slot -> machine, until its processes are gone."""
        self.leaving: set[str] = set()
        self.dead_slots: set[str] = set()
        self.armed: set[tuple[str, int]] = set()
        """Slot and attempt of every container that was ever made."""
        self.stored: dict[str, RunState] = {}
        self.term = 1
        self.coordinator_up = True
        self.incarnation = 0
        self.sentences: list[str] = []
        self.blamed: set[str] = set()
        """Slots whose machine was to blame in a proof that their coordinator has taken in."""
        self.every(5.0, self._lease)
        self.every(RESEND_S, self._resend)

    # Time --------------------------------------------------------------------------------------------------------

    def after(self, delay: float, what: Callable[[], None]) -> None:
        self.counter += 1
        heapq.heappush(self.queue, (self.now + delay, self.counter, what))

    def every(self, period: float, what: Callable[[], None]) -> None:
        def again() -> None:
            what()
            self.after(period, again)

        self.after(period, again)

    def run(self, steps: int, until: Callable[[], bool] = lambda: False, seconds: float = float("inf")) -> None:
        """Until that many steps of the core have been made, *until* holds, or that much time has passed."""
        end, last = self.now + seconds, self.steps + steps
        while self.steps < last and not until() and self.queue[0][0] <= end:
            self.now, _, what = heapq.heappop(self.queue)
            what()

    # The coordinator ------------------------------------------------------------------------------------------------

    def submit(self, uid: str, workers: int, policy: Policy) -> None:
        names = tuple(Worker(rank, f"run-{uid}-{rank}") for rank in range(workers))
        state = begin(workspace="w", name=f"run-{uid}", uid=uid, policy=policy, workers=names, now=self.now)
        self.stored[uid] = state
        self._act(uid, outstanding(state))

    def feed(self, uid: str, event: Event) -> None:
        if not self.coordinator_up or uid not in self.stored:
            return
        self.steps += self.stored[uid].phase is not Phase.ENDED
        state, decisions = step(self.stored[uid], event, self.now)
        check(state)
        self.stored[uid] = state
        self.sentences += [d.sentence for d in decisions if hasattr(d, "sentence")]
        self._act(uid, decisions)
        due = deadline(state)
        if due is not None:
            self.after(max(0.0, due - self.now), lambda: self._tick(uid))

    def _tick(self, uid: str) -> None:
        state = self.stored.get(uid)
        due = deadline(state) if state is not None else None
        if due is not None and due <= self.now:
            self.feed(uid, Tick())
            moved = deadline(self.stored[uid])
            assert not self.coordinator_up or moved is None or moved > self.now, "a tick that is due moves the run"

    def _act(self, uid: str, decisions: tuple[Decision, ...]) -> None:
        born = self.incarnation
        for decision in decisions:
            delay = self.random.uniform(0.001, 0.05)
            self.after(delay, lambda d=decision: self._do(uid, d) if born == self.incarnation else None)  # type: ignore[misc]

    def _do(self, uid: str, decision: Decision) -> None:
        match decision:
            case Place():
                self._place(uid, decision)
            case Reserve():
                self._reserve(uid, decision)
            case GiveBack():
                self._give_back(uid, decision.slot)
            case Prove() if decision in outstanding(self.stored[uid]):  # what is not wanted any more is not begun
                self._prove(uid, decision)
            case Arm() | Start() | Stop():
                self._direct(uid, decision.machine, decision)
            case _:
                pass

    def _resend(self) -> None:
        if self.coordinator_up:
            for uid, state in list(self.stored.items()):
                self._act(uid, outstanding(state))
                self.after(0.0, lambda u=uid: self._tick(u))  # type: ignore[misc]

    def kill_coordinator(self) -> None:
        """kill -9: calls under way are never answered. It comes back with a higher term and what was stored."""
        self.coordinator_up = False
        self.incarnation += 1
        self.after(self.random.uniform(0.5, 10.0), self._coordinator_back)

    def _coordinator_back(self) -> None:
        self.coordinator_up = True
        self.term += 1
        for machine in self.machines.values():
            machine.heard_at = self.now
            if machine.up:
                self._hello(machine)
        for uid, state in list(self.stored.items()):  # the engine's book tells what is gone
            for slot in state.leaving:
                if slot.accepted and slot.id not in self.book:
                    self.feed(uid, SlotGone(slot.id))
        self._resend()

    # The engine ----------------------------------------------------------------------------------------------------

    def _place(self, uid: str, decision: Place) -> None:
        taken = set(self.book.values())
        for state in self.stored.values():  # decided, not yet reserved
            taken |= {a.machine for a in state.assignments}
        free = [
            m.name
            for m in self.machines.values()
            if m.up and m.name not in taken and m.name not in decision.avoid and m.name not in decision.keep
            and not any(slot.stuck for slot in m.slots.values())
        ]  # fmt: skip
        ranks = (*decision.ranks, *(SPARE,) * decision.spares)
        if len(free) < len(ranks):
            reason = f"Gang cannot be placed whole: needs {len(ranks)} machines, {len(free)} are free"
            self.feed(uid, NotPlaced(decision.reservation, reason))
            return
        chosen = self.random.sample(free, len(ranks))
        assignments = tuple(Assignment(rank, name) for rank, name in zip(ranks, chosen, strict=True))
        self.feed(uid, Placed(decision.reservation, assignments, "ethernet", "net", f"{len(chosen)} machines"))

    def _reserve(self, uid: str, decision: Reserve) -> None:
        wanted = {a.slot: a.machine for a in decision.assignments}
        others = {m for slot, m in self.book.items() if slot not in wanted}
        dead = [slot for slot in wanted if slot in self.dead_slots]
        if dead or any(m in others for m in wanted.values()) or self.chance(0.02):
            for slot in wanted:
                self._release(slot)
            self.feed(uid, NotReserved(decision.reservation, "a machine was taken meanwhile"))
            return
        self.book |= wanted
        assert len(set(self.book.values())) == len(self.book), "no machine is held twice (rule 3)"
        if not all(self.machines[m].up for m in wanted.values()):
            for slot in wanted:
                self._release(slot)
            self.feed(uid, NotReserved(decision.reservation, "an agent does not answer"))
            return
        for assignment in decision.assignments:
            self._put_slot(self.machines[assignment.machine], assignment)
        if not self.chance(0.02):  # the answer of a call may be lost; it is asked again
            self.feed(uid, Reserved(decision.reservation))

    def _put_slot(self, machine: Machine, assignment: Assignment) -> None:
        if assignment.slot in machine.slots or assignment.slot in machine.gone:
            return
        slot = machine.slots[assignment.slot] = SlotOnMachine(assignment.slot, assignment.rank)
        slow = 2000.0 if self.chance(0.02) else self.random.uniform(0.05, 3.0)
        self.after(slow, lambda: self._prepared(machine, slot))

    def _prepared(self, machine: Machine, slot: SlotOnMachine) -> None:
        if slot.phase != "preparing" or machine.slots.get(slot.id) is not slot:
            return
        if self.chance(0.02):
            slot.phase, slot.detail, slot.fault = "failed", "disk full", "machine"
        else:
            slot.phase = "ready"
        self._report(machine, slot)

    def _give_back(self, uid: str, slot_id: str) -> None:
        self._release(slot_id)
        self.feed(uid, GivenBack(slot_id))

    def _release(self, slot_id: str) -> None:
        self.dead_slots.add(slot_id)
        if slot_id in self.book:
            self.leaving.add(slot_id)
            self.after(0.01, lambda: self._finish(slot_id))

    def _finish(self, slot_id: str) -> None:
        """The engine's own loop: asks the agent until nothing of the slot is left, then the machine is free."""
        if slot_id not in self.book:
            return
        machine = self.machines[self.book[slot_id]]
        if not machine.up:
            self.after(2.0, lambda: self._finish(slot_id))
            return
        machine.gone.add(slot_id)
        slot = machine.slots.get(slot_id)
        if slot is not None:
            if slot.stuck is None and any(c.state != "exited" for c in slot.containers.values()):
                self._kill(machine, slot, max(slot.containers))
            if slot.stuck is not None or any(c.state != "exited" for c in slot.containers.values()):
                self.after(2.0, lambda: self._finish(slot_id))
                return
            del machine.slots[slot_id]
        del self.book[slot_id]
        self.leaving.discard(slot_id)
        self.feed(slot_id.split("-")[2], SlotGone(slot_id))
        for uid in list(self.stored):
            self.after(0.01, lambda u=uid: self.feed(u, ClusterChanged()))  # type: ignore[misc]

    # The proof of a network -----------------------------------------------------------------------------------------

    def _prove(self, uid: str, decision: Prove) -> None:
        """The coordinator leads it: when that is killed, nobody answers. Late answers are about slots that are gone."""
        for machine in decision.machines:
            assert not any(
                c.state == "running" and s.id in decision.slots
                for s in self.machines[machine].slots.values()
                for c in s.containers.values()
            ), "no program of the run while its network is proved"
        born, delay = self.incarnation, self.random.choice((0.1, 5.0, 20.0, 300.0 if self.chance(0.1) else 20.0))
        for _ in range(0 if self.chance(0.05) else 2 if self.chance(0.05) else 1):
            self.after(delay, lambda: self._proved(uid, decision) if born == self.incarnation else None)

    def _proved(self, uid: str, decision: Prove) -> None:
        blamed = tuple(name for name in decision.machines if self.machines[name].bad_link)
        if not all(self.machines[name].up for name in decision.machines):
            self.feed(uid, Proved(decision.slots, "unmeasured", "a machine takes no part"))
            return
        before = self.stored.get(uid)
        if blamed and before is not None and decision in outstanding(before) and self.coordinator_up:
            self.blamed |= {s for s, m in zip(decision.slots, decision.machines, strict=True) if m in blamed}
        verdict = "sick" if blamed else "sound"
        self.feed(uid, Proved(decision.slots, verdict, f"{blamed or 'all'}", blamed))

    # Links ----------------------------------------------------------------------------------------------------------

    def _direct(self, uid: str, name: str, decision: Arm | Start | Stop) -> None:
        machine, term = self.machines[name], self.term
        for _ in range(2 if self.chance(0.05) else 1):
            if not self.chance(0.05):
                delay = self.random.uniform(0.001, 0.5 if self.chance(0.1) else 0.02)
                self.after(delay, lambda: self._obey(uid, machine, term, decision) if machine.up else None)

    def _report(self, machine: Machine, slot: SlotOnMachine) -> None:
        slot.rev += 1
        seen, uid = slot.seen(), slot.id.split("-")[2]
        for _ in range(2 if self.chance(0.05) else 1):
            if machine.up and not self.chance(0.03):
                delay = self.random.uniform(0.001, 0.5 if self.chance(0.1) else 0.02)
                self.after(delay, lambda: self.feed(uid, seen) if machine.up else None)

    def _hello(self, machine: Machine) -> None:
        """After a reconnect the coordinator knows the whole of a machine, also what is not there any more."""
        for slot in machine.slots.values():
            self._report(machine, slot)
        for uid, state in list(self.stored.items()):
            for slot_held in (*(worker.slot for worker in state.workers), *state.spares):
                if slot_held is None or slot_held.machine != machine.name or slot_held.id in machine.slots:
                    continue
                if not any(a.slot == slot_held.id for a in state.assignments):
                    self.after(0.02, lambda u=uid, s=slot_held.id: self.feed(u, SlotGone(s)))  # type: ignore[misc]

    def _lease(self) -> None:
        for machine in self.machines.values():
            if machine.up and self.coordinator_up:
                machine.heard_at = machine.answered_at = self.now
                continue
            if self.now - machine.answered_at > LEASE_S:
                self._stop_by_itself(machine)
            if self.coordinator_up and self.now - machine.heard_at > LEASE_S + MARGIN_S:
                for uid in list(self.stored):
                    self.feed(uid, MachineLost(machine.name))

    def _stop_by_itself(self, machine: Machine) -> None:
        for slot in machine.slots.values():
            for container in slot.containers.values():
                if container.state == "running":
                    container.state, container.code, container.fault = "exited", 137, "machine"
                    slot.rev += 1

    # Agents ----------------------------------------------------------------------------------------------------------

    def _obey(self, uid: str, machine: Machine, term: int, decision: Arm | Start | Stop) -> None:
        slot = machine.slots.get(decision.slot)
        if slot is None:
            self.after(0.01, lambda: self._say_gone(uid, machine, decision.slot))
            return
        if term < slot.term:
            return
        slot.term = term
        match decision:
            case Arm():
                slot.rank = decision.rank  # a spare's had none before
                self._arm(machine, slot, decision.attempt)
            case Start():
                self._start(machine, slot, decision.attempt)
            case Stop():
                self._stop(machine, slot, decision.attempt)

    def _say_gone(self, uid: str, machine: Machine, slot_id: str) -> None:
        if machine.up and slot_id not in machine.slots:
            self.feed(uid, SlotGone(slot_id))

    def _arm(self, machine: Machine, slot: SlotOnMachine, attempt: int) -> None:
        if attempt < slot.highest or slot.phase != "ready" or slot.arm_failed == attempt:
            return
        slot.highest = attempt
        if attempt in slot.containers:
            self._report(machine, slot)
            return
        if self.chance(0.02):
            slot.arm_failed, slot.detail, slot.fault = attempt, "runc create failed", "machine"
        else:
            slot.containers[attempt] = Container(attempt)
            self.armed.add((slot.id, attempt))
        self._report(machine, slot)

    def _start(self, machine: Machine, slot: SlotOnMachine, attempt: int) -> None:
        container = slot.containers.get(attempt)
        if attempt != slot.highest or container is None or container.state != "armed":
            self._report(machine, slot)
            return
        if self.chance(0.02):  # its shim was lost
            container.state, container.code_unknown = "exited", True
            slot.arm_failed, slot.detail, slot.fault = attempt, "it was lost before it started", "machine"
            self._report(machine, slot)
            return
        self._check_start(slot, attempt)
        container.state = "running"
        container.starts += 1
        assert container.starts == 1, "nothing starts twice (rule 6)"
        self._report(machine, slot)
        self.after(self.random.choice((1.0, 20.0, 100.0, 700.0)), lambda: self._program_ends(machine, slot, container))

    def _check_start(self, slot: SlotOnMachine, number: int) -> None:
        """
        Rules 1 and 5 on the world itself: recorded, and every member of the attempt has been armed. Since then it may
        have ended, been given back or booted away: a start may arrive late.
        """
        state = self.stored[slot.id.split("-")[2]]
        attempt = find_attempt(state, number)
        assert attempt is not None and attempt.opened_at is not None, "recorded before done (rule 5)"
        assert slot.id not in self.blamed, "nothing starts on a machine that its proof blames"
        if state.attempt == number:  # a start may arrive when the next barrier is being made
            self._check_proof(state, {member.slot for member in attempt.members})
        for member in attempt.members:
            armed = (member.slot, number) in self.armed
            assert armed, "nothing starts before all of its attempt are armed (rule 1)"
        older = [c for n, c in slot.containers.items() if n < number and c.state == "running"]
        assert not older, "nothing of the old attempt runs when the next one starts"
        for machine in self.machines.values():
            for other in machine.slots.values():
                if other.rank == slot.rank and other.id.split("-")[2] == slot.id.split("-")[2] and other is not slot:
                    running = any(c.state == "running" for c in other.containers.values())
                    assert not running or other.stuck, "no rank runs twice"

    def _check_proof(self, state: RunState, members: set[str]) -> None:
        """A whole gang that wants it starts in slots that were proved together, or were given up to prove."""
        if state.policy.preflight and 1 < len(members) == len(state.workers):
            assert state.proof is not None and state.proof.verdict, "proved before the first attempt"
            assert members <= set(state.proof.slots), "proved again after a swap"

    def _program_ends(self, machine: Machine, slot: SlotOnMachine, container: Container) -> None:
        if container.state == "running" and machine.slots.get(slot.id) is slot:
            container.state, container.code = "exited", self.random.choice((0, 0, 0, 1))
            self._report(machine, slot)

    def _stop(self, machine: Machine, slot: SlotOnMachine, attempt: int) -> None:
        if any(c.state != "exited" for n, c in slot.containers.items() if n <= attempt):
            self.after(self.random.uniform(0.02, 2.0), lambda: self._kill(machine, slot, attempt))

    def _kill(self, machine: Machine, slot: SlotOnMachine, attempt: int) -> None:
        for number, container in slot.containers.items():
            if number > attempt or container.state == "exited":
                continue
            if container.state == "running" and (slot.stuck or self.chance(0.01)):
                if slot.stuck is None:
                    slot.stuck = "process 4711 does not die (waiting in the kernel)"
                    self.after(self.random.uniform(50, 500), lambda: self._unstick(machine, slot))
                continue
            container.state, container.code = "exited", 137
        self._report(machine, slot)

    def _unstick(self, machine: Machine, slot: SlotOnMachine) -> None:
        slot.stuck = None
        if slot.containers:
            self._kill(machine, slot, max(slot.containers))

    # Faults ----------------------------------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return self.faults and self.random.random() < probability

    def cut_off(self, machine: Machine, seconds: float) -> None:
        machine.up = False
        self.after(seconds, lambda: self._back(machine))

    def boot(self, machine: Machine) -> None:
        machine.slots.clear()
        machine.up = False
        self.after(self.random.uniform(1, 90), lambda: self._back(machine))

    def _back(self, machine: Machine) -> None:
        machine.up = True
        if self.coordinator_up:
            machine.heard_at = machine.answered_at = self.now
            self._hello(machine)
            for uid, state in list(self.stored.items()):
                self._act(uid, outstanding(state))
                self.after(0.05, lambda u=uid: self.feed(u, ClusterChanged()))  # type: ignore[misc]

    def end_from_outside(self, machine: Machine, slot: SlotOnMachine) -> None:
        """The engine ends the slot by itself and, mostly, puts it again: a task that is restarted there."""
        slot.phase = "finished"
        self._report(machine, slot)
        self.after(self.random.uniform(0.02, 2.0), lambda: self._ended_from_outside(machine, slot))

    def _ended_from_outside(self, machine: Machine, slot: SlotOnMachine) -> None:
        if machine.slots.get(slot.id) is not slot or slot.id in machine.gone:
            return
        if slot.containers:
            self._kill(machine, slot, max(slot.containers))
        if any(c.state != "exited" for c in slot.containers.values()):
            self.after(2.0, lambda: self._ended_from_outside(machine, slot))
            return
        del machine.slots[slot.id]
        if not self.chance(0.2):
            self.after(self.random.uniform(0.1, 3.0), lambda: self._put_again(machine, slot))

    def _put_again(self, machine: Machine, old: SlotOnMachine) -> None:
        if old.id in machine.gone or old.id in machine.slots or old.id not in self.book:
            return
        slot = SlotOnMachine(old.id, old.rank, rev=old.rev, term=old.term, incarnation=old.incarnation + 1)
        machine.slots[slot.id] = slot
        self._report(machine, slot)
        self.after(self.random.uniform(0.05, 3.0), lambda: self._prepared(machine, slot))

    def lose_device(self, machine: Machine, slot: SlotOnMachine) -> None:
        """What its programs had is gone: its agent ends them, and can start no other one there."""
        slot.phase, slot.detail, slot.fault = "failed", "GPU 5 is lost", "machine"
        for container in slot.containers.values():
            if container.state != "exited":
                container.fault = "machine"
        self._report(machine, slot)
        if slot.containers:
            self._stop(machine, slot, max(slot.containers))

    def trouble(self) -> None:
        """One random misfortune; schedules the next."""
        machine = self.random.choice(list(self.machines.values()))
        what = self.random.random()
        if what < 0.3 and machine.up:
            self.cut_off(machine, self.random.choice((1.0, 15.0, 45.0, 120.0)))
        elif what < 0.5 and machine.up:
            self.boot(machine)
        elif what < 0.7 and self.coordinator_up:
            self.kill_coordinator()
        elif what < 0.75:
            machine.bad_link = True
            self.after(self.random.uniform(10, 300), lambda: setattr(machine, "bad_link", False))
        elif what < 0.8:
            live = [u for u, s in self.stored.items() if s.phase is not Phase.ENDED]
            if live:
                self.feed(self.random.choice(live), StopAsked())
        elif what < 0.85 and (slots := [slot for slot in machine.slots.values() if slot.phase != "finished"]):
            self.end_from_outside(machine, self.random.choice(slots))
        elif what < 0.9 and (slots := [slot for slot in machine.slots.values() if slot.phase == "ready"]):
            self.lose_device(machine, self.random.choice(slots))
        if self.faults:
            self.after(self.random.uniform(0.5, 60.0), self.trouble)


def random_policy(generator: random.Random) -> Policy:
    return Policy(
        on_failure=generator.choice(list(OnFailure)),
        time_limit_s=generator.choice((None, None, 50.0, 3000.0)),
        preflight=generator.choice((False, True)),
        budget=generator.choice((0, 2, 10)),
        backoff_first_s=generator.choice((0.0, 10.0)),
        spares=generator.choice((0, 0, 1, 2)),
    )


def play(seed: int, steps: int) -> World:
    """
    One history of about *steps* steps: runs come, things go wrong; then the troubles end, and every run must end.

    Raises:
        AssertionError: A rule is broken, or a run does not come to its end.
    """
    world = World(seed)
    world.after(1.0, world.trouble)
    number = 0
    while world.steps < steps:
        for uid in [uid for uid, state in world.stored.items() if state.phase is Phase.ENDED]:
            del world.stored[uid]
        while len(world.stored) < 3:
            number += 1
            world.submit(f"{number}", world.random.randint(1, 4), random_policy(world.random))
        world.run(steps=200, seconds=5000.0)
    world.faults = False
    for machine in world.machines.values():
        machine.bad_link = False
        if machine.up:
            world._hello(machine)  # an agent says again what was not acknowledged; here a report may be lost for good
    world.run(
        steps=200_000,
        seconds=40_000.0,
        until=lambda: all(s.phase is Phase.ENDED for s in world.stored.values()) and not world.book,
    )
    open_runs = [s.uid for s in world.stored.values() if s.phase is not Phase.ENDED]
    assert not open_runs, f"every run ends once the troubles are over: {open_runs}"
    assert not world.book, f"every machine is given back: {world.book}"
    return world
