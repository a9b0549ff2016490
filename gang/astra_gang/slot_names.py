"""
What an agent calls its slots, where an engine has IDs of its own: on Nomad the agent knows an allocation's task, the
coordinator the slot that it was reserved as. The agent repeats both, so each link learns the names anew. Values only.

An engine may put a slot again on its machine before what it was there has gone: Nomad does, when a client that it had
given up comes back. The name is the newer one's from its first word on. What is still heard of the older one has the
agent's name, which is of no run: it neither ends the newer one nor takes what is told to it.
"""

from __future__ import annotations

from typing import TypeVar

from astra_agent import wire

_M = TypeVar("_M", bound=wire.Wire)


class SlotNames:
    """Of one link. Messages whose slots have one name only go through as they are."""

    def __init__(self) -> None:
        self._theirs: dict[str, str] = {}
        self._ours: dict[str, str] = {}

    def heard(self, message: _M) -> _M:
        """As the coordinator calls it."""
        match message:
            case wire.Hello(slots=slots):
                for status in sorted(slots, key=lambda status: status.phase != "finished"):
                    self._learn(status)
                return message.model_copy(update={"slots": tuple(self._status(status) for status in slots)})
            case wire.Report(status=status):
                return message.model_copy(update={"status": self._status(status)})
            case wire.SlotGone(slot=slot):
                return message.model_copy(update={"slot": self._called(slot)})
            case wire.Refused(slot=slot):
                return message.model_copy(update={"slot": self._called(slot)})
            case _:
                return message

    def said(self, message: _M) -> _M:
        """As the agent calls it."""
        match message:
            case wire.DirectiveMessage(directive=directive):
                return message.model_copy(update={"directive": self._renamed(directive)})
            case wire.OpenStream(request=request):
                return message.model_copy(update={"request": self._renamed(request)})
            case _:
                return message

    def _status(self, status: wire.SlotStatus) -> wire.SlotStatus:
        self._learn(status)
        return status.model_copy(update={"slot": self._called(status.slot)})

    def _learn(self, status: wire.SlotStatus) -> None:
        if status.called is None or status.called == status.slot or status.slot in self._ours:
            return
        self._theirs[status.called] = status.slot
        self._ours[status.slot] = status.called

    def _called(self, slot: str) -> str:
        called = self._ours.get(slot, slot)
        return called if self._theirs.get(called, slot) == slot else slot

    def _renamed(self, about: _M) -> _M:
        slot = getattr(about, "slot", "")
        return about.model_copy(update={"slot": self._theirs[slot]}) if slot in self._theirs else about
