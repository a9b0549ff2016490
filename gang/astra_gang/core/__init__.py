"""
The gang core: a pure function from (state, event, now) to (state, decisions).

No awaiting, no clock, no random, no I/O, no logging. `astra_gang.loop` alone feeds it, stores what it returns and acts.

Two kinds of decisions. `Tell` is said once and stored together with the state. Everything else is *outstanding*: a
pure function of the state (`outstanding(state)`), wanted until an event shows that it has happened, and safe to do
twice. So a coordinator that starts again, an agent that comes back and a message that was lost all have one answer: do
what is outstanding. There is no recovery path.
"""

from astra_gang.core.decisions import Arm, Decision, GiveBack, Ignore, Place, Prove, Reserve, Start, Stop, Tell
from astra_gang.core.events import (
    ClusterChanged,
    Event,
    GivenBack,
    MachineLost,
    MachineWithdrawn,
    NotPlaced,
    NotReserved,
    Placed,
    Proved,
    Reserved,
    SlotGone,
    SlotSeen,
    StopAsked,
    Tick,
)
from astra_gang.core.state import (
    SPARE,
    Assignment,
    Attempt,
    AttemptSeen,
    Member,
    OnFailure,
    Outcome,
    Phase,
    Policy,
    Proof,
    RunState,
    Slot,
    StartPolicy,
    Worker,
    begin,
)
from astra_gang.core.step import deadline, outstanding, step
from astra_gang.core.verdict import earned_back

__all__ = [
    "SPARE",
    "Arm",
    "Assignment",
    "Attempt",
    "AttemptSeen",
    "ClusterChanged",
    "Decision",
    "Event",
    "GiveBack",
    "GivenBack",
    "Ignore",
    "MachineLost",
    "MachineWithdrawn",
    "Member",
    "NotPlaced",
    "NotReserved",
    "OnFailure",
    "Outcome",
    "Phase",
    "Place",
    "Placed",
    "Policy",
    "Proof",
    "Prove",
    "Proved",
    "Reserve",
    "Reserved",
    "RunState",
    "Slot",
    "SlotGone",
    "SlotSeen",
    "Start",
    "StartPolicy",
    "Stop",
    "StopAsked",
    "Tell",
    "Tick",
    "Worker",
    "begin",
    "deadline",
    "earned_back",
    "outstanding",
    "step",
]
