"""
The life of a plugin's process, as Nomad wants it: a socket, the handshake line, the host's own services, the end.

Only what must be is imported before the handshake: Nomad starts each plugin three times in a row at its own start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import stat
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.empty_pb2 import Empty

from astra_driver import rpc
from astra_driver.proto import goplugin_pb2
from astra_driver.rpc import Context

log = logging.getLogger(__name__)

COOKIE_NAME = "NOMAD_PLUGIN_MAGIC_COOKIE"
COOKIE = "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255"
_CORE_PROTOCOL, _PROTOCOL = 1, 2
_UNCALLED_S = 60.0
"""Nomad calls at once; one that was interrupted while it loaded its plugins never will."""
_REFUSED_S = 10.0
"""Nomad 1.6 leaves a plugin behind that has refused its configuration."""
_GRACE_S = 0.5
_MESSAGE_BYTES = 64 * 1024**2
_HEALTHY = b"\x08\x01"  # grpc.health.v1.HealthCheckResponse{status: SERVING}


class Life:
    """When this process ends."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self._deadline_s = time.monotonic() + _UNCALLED_S

    def called(self) -> None:
        self._deadline_s = float("inf")

    def refused(self) -> None:
        """Nothing will come of this process; whoever asks it a last time still may."""
        self._deadline_s = time.monotonic() + _REFUSED_S

    async def over(self) -> None:
        while not self.ended.is_set() and time.monotonic() < self._deadline_s:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self.ended.wait()


class Plugin(Protocol):
    """What is served besides the host's own services; entered once the process is known to Nomad."""

    def services(self) -> Sequence[tuple[ServiceDescriptor, object]]: ...

    async def close(self) -> None: ...


def has_cookie() -> bool:
    return os.environ.get(COOKIE_NAME) == COOKIE


async def serve(make: Callable[[Life], Plugin]) -> None:
    """Serve until Nomad's controller says so. Tasks run on."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)
    life = Life()
    plugin = make(life)
    with _socket() as path:
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", _MESSAGE_BYTES)])
        services = [*plugin.services(), *_Host(life).services()]
        server.add_generic_rpc_handlers([rpc.service(which, how, life.called) for which, how in services])
        server.add_generic_rpc_handlers([_health(life)])
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        print(f"{_CORE_PROTOCOL}|{_PROTOCOL}|unix|{path}|grpc", flush=True)
        try:
            await life.over()
        finally:
            await server.stop(_GRACE_S)
            await plugin.close()


class _Host:
    """What go-plugin itself calls. The streams stay open and silent: nothing of us goes to its standard output."""

    def __init__(self, life: Life) -> None:
        self._life = life

    def services(self) -> Sequence[tuple[ServiceDescriptor, object]]:
        by_name = goplugin_pb2.DESCRIPTOR.services_by_name
        return [(by_name[name], self) for name in ("GRPCBroker", "GRPCStdio", "GRPCController")]

    async def start_stream(self, _: object, context: Context) -> AsyncIterator[goplugin_pb2.ConnInfo]:
        await self._life.ended.wait()
        return
        yield

    async def stream_stdio(self, _: Empty, context: Context) -> AsyncIterator[goplugin_pb2.StdioData]:
        await self._life.ended.wait()
        return
        yield

    async def shutdown(self, _: goplugin_pb2.Empty, context: Context) -> goplugin_pb2.Empty:
        self._life.ended.set()
        return goplugin_pb2.Empty()


def _health(life: Life) -> grpc.GenericRpcHandler[Any, Any]:
    """Answers the standard check; its messages are two bytes, and the agent has the proto of it for itself."""

    async def check(_: bytes, context: Context) -> bytes:
        life.called()
        return _HEALTHY

    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(check)
    return grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": handler})


# The socket --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _socket() -> Iterator[Path]:
    """A path for it, in a folder of our own; what plugins before us have left there goes."""
    folder = Path(tempfile.gettempdir()) / f"astraeus-plugins-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    info = folder.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) != 0o700:
        folder = Path(tempfile.mkdtemp(prefix="astraeus-plugin-"))
    for path in folder.glob("*.sock"):
        if not Path(f"/proc/{path.stem}").exists():
            path.unlink(missing_ok=True)
    path = folder / f"{os.getpid()}.sock"
    path.unlink(missing_ok=True)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def refuse() -> int:
    print(
        "This is a plugin of Nomad's, which starts it by itself: put it into the client's plugin_dir, see "
        "docs/nomad-driver.md",
        file=sys.stderr,
    )
    return 2
