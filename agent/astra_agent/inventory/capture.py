"""A captured machine: one JSON document with its files, links, devices and what its GPU library answered."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from astra_agent.errors import InvalidRequest
from astra_agent.inventory.library import MISSING, GpuReading, LibraryReading
from astra_agent.inventory.model import Fabric, MigDevice
from astra_agent.inventory.tree import CapturedTree

FORMAT_NOTE = "a captured machine is one JSON object with files, links, errors, devices and nvml"


class _Json(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Fabric(_Json):
    state: int
    status: int = 0
    cluster_uuid: str = ""
    clique_id: int = 0
    health_mask: int = 0
    health_summary: int = 0

    def value(self) -> Fabric:
        return Fabric(self.state, self.status, self.cluster_uuid, self.clique_id, self.health_mask, self.health_summary)


class _Rows(_Json):
    failed: int = 0


class _Links(_Json):
    links: int = 0
    active: int = 0


class _Mig(_Json):
    uuid: str
    gpu_instance: int = 0
    compute_instance: int = 0
    memory_total_bytes: int | None = None


class _Gpu(_Json):
    index: int
    error: int = 0
    uuid: str | None = None
    name: str | None = None
    minor_number: int | None = None
    pci_bus_id: str | None = None
    memory_total_bytes: int | None = None
    cpu_affinity: str | None = None
    memory_affinity_nodes: tuple[int, ...] | None = None
    numa_node_id: int | None = None
    mig_mode: tuple[int, int] | None = None
    mig_devices: tuple[_Mig, ...] = ()
    fabric: _Fabric | None = None
    recovery_action: int | None = None
    remapped_rows: _Rows | None = None
    nvlink: _Links | None = None

    def value(self) -> GpuReading:
        return GpuReading(
            index=self.index,
            error=self.error,
            uuid=self.uuid,
            name=self.name,
            minor=self.minor_number,
            pci=self.pci_bus_id,
            memory_bytes=self.memory_total_bytes,
            cpus=self.cpu_affinity,
            memory_nodes=self.memory_affinity_nodes,
            memory_node=self.numa_node_id,
            mig=bool(self.mig_mode[0]) if self.mig_mode is not None else None,
            mig_devices=tuple(
                MigDevice(mig.uuid, mig.gpu_instance, mig.compute_instance, mig.memory_total_bytes)
                for mig in self.mig_devices
            ),
            fabric=self.fabric.value() if self.fabric else None,
            recovery=self.recovery_action,
            failed_rows=bool(self.remapped_rows.failed) if self.remapped_rows else None,
            links=(self.nvlink.links, self.nvlink.active) if self.nvlink else None,
        )


class _Platform(_Json):
    chassis_serial: str = ""


class _Nvml(_Json):
    init_error: int = 0
    driver_version: str | None = None
    nvml_version: str | None = None
    cuda_driver_version: int | None = None
    device_count: int | None = None
    platform_info: _Platform | None = None
    devices: tuple[_Gpu, ...] = ()

    def value(self) -> LibraryReading:
        cuda = self.cuda_driver_version
        library = re.fullmatch(r"[0-9]+\.([0-9]{3,}\..*)", self.nvml_version or "")
        return LibraryReading(
            error=self.init_error,
            driver=self.driver_version,
            library=library[1] if library else self.driver_version,
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
            count=self.device_count if self.device_count is not None else len(self.devices),
            gpus=tuple(gpu.value() for gpu in self.devices),
            chassis=self.platform_info.chassis_serial if self.platform_info else "",
        )


class _Capture(_Json):
    files: dict[str, str]
    links: dict[str, str] = {}
    errors: dict[str, str] = {}
    devices: dict[str, tuple[int, int]] = {}
    nvml: _Nvml | None = None


def parse(document: Mapping[str, object], name: str) -> tuple[CapturedTree, LibraryReading]:
    """
    The tree and the library's answers of a captured machine; *name* is what the document is called in a message.

    Raises:
        InvalidRequest: It is none; the message names the field.
    """
    try:
        capture = _Capture.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"]) or "the top"
        raise InvalidRequest(
            f"{name} is no captured machine, wrong at {where}: {first['msg']}; {FORMAT_NOTE}"
        ) from error
    tree = CapturedTree(
        files={path: text.encode("utf-8", "surrogateescape") for path, text in capture.files.items()},
        links=capture.links,
        errors=capture.errors,
        devices=capture.devices,
    )
    return tree, capture.nvml.value() if capture.nvml is not None else MISSING


def write(
    files: Mapping[str, bytes],
    links: Mapping[str, str],
    errors: Mapping[str, str],
    devices: Mapping[str, tuple[int, int]],
    library: LibraryReading,
) -> dict[str, Any]:
    """A captured machine as a document, which `parse` reads. Bytes that are no text are kept as surrogates."""
    return {
        "files": {path: files[path].decode("utf-8", "surrogateescape") for path in sorted(files)},
        "links": {path: links[path] for path in sorted(links)},
        "errors": {path: errors[path] for path in sorted(errors)},
        "devices": {path: list(devices[path]) for path in sorted(devices)},
        "nvml": _library(library),
    }


def _library(library: LibraryReading) -> dict[str, Any] | None:
    if library == MISSING:
        return None
    cuda = [int(part) for part in (library.cuda or "0.0").split(".")]
    return {
        "init_error": library.error,
        "driver_version": library.driver,
        "nvml_version": f"{cuda[0]}.{library.library}" if library.library else None,
        "cuda_driver_version": cuda[0] * 1000 + cuda[1] * 10 or None,
        "device_count": library.count,
        "platform_info": {"chassis_serial": library.chassis},
        "devices": [_gpu(gpu) for gpu in library.gpus],
    }


def _gpu(gpu: GpuReading) -> dict[str, Any]:
    fabric = gpu.fabric
    return {
        "index": gpu.index,
        "error": gpu.error,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "minor_number": gpu.minor,
        "pci_bus_id": gpu.pci,
        "memory_total_bytes": gpu.memory_bytes,
        "cpu_affinity": gpu.cpus,
        "memory_affinity_nodes": list(gpu.memory_nodes) if gpu.memory_nodes is not None else None,
        "numa_node_id": gpu.memory_node,
        "mig_mode": [int(gpu.mig)] * 2 if gpu.mig is not None else None,
        "mig_devices": [
            {
                "uuid": mig.uuid,
                "gpu_instance": mig.gpu_instance,
                "compute_instance": mig.compute_instance,
                "memory_total_bytes": mig.memory_bytes,
            }
            for mig in gpu.mig_devices
        ],
        "fabric": {
            "state": fabric.state,
            "status": fabric.status,
            "cluster_uuid": fabric.cluster,
            "clique_id": fabric.clique,
            "health_mask": fabric.health_mask,
            "health_summary": fabric.health_summary,
        }
        if fabric is not None
        else None,
        "recovery_action": gpu.recovery,
        "remapped_rows": {"failed": int(gpu.failed_rows)} if gpu.failed_rows is not None else None,
        "nvlink": {"links": gpu.links[0], "active": gpu.links[1]} if gpu.links is not None else None,
    }
