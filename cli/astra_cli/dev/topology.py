"""
What the simulated machines have: from `--machines` and `--gpus-per-machine`, or from a `--topology` file. Pure.

A topology file (YAML or JSON) has `machines`, a list. Each entry has, all optional:

    name      a DNS label, `m-<number>` by default
    count     this many machines of this kind, named `<name>-1`, `<name>-2`, … (`m-<number>` without a name)
    cpu       cores, such as 32
    memory    such as 64Gi
    gpus      a number, or {count, memory}
    ports     [{name, tier: infiniband|rdma|ethernet, gbps, up}]
    domains   {nvlink|infiniband|rdma|ethernet: the domain's name}

or, instead of its GPUs, ports and domains:

    machine_file  a captured machine (`astra capture`) that it is, by its path from the topology file
    fabric        the name of the RDMA network that its ports are on, as an operator's file says it

What is left out is this machine's own (cores, memory), or nothing (GPUs, ports, domains).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from astra_agent.errors import InvalidRequest
from astra_cli.runfile import byte_count

Json = dict[str, Any]

MAX_MACHINES = 200
"""Addresses would allow 254; a machine of this size is busy long before."""

TIERS = ("nvlink", "infiniband", "rdma", "ethernet")
PORT_TIERS = ("infiniband", "rdma", "ethernet")
MAX_GPUS = 64

_ROOT = PurePath("/")
_OWN = ("name", "count", "cpu", "memory")
_CLAIMS = ("gpus", "ports", "domains")
_CAPTURE = ("machine_file", "fabric")

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
"""Shorter than a DNS label may be: the name is part of containerd's namespace, which ends at 76 characters."""


@dataclass(frozen=True, slots=True)
class Port:
    name: str
    tier: str
    gbps: float
    up: bool = True


@dataclass(frozen=True, slots=True)
class MachinePlan:
    """
    One simulated machine. *number* is its place, from 1: its addresses are 10.83.<number>.0/24.

    *cpu_cores* and *memory_bytes* None: this machine's own.
    """

    name: str
    number: int
    cpu_cores: float | None = None
    memory_bytes: int | None = None
    gpus: int = 0
    gpu_memory_bytes: int = 80 << 30
    ports: tuple[Port, ...] = ()
    domains: Mapping[str, str] = field(default_factory=dict)
    machine_file: str | None = None
    """Absolute path of the captured machine that it is; its GPUs, ports and domains are those."""
    fabric: str | None = None

    def facts(self) -> Json:
        """What the agent is to say instead of what it finds: fields of `wire.MachineFacts`."""
        facts: Json = {} if self.machine_file else self._claims()
        if self.cpu_cores is not None:
            facts["cpu_cores"] = self.cpu_cores
        if self.memory_bytes is not None:
            facts["memory_bytes"] = self.memory_bytes
        return facts

    def _claims(self) -> Json:
        return {
            "gpus": [
                {"index": i, "uuid": f"GPU-dev-{self.name}-{i}", "memory_bytes": self.gpu_memory_bytes}
                for i in range(self.gpus)
            ],
            "ports": [{"name": p.name, "tier": p.tier, "gbps": p.gbps, "up": p.up} for p in self.ports],
            "domains": dict(self.domains),
        }


def uniform(machines: int, gpus: int) -> tuple[MachinePlan, ...]:
    """`m-1` to `m-<machines>`, all alike, in one Ethernet domain."""
    _check_range("--machines", machines, 1, MAX_MACHINES)
    _check_range("--gpus-per-machine", gpus, 0, MAX_GPUS)
    return tuple(MachinePlan(f"m-{n}", n, gpus=gpus, domains={"ethernet": "dev"}) for n in range(1, machines + 1))


def parse(document: object, folder: PurePath = _ROOT) -> tuple[MachinePlan, ...]:
    """
    Args:
        folder: That the topology file is in.
    Raises: InvalidRequest naming the entry, the field, the value and what would be right.
    """
    if not isinstance(document, dict) or not isinstance(document.get("machines"), list) or not document["machines"]:
        raise InvalidRequest("a topology must have `machines`, a list with at least one entry", "machines")
    _known(document, ("machines",), "")
    entries = [_mapping(entry, f"machines[{i}]") for i, entry in enumerate(document["machines"])]
    named = list(_named(entries))
    if len(named) > MAX_MACHINES:
        raise InvalidRequest(f"a topology may have at most {MAX_MACHINES} machines, not {len(named)}", "machines")
    names = [name for name, _, _ in named]
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest(f"two machines of the topology are called {name}; give one another name", "name")
    return tuple(_machine(name, n, entry, where, folder) for n, (name, entry, where) in enumerate(named, 1))


