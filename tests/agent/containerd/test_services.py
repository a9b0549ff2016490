"""The table of calls says what the protos say."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import descriptor_pool

from astra_agent.containerd import services
from astra_agent.containerd.services import Dialogue, Download, Method

METHODS = {name: value for name, value in vars(services).items() if isinstance(value, Method)}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
def test_a_call_is_the_one_of_the_proto(method: Method[Any, Any]) -> None:
    service, _, name = method.path.removeprefix("/").rpartition("/")
    described = descriptor_pool.Default().FindServiceByName(service).methods_by_name[name]
    assert described.input_type is method.request.DESCRIPTOR
    assert described.output_type is method.answer.DESCRIPTOR
    assert described.server_streaming == isinstance(method, Download | Dialogue)
    assert described.client_streaming == isinstance(method, Dialogue)
