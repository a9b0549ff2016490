"""
Before anybody waits for a run: is its image there, and its command in it?

What is said is about the request alone. Whatever may be this machine's own fault is no refusal: another one may do.
"""

from __future__ import annotations

import asyncio

from astra_agent import prepare
from astra_agent.containerd.registry_errors import TRYING_AGAIN
from astra_agent.errors import DeadlineExceeded, HostFault, InvalidRequest, Unavailable
from astra_agent.tools import Tools
from astra_agent.wire import LookAhead, SlotRequest

REGISTRY_S = 10.0
"""For a registry to say whether it has the image."""
SMALL_BYTES = 32 * 2**20
SMALL_S = 5.0
"""An image of at most `SMALL_BYTES` is brought at once, if it comes within this, and its command looked for."""


async def look_ahead(request: SlotRequest, tools: Tools) -> LookAhead:
    """Takes `REGISTRY_S` and `SMALL_S` at most, and a call or two of containerd."""
    try:
        try:
            missing_bytes = await _look(request, tools)
        except (Unavailable, DeadlineExceeded) as error:
            if await prepare.runtime_answers(tools):
                return LookAhead(refusal=f"{error}; submit again once it does", field="image")
            return LookAhead()
        if missing_bytes <= SMALL_BYTES:
            async with asyncio.timeout(SMALL_S):
                await _check_command(request, tools)
    except InvalidRequest as error:
        return LookAhead(refusal=str(error), field=error.field)
    except (HostFault, Unavailable, DeadlineExceeded, TimeoutError):
        pass
    return LookAhead()


async def _look(request: SlotRequest, tools: Tools) -> int:
    """Bytes to bring. Raises: as `Images.look`; Unavailable also after `REGISTRY_S`."""
    told = [f'the registry of image "{request.image}" does not answer']
    try:
        async with asyncio.timeout(REGISTRY_S):
            return await tools.images.look(request.image, prepare.registry_auth(request), told.append)
    except TimeoutError as error:
        raise Unavailable(f"{told[-1].removesuffix(TRYING_AGAIN)}: asked for {REGISTRY_S:g} s") from error


async def _check_command(request: SlotRequest, tools: Tools) -> None:
    image = await tools.images.prepare(request.image, prepare.registry_auth(request), lambda _: None)
    await prepare.check_command(request, tools, image, prepare.mounts_of(request, tools))
