"""Agents as an engine sees them over their links: they take a finish, and say when a slot is not there any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from astra_agent import wire
from astra_gang.roster import Roster
from tests.fakes.agent_socket import FakeAgentSocket


class LinkedAgents:
    """Implements `astra_gang.performer.Agents` on `FakeAgentSocket`s; one whose socket is closed has no link either."""

    def __init__(self, agents: Mapping[str, FakeAgentSocket], roster: Callable[[], Roster]) -> None:
        self._agents = agents
        self._roster = roster

    def send(self, machine: str, directive: wire.Directive) -> bool:
        agent = self._agents.get(machine)
        if agent is None or not agent.is_up:
            return False
        assert isinstance(directive, wire.Finish)
        if directive.slot in agent.slots:
            agent.finish(directive.slot, directive.code, directive.reason)
        if directive.slot not in agent.slots:
            self._roster().slot_gone(machine, directive.slot)
        return True