def _named(entries: list[Json]) -> Iterator[tuple[str, Json, str]]:
    """Every machine with its name, its entry, and where that stands in the file."""
    number = 0
    for i, entry in enumerate(entries):
        where = f"machines[{i}]"
        count = _int(entry.get("count", 1), f"{where}.count", 1, MAX_MACHINES)
        given = entry.get("name")
        if given is not None and (not isinstance(given, str) or not _LABEL.fullmatch(given)):
            raise InvalidRequest(
                f"{where}.name must be a DNS label of at most 40 characters such as gpu-1, not {given!r}",
                f"{where}.name",
            )
        for k in range(1, count + 1):
            number += 1
            name = f"m-{number}" if given is None else f"{given}-{k}" if "count" in entry else given
            yield name, entry, where


def _machine(name: str, number: int, entry: Json, where: str, folder: PurePath) -> MachinePlan:
    _known(entry, (*_OWN, *_CLAIMS, *_CAPTURE), f"{where}.")
    captured = _text(entry, "machine_file", where)
    if captured is not None and (both := [claim for claim in _CLAIMS if claim in entry]):
        raise InvalidRequest(
            f"{where} has machine_file, which says what the machine has, and {both[0]}; leave one of them out",
            f"{where}.{both[0]}",
        )
    if captured is None and "fabric" in entry:
        raise InvalidRequest(f"{where}.fabric goes with machine_file only; say domains instead", f"{where}.fabric")
    gpus, gpu_memory = _gpus(entry.get("gpus", 0), f"{where}.gpus")
    return MachinePlan(
        name=name,
        number=number,
        cpu_cores=_number(entry["cpu"], f"{where}.cpu") if "cpu" in entry else None,
        memory_bytes=_bytes(entry["memory"], f"{where}.memory") if "memory" in entry else None,
        gpus=gpus,
        gpu_memory_bytes=gpu_memory,
        ports=_ports(entry.get("ports", []), f"{where}.ports"),
        domains=_domains(entry.get("domains", {}), f"{where}.domains"),
        machine_file=str(folder / captured) if captured is not None else None,
        fabric=_text(entry, "fabric", where),
    )


def _text(entry: Json, name: str, where: str) -> str | None:
    value = entry.get(name)
    if value is not None and (not isinstance(value, str) or not value):
        raise InvalidRequest(f"{where}.{name} must be a text, not {value!r}", f"{where}.{name}")
    return value


def _gpus(value: object, field: str) -> tuple[int, int]:
    memory = 80 << 30
    if isinstance(value, dict):
        _known(value, ("count", "memory"), f"{field}.")
        memory = _bytes(value["memory"], f"{field}.memory") if "memory" in value else memory
        value, field = value.get("count"), f"{field}.count"
    return _int(value, field, 0, MAX_GPUS), memory


def _ports(value: object, field: str) -> tuple[Port, ...]:
    if not isinstance(value, list):
        raise InvalidRequest(f"{field} must be a list of ports, not {value!r}", field)
    ports = []
    for i, item in enumerate(value):
        at = f"{field}[{i}]"
        entry = _mapping(item, at)
        _known(entry, ("name", "tier", "gbps", "up"), f"{at}.")
        if entry.get("tier") not in PORT_TIERS:
            raise InvalidRequest(f"{at}.tier must be one of {', '.join(PORT_TIERS)}, not {entry.get('tier')!r}", at)
        if not isinstance(entry.get("name"), str) or not entry["name"]:
            raise InvalidRequest(f"{at}.name must be a port's name such as mlx5_0, not {entry.get('name')!r}", at)
        up = entry.get("up", True)
        if not isinstance(up, bool):
            raise InvalidRequest(f"{at}.up must be true or false, not {up!r}", at)
        ports.append(Port(entry["name"], entry["tier"], _number(entry.get("gbps"), f"{at}.gbps"), up))
    return tuple(ports)


def _domains(value: object, field: str) -> Mapping[str, str]:
    domains = _mapping(value, field)
    for tier, name in domains.items():
        if tier not in TIERS:
            raise InvalidRequest(f"{field} has no tier {tier!r}; there are {', '.join(TIERS)}", field)
        if not isinstance(name, str) or not name:
            raise InvalidRequest(f"{field}.{tier} must be the domain's name such as fabric-1, not {name!r}", field)
    return domains


def _known(entry: Json, names: tuple[str, ...], prefix: str) -> None:
    for name in entry:
        if name not in names:
            raise InvalidRequest(
                f"a topology has no field {prefix}{name}; here it may have {', '.join(names)}", f"{prefix}{name}"
            )


def _mapping(value: object, field: str) -> Json:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field} must be a mapping, not {value!r}", field)
    return value


def _bytes(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InvalidRequest(f"{field} must be a size such as 512Mi or 16Gi, not {value!r}", field)
    return byte_count(str(value), field)


def _number(value: object, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise InvalidRequest(f"{field} must be a number above 0, not {value!r}", field)
    return float(value)


def _int(value: object, field: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{field} must be a whole number from {low} to {high}, not {value!r}", field)
    return _check_range(field, value, low, high)


def _check_range(field: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise InvalidRequest(f"{field} must be from {low} to {high}, not {value}", field)
    return value
