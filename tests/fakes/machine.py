"""
A machine written down in a few lines, as a captured one: real sysfs layout, so that links and paths work as on a host.

    machine = Machine("gpu-1", nodes={0: "0-31"})
    machine.gpu("0000:01:01.0/0000:02:00.0/0000:04:00.0")
    machine.rdma("mlx5_0", "0000:01:01.0/0000:02:01.0/0000:05:00.0", rate="400 Gb/sec (4X NDR)")
"""

from __future__ import annotations

import posixpath
from typing import Any

from astra_agent.inventory.capture import parse
from astra_agent.inventory.library import LibraryReading
from astra_agent.inventory.tree import CapturedTree

ZERO_UUID = "00000000-0000-0000-0000-000000000000"
ALONE = {"state": 3, "status": 0, "cluster_uuid": ZERO_UUID, "clique_id": 0, "health_mask": 0, "health_summary": 0}
UNSUPPORTED = {**ALONE, "state": 0}
STATES = {1: "1: DOWN", 2: "2: INIT", 3: "3: ARMED", 4: "4: ACTIVE", 5: "5: ACTIVE_DEFER"}
PHYSICAL = {2: "2: Polling", 3: "3: Disabled", 5: "5: LinkUp"}
EMPTY_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
DEFAULT_PREFIX = "fe80:0000:0000:0000"


