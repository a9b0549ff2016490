"""Our plugins as processes, before a host that speaks to them as Nomad does, with a whole agent behind them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgpack
import pytest
from google.protobuf.duration_pb2 import Duration

from astra_agent import local_api, namespaces
from astra_agent.agent import Agent
from astra_agent.errors import AstraError, InvalidRequest, NotFound
from astra_agent.wire import PROTOCOL, SlotRequest
from astra_driver.names import TaskId
from astra_driver.proto import device_pb2, driver_pb2
from tests.agent.daemon import Daemon, a_daemon
from tests.fakes.nomad_host import VERSIONS, PluginProcess, Version, scripts, start_driver

FIXTURES = Path(__file__).parents[1] / "fixtures" / "nomad-plugin"
BOUND_S = 40.0
RUNS_ON = {"image": "host", "command": "sh", "args": ["-c", "sleep 300"]}
FACTS = {
    "gpus": [
        {
            "index": 0,
            "uuid": "GPU-a",
            "model": "NVIDIA H200",
            "memory_bytes": 150_000_000_000,
            "pci_bus_id": "0000:3b:00.0",
        },
        {"index": 1, "uuid": "GPU-b", "model": "NVIDIA H200", "memory_bytes": 150_000_000_000},
        {"index": 2, "uuid": "GPU-c", "model": "NVIDIA T4", "memory_bytes": 16_000_000_000},
    ],
    "domains": {"nvlink": "rack-1"},
}


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Daemon]:
    facts = tmp_path / "facts.json"
    facts.write_text(json.dumps(FACTS))
    async with a_daemon(tmp_path / "agent", facts_file=facts) as made:
        yield made


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> Version:
    found: Version = request.param
    return found


@pytest.fixture
async def plugin(agent: Daemon) -> AsyncIterator[PluginProcess]:
    """The launch that serves, alone."""
    made = await PluginProcess.launch(scripts() / "astra-nomad-driver", "2.0.5")
    await made.set_config({"socket": str(agent.config.socket)})
    yield made
    await made.kill()


def task(name: str = "alloc1/w/start1", config: dict[str, Any] | None = None, **changes: Any) -> driver_pb2.TaskConfig:
    allocation, called, _ = name.split("/")
    values: dict[str, Any] = {
        "id": name,
        "name": called,
        "alloc_id": allocation,
        "job_id": "llama-sft",
        "namespace": "default",
        "alloc_dir": "/",
        "env": {"NOMAD_TASK_NAME": called},
        "stdout_path": "/dev/null",
        "stderr_path": "/dev/null",
        "msgpack_driver_config": msgpack.packb(RUNS_ON if config is None else config),
    }
    return driver_pb2.TaskConfig(**(values | changes))


@pytest.fixture(autouse=True)
def folders(tmp_path: Path) -> Path:
    """What Nomad makes for a task before it starts it."""
    for name in ("alloc", "w/local", "w/secrets"):
        (tmp_path / "allocation" / name).mkdir(parents=True)
    return tmp_path / "allocation"


async def start(plugin: PluginProcess, wanted: driver_pb2.TaskConfig) -> driver_pb2.TaskHandle:
    answer = await plugin.call("StartTask", driver_pb2.StartTaskRequest(task=wanted), timeout_s=5.0)
    handle: driver_pb2.TaskHandle = answer.handle
    assert handle.version != 0 and handle.state == driver_pb2.RUNNING
    assert handle.config == wanted, "a handle without the whole configuration loses the task at a client's restart"
    return handle


def container(name: str, attempt: int = 0) -> str:
    return f"{TaskId.parse(name).slot}-a{attempt}"


async def until_running(agent: Daemon, name: str, attempt: int = 0) -> None:
    async with asyncio.timeout(BOUND_S):
        while agent.containers.starts[container(name, attempt)] == 0:  # noqa: ASYNC110 -- another process starts it
            await asyncio.sleep(0.01)


def waiting(plugin: PluginProcess, name: str) -> asyncio.Task[Any]:
    return asyncio.create_task(plugin.call("WaitTask", driver_pb2.WaitTaskRequest(task_id=name), timeout_s=None))


# Start, health -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["astra-nomad-driver", "astra-nomad-device"])
async def test_a_plugin_is_launched_three_times_and_ends_in_time(agent: Daemon, version: Version, program: str) -> None:
    made = await start_driver(scripts() / program, version, {"socket": str(agent.config.socket)})
    stream = made.stream("Fingerprint", device=program.endswith("device"))
    await asyncio.wait_for(stream.read(), BOUND_S)
    stream.cancel()
    await made.kill()
    assert made.graceful, made.lines


async def test_the_driver_is_healthy_with_an_agent_and_says_why_not_without(
    plugin: PluginProcess, agent: Daemon
) -> None:
    stream = plugin.stream("Fingerprint")
    first = await stream.read()
    assert first.health == driver_pb2.FingerprintResponse.HEALTHY
    assert first.attributes["driver.astra.domain"].string_val == "rack-1"
    assert first.attributes["driver.astra.ready"].bool_val
    agent.containers.go_down()
    await agent.crash()
    second = await asyncio.wait_for(stream.read(), BOUND_S)
    assert second.health == driver_pb2.FingerprintResponse.UNHEALTHY
    assert "does not answer" in second.health_description
    stream.cancel()


async def test_what_the_machine_is_stays_told_while_containerd_is_away(plugin: PluginProcess, agent: Daemon) -> None:
    stream = plugin.stream("Fingerprint")
    first = await stream.read()
    agent.containers.go_down()
    await agent.crash()
    await agent.start()
    second = await asyncio.wait_for(stream.read(), BOUND_S)
    assert second.health == driver_pb2.FingerprintResponse.UNHEALTHY
    assert second.health_description == "the container runtime does not answer"
    assert not second.attributes["driver.astra.ready"].bool_val
    for name in ("domain", "tier", "gpus", "slot_network", "agent.version"):
        assert second.attributes[f"driver.astra.{name}"] == first.attributes[f"driver.astra.{name}"]
    stream.cancel()


@pytest.mark.parametrize(("more", "older"), [(1, "plugin"), (-1, "agent")])
async def test_an_agent_of_another_version_makes_the_driver_unhealthy_and_says_which_is_older(
    plugin: PluginProcess, agent: Daemon, monkeypatch: pytest.MonkeyPatch, more: int, older: str
) -> None:
    stream = plugin.stream("Fingerprint")
    first = await stream.read()
    await replace_by_another_version(agent, monkeypatch, more)
    second = await asyncio.wait_for(stream.read(), BOUND_S)
    assert second.health == driver_pb2.FingerprintResponse.UNHEALTHY
    assert second.health_description.endswith(f"{other_version(more)}; the {older} is the older one")
    assert not second.attributes["driver.astra.ready"].bool_val
    assert second.attributes["driver.astra.domain"] == first.attributes["driver.astra.domain"]
    monkeypatch.setattr(local_api, "PROTOCOL", PROTOCOL)
    assert (await asyncio.wait_for(stream.read(), BOUND_S)).health == driver_pb2.FingerprintResponse.HEALTHY
    stream.cancel()


def other_version(more: int = 1) -> str:
    return f"speaks protocol {PROTOCOL + more}, this plugin {PROTOCOL}: install the same version of both"


async def replace_by_another_version(agent: Daemon, monkeypatch: pytest.MonkeyPatch, more: int = 1) -> None:
    """As an update of one of the two packages does."""
    await agent.crash()
    monkeypatch.setattr(local_api, "PROTOCOL", PROTOCOL + more)
    await agent.start()


async def test_a_wrong_configuration_is_refused_in_words(agent: Daemon) -> None:
    made = await PluginProcess.launch(scripts() / "astra-nomad-driver", "2.0.5")
    with pytest.raises(grpc.aio.AioRpcError, match="config: sockett"):
        await made.set_config({"sockett": "/x"})
    await made.kill()


async def test_without_nomad_it_says_what_it_is() -> None:
    process = await asyncio.create_subprocess_exec(
        str(scripts() / "astra-nomad-driver"), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert (process.returncode, out) == (2, b"") and b"plugin of Nomad's" in err


# Tasks -------------------------------------------------------------------------------------------------------------


async def test_an_unknown_task_is_stopped_and_destroyed_already(plugin: PluginProcess) -> None:
    name = "nowhere/w/start1"
    await plugin.call("StopTask", driver_pb2.StopTaskRequest(task_id=name, timeout=Duration(seconds=5)))
    await plugin.call("DestroyTask", driver_pb2.DestroyTaskRequest(task_id=name, force=True))


async def test_a_slot_that_is_gone_is_recovered_and_has_ended(plugin: PluginProcess) -> None:
    handle = driver_pb2.TaskHandle(version=1, config=task("gone/w/start1"), state=driver_pb2.RUNNING)
    await plugin.call("RecoverTask", driver_pb2.RecoverTaskRequest(handle=handle))
    answer = await asyncio.wait_for(waiting(plugin, "gone/w/start1"), BOUND_S)
    assert answer.result.exit_code != 0 and "does not know it" in answer.err


async def test_waiting_goes_on_through_an_agents_absence(plugin: PluginProcess, agent: Daemon, folders: Path) -> None:
    name = "alloc1/w/start1"
    await start(plugin, task(name, alloc_dir=str(folders)))
    await until_running(agent, name)
    first, second = waiting(plugin, name), waiting(plugin, name)
    await agent.crash()
    await asyncio.sleep(0.5)
    assert not first.done() and not second.done()
    agent.containers.exit(container(name), 3)
    await agent.start()
    for answer in await asyncio.wait_for(asyncio.gather(first, second), BOUND_S):
        assert (answer.result.exit_code, answer.err) == (3, "")
    assert (await asyncio.wait_for(waiting(plugin, name), BOUND_S)).result.exit_code == 3


async def test_starting_without_an_agent_fails_recoverably(plugin: PluginProcess, agent: Daemon) -> None:
    await agent.crash()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await plugin.call("StartTask", driver_pb2.StartTaskRequest(task=task()))
    assert_recoverable(caught.value)


def assert_recoverable(error: grpc.aio.AioRpcError) -> None:
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    trailing: Any = error.trailing_metadata() or ()
    trailer = dict(trailing)["grpc-status-details-bin"]
    assert b"type.googleapis.com/hashicorp.nomad.plugins.shared.structs.RecoverableError" in trailer
    assert trailer.endswith(b"\x12\x02\x08\x01"), "recoverable = true"


@pytest.mark.parametrize("known", [True, False], ids=["heard before", "found out by the refusal"])
async def test_a_task_is_not_given_to_an_agent_of_another_version(
    plugin: PluginProcess, agent: Daemon, folders: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """One that takes it for a mistake in the job file: Nomad would not try again."""
    asked: list[str] = []

    def refuse(_: Agent, wanted: SlotRequest) -> None:
        asked.append(wanted.slot)
        raise InvalidRequest("hologram: Extra inputs are not permitted", "hologram")

    put_slot = Agent.put_slot
    monkeypatch.setattr(Agent, "put_slot", refuse)
    if not known:
        stream = plugin.stream("Fingerprint")
        await stream.read()
        monkeypatch.setattr(local_api, "PROTOCOL", PROTOCOL + 1)
        stream.cancel()
    else:
        await replace_by_another_version(agent, monkeypatch)
    with pytest.raises(grpc.aio.AioRpcError, match=other_version()) as caught:
        await plugin.call("StartTask", driver_pb2.StartTaskRequest(task=task(alloc_dir=str(folders))))
    assert_recoverable(caught.value)
    assert asked == ([] if known else ["alloc1-w"])
    monkeypatch.setattr(Agent, "put_slot", put_slot)
    monkeypatch.setattr(local_api, "PROTOCOL", PROTOCOL)
    await start(plugin, task("alloc1/w/start2", alloc_dir=str(folders)))


@pytest.mark.parametrize("refusal", [NotFound("there is no slot"), InvalidRequest("GET /v1/slots: Not Found")])
async def test_a_task_outlives_an_agent_of_another_version(
    plugin: PluginProcess, agent: Daemon, folders: Path, monkeypatch: pytest.MonkeyPatch, refusal: AstraError
) -> None:
    name = "alloc1/w/start1"
    handle = await start(plugin, task(name, alloc_dir=str(folders)))
    await until_running(agent, name)
    understood = Agent.wait, Agent.stop

    async def refuse(*_: Any) -> None:
        raise refusal

    def refuse_at_once(*_: Any) -> None:
        raise refusal

    ending = waiting(plugin, name)
    await agent.crash()
    monkeypatch.setattr(Agent, "wait", refuse)
    monkeypatch.setattr(Agent, "stop", refuse_at_once)
    await replace_by_another_version(agent, monkeypatch)
    await plugin.call("RecoverTask", driver_pb2.RecoverTaskRequest(handle=handle))
    request = driver_pb2.StopTaskRequest(task_id=name, timeout=Duration(seconds=5), signal="SIGINT")
    stopping = asyncio.create_task(plugin.call("StopTask", request, timeout_s=None))
    again = waiting(plugin, name)
    done, _ = await asyncio.wait({ending, again, stopping}, timeout=1.0)
    assert not done
    await agent.crash()
    monkeypatch.setattr(Agent, "wait", understood[0])
    monkeypatch.setattr(Agent, "stop", understood[1])
    await replace_by_another_version(agent, monkeypatch, more=0)
    await asyncio.wait_for(stopping, BOUND_S)
    for answer in await asyncio.wait_for(asyncio.gather(ending, again), BOUND_S):
        assert answer.result.exit_code == 130


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"image": "host", "shm_size": "much"}, 'shm_size is "much": expected a size'),
        ({"image": "host", "mounts": [{"source": "/etc", "target": "/e"}]}, "allows no mounts"),
        ({"image": "host", "cap_add": ["sys_admin"]}, "SYS_ADMIN is not allowed"),
    ],
)
async def test_a_mistake_in_the_job_file_is_no_reason_to_try_again(
    plugin: PluginProcess, config: dict[str, Any], said: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await plugin.call("StartTask", driver_pb2.StartTaskRequest(task=task(config=config)))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert said in str(caught.value.details())


async def test_out_of_memory_is_told_and_has_an_event(plugin: PluginProcess, agent: Daemon, folders: Path) -> None:
    events = plugin.stream("TaskEvents")
    reading = asyncio.create_task(events.read())
    await plugin.call("Capabilities")
    name = "alloc1/w/start1"
    await start(plugin, task(name, alloc_dir=str(folders)))
    await until_running(agent, name)
    agent.containers.exit(container(name), 137, oom=True)
    answer = await asyncio.wait_for(waiting(plugin, name), BOUND_S)
    assert answer.result.oom_killed and "Out of memory" in answer.err
    event = await asyncio.wait_for(reading, BOUND_S)
    assert (event.alloc_id, event.task_name, event.message) == ("alloc1", "w", "Out of memory")
    assert event.timestamp.seconds > 0
    events.cancel()


async def test_statistics_are_whole_and_the_stream_outlives_the_task(
    plugin: PluginProcess, agent: Daemon, folders: Path
) -> None:
    name = "alloc1/w/start1"
    await start(plugin, task(name, alloc_dir=str(folders)))
    await until_running(agent, name)
    request = driver_pb2.TaskStatsRequest(task_id=name, collection_interval=Duration(nanos=10_000_000))
    stream = plugin.stream("TaskStats", request)
    sample = await asyncio.wait_for(stream.read(), BOUND_S)
    assert sample.HasField("stats") and sample.stats.HasField("agg_resource_usage") and sample.stats.timestamp.seconds
    assert sample.stats.agg_resource_usage.memory.rss == 4096
    agent.containers.exit(container(name), 0)
    await asyncio.wait_for(waiting(plugin, name), BOUND_S)
    assert not stream.done()
    stream.cancel()


async def test_a_gang_member_waits_at_the_barrier_and_says_so(
    plugin: PluginProcess, agent: Daemon, folders: Path
) -> None:
    events = plugin.stream("TaskEvents")
    reading = asyncio.create_task(events.read())
    await plugin.call("Capabilities")
    env = {"NOMAD_META_astra_start": "Gang"}
    await start(plugin, task(alloc_dir=str(folders), env=env))
    event = await asyncio.wait_for(reading, BOUND_S)
    assert event.message == "Waiting at the gang barrier"
    assert not agent.containers.names()
    events.cancel()


@pytest.fixture
def netns(tmp_path: Path) -> Iterator[Path]:
    """As Nomad has made it, with an address."""
    path = tmp_path / "alloc1.net"
    namespaces.make(path)
    # Where nobody gives it a link, loopback has what an interface of its own would.
    give = ("ip", "address", "add", "172.26.64.9/32", "dev", "lo")
    subprocess.run(("nsenter", f"--net={path}", *give), check=True)
    yield path
    namespaces.remove(path)


@pytest.mark.containers
async def test_a_task_in_a_network_of_nomads_making_has_its_name_at_its_address_there(
    plugin: PluginProcess, agent: Daemon, folders: Path, netns: Path
) -> None:
    """Nomad tells the driver of the namespace and, but for Docker's, not of the address."""
    name = "alloc1/w/start1"
    spec = driver_pb2.NetworkIsolationSpec(mode=driver_pb2.NetworkIsolationSpec.GROUP, path=str(netns))
    await start(plugin, task(name, alloc_dir=str(folders), network_isolation_spec=spec))
    await until_running(agent, name)
    plan = agent.containers.plan(container(name))
    assert plan.netns == str(netns)
    hosts = next(Path(mount.source) for mount in plan.mounts if mount.target == "/etc/hosts")
    assert f"172.26.64.9 {plan.hostname}\n" in hosts.read_text()


