"""
One channel to one containerd, in one namespace. Errors are translated here and nowhere else:

| gRPC | ours | meaning |
|---|---|---|
| NOT_FOUND | NotFound | it is not there, or has ended |
| ALREADY_EXISTS | Conflict | it is there already |
| INVALID_ARGUMENT | InvalidRequest | |
| UNAVAILABLE, CANCELLED, ABORTED, INTERNAL | Unavailable | containerd is away; what was asked for may have happened |
| DEADLINE_EXCEEDED | DeadlineExceeded | the same |
| FAILED_PRECONDITION, UNKNOWN, all others | HostFault | the text is containerd's, prose that nobody may match |
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from astra_agent.containerd.proto.health_pb2 import HealthCheckRequest, HealthCheckResponse
from astra_agent.containerd.services import HEALTH, Dialogue, Download, Method, Unary
from astra_agent.errors import (
    AstraError,
    Conflict,
    DeadlineExceeded,
    HostFault,
    InvalidRequest,
    NotFound,
    Unavailable,
)

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)

CALL_TIMEOUT_S = 20.0
"""Of calls that end by themselves in milliseconds, on a machine that is very busy."""

_OPTIONS: tuple[tuple[str, str | int], ...] = (
    ("grpc.default_authority", "localhost"),
    # A list of containers carries every whole spec; the default of 4 MiB is small for it.
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),
    # After a restart of containerd: usable within 0.5 s instead of 0.9 s.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
)

_CLASSES: dict[grpc.StatusCode, type[AstraError]] = {
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: Conflict,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.CANCELLED: Unavailable,
    grpc.StatusCode.ABORTED: Unavailable,
    # containerd never says that: it is grpc's own word for a stream that broke while it was written to.
    grpc.StatusCode.INTERNAL: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
}


def translated(method: Method[Q, R], error: grpc.aio.AioRpcError) -> AstraError:
    """The error of ours that says the same."""
    service, _, name = method.path.rpartition("/")
    call = f"{service.rpartition('.')[2]}.{name}"
    return _CLASSES.get(error.code(), HostFault)(f"containerd: {call}: {error.details()}")


class Conversation(Generic[Q, R]):
    """An open stream both ways: strictly one answer for each request, as `Content.Write` has it."""

    def __init__(self, method: Dialogue[Q, R], call: Any) -> None:
        self._method = method
        self._call = call

    async def ask(self, request: Q) -> R:
        """Raises: as the table above; Unavailable when the stream ended instead of answering."""
        try:
            await self._call.write(request)
            answer = await self._call.read()
            if answer is grpc.aio.EOF:  # type: ignore[attr-defined]  # missing in the type stubs
                raise await self._ended()
            return answer  # type: ignore[no-any-return]  # a stream's answers are untyped in grpc
        except grpc.aio.AioRpcError as error:
            raise translated(self._method, error) from error
        except asyncio.InvalidStateError as error:  # it had ended before we wrote
            raise await self._ended() from error

    async def _ended(self) -> AstraError:
        """The status says why; OK would be a server that hangs up in the middle."""
        code, details = await self._call.code(), await self._call.details()
        return _CLASSES.get(code, HostFault)(f"containerd: {self._method.path}: the stream ended: {details}")


class Client:
    """
    A channel to containerd at *socket*, with *namespace* on every call. To be made in the loop that uses it; calls
    of several tasks may be under way at the same time. Nothing is connected before the first call, and it reconnects
    by itself.
    """

    def __init__(self, socket: Path, namespace: str) -> None:
        self.socket = socket.absolute()  # a relative path makes an authority that containerd refuses
        self.namespace = namespace
        self._channel = grpc.aio.insecure_channel(f"unix://{self.socket}", options=_OPTIONS)
        self._unary: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._channel.close(grace=None)

    def _metadata(self, lease: str) -> tuple[tuple[str, str], ...]:
        namespace = ("containerd-namespace", self.namespace)
        return (namespace, ("containerd-lease", lease)) if lease else (namespace,)

    async def call(
        self, method: Unary[Q, R], request: Q, *, timeout_s: float | None = CALL_TIMEOUT_S, lease: str = ""
    ) -> R:
        """
        Ask and wait for the answer. Cancelling the caller cancels the call on the server, in the middle of it.

        Args:
            timeout_s: None waits for ever, for the calls that take as long as a program runs.
            lease: Keeps what the call makes from the collector.
        Raises: as the table above.
        """
        stub = self._unary.get(method.path)
        if stub is None:
            stub = self._unary[method.path] = self._channel.unary_unary(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.answer.FromString,
            )
        try:
            return await stub(request, timeout=timeout_s, metadata=self._metadata(lease))  # type: ignore[no-any-return]
        except grpc.aio.AioRpcError as error:
            raise translated(method, error) from error

    async def download(self, method: Download[Q, R], request: Q, *, timeout_s: float | None) -> AsyncIterator[R]:
        """The stream of answers. Raises: as the table above, also in the middle."""
        stub = self._channel.unary_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.answer.FromString,
        )
        try:
            async for answer in stub(request, timeout=timeout_s, metadata=self._metadata("")):
                yield answer
        except grpc.aio.AioRpcError as error:
            raise translated(method, error) from error

    @asynccontextmanager
    async def conversation(
        self, method: Dialogue[Q, R], *, timeout_s: float | None, lease: str = ""
    ) -> AsyncIterator[Conversation[Q, R]]:
        """An open stream, ended on the server when the block is left, however it is left."""
        stub: Any = self._channel.stream_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.answer.FromString,
        )
        call = stub(timeout=timeout_s, metadata=self._metadata(lease))
        try:
            yield Conversation(method, call)
        finally:
            call.cancel()

    async def healthy(self, timeout_s: float = 1.0) -> bool:
        """Whether containerd answers, and is ready to serve."""
        try:
            answer = await self.call(HEALTH, HealthCheckRequest(), timeout_s=timeout_s)
        except AstraError:
            return False
        return answer.status == HealthCheckResponse.SERVING
