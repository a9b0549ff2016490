"""
A host that speaks Nomad's plugin protocol exactly as Nomad does: the handshake, its three launches at start, the order
of calls, how it ends a plugin and how it sees its end. What it checks of every answer is what would crash Nomad.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import grpc
import grpc.aio
import msgpack
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from astra_driver.proto import base_pb2, device_pb2, driver_pb2, goplugin_pb2

Version = Literal["1.6.5", "2.0.5"]
VERSIONS: tuple[Version, ...] = ("1.6.5", "2.0.5")
_COOKIE = "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255"
_HANDSHAKE_S = 60.0
_SHUTDOWN_S = 2.0
_CALL_S = 10.0
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
_METHODS = {
    method.name: (service.full_name, method)
    for service in (
        base_pb2.DESCRIPTOR.services_by_name["BasePlugin"],
        driver_pb2.DESCRIPTOR.services_by_name["Driver"],
        goplugin_pb2.DESCRIPTOR.services_by_name["GRPCController"],
    )
    for method in service.methods
    if (service.name, method.name) != ("GRPCController", "Shutdown")
}
_DEVICE = {method.name: method for method in device_pb2.DESCRIPTOR.services_by_name["DevicePlugin"].methods}


class PluginProcess:
    """
    One launch of a plugin.

    Attributes:
        graceful: After `kill`: whether it ended by itself in time.
        lines: What it said on standard error.
    """

    def __init__(self, process: asyncio.subprocess.Process, version: Version, address: str) -> None:
        self.version: Version = version
        self.graceful = False
        self.lines: list[str] = []
        self._process = process
        options = [("grpc.default_authority", "unused"), ("grpc.max_receive_message_length", 2**31 - 1)]
        self._channel = grpc.aio.insecure_channel(f"unix:{address}", options=options)
        self._background = [asyncio.create_task(self._read_errors()), *self._standing_streams()]

    @staticmethod
    async def launch(program: Path, version: Version) -> PluginProcess:
        """Up to its handshake. Raises: AssertionError for any line but the right one."""
        process = await asyncio.create_subprocess_exec(
            str(program),
            env={
                **os.environ,
                "NOMAD_PLUGIN_MAGIC_COOKIE": _COOKIE,
                "PLUGIN_MIN_PORT": "10000",
                "PLUGIN_MAX_PORT": "25000",
                "PLUGIN_PROTOCOL_VERSIONS": "2",
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        async with asyncio.timeout(_HANDSHAKE_S):
            line = (await process.stdout.readline()).decode()
        assert line.endswith("\n"), f"Unrecognized remote plugin message: {line!r}"
        core, app, network, address, protocol = line.strip().split("|")[:5]
        assert (core, app, network, protocol) == ("1", "2", "unix", "grpc")
        assert len(address.encode()) <= 107
        return PluginProcess(process, version, address)

    @property
    def pid(self) -> int:
        return self._process.pid

    # Calls --------------------------------------------------------------------------------------------------------

    async def call(self, name: str, request: Message | None = None, timeout_s: float | None = _CALL_S) -> Any:
        """A unary call; what would crash Nomad fails here."""
        if name == "Reserve":
            service, method = "hashicorp.nomad.plugins.device.DevicePlugin", _DEVICE[name]
        else:
            service, method = _METHODS[name]
        ask = self._channel.unary_unary(
            f"/{service}/{method.name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        answer = await ask(request or GetMessageClass(method.input_type)(), timeout=timeout_s)
        for needed in {"WaitTask": ("result",), "ExecTask": ("result",), "Reserve": ("container_res",)}.get(name, ()):
            assert answer.HasField(needed), f"{name} without {needed} crashes Nomad"
        return answer

    def stream(self, name: str, request: Message | None = None, *, device: bool = False) -> Any:
        """A call with a stream of answers, to be cancelled by the caller."""
        method = _DEVICE[name] if device else _METHODS[name][1]
        service = "hashicorp.nomad.plugins.device.DevicePlugin" if device else _METHODS[name][0]
        ask = self._channel.unary_stream(
            f"/{service}/{method.name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        return ask(request or GetMessageClass(method.input_type)())

    def exec_stream(self, requests: AsyncIterator[driver_pb2.ExecTaskStreamingRequest]) -> Any:
        service, method = _METHODS["ExecTaskStreaming"]
        ask = self._channel.stream_stream(
            f"/{service}/{method.name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=driver_pb2.ExecTaskStreamingResponse.FromString,
        )
        return ask(requests)

    async def set_config(self, settings: dict[str, Any]) -> None:
        config = msgpack.packb(settings)
        await self.call("SetConfig", base_pb2.SetConfigRequest(msgpack_config=config, plugin_api_version="v0.1.0"))

    # Its end ------------------------------------------------------------------------------------------------------

    async def kill(self) -> None:
        """As Nomad ends a plugin: asked first, and by SIGKILL two seconds later."""
        ask = self._channel.unary_unary("/plugin.GRPCController/Shutdown", None, None)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await ask(b"", timeout=_SHUTDOWN_S)
        try:
            async with asyncio.timeout(_SHUTDOWN_S):
                await self._ended()
            self.graceful = True
        except TimeoutError:
            self._process.kill()
            await self._ended()
        await self._close()

    async def die(self) -> None:
        """SIGKILL."""
        self._process.kill()
        await self._ended()
        await self._close()

    async def _ended(self) -> None:
        """As this version sees it: by the end of standard error, the newer one by that of standard output as well."""
        await self._background[0]
        if self.version != "1.6.5":
            assert self._process.stdout is not None
            rest = await self._process.stdout.read()
            assert rest == b"", f"more than the handshake on standard output: {rest!r}"
        await self._process.wait()

    async def _close(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._channel.close(grace=None)

    # What stands beside -------------------------------------------------------------------------------------------

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        async for raw in self._process.stderr:
            line = raw.decode()
            self.lines.append(line)
            if line.startswith("{"):
                document = json.loads(line)
                for key in ("@message", "@level", "@timestamp"):
                    assert isinstance(document[key], str), f"{key} that is no string crashes Nomad: {line}"
                assert _STAMP.fullmatch(document["@timestamp"]), line

    def _standing_streams(self) -> list[asyncio.Task[None]]:
        """The host opens both right after it has connected."""
        broker = self._channel.stream_stream("/plugin.GRPCBroker/StartStream", None, None)
        stdio = self._channel.unary_stream("/plugin.GRPCStdio/StreamStdio", None, None)

        async def drain(stream: Any) -> None:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
                async for _ in stream:
                    pass

        streams = (broker(None), stdio(Empty().SerializeToString()))
        return [asyncio.create_task(drain(stream)) for stream in streams]


async def start_driver(program: Path, version: Version, settings: dict[str, Any]) -> PluginProcess:
    """The three launches at Nomad's start; the last one serves."""
    identify = await PluginProcess.launch(program, version)
    info = await identify.call("PluginInfo")
    assert "v0.1.0" in info.plugin_api_versions and re.fullmatch(r"\d+(\.\d+)*", info.plugin_version)
    schema = await identify.call("ConfigSchema")
    await identify.kill()
    assert identify.graceful, identify.lines
    if schema.HasField("spec"):
        validate = await PluginProcess.launch(program, version)
        await validate.set_config(settings)
        await validate.set_config(settings)
        await validate.kill()
        assert validate.graceful, validate.lines
    service = await PluginProcess.launch(program, version)
    await service.set_config(settings)
    if version != "1.6.5" and info.type == base_pb2.DRIVER:
        await service.call("Init", driver_pb2.InitRequest())
    return service


def scripts() -> Path:
    """Where the plugins' programs are."""
    return Path(sys.executable).parent
