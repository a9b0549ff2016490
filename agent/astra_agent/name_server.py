"""
The name server of this machine, kept running and told what to answer.

It is a process of its own (`python -m astra_dns`): an agent that is busy or killed makes no answer late. Sockets are
made here, one pair for each address in each network namespace, and both processes hold them: whichever dies, no
packet is refused, it waits in the socket until the other has started it again and handed everything over. It runs
while a slot needs it, and a little longer: an idle machine has none. What is wanted stands in this object; one task
makes it so, from whatever it finds.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from astra_agent import name_asking, name_findings, name_process, network, wire
from astra_agent.config import AgentConfig
from astra_agent.errors import HostFault, NotFound
from astra_agent.name_keeping import KeptSockets
from astra_agent.name_places import PORT, Place, free_place, make_sockets
from astra_agent.name_telling import Told, tell
from astra_agent.names import metrics_of
from astra_agent.published import Published
from astra_agent.wire import RunNames
from astra_dns import channel
from astra_dns import records as dns
from astra_dns.client import Client

log = logging.getLogger(__name__)

_SETTLE_S = 10.0
_AGAIN_S = 1.0
_LOOK_EVERY_S = 10.0
"""At what it says of its upstreams."""
LINGER_S = 20.0
"""How long it goes on without a slot: the next run often comes at once."""


@dataclass(slots=True)
class _Wanted:
    slots: set[str] = field(default_factory=set)
    sockets: tuple[socket.socket, ...] = ()
    """UDP and TCP once they are made."""


class NameServer:
    """
    Implements `Names`. Made before the loop needs it; `run` does the work.

    Args:
        linger_s: How long the server goes on without a slot.
        kept: Sockets that outlive this agent and its server.
    """

    def __init__(self, config: AgentConfig, linger_s: float = LINGER_S, kept: KeptSockets | None = None) -> None:
        self._config = config
        self._kept = kept or KeptSockets()
        self._linger_s = linger_s
        self._path = config.state_dir / "names.sock"
        self._places: dict[Place, _Wanted] = {}
        self._published = Published()
        self._retired: list[tuple[Place, tuple[socket.socket, ...]]] = []
        """Places that nobody wants any more; their sockets stay open until the server has let go of them."""
        self._choosing = asyncio.Lock()
        self._changed = asyncio.Event()
        self._wanted = 0
        self._done = 0
        self._settled = asyncio.Condition()
        self._attached = asyncio.Event()
        """Set once the sockets of a server that was there before us are ours, too."""
        self._process: name_process.NameProcess | None = None
        """The one that this agent has started."""
        self._found: frozenset[dns.RunKey] = frozenset()
        """Runs that the server knew before we came: they stay until the coordinator has told everything once."""
        self._unserved = ""
        self._show: channel.Message = {}

    # What slots want --------------------------------------------------------------------------------------------------

    async def serve(self, slot: str, workspace: str, netns: Path | None) -> str:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._attached.wait(), _SETTLE_S)
        async with self._choosing:
            place = self._place(workspace, netns)
            if place is None:
                self._unserved = f"every address from {self._config.name_server} up is another workspace's"
                return ""
            wanted = self._places.setdefault(place, _Wanted())
            wanted.slots.add(slot)  # before any wait: a place without slots goes with the next slot that is withdrawn
            if not wanted.sockets:
                try:
                    wanted.sockets = self._back_from_retired(place) or await self._sockets_of(place)
                except (OSError, HostFault) as error:
                    self._places.pop(place, None)
                    self._say_unserved(place, error)
                    return ""
            self._unserved = ""
        self._change()
        return place.address

    def restore(self, slot: str, workspace: str, netns: Path | None, address: str) -> None:
        if address:
            self._places.setdefault(Place(workspace, address, netns), _Wanted()).slots.add(slot)
            self._change()

    def publish(self, slot: str, names: RunNames) -> None:
        self._published.put(slot, names)
        self._change()

    def learn(self, names: wire.Names) -> None:
        self._published.learn(names)
        self._change()

    async def settled(self) -> None:
        wanted = self._wanted
        try:
            async with asyncio.timeout(_SETTLE_S), self._settled:
                await self._settled.wait_for(lambda: self._done >= wanted)
        except TimeoutError as error:
            raise HostFault(
                f"the name server of {self._config.name} does not answer within {_SETTLE_S:g} s; see the agent's log"
            ) from error

    def withdraw(self, slot: str) -> None:
        self._published.drop(slot)
        for place, wanted in list(self._places.items()):
            wanted.slots.discard(slot)
            if not wanted.slots:
                del self._places[place]
                self._retired.append((place, wanted.sockets))
        self._change()

    async def lookup(self, slot: str, name: str, rtype: wire.RecordType) -> wire.Lookup:
        for place, wanted in self._places.items():
            if slot in wanted.slots:
                found = asyncio.to_thread(name_asking.ask, self._path, place.workspace, place.address, name, rtype)
                return await found
        raise NotFound(f"slot {slot} asks no name server of ours: {self._unserved or 'it has no container now'}")

    async def metrics(self) -> str:
        return metrics_of(await asyncio.to_thread(name_asking.metrics, self._path) if self._places else None)

    def findings(self) -> tuple[str, ...]:
        return tuple(self._findings())

    def _findings(self) -> Iterator[str]:
        if self._unserved:
            yield f"names are in hosts files only: {self._unserved}"
        yield from name_findings.of_upstreams(self._show.get("upstreams"), self._show.get("loops", ()))

    def _back_from_retired(self, place: Place) -> tuple[socket.socket, ...]:
        for number, (other, sockets) in enumerate(self._retired):
            if other == place:
                del self._retired[number]
                return sockets
        return ()

    async def _sockets_of(self, place: Place) -> tuple[socket.socket, ...]:
        return self._kept.claim(place) or await make_sockets(place)

    def _keep(self) -> None:
        self._kept.keep({place: wanted.sockets for place, wanted in self._places.items()})

    def _place(self, workspace: str, netns: Path | None) -> Place | None:
        first = self._config.name_server
        if netns is not None and netns != self._config.netns:
            return Place(workspace, first, netns)
        return free_place(workspace, netns, first, self._places)

    def _say_unserved(self, place: Place, error: Exception) -> None:
        reason = getattr(error, "strerror", None) or str(error)
        self._unserved = name_findings.taken(place.address, PORT, reason)
        log.error("names_unserved workspace=%s address=%s reason=%s", place.workspace, place.address, reason)

    def _change(self) -> None:
        self._wanted += 1
        self._changed.set()

    # Making it so -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """For ever. When it ends the server goes on, unless nothing is left to answer for."""
        try:
            while True:
                try:
                    await self._attend()
                except (OSError, HostFault) as error:
                    log.warning("names_lost reason=%s", error)
                    self._attached.set()
                    if self._process is not None:
                        self._process.is_running()
                    await asyncio.sleep(_AGAIN_S if isinstance(error, HostFault) else 0)
        finally:
            if not self._places:
                with contextlib.suppress(OSError), Client(self._path) as client:
                    client.stop()
            held = [*(wanted.sockets for wanted in self._places.values()), *(sockets for _, sockets in self._retired)]
            for one in itertools.chain.from_iterable(held):
                one.close()
            self._kept.close()

    async def _attend(self) -> None:
        """One server's life, or a time without one. Raises: OSError when the server is gone, HostFault."""
        client = await self._reach()
        if client is None:
            await self._rest()
            return
        try:
            told = await self._adopt(client)
            self._attached.set()
            while True:
                self._changed.clear()
                wanted, needed = self._wanted, bool(self._places)
                await self._make_missing()
                self._keep()
                retired = tuple(self._retired)
                told = await asyncio.to_thread(tell, client, told, self._now())
                self._show = await asyncio.to_thread(client.show)
                await self._say_done(wanted)
                await self._let_go(retired)
                changed = await self._until_changed_or_gone(client, _LOOK_EVERY_S if needed else self._linger_s)
                if not needed and not changed:
                    await self._end(client)
                    return
        finally:
            client.close()

    async def _rest(self) -> None:
        """Nobody asks for names: no server, until somebody does."""
        self._attached.set()
        self._show = {}
        while not self._places:
            self._changed.clear()
            self._keep()
            await self._say_done(self._wanted)
            await self._let_go(tuple(self._retired))
            await self._changed.wait()

    async def _say_done(self, wanted: int) -> None:
        async with self._settled:
            self._done = wanted
            self._settled.notify_all()

    async def _reach(self) -> Client | None:
        """
        The server that is there, when it is one like ours; else a new one, None when nobody needs it.

        Raises: OSError, HostFault.
        """
        with contextlib.suppress(OSError):
            client = Client(self._path)
            try:
                if await self._is_ours(client):
                    return client
            except BaseException:
                client.close()
                raise
            client.close()
            self._path.unlink(missing_ok=True)
        if not self._places:
            return None
        self._process = name_process.start(self._config, self._path)
        return await self._process.connect(self._path)

    async def _is_ours(self, client: Client) -> bool:
        """One of another version, or with other settings, hands its sockets over and ends. Raises: OSError."""
        hello = await asyncio.to_thread(client.hello)
        if hello.get("protocol") == channel.PROTOCOL and hello.get("settings") == name_process.settings(self._config):
            return True
        await self._adopt_sockets(client, hello.get("sockets", {}))
        await asyncio.to_thread(client.stop)
        return False

    async def _adopt(self, client: Client) -> Told:
        """What the server has already; its sockets are held here, too, from now on."""
        hello = await asyncio.to_thread(client.hello)
        await self._adopt_sockets(client, hello["sockets"])
        sockets = dict.fromkeys(hello["sockets"], -1)
        for place, wanted in self._places.items():
            if wanted.sockets:
                sockets.update({name: made.fileno() for name, made in zip(place.names, wanted.sockets, strict=True)})
        known = set(hello["sockets"])
        self._found = frozenset(map(tuple, hello["runs"]))
        return Told({name: at for name, at in sockets.items() if name in known}, dict.fromkeys(self._found))

    async def _adopt_sockets(self, client: Client, known: Collection[str]) -> None:
        for place, wanted in list(self._places.items()):
            if not wanted.sockets and set(place.names) <= set(known):
                taken = [await asyncio.to_thread(client.take, name) for name in place.names]
                wanted.sockets = tuple(one for one in taken if one is not None)

    async def _make_missing(self) -> None:
        """Sockets that were there once and died with both processes."""
        async with self._choosing:
            for place, wanted in list(self._places.items()):
                if wanted.sockets or place not in self._places:
                    continue
                try:
                    wanted.sockets = await self._sockets_of(place)
                except (OSError, HostFault) as error:
                    self._say_unserved(place, error)

    async def _let_go(self, retired: Sequence[tuple[Place, tuple[socket.socket, ...]]]) -> None:
        """Of these the server has let go; some may be wanted again meanwhile."""
        for one in retired:
            async with self._choosing:
                if one not in self._retired:
                    continue
                self._retired.remove(one)
                place, sockets = one
                for made in sockets:
                    made.close()
                if place.netns == self._config.netns:
                    await network.take_address(place.netns, place.address)

    def _now(self) -> Told:
        sockets: dict[str, int] = {}
        workspaces: dict[str, str] = {}
        for place, wanted in self._places.items():
            for name, made in zip(place.names, wanted.sockets, strict=False):
                sockets[name] = made.fileno()
                workspaces[name] = place.workspace
        runs: dict[dns.RunKey, dns.RunNames | None] = dict(self._published.runs())
        if not self._published.is_whole:
            runs = dict.fromkeys(self._found) | runs
        return Told(sockets, runs, workspaces)

    async def _until_changed_or_gone(self, client: Client, timeout_s: float) -> bool:
        """
        Whether something has changed; False once the time is over.

        Raises: ConnectionError when the server is gone: idle, it says nothing else.
        """
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        loop.add_reader(client.channel, gone.set)
        waits = [asyncio.create_task(event.wait()) for event in (self._changed, gone)]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop.remove_reader(client.channel)
            for wait in waits:
                wait.cancel()
        if gone.is_set():
            raise ConnectionError("the name server has gone; another one is started")
        return self._changed.is_set()

    async def _end(self, client: Client) -> None:
        """No slot is left. Raises: OSError."""
        log.info("names_end reason=no slot needs them")
        await asyncio.to_thread(client.stop)
        self._path.unlink(missing_ok=True)
        if self._process is not None:
            await self._process.ended_within(_SETTLE_S)
