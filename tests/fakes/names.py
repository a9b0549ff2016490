"""A name server that a test holds back."""

from __future__ import annotations

import asyncio
from pathlib import Path

from astra_agent.errors import HostFault
from astra_agent.wire import Names, RunNames


class FakeNames:
    """
    Attributes:
        served: Addresses by slot.
        published: The newest names by slot.
        fault: The sentence of `settled`, when it is to fail.
    """

    def __init__(self, address: str = "169.254.53.53") -> None:
        self.served: dict[str, str] = {}
        self.published: dict[str, RunNames] = {}
        self.learned: list[Names] = []
        self.fault = ""
        self._address = address
        self._answering = asyncio.Event()
        self._answering.set()

    def hold(self) -> None:
        self._answering.clear()

    def release(self) -> None:
        self._answering.set()

    async def serve(self, slot: str, workspace: str, netns: Path | None) -> str:
        if self._address:
            self.served[slot] = self._address
        return self._address

    def restore(self, slot: str, workspace: str, netns: Path | None, address: str) -> None:
        self.served[slot] = address

    def publish(self, slot: str, names: RunNames) -> None:
        self.published[slot] = names

    def learn(self, names: Names) -> None:
        self.learned.append(names)

    async def settled(self) -> None:
        if self.fault:
            raise HostFault(self.fault)
        await self._answering.wait()

    def withdraw(self, slot: str) -> None:
        self.served.pop(slot, None)
        self.published.pop(slot, None)

    def findings(self) -> tuple[str, ...]:
        return ()
