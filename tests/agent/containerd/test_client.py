"""Errors of the wire become ours at this border, and nothing of gRPC passes it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.empty_pb2 import Empty

from astra_agent.containerd.client import Client
from astra_agent.containerd.proto.version_pb2 import VersionResponse
from astra_agent.containerd.services import VERSION
from astra_agent.errors import (
    AstraError,
    Conflict,
    DeadlineExceeded,
    HostFault,
    InvalidRequest,
    NotFound,
    Unavailable,
)


class Containerd(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the type stubs only
    """Answers every call with the status it is told to, and remembers who asked."""

    def __init__(self) -> None:
        self.status = grpc.StatusCode.OK
        self.metadata: dict[str, str | bytes] = {}

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        self.metadata = {str(key): value for key, value in details.invocation_metadata or ()}
        return grpc.unary_unary_rpc_method_handler(
            self.answer, request_deserializer=Empty.FromString, response_serializer=VersionResponse.SerializeToString
        )

    async def answer(self, request: Empty, context: grpc.aio.ServicerContext[Any, Any]) -> VersionResponse:
        if self.status is not grpc.StatusCode.OK:
            await context.abort(self.status, "its own words")
        return VersionResponse(version="1.6.20")


@pytest.fixture
async def containerd(tmp_path: Path) -> AsyncIterator[Containerd]:
    handler = Containerd()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"unix://{tmp_path}/containerd.sock")
    await server.start()
    yield handler
    await server.stop(grace=None)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with Client(tmp_path / "containerd.sock", "astra") as client:
        yield client


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (grpc.StatusCode.NOT_FOUND, NotFound),
        (grpc.StatusCode.ALREADY_EXISTS, Conflict),
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidRequest),
        (grpc.StatusCode.UNAVAILABLE, Unavailable),
        (grpc.StatusCode.ABORTED, Unavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineExceeded),
        (grpc.StatusCode.FAILED_PRECONDITION, HostFault),
        (grpc.StatusCode.UNKNOWN, HostFault),
        (grpc.StatusCode.UNIMPLEMENTED, HostFault),
    ],
)
async def test_an_error_is_ours_with_its_own_words(
    containerd: Containerd, client: Client, status: grpc.StatusCode, error: type[AstraError]
) -> None:
    containerd.status = status
    with pytest.raises(error, match=r"^containerd: Version\.Version: its own words$"):
        await client.call(VERSION, Empty())


async def test_every_call_carries_the_namespace_and_a_lease_when_there_is_one(
    containerd: Containerd, client: Client
) -> None:
    await client.call(VERSION, Empty())
    assert containerd.metadata["containerd-namespace"] == "astra"
    assert "containerd-lease" not in containerd.metadata
    await client.call(VERSION, Empty(), lease="pull-1")
    assert containerd.metadata["containerd-lease"] == "pull-1"


async def test_nobody_there_is_unavailable_and_not_healthy(client: Client) -> None:
    with pytest.raises(Unavailable):
        await client.call(VERSION, Empty())
    assert not await client.healthy()