async def test_the_signal_of_a_stop_is_the_jobs(plugin: PluginProcess, agent: Daemon, folders: Path) -> None:
    name = "alloc1/w/start1"
    await start(plugin, task(name, alloc_dir=str(folders)))
    await until_running(agent, name)
    request = driver_pb2.StopTaskRequest(task_id=name, timeout=Duration(seconds=5), signal="SIGINT")
    await plugin.call("StopTask", request)
    answer = await asyncio.wait_for(waiting(plugin, name), BOUND_S)
    assert answer.result.exit_code == 130
    assert agent.containers.signals == [(container(name), 2)]


# Exec --------------------------------------------------------------------------------------------------------------


async def _exec(
    plugin: PluginProcess, name: str, *command: str, stdin: bytes = b"", tty: bool = False
) -> tuple[bytes, bytes, int]:
    async def requests() -> AsyncIterator[driver_pb2.ExecTaskStreamingRequest]:
        setup = driver_pb2.ExecTaskStreamingRequest.Setup(task_id=name, command=command, tty=tty)
        yield driver_pb2.ExecTaskStreamingRequest(setup=setup)
        if tty:
            size = driver_pb2.ExecTaskStreamingRequest.TerminalSize(width=132, height=50)
            yield driver_pb2.ExecTaskStreamingRequest(tty_size=size)
        yield driver_pb2.ExecTaskStreamingRequest()
        operation = driver_pb2.ExecTaskStreamingIOOperation
        if stdin:
            yield driver_pb2.ExecTaskStreamingRequest(stdin=operation(data=stdin))
        yield driver_pb2.ExecTaskStreamingRequest(stdin=operation(close=True))
        await asyncio.Event().wait()

    out, err = b"", b""
    async with asyncio.timeout(BOUND_S):
        async for answer in plugin.exec_stream(requests()):
            out += answer.stdout.data
            err += answer.stderr.data
            if answer.exited:
                assert answer.HasField("result")
                return out, err, answer.result.exit_code
    raise AssertionError("it ended without an exit code")


