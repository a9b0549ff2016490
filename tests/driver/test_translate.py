"""From a task of Nomad's to a slot: what was recorded, and case by case."""

from __future__ import annotations

import json
import posixpath
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict

from astra_agent.errors import InvalidRequest
from astra_agent.wire import Dns, JoinedNetwork, LogFifos
from astra_driver.proto.driver_pb2 import TaskConfig
from astra_driver.settings import PluginSettings, TaskSettings
from astra_driver.translate import Machine, slot_request

FIXTURES = Path(__file__).parents[1] / "fixtures" / "nomad-plugin"
MACHINE = Machine(cpus=8, gpus={"GPU-a": 0, "GPU-b": 1}, real_path=posixpath.normpath)
ALL = PluginSettings(allow_mounts=("/",), allow_devices=("/dev",), allow_caps=("ALL",))


def recorded(case: str, version: str = "2.0.5") -> TaskConfig:
    document = json.loads((FIXTURES / f"start_task.{version}.{case}.json").read_text())
    document.pop("msgpack_driver_config", None)
    document.pop("device_env", None)
    return ParseDict(document, TaskConfig())


def request(task: TaskConfig | None = None, plugin: PluginSettings = ALL, **settings: Any) -> Any:
    return slot_request(task or recorded("cores"), TaskSettings(image="host", **settings), plugin, MACHINE)


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("start_task.*.json")), ids=lambda path: path.stem)
def test_every_recorded_task_becomes_a_slot(path: Path) -> None:
    _, version, rest = path.name.split(".", 1)[0], path.name[11:16], path.name[17:-5]
    task = recorded(rest, version)
    wanted = request(task)
    assert wanted.engine_ref == f"{task.alloc_id}/{task.name}"
    assert wanted.env == dict(task.env)
    assert wanted.memory_bytes == task.resources.linux_resources.memory_limit_bytes > 0
    assert [mount.mount_path for mount in wanted.mounts[:3]] == ["/alloc", "/local", "/secrets"]


def test_cores_are_the_only_ones_it_runs_on() -> None:
    assert request(recorded("cores")).cpus != ""
    assert request(recorded("identity")).cpus == ""


def test_a_hard_limit_of_processor_is_the_tasks_share_of_the_machine() -> None:
    task = recorded("identity")
    assert request(task).cpu_cores == 0.0
    share = task.resources.linux_resources.PercentTicks
    assert request(task, cpu_hard_limit=True).cpu_cores == pytest.approx(8 * share)


def test_memory_beyond_what_is_reserved() -> None:
    task = TaskConfig(id="a/w/1", name="w", alloc_id="a")
    task.resources.linux_resources.memory_limit_bytes = 512 * 1024**2
    task.resources.allocated_resources.memory.memory_mb = 256
    task.resources.allocated_resources.memory.memory_max_mb = 512
    assert (request(task).memory_bytes, request(task).memory_reserved_bytes) == (512 * 1024**2, 256 * 1024**2)
    task.resources.allocated_resources.memory.memory_max_mb = -1
    assert (request(task).memory_bytes, request(task).memory_reserved_bytes) == (0, 256 * 1024**2)


def test_logs_go_to_nomads_fifos_unless_the_job_has_turned_them_off() -> None:
    task = recorded("identity")
    assert request(task).fifos == LogFifos(stdout=task.stdout_path, stderr=task.stderr_path)
    assert request(recorded("logs-disabled")).fifos is None


def test_a_network_of_nomads_is_joined_with_its_names() -> None:
    wanted = request(recorded("netns-dns", "1.6.5"))
    assert isinstance(wanted.network, JoinedNetwork) and wanted.network.netns.startswith("/var/run/netns/")
    assert isinstance(wanted.dns, Dns) and wanted.dns.servers
    assert request(recorded("identity")).network is None


def test_the_job_says_whether_it_is_a_gang() -> None:
    assert request(recorded("gpu-batch")).starts == "when_told"
    assert request(recorded("identity")).starts == "when_ready"


def test_a_user_of_the_job_or_of_nomads_making_is_passed_on() -> None:
    assert request(recorded("dynamic-user")).user == recorded("dynamic-user").user != ""


def test_gpus_are_found_by_the_one_variable_that_a_clients_restart_keeps() -> None:
    task = recorded("identity")
    task.device_env["NVIDIA_VISIBLE_DEVICES"] = "GPU-b,GPU-a"
    assert request(task).gpus == (0, 1)
    task.device_env["NVIDIA_VISIBLE_DEVICES"] = "GPU-z"
    with pytest.raises(InvalidRequest, match="GPU GPU-z is not on this machine any more"):
        request(task)
    task.device_env.clear()
    task.env["NVIDIA_VISIBLE_DEVICES"] = "all"
    assert request(task).gpus == ()


def test_a_command_stands_in_for_the_images_own_and_arguments_alone_do_not() -> None:
    assert request(command="sh", args=("-c", "x")).command == ("sh", "-c", "x")
    alone = request(args=("--flag",))
    assert (alone.command, alone.args) == ((), ("--flag",))


def mounts(**mount: Any) -> list[dict[str, Any]]:
    return [{"target": "/x", **mount}]


def test_mounts_are_within_what_the_operator_allows() -> None:
    some = PluginSettings(allow_mounts=("/data",))
    assert request(plugin=some, mounts=mounts(source="/data/set")).mounts[-1].source == "/data/set"
    for source in ("/database", "/etc", "/data/../etc"):
        with pytest.raises(InvalidRequest, match=r"mount\.source is .* allows mounts from /data only"):
            request(plugin=some, mounts=mounts(source=source))
    with pytest.raises(InvalidRequest, match="allows no mounts"):
        request(plugin=PluginSettings(), mounts=mounts(source="/data"))


def test_a_link_does_not_lead_out_of_the_tasks_own_folder() -> None:
    task = recorded("identity")
    inside = request(task, PluginSettings(), mounts=mounts(source="local/model")).mounts[-1].source
    assert inside == f"{task.alloc_dir}/{task.name}/local/model"
    machine = Machine(8, {}, lambda path: "/etc" if path.endswith("/local/link") else path)
    settings = TaskSettings(image="host", mounts=mounts(source="local/link"))
    with pytest.raises(InvalidRequest, match="inside of the task's own folder"):
        slot_request(task, settings, PluginSettings(), machine)


def test_capabilities_are_what_the_operator_allows() -> None:
    assert request(plugin=PluginSettings(), cap_add=("CAP_ipc_lock",)).cap_add == ("IPC_LOCK",)
    with pytest.raises(InvalidRequest, match="SYS_ADMIN is not allowed on this machine"):
        request(plugin=PluginSettings(), cap_add=("SYS_ADMIN",))
    few = PluginSettings(allow_caps=("CHOWN", "KILL"))
    assert "MKNOD" in request(plugin=few).cap_drop and "CHOWN" not in request(plugin=few).cap_drop


def test_devices_are_within_what_the_operator_allows() -> None:
    node = {"host_path": "/dev/fuse"}
    assert request(devices=[node]).devices[-1].device_path == "/dev/fuse"
    with pytest.raises(InvalidRequest, match=r"device\.host_path is /dev/fuse"):
        request(plugin=PluginSettings(), devices=[node])
