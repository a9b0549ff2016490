"""
What an agent calls its slots, where an engine has IDs of its own: on Nomad the agent knows an allocation's task, the
coordinator the slot that it was reserved as. The agent repeats both, so each link learns the names anew. Values only.
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
                return message.model_copy(update={"slots": tuple(self._status(status) for status in slots)})
            case wire.Report(status=status):
                return message.model_copy(update={"status": self._status(status)})
            case wire.SlotGone(slot=slot):
                return message.model_copy(update={"slot": self._ours.get(slot, slot)})
            case wire.Refused(slot=slot):
                return message.model_copy(update={"slot": self._ours.get(slot, slot)})
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
        if status.called is None or status.called == status.slot:
            return status
        self._theirs[status.called] = status.slot
        self._ours[status.slot] = status.called
        return status.model_copy(update={"slot": status.called})

    def _renamed(self, about: _M) -> _M:
        slot = getattr(about, "slot", "")
        return about.model_copy(update={"slot": self._theirs[slot]}) if slot in self._theirs else about