async def test_exec_streams_output_input_and_the_exit_code(plugin: PluginProcess, agent: Daemon, folders: Path) -> None:
    name = "alloc1/w/start1"
    await start(plugin, task(name, alloc_dir=str(folders)))
    await until_running(agent, name)
    assert await _exec(plugin, name, "sh", "-c", "echo out; exit 7") == (b"out\n", b"", 7)
    assert await _exec(plugin, name, "cat", stdin=b"hello") == (b"hello", b"", 0)
    assert await _exec(plugin, name, "sh", "-c", "cat", stdin=b"x", tty=True) == (b"x", b"", 0)
    assert agent.containers.execs[-1].size == (132, 50)
    _, said, code = await _exec(plugin, name, "/no/such")
    assert b"/no/such" in said and code != 0


async def test_a_script_runs_within_its_time(plugin: PluginProcess, agent: Daemon, folders: Path) -> None:
    name = "alloc1/w/start1"
    await start(plugin, task(name, alloc_dir=str(folders)))
    await until_running(agent, name)
    request = driver_pb2.ExecTaskRequest(
        task_id=name, command=["sh", "-c", "echo ok; exit 4"], timeout=Duration(seconds=7)
    )
    answer = await plugin.call("ExecTask", request)
    assert (answer.stdout, answer.result.exit_code) == (b"ok\n", 4)
    slow = driver_pb2.ExecTaskRequest(task_id=name, command=["sh", "-c", "sleep 9"], timeout=Duration(nanos=50_000_000))
    with pytest.raises(grpc.aio.AioRpcError, match="did not end within"):
        await plugin.call("ExecTask", slow)


