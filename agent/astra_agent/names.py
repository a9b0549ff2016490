"""What slots need of a name server, and a machine that has none."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from astra_agent import wire
from astra_agent.wire import RunNames


class Names(Protocol):
    """What slots need of a name server."""

    async def serve(self, slot: str, workspace: str, netns: Path | None) -> str:
        """
        Answer *workspace* in a slot's network namespace (None: the machine's network, which slots share). Returns the
        address to ask there; empty when names can't be served, which is a finding. Idempotent.
        """
        ...

    def restore(self, slot: str, workspace: str, netns: Path | None, address: str) -> None:
        """What `serve` returned to an agent before this one holds still."""
        ...

    def publish(self, slot: str, names: RunNames) -> None:
        """These are to be answered for as long as *slot* is there, until newer ones of the same run come."""
        ...

    def learn(self, names: wire.Names) -> None:
        """Names of runs that need no slot here, from the coordinator."""
        ...

    async def settled(self) -> None:
        """Returns once all that was published is answered. Raises: HostFault when that takes too long."""
        ...

    def withdraw(self, slot: str) -> None:
        """Nothing is served or published for *slot* any more. Idempotent."""
        ...

    def findings(self) -> tuple[str, ...]:
        """What is wrong with names on this machine, a sentence each, its fix after the last semicolon."""
        ...


class NoNames:
    """A machine without a name server: containers have hosts files, and the machine's own servers."""

    async def serve(self, slot: str, workspace: str, netns: Path | None) -> str:
        return ""

    def restore(self, slot: str, workspace: str, netns: Path | None, address: str) -> None:
        return

    def publish(self, slot: str, names: RunNames) -> None:
        return

    def learn(self, names: wire.Names) -> None:
        return

    async def settled(self) -> None:
        return

    def withdraw(self, slot: str) -> None:
        return

    def findings(self) -> tuple[str, ...]:
        return ()
