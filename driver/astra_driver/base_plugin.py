"""What both plugins answer at Nomad's start: who they are, what they can be told, and what they were told."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from importlib.metadata import version

from astra_agent.errors import InvalidRequest
from astra_driver.hcl import decode, spec_of
from astra_driver.proto import base_pb2
from astra_driver.rpc import Context
from astra_driver.settings import PluginSettings

log = logging.getLogger(__name__)

API_VERSION = "v0.1.0"


class BasePlugin:
    """
    Args:
        configured: Called with the settings, twice in some lives. It starts nothing that a second call would double.
        refused: Called when they are wrong; Nomad ends its own start then.
    """

    def __init__(
        self,
        kind: base_pb2.PluginType,
        name: str,
        configured: Callable[[PluginSettings], None],
        refused: Callable[[], None],
    ) -> None:
        self._kind = kind
        self._name = name
        self._configured = configured
        self._refused = refused

    async def plugin_info(self, _: base_pb2.PluginInfoRequest, context: Context) -> base_pb2.PluginInfoResponse:
        return base_pb2.PluginInfoResponse(
            type=self._kind, plugin_api_versions=[API_VERSION], plugin_version=plugin_version(), name=self._name
        )

    async def config_schema(self, _: base_pb2.ConfigSchemaRequest, context: Context) -> base_pb2.ConfigSchemaResponse:
        return base_pb2.ConfigSchemaResponse(spec=spec_of(PluginSettings))

    async def set_config(self, request: base_pb2.SetConfigRequest, context: Context) -> base_pb2.SetConfigResponse:
        try:
            self._configured(decode(PluginSettings, request.msgpack_config))
        except InvalidRequest:
            self._refused()
            raise
        return base_pb2.SetConfigResponse()


def plugin_version() -> str:
    """One that Nomad can parse: an unparsable one ends its start."""
    match = re.match(r"\d+(\.\d+)*", version("astraeus"))
    return match[0] if match else "0.0.0"
