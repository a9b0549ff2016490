"""From the agent's facts to what Nomad schedules: groups of devices. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from astra_agent.wire import GpuFacts, MachineFacts
from astra_driver.proto.device_pb2 import DetectedDevice, DeviceGroup, DeviceLocality, FingerprintResponse
from astra_driver.proto.structs_pb2 import Attribute

VENDOR, TYPE = "nvidia", "gpu"
UNKNOWN_MODEL = "unknown"
_MIB = 1024**2
_TIERS = ("nvlink", "infiniband", "rdma", "ethernet")
_UNITS = frozenset({"", "MiB", "GB/s"})


def groups(facts: MachineFacts, trouble: str | None) -> FingerprintResponse:
    """
    One group for each model, checked: Nomad turns a plugin off for good that sends an invalid one.

    Args:
        trouble: A sentence when no device may be given to anybody now.
    """
    by_model: dict[str, list[GpuFacts]] = {}
    for gpu in facts.gpus:
        by_model.setdefault(_name(gpu.model), []).append(gpu)
    made = [_group(model, gpus, facts, trouble) for model, gpus in sorted(by_model.items())]
    return FingerprintResponse(device_group=[group for group in made if is_valid(group)])


def is_valid(group: DeviceGroup) -> bool:
    """By the rules that Nomad checks, and by ours: an ID is there once."""
    ids = [device.ID for device in group.devices]
    return (
        bool(group.vendor and group.device_type and group.device_name)
        and bool(ids)
        and all(ids)
        and len(set(ids)) == len(ids)
        and all(_is_valid_attribute(attribute) for attribute in group.attributes.values())
    )


def unknown_ids(facts: MachineFacts, ids: Sequence[str]) -> tuple[str, ...]:
    known = {gpu.uuid for gpu in facts.gpus}
    return tuple(one for one in ids if one not in known)


def _is_valid_attribute(attribute: Attribute) -> bool:
    kind = attribute.WhichOneof("value")
    return kind is not None and attribute.unit in _UNITS and (not attribute.unit or kind in ("int_val", "float_val"))


def _group(model: str, gpus: Sequence[GpuFacts], facts: MachineFacts, trouble: str | None) -> DeviceGroup:
    return DeviceGroup(
        vendor=VENDOR,
        device_type=TYPE,
        device_name=model,
        devices=[_device(gpu, trouble) for gpu in gpus],
        attributes=_attributes(gpus, facts),
    )


def _device(gpu: GpuFacts, trouble: str | None) -> DetectedDevice:
    sick = gpu.fault or trouble
    locality = DeviceLocality(pci_bus_id=gpu.pci_bus_id) if gpu.pci_bus_id else None
    return DetectedDevice(ID=gpu.uuid, healthy=sick is None, health_description=sick or "", hw_locality=locality)


def _attributes(gpus: Sequence[GpuFacts], facts: MachineFacts) -> Mapping[str, Attribute]:
    """What is the same for all of the group. Numbers with their unit: a text is never compared with a number."""
    found: dict[str, Attribute] = {}
    memory = {gpu.memory_bytes // _MIB for gpu in gpus}
    if len(memory) == 1 and (size := memory.pop()):
        found["memory"] = Attribute(int_val=size, unit="MiB")
    nodes = {gpu.numa_node for gpu in gpus}
    if len(nodes) == 1 and (node := nodes.pop()) is not None:
        found["numa_node"] = Attribute(int_val=node)
    domains: Mapping[str, str] = {str(tier): name for tier, name in facts.domains.items()}
    if tier := next((tier for tier in _TIERS if tier in domains), None):
        found["tier"] = Attribute(string_val=tier)
        found["domain"] = Attribute(string_val=domains[tier])
    if nvlink := domains.get("nvlink"):
        found["nvlink_domain"] = Attribute(string_val=nvlink)
    return found


def _name(model: str) -> str:
    """As a job file can write it: `nvidia/gpu/H200`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", model.strip()).strip("-") or UNKNOWN_MODEL
