"""Preparing a slot: image, drives, command, network, address and port. Everything that takes long happens here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from astra_agent import network, plans, ports
from astra_agent.attach.gpu import chosen
from astra_agent.attachments import training_up
from astra_agent.errors import DeadlineExceeded, HostFault, InvalidRequest, Unavailable
from astra_agent.planning import find_device
from astra_agent.records import Prepared
from astra_agent.runtime import BindMount, PreparedImage
from astra_agent.tools import Tools
from astra_agent.wire import SlotRequest

_BACKOFF_FIRST_S = 1.0
_BACKOFF_MAX_S = 30.0


async def prepare(request: SlotRequest, tools: Tools, progress: Callable[[str], None]) -> Prepared:
    """
    Make a slot ready. May be done again from the start whatever is there of it already; may be cancelled.

    Raises:
        InvalidRequest: what the user asked for is not there.
        HostFault: this machine can't provide it.
        Unavailable: the registry has not answered within its bound.
    """
    came_with = training_up(tools.lookout.inventory)  # before all that takes long
    chosen(tools.lookout.inventory, request.gpus)
    mounts = mounts_of(request, tools)
    for node in request.devices:
        find_device(node)
    image = await _pull(request, tools, progress)
    progress("Checking the command")
    uid, gid, groups = await tools.patience.call(check_command, request, tools, image, mounts)
    progress("Setting up the network")
    address, port, name_server = await _network(request, tools)
    args, working_dir = plans.arguments(request, image.config), plans.working_dir(request, image.config)
    return Prepared(image, args, working_dir, uid, gid, groups, address, port, name_server, came_with)


def mounts_of(request: SlotRequest, tools: Tools) -> tuple[BindMount, ...]:
    """Drives and folders of the machine. Raises: InvalidRequest, HostFault when one of them is not there."""
    mounts = plans.drive_mounts(request, tools.config.drives)
    for drive, mount in zip(request.drives, mounts, strict=True):
        if not Path(mount.source).exists():
            raise HostFault(f'drive "{drive.name}" is not mounted: {mount.source} is not there')
    return (*mounts, *_host_mounts(request))


async def check_command(
    request: SlotRequest, tools: Tools, image: PreparedImage, mounts: tuple[BindMount, ...]
) -> tuple[int, int, tuple[int, ...]]:
    """Of the request's program in *image*. Returns, raises: as `Images.check_command`."""
    return await tools.images.check_command(
        image,
        plans.arguments(request, image.config),
        plans.search_path(request, image.config),
        plans.working_dir(request, image.config),
        request.user if request.user is not None else image.config.user,
        mounts,
    )


def registry_auth(request: SlotRequest) -> tuple[str, str] | None:
    """User name and password that came with the request."""
    return (request.registry_auth.username, request.registry_auth.password) if request.registry_auth else None


def _host_mounts(request: SlotRequest) -> tuple[BindMount, ...]:
    for mount in request.mounts:
        if not Path(mount.source).exists():
            raise InvalidRequest(f"{mount.source}, to be mounted on {mount.mount_path}, is not there", "mounts")
    return plans.host_mounts(request)


async def _network(request: SlotRequest, tools: Tools) -> tuple[str, int, str]:
    """Address, port and name server. What starts by itself meets nobody, and needs neither of the last two."""
    if request.network is not None:
        netns = Path(request.network.netns)
        if not netns.exists():
            raise HostFault(f"the network namespace {netns} is not there")
        return request.network.address or await network.address_in(netns), 0, ""
    address, port = await _hold(request, tools)
    await tools.networks.set_up(request.slot, address)
    if request.starts == "when_ready":
        return address, port, ""
    server = await tools.names.serve(request.slot, request.run.workspace, tools.networks.netns(request.slot))
    return address, port, server


async def _pull(request: SlotRequest, tools: Tools, progress: Callable[[str], None]) -> PreparedImage:
    """A registry that does not answer is asked again within a bound; a runtime for as long as it takes."""
    deadline_s = time.monotonic() + tools.config.registry_patience_s
    backoff_s = _BACKOFF_FIRST_S
    while True:
        try:
            return await tools.images.prepare(request.image, registry_auth(request), progress)
        except (Unavailable, DeadlineExceeded) as error:
            if not await runtime_answers(tools):
                away_s = time.monotonic()
                await tools.patience.call(tools.containers.list)
                deadline_s += time.monotonic() - away_s
                continue
            if time.monotonic() + backoff_s > deadline_s:
                raise
            progress(f"{error}; asking again in {backoff_s:g} s")
        await asyncio.sleep(backoff_s)
        backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)


async def runtime_answers(tools: Tools) -> bool:
    """Asked once, now; that it does not is told with the machine."""
    asked_s = time.monotonic()
    try:
        await tools.containers.list()
    except (Unavailable, DeadlineExceeded) as error:
        tools.patience.unanswered(error, asked_s)
        return False
    return True


async def _hold(request: SlotRequest, tools: Tools) -> tuple[str, int]:
    """Choose an address and a port, and hold them."""
    config, holdings, slot, port = tools.config, tools.holdings, request.slot, 0
    async with holdings.choosing:
        if request.starts == "when_told":
            port = await asyncio.to_thread(ports.free_port, config.netns, frozenset(holdings.ports))
            holdings.ports[port] = slot
        if config.slot_network == "host" or config.own_network is None:
            return config.address, port
        address = ports.free_address(config.own_network, config.address, frozenset(holdings.addresses))
        holdings.addresses[address] = slot
        return address, port
