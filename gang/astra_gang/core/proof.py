"""Questions about the proof of a run's network, which `preflight` asks for: whether one is due, whether one goes on."""

from __future__ import annotations

from astra_gang.core.state import Phase, RunState


def held(state: RunState) -> tuple[str, ...]:
    """The slots that the workers hold, in order of rank."""
    return tuple(worker.slot.id for worker in state.workers if worker.slot is not None)


def is_unproved(state: RunState) -> bool:
    """Some worker's slot is in no proof that has been given; one worker alone has no network."""
    if not state.policy.preflight or len(state.workers) == 1:
        return False
    proof = state.proof
    return proof is None or not proof.verdict or not set(held(state)) <= set(proof.slots)


def needs_proof(state: RunState) -> bool:
    """
    Whether the barrier may not go on before. While other workers run, as they do when one of them restarts alone,
    nothing is measured: it would take the network from their programs, and measure these.
    """
    return is_unproved(state) and len(state.members) == len(state.workers)


def is_proving(state: RunState) -> bool:
    """Asked for, for the slots that the workers hold now, and not known yet."""
    proof = state.proof
    if proof is None or proof.verdict or state.recorded or state.phase is not Phase.ASSEMBLING:
        return False
    return proof.slots == held(state) and len(proof.slots) == len(state.workers)


def why_left_out(state: RunState) -> str:
    """The sentence of the proof that keeps a machine out of this run's placements for a while; empty without one."""
    proof = state.proof
    if proof is None or not {machine for machine, _ in state.avoid} & set(proof.blamed):
        return ""
    return proof.sentence
