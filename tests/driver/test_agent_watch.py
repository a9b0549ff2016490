"""What the plugins go on saying of a machine whose agent, or whose containerd, is not as it should be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from astra_agent import local_api
from astra_agent.agent import Agent
from astra_agent.wire import PROTOCOL, GpuFacts
from astra_driver import agent_watch
from astra_driver.base_plugin import BasePlugin
from astra_driver.device_plugin import DevicePlugin
from astra_driver.proto import base_pb2, device_pb2
from astra_driver.serving import Life
from tests.agent.daemon import Daemon, a_daemon
from tests.agent.machine import until

GPUS = [{"index": index, "uuid": f"GPU-{index}", "model": "H200", "memory_bytes": 2**34} for index in (0, 1)]
QUIET_S = 0.5
CONTEXT: Any = None


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Daemon]:
    (tmp_path / "facts.json").write_text(json.dumps({"gpus": GPUS}))
    async with a_daemon(tmp_path / "agent", facts_file=tmp_path / "facts.json") as made:
        yield made


@pytest.fixture
async def told(
    agent: Daemon, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[AsyncIterator[device_pb2.FingerprintResponse]]:
    """What a device plugin that asks often says of it."""
    for name in ("_ASK_EVERY_S", "_AWAY_AGAIN_S", "_UNNOTICED_S"):
        monkeypatch.setattr(agent_watch, name, 0.01)
    plugin = DevicePlugin(Life())
    base = plugin.services()[0][1]
    assert isinstance(base, BasePlugin)
    config = msgpack.packb({"socket": str(agent.config.socket)})
    await base.set_config(base_pb2.SetConfigRequest(msgpack_config=config, plugin_api_version="v0.1.0"), CONTEXT)
    yield plugin.fingerprint(device_pb2.FingerprintRequest(), CONTEXT)
    await plugin.close()


@pytest.mark.parametrize(
    ("away", "said"),
    [
        ("containerd", "the container runtime does not answer"),
        ("agent", "the agent of this machine does not answer"),
        ("version", f"speaks protocol {PROTOCOL + 1}, this plugin {PROTOCOL}"),
    ],
)
async def test_no_gpu_leaves_the_node_while_nothing_can_be_started(
    agent: Daemon,
    told: AsyncIterator[device_pb2.FingerprintResponse],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    away: str,
    said: str,
) -> None:
    first = await anext(told)
    assert [device.ID for group in first.device_group for device in group.devices] == ["GPU-0", "GPU-1"]
    match away:
        case "containerd":
            agent.containers.go_down()
        case "agent":
            agent.config.socket.rename(agent.config.socket.with_suffix(".away"))
        case _:
            monkeypatch.setattr(local_api, "PROTOCOL", PROTOCOL + 1)
    more = asyncio.ensure_future(anext(told))
    await until(lambda: said in caplog.text)
    await asyncio.wait({more}, timeout=QUIET_S)
    assert not more.done(), more.result()
    more.cancel()


async def test_a_gpu_that_falls_sick_while_containerd_is_away_is_told(
    agent: Daemon,
    told: AsyncIterator[device_pb2.FingerprintResponse],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await anext(told)
    agent.containers.go_down()
    more = asyncio.ensure_future(anext(told))
    await until(lambda: "the container runtime does not answer" in caplog.text)
    facts = Agent.facts
    gpus = tuple(GpuFacts.model_validate(gpu | {"fault": "Xid 79"}) for gpu in GPUS)
    monkeypatch.setattr(Agent, "facts", lambda agent: facts(agent).model_copy(update={"gpus": gpus}))
    (group,) = (await asyncio.wait_for(more, 30)).device_group
    assert [(device.ID, device.health_description) for device in group.devices] == [
        ("GPU-0", "Xid 79"),
        ("GPU-1", "Xid 79"),
    ]