async def test_an_unknown_signal_is_refused(plugin: PluginProcess, agent: Daemon, folders: Path) -> None:
    name = "alloc1/w/start1"
    await start(plugin, task(name, alloc_dir=str(folders)))
    await until_running(agent, name)
    await plugin.call("SignalTask", driver_pb2.SignalTaskRequest(task_id=name, signal="SIGHUP"))
    assert agent.containers.signals == [(container(name), 1)]
    with pytest.raises(grpc.aio.AioRpcError, match="SIGFOO"):
        await plugin.call("SignalTask", driver_pb2.SignalTaskRequest(task_id=name, signal="SIGFOO"))


# Devices -----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def devices(agent: Daemon) -> AsyncIterator[PluginProcess]:
    made = await PluginProcess.launch(scripts() / "astra-nomad-device", "2.0.5")
    await made.set_config({"socket": str(agent.config.socket)})
    yield made
    await made.kill()


async def test_gpus_are_grouped_by_model_with_their_attributes(devices: PluginProcess) -> None:
    stream = devices.stream("Fingerprint", device=True)
    groups = (await asyncio.wait_for(stream.read(), BOUND_S)).device_group
    assert [(group.vendor, group.device_type, group.device_name) for group in groups] == [
        ("nvidia", "gpu", "NVIDIA-H200"),
        ("nvidia", "gpu", "NVIDIA-T4"),
    ]
    first = groups[0]
    assert [(device.ID, device.healthy, device.health_description) for device in first.devices] == [
        ("GPU-a", True, ""),
        ("GPU-b", True, ""),
    ]
    assert first.devices[0].hw_locality.pci_bus_id == "0000:3b:00.0"
    assert (first.attributes["memory"].int_val, first.attributes["memory"].unit) == (143051, "MiB")
    assert first.attributes["nvlink_domain"].string_val == "rack-1"
    stream.cancel()


