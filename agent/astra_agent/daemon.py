"""One running agent: its lock, its slots, its socket and its link, until it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from astra_agent.agent import Agent
from astra_agent.config import AgentConfig
from astra_agent.dial import Dialer
from astra_agent.errors import HostFault, InvalidRequest
from astra_agent.lease import LeaseKeeper
from astra_agent.link import Link
from astra_agent.local_api import LocalApi
from astra_agent.lookout import first_look
from astra_agent.name_keeping import KeptSockets
from astra_agent.name_server import NameServer
from astra_agent.runtime import Containers, Images
from astra_agent.service_manager import ServiceManager

log = logging.getLogger(__name__)


async def serve(
    config: AgentConfig,
    containers: Containers,
    images: Images,
    stop: asyncio.Event,
    manager: ServiceManager | None = None,
) -> None:
    """
    Run the agent until *stop* is set. Containers run on: another agent on the same state directory finds them.

    Raises:
        InvalidRequest: the configuration is wrong, or another agent uses the state directory.
        HostFault: this machine can't serve.
    """
    manager = manager or ServiceManager()
    with locked(config.state_dir):
        name_server = NameServer(config, kept=KeptSockets(manager)) if config.name_server else None
        agent = Agent(config, containers, images, await first_look(config), name_server)
        async with Dialer(config) as dialer, LocalApi(agent).serve(config.socket), asyncio.TaskGroup() as group:
            tasks = [group.create_task(agent.run(), name="agent")]
            if name_server is not None:
                tasks.append(group.create_task(name_server.run(), name="names"))
            link = None
            if config.coordinator:
                link = Link(agent, dialer, LeaseKeeper(config.state_dir / "lease.json", agent.boot))
                tasks.append(group.create_task(link.run(), name="link"))
            log.info("agent_up machine=%s socket=%s boot=%s", config.name, config.socket, agent.boot)
            manager.ready(_status(agent, link))
            tasks.append(group.create_task(manager.watched(lambda: _status(agent, link)), name="watched"))
            await stop.wait()
            manager.stopping()
            for task in tasks:
                task.cancel()
    log.info("agent_down machine=%s", config.name)


def _status(agent: Agent, link: Link | None) -> str:
    """For whoever asks the service manager: `3 slots; linked to the coordinator`."""
    count = len(agent.slots())
    slots = f"{count} slot" if count == 1 else f"{count} slots"
    if link is None:
        return f"{slots}; no coordinator is configured"
    return f"{slots}; {link.trouble or 'linked to the coordinator'}"


@contextlib.contextmanager
def locked(state_dir: Path) -> Iterator[None]:
    """Hold the state directory; the kernel lets go of it when this process dies. Raises: InvalidRequest, HostFault."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise HostFault(f"state_dir {state_dir} can't be used: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise InvalidRequest(f"another agent uses state_dir {state_dir}; stop it, or give each its own") from error
    try:
        yield
    finally:
        os.close(descriptor)
