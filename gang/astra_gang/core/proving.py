"""
The proof of the network in the barrier: asked for once every worker is ready, and before anything is armed.

A machine that is to blame is swapped, as one that does not arrive is. What blames no machine, or could not be measured,
is told and holds up nobody: to keep machines that stand idle would help no one.
"""

from __future__ import annotations

from dataclasses import replace

from astra_gang.core import sentences, timing
from astra_gang.core.decisions import Decision, Ignore, Tell
from astra_gang.core.events import Proved
from astra_gang.core.proof import held, is_proving, needs_proof
from astra_gang.core.slots import is_ready
from astra_gang.core.state import Outcome, Proof, RunState
from astra_gang.core.transitions import Moved, end, members_of, never_ran, replace_slots


def take_in(state: RunState, event: Proved) -> Moved:
    """The answer, when it is about the slots that are being proved."""
    proof = state.proof
    if proof is None or not is_proving(state) or event.slots != proof.slots:
        return state, [Ignore("a proof that is not awaited (any more)")]
    machines = {worker.slot.machine for worker in state.workers if worker.slot is not None}
    return _known(state, proof, event.verdict, event.sentence, tuple(m for m in event.blamed if m in machines))


def ask(state: RunState, now: float) -> Moved | None:
    """Begin the proof, or end the wait for it."""
    if state.proof is not None and is_proving(state):
        due = timing.prove_due(state)
        waited_s = now - state.proof.asked_at
        if due is None or now < due:
            return None
        return _known(state, state.proof, "unmeasured", f"no answer came within {waited_s:.0f} s", ())
    if state.recorded or state.assignments or not needs_proof(state) or not all(map(is_ready, members_of(state))):
        return None
    sentence = sentences.proving(state)
    reason = state.reason if state.start_at > now else sentence
    state = replace(state, proof=Proof(slots=held(state), asked_at=now), reason=reason)
    return state, [Tell(sentence, attempt=state.attempt, slots="if it lasts")]


def _known(state: RunState, proof: Proof, verdict: str, sentence: str, blamed: tuple[str, ...]) -> Moved:
    proof = replace(proof, verdict=verdict, sentence=sentence, blamed=blamed if verdict == "sick" else ())
    said: list[Decision] = []
    if not proof.blamed:
        sentence = sentences.proved(proof)
        if verdict == "sound":
            said.append(Tell(sentence, attempt=state.attempt))
        else:
            said.append(Tell(sentence, attempt=state.attempt, level="warning", slots="at once"))
    return replace(state, proof=proof), said


def swap(state: RunState, now: float) -> Moved | None:
    """Let go of the machines that the proof blames: others are looked for while the rest keep theirs."""
    proof = state.proof
    if proof is None or state.recorded:
        return None
    blamed = [
        (worker, worker.slot.machine)
        for worker in members_of(state)
        if worker.slot is not None and worker.slot.id in proof.slots and worker.slot.machine in proof.blamed
    ]
    if not blamed:
        return None
    state = replace(state, faults=state.faults + 1, phase_since=now)  # who comes instead has the whole time to arrive
    if state.faults > state.policy.faults_limit:
        why = sentences.faults_spent(proof.sentence, state.faults)
        return end(state, Outcome.FAILED, why, now, refused=never_ran(state))
    said: list[Decision] = [
        Tell(proof.sentence, attempt=state.attempt, level="warning", slots="at once"),
        *(Tell(sentences.swaps(w, m), rank=w.rank, attempt=w.attempt, level="warning") for w, m in blamed),
    ]
    state, moved = replace_slots(state, {worker.rank for worker, _ in blamed}, proof.sentence, now)
    return state, [*said, *moved]
