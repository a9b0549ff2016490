"""
The device plugin: this machine's GPUs, as the agent knows them. It stands in for Nomad's own NVIDIA plugin.

It answers environment only: what belongs to a GPU is attached by the agent, at every start. It holds nothing, and never
ends a stream: Nomad would turn it off until its own next start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

from google.protobuf.descriptor import ServiceDescriptor

from astra_agent.errors import HostFault, InvalidRequest
from astra_driver.agent_client import AgentClient
from astra_driver.agent_watch import AgentWatch
from astra_driver.base_plugin import BasePlugin
from astra_driver.devices import groups, unknown_ids
from astra_driver.proto import base_pb2, device_pb2
from astra_driver.rival import rival_sentence
from astra_driver.rpc import Context
from astra_driver.serving import Life
from astra_driver.settings import PluginSettings
from astra_driver.translate import GPUS

log = logging.getLogger(__name__)

NAME = "astra-gpu"
_LOOK_EVERY_S = 10.0
"""For Nomad's own plugin, which may be started after ours."""


class DevicePlugin:
    def __init__(self, life: Life) -> None:
        self._life = life
        self._settings = PluginSettings()
        self._base = BasePlugin(base_pb2.DEVICE, NAME, self._configure, life.refused)
        self._client = AgentClient(self._settings.socket)
        self._watch = AgentWatch(self._client, follows=False)

    def services(self) -> Sequence[tuple[ServiceDescriptor, object]]:
        return [
            (base_pb2.DESCRIPTOR.services_by_name["BasePlugin"], self._base),
            (device_pb2.DESCRIPTOR.services_by_name["DevicePlugin"], self),
        ]

    async def close(self) -> None:
        await self._watch.close()

    def _configure(self, settings: PluginSettings) -> None:
        """Before anything else is asked of this process, so there is nothing to end."""
        if settings.socket != self._settings.socket:
            self._client = AgentClient(settings.socket)
            self._watch = AgentWatch(self._client, follows=False)
        self._settings = settings

    async def fingerprint(
        self, _: device_pb2.FingerprintRequest, context: Context
    ) -> AsyncIterator[device_pb2.FingerprintResponse]:
        """
        The whole set, and again only when it is another one: every message registers the node anew. Without an agent it
        is what was last known, since its absence takes no GPU from anybody.
        """
        told: device_pb2.FingerprintResponse | None = None
        async for state in self._watch.states(again_s=_LOOK_EVERY_S):
            rival = await asyncio.to_thread(rival_sentence)
            found = groups(state.facts, rival) if state.facts is not None else device_pb2.FingerprintResponse()
            if found == told:
                continue
            if rival is not None:
                log.error("device_plugin_beside_another reason=%s", rival)
            told = found
            yield found

    async def reserve(self, request: device_pb2.ReserveRequest, context: Context) -> device_pb2.ReserveResponse:
        """One key for the kind of device; nothing else outlives a restart of Nomad's client."""
        if (rival := await asyncio.to_thread(rival_sentence)) is not None:
            raise HostFault(rival)
        facts = self._watch.state.facts
        if facts is not None and (unknown := unknown_ids(facts, request.device_ids)):
            raise InvalidRequest(f"GPU {unknown[0]} is not on this machine (any more)", "device")
        reservation = device_pb2.ContainerReservation(envs={GPUS: ",".join(sorted(request.device_ids))})
        return device_pb2.ReserveResponse(container_res=reservation)

    async def stats(self, _: device_pb2.StatsRequest, context: Context) -> AsyncIterator[device_pb2.StatsResponse]:
        """No figures yet; the stream stays open, since its end would be for good."""
        await self._life.ended.wait()
        return
        yield
