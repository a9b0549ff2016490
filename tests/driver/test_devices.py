"""GPUs as Nomad schedules them. One invalid group turns the plugin off for good."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astra_agent.wire import GpuFacts, MachineFacts
from astra_driver.devices import groups, is_valid, unknown_ids
from astra_driver.proto.device_pb2 import DetectedDevice, DeviceGroup
from astra_driver.proto.structs_pb2 import Attribute
from astra_driver.rival import rival_sentence


def facts(*gpus: GpuFacts, **changes: Any) -> MachineFacts:
    return MachineFacts(name="m", address="10.0.0.1", cpu_cores=8, memory_bytes=1, gpus=gpus, **changes)


def gpu(index: int, model: str = "H200", **changes: Any) -> GpuFacts:
    return GpuFacts(index=index, uuid=f"GPU-{index}", model=model, **changes)


def test_models_are_groups_with_names_that_a_job_file_can_write() -> None:
    made = groups(facts(gpu(0, "NVIDIA H100 80GB HBM3"), gpu(1, "")), None).device_group
    assert [group.device_name for group in made] == ["NVIDIA-H100-80GB-HBM3", "unknown"]
    assert all(is_valid(group) for group in made)


def test_a_machine_without_gpus_has_no_group() -> None:
    assert list(groups(facts(), None).device_group) == []


def test_what_differs_within_a_group_is_no_attribute_of_it() -> None:
    same = groups(facts(gpu(0, memory_bytes=2**34, numa_node=0), gpu(1, memory_bytes=2**34, numa_node=0)), None)
    assert same.device_group[0].attributes["memory"] == Attribute(int_val=16384, unit="MiB")
    assert same.device_group[0].attributes["numa_node"] == Attribute(int_val=0)
    other = groups(facts(gpu(0, memory_bytes=2**34, numa_node=0), gpu(1, memory_bytes=2**33, numa_node=1)), None)
    assert not set(other.device_group[0].attributes) & {"memory", "numa_node"}


def test_the_tightest_tier_and_its_domain_are_attributes() -> None:
    made = groups(facts(gpu(0), domains={"infiniband": "fabric-a", "nvlink": "rack-1"}), None).device_group[0]
    assert made.attributes["tier"].string_val == "nvlink"
    assert (made.attributes["domain"].string_val, made.attributes["nvlink_domain"].string_val) == ("rack-1", "rack-1")


def test_trouble_of_the_machine_makes_every_gpu_sick_with_the_reason() -> None:
    made = groups(facts(gpu(0), gpu(1, fault="Xid 79")), "another plugin runs")
    assert [(device.healthy, device.health_description) for device in made.device_group[0].devices] == [
        (False, "another plugin runs"),
        (False, "Xid 79"),
    ]


def test_an_invalid_group_is_never_sent() -> None:
    twice = facts(gpu(0), gpu(0))
    assert list(groups(twice, None).device_group) == []
    group = DeviceGroup(vendor="nvidia", device_type="gpu", device_name="x", devices=[DetectedDevice(ID="a")])
    assert is_valid(group)
    for bad in (Attribute(), Attribute(string_val="x", unit="MiB"), Attribute(int_val=1, unit="parsec")):
        wrong = DeviceGroup()
        wrong.CopyFrom(group)
        wrong.attributes["memory"].CopyFrom(bad)
        assert not is_valid(wrong)


def test_devices_that_are_not_there_are_named() -> None:
    assert unknown_ids(facts(gpu(0)), ["GPU-0", "GPU-9"]) == ("GPU-9",)


def test_nomads_own_plugin_beside_ours_is_found(tmp_path: Path) -> None:
    for pid, parent, program in ((7, 1, "/opt/plugins/other"), (8, 5, "/opt/plugins/nomad-device-nvidia"), (9, 4, "")):
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "cmdline").write_bytes(f"{program}\0--flag\0".encode())
        (folder / "stat").write_text(f"{pid} (a (strange) name) S {parent} 0 0")
    (tmp_path / "10").mkdir()
    assert rival_sentence(parent=1, proc=tmp_path) is None
    sentence = rival_sentence(parent=5, proc=tmp_path)
    assert sentence is not None and "remove one of the two from plugin_dir" in sentence