async def test_a_reservation_is_environment_only(devices: PluginProcess) -> None:
    stream = devices.stream("Fingerprint", device=True)
    await asyncio.wait_for(stream.read(), BOUND_S)
    answer = await devices.call("Reserve", device_pb2.ReserveRequest(device_ids=["GPU-a"]))
    assert dict(answer.container_res.envs) == {"NVIDIA_VISIBLE_DEVICES": "GPU-a"}
    assert answer.container_res.SerializeToString().count(b"GPU-a") == 1
    with pytest.raises(grpc.aio.AioRpcError, match="GPU-x is not on this machine"):
        await devices.call("Reserve", device_pb2.ReserveRequest(device_ids=["GPU-x"]))
    stream.cancel()


@contextlib.asynccontextmanager
async def the_rival(folder: Path) -> AsyncIterator[None]:
    """Nomad's own plugin by its name, a child of whoever has started ours."""
    process = await asyncio.create_subprocess_exec(
        str(folder / "nomad-device-nvidia"), "-c", "read line", executable="/bin/sh", stdin=asyncio.subprocess.PIPE
    )
    try:
        yield
    finally:
        process.kill()
        await process.wait()


async def test_no_gpu_is_given_away_while_nomads_own_plugin_runs_beside(devices: PluginProcess, tmp_path: Path) -> None:
    stream = devices.stream("Fingerprint", device=True)
    said = "nomad-device-nvidia runs beside Astraeus's device plugin"
    wanted = device_pb2.ReserveRequest(device_ids=["GPU-a"])
    async with the_rival(tmp_path):
        groups = (await asyncio.wait_for(stream.read(), BOUND_S)).device_group
        told = [(device.ID, device.healthy) for group in groups for device in group.devices]
        assert told == [("GPU-a", False), ("GPU-b", False), ("GPU-c", False)]
        assert all(device.health_description.startswith(said) for group in groups for device in group.devices)
        with pytest.raises(grpc.aio.AioRpcError, match=said) as caught:
            await devices.call("Reserve", wanted)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert any("device_plugin_beside_another" in line for line in devices.lines)
    await devices.call("Reserve", wanted)
    stream.cancel()


async def test_a_task_with_gpus_gets_them_by_their_index(plugin: PluginProcess, agent: Daemon, folders: Path) -> None:
    """After a client's restart the environment is all that is left of a reservation."""
    wanted = task(alloc_dir=str(folders), device_env={"NVIDIA_VISIBLE_DEVICES": "GPU-c"})
    await start(plugin, wanted)
    _, document = await agent.ask("GET", "/v1/slots/alloc1-w")
    assert document["slot"] == "alloc1-w"
    assert agent.config.state_dir.joinpath("records", "alloc1-w.json").read_text().count('"gpus":[2]') == 1
    vanished = task("alloc2/w/start1", alloc_dir=str(folders), device_env={"NVIDIA_VISIBLE_DEVICES": "GPU-z"})
    with pytest.raises(grpc.aio.AioRpcError, match="GPU-z is not on this machine any more"):
        await plugin.call("StartTask", driver_pb2.StartTaskRequest(task=vanished))