class Machine:
    """
    Places are PCI addresses below the root complex, joined by slashes: `<root port>/<switch>/<function>`. A place with
    a leading slash is taken as it is, below `/sys/devices`.
    """

    def __init__(self, name: str, nodes: dict[int, str], *, memory: str | None = None, route: str = "") -> None:
        self.files: dict[str, str] = {}
        self.links: dict[str, str] = {}
        self.errors: dict[str, str] = {}
        self.devices: dict[str, list[int]] = {}
        self.gpus: list[dict[str, Any]] = []
        self.nvml: dict[str, Any] | None = None
        self.nodes = nodes
        self.majors = {"mem": 1, "misc": 10}
        numbers = sorted(nodes)
        self.file("/proc/sys/kernel/hostname", name)
        self.file("/sys/devices/system/cpu/online", ",".join(nodes[number] for number in numbers))
        self.file("/sys/devices/system/node/has_cpu", ",".join(map(str, numbers)))
        self.file("/sys/devices/system/node/has_memory", memory or ",".join(map(str, numbers)))
        for number in numbers:
            self.file(f"/sys/devices/system/node/node{number}/cpulist", nodes[number])
        self.route(route)

    def file(self, path: str, text: str) -> None:
        self.files[path] = f"{text}\n"

    def link(self, path: str, target: str) -> None:
        """*target* absolute; written relative, as sysfs does."""
        self.links[path] = posixpath.relpath(target, posixpath.dirname(path))

    def cores(self, *pairs: tuple[int, int]) -> None:
        """Processors that share a core, two and two."""
        for pair in pairs:
            for cpu in pair:
                text = ",".join(map(str, pair))
                self.file(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", text)

    def route(self, netdev: str) -> None:
        header = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"
        line = f"\n{netdev}\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0" if netdev else ""
        self.file("/proc/net/route", header + line)

    def function(self, place: str, *, vendor: int, kind: int, driver: str, numa: int) -> str:
        """A PCI function; the path of its folder."""
        address = place.rpartition("/")[2]
        root = place.lstrip("/").split("/")[0].rpartition(":")[0]
        path = f"/sys/devices{place}" if place.startswith("/") else f"/sys/devices/pci{root}/{place}"
        self.link(f"/sys/bus/pci/devices/{address}", path)
        for name, text in {
            "vendor": f"{vendor:#06x}",
            "class": f"{kind:#08x}",
            "numa_node": str(numa),
            "local_cpulist": self.nodes.get(numa, ",".join(self.nodes.values())),
        }.items():
            self.file(f"{path}/{name}", text)
        if driver:
            self.link(f"{path}/driver", f"/sys/bus/pci/drivers/{driver}")
        return path

    def gpu(self, place: str, *, numa: int = 0, name: str = "NVIDIA H100 80GB HBM3", **fields: Any) -> dict[str, Any]:
        """A GPU that the driver answers for; *fields* stand in its record. The record, to be changed."""
        index = len(self.gpus)
        self.function(place, vendor=0x10DE, kind=0x030200, driver="nvidia", numa=numa)
        self.devices |= {
            f"/dev/nvidia{index}": [195, index], "/dev/nvidiactl": [195, 255], "/dev/nvidia-modeset": [195, 254],
            "/dev/nvidia-uvm": [508, 0], "/dev/nvidia-uvm-tools": [508, 1],
        }  # fmt: skip
        self.majors |= {"nvidia": 195, "nvidia-uvm": 508}
        domain, _, rest = place.rpartition("/")[2].partition(":")
        gpu = {
            "index": index,
            "minor_number": index,
            "uuid": f"GPU-00000000-0000-4000-8000-{index:012x}",
            "name": name,
            "pci_bus_id": f"{int(domain, 16):08X}:{rest.upper()}",
            "memory_total_bytes": 80 << 30,
            "cpu_affinity": self.nodes.get(numa),
            "memory_affinity_nodes": [numa] if numa in self.nodes else None,
            "numa_node_id": None,
            "mig_mode": [0, 0],
            "fabric": dict(ALONE),
            **fields,
        }
        self.gpus.append(gpu)
        self.nvml = {"driver_version": "570.158.01", "nvml_version": "12.570.158.01", "devices": self.gpus}
        return gpu

    def rdma(
        self,
        name: str,
        place: str,
        *,
        driver: str = "mlx5_core",
        node_type: str = "1: CA",
        model: str = "MT4129",
        layer: str = "InfiniBand",
        state: int = 4,
        physical: int = 5,
        rate: str = "400 Gb/sec (4X NDR)",
        lid: int = 0x10,
        sm_lid: int = 1,
        prefix: str = DEFAULT_PREFIX,
        gids: tuple[tuple[str, str, str], ...] = (),
        numa: int = 0,
        kind: int = 0x020700,
        vendor: int = 0x15B3,
    ) -> str:
        """An RDMA device with one port. *gids*: value, type, netdev of an Ethernet port's slots. Returns its folder."""
        function = self.function(place, vendor=vendor, kind=kind, driver=driver, numa=numa)
        path = f"{function}/infiniband/{name}"
        number = sum(node.startswith("/dev/infiniband/uverbs") for node in self.devices)
        self.link(f"/sys/class/infiniband/{name}", path)
        self.link(f"{path}/device", function)
        if node_type:
            self.file(f"{path}/node_type", node_type)
        if model:
            self.file(f"{path}/hca_type", model)
        self.port(path, 1, layer=layer, state=state, physical=physical, rate=rate, lid=lid, sm_lid=sm_lid)
        table = gids or ((f"{prefix}:0000:0000:0000:{number:04x}", "", ""),)
        for slot, (value, type_, netdev) in enumerate((*table, (EMPTY_GID, "", ""))):
            self._gid(f"{path}/ports/1", slot, value, type_, netdev)
        verbs = f"{function}/infiniband_verbs/uverbs{number}"
        self.link(f"/sys/class/infiniband_verbs/uverbs{number}", verbs)
        self.file(f"{verbs}/ibdev", name)
        self.devices[f"/dev/infiniband/uverbs{number}"] = [231, 192 + number]
        self.devices["/dev/infiniband/rdma_cm"] = [10, 58]
        return path

    def port(
        self, device: str, number: int, *, layer: str, state: int, physical: int, rate: str, lid: int, sm_lid: int
    ) -> None:
        for name, text in {
            "link_layer": layer,
            "state": STATES[state],
            "phys_state": PHYSICAL[physical],
            "rate": rate,
            "lid": f"{lid:#x}",
            "sm_lid": f"{sm_lid:#x}",
        }.items():
            self.file(f"{device}/ports/{number}/{name}", text)

    def _gid(self, port: str, slot: int, value: str, type_: str, netdev: str) -> None:
        self.file(f"{port}/gids/{slot}", value)
        for attribute, text in (("types", type_), ("ndevs", netdev)):
            path = f"{port}/gid_attrs/{attribute}/{slot}"
            if text:
                self.file(path, text)
            else:
                self.errors[path] = "EINVAL"

    def roce(self, name: str, place: str, netdev: str, address: str, **fields: Any) -> str:
        """A RoCE device with its network device; *address* is the last group of a mapped IPv4 address."""
        table = (
            ("fe80:0000:0000:0000:0000:0000:0000:0001", "IB/RoCE v1", netdev),
            ("fe80:0000:0000:0000:0000:0000:0000:0001", "RoCE v2", netdev),
            (f"0000:0000:0000:0000:0000:ffff:{address}", "IB/RoCE v1", netdev),
            (f"0000:0000:0000:0000:0000:ffff:{address}", "RoCE v2", netdev),
        )
        path = self.rdma(name, place, layer="Ethernet", lid=0, sm_lid=0, gids=table, kind=0x020000, **fields)
        self.netdev(netdev, path.partition("/infiniband/")[0])
        return path

    def netdev(self, name: str, function: str = "", *, speed: int = 100000, lower: tuple[str, ...] = ()) -> str:
        """A network device of a function, or a bond of *lower*."""
        path = f"{function or '/sys/devices/virtual'}/net/{name}"
        self.link(f"/sys/class/net/{name}", path)
        for file, text in {"operstate": "up", "speed": str(speed), "address": "02:00:00:00:00:01"}.items():
            self.file(f"{path}/{file}", text)
        if lower:
            self.file(f"{path}/bonding/slaves", " ".join(lower))
        for member in lower:
            folder = posixpath.normpath(posixpath.join("/sys/class/net", self.links[f"/sys/class/net/{member}"]))
            self.link(f"{folder}/master", path)
            self.link(f"{path}/lower_{member}", folder)
        return path

    def document(self, **more: object) -> dict[str, Any]:
        lines = [f"{major:3} {name}" for name, major in sorted(self.majors.items(), key=lambda pair: pair[1])]
        self.file("/proc/devices", "Character devices:\n" + "\n".join(lines) + "\n\nBlock devices:\n259 blkext")
        return {
            "files": self.files,
            "links": self.links,
            "errors": self.errors,
            "devices": self.devices,
            "nvml": self.nvml,
            **more,
        }

    def capture(self) -> tuple[CapturedTree, LibraryReading]:
        return parse(self.document(), "the machine of this test")
