"""The agent's configuration: one TOML file, parsed once into a frozen record. A wrong field is named in a sentence."""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from astra_agent import cgroup_names
from astra_agent.cgroup_names import CgroupDriver
from astra_agent.errors import InvalidRequest
from astra_dns import names

MIB = 1024**2
GIB = 1024**3
NAME_SERVER = "169.254.53.53"
"""Where workers ask for names, unless the configuration says otherwise: link-local, and nobody else's."""


@dataclass(frozen=True, slots=True)
class OwnNetwork:
    """Where slots get addresses of their own, with `slot_network = "own"`."""

    bridge: str
    """Name of the bridge, inside the machine's network namespace. Slots take its MTU."""
    subnet: str
    """Addresses for slots are taken from it, such as `10.83.3.0/24`. No other machine may hand them out."""
    prefix_len: int
    """Of the network that the bridge is on; peers within it are reached without a gateway."""
    gateway: str = ""
    """Address of the default route; empty: none."""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """All paths are absolute, all durations seconds, all sizes bytes."""

    name: str
    """This machine's name, as the coordinator and its engine know it."""
    state_dir: Path
    """Records, logs and network namespaces. On a disk that outlives a reboot; no second agent may use it."""
    address: str
    """How peers reach this machine: an IP address, never loopback when there are other machines."""
    socket: Path = Path()
    """The unix socket; default `<state_dir>/agent.sock`."""
    containerd_socket: Path = Path("/run/containerd/containerd.sock")
    containerd_namespace: str = "astraeus"
    """One for each agent that uses this containerd: runc keeps its state by namespace and container ID only."""
    coordinator: str = ""
    """URL such as `http://10.83.0.1:7411`; empty: none, directives come by nobody."""
    token_file: Path | None = None
    """Holds the token for the coordinator's link; read at each connect."""
    netns: Path | None = None
    """The network namespace that is this machine's network; none: the agent's own."""
    slot_network: Literal["host", "own"] = "host"
    own_network: OwnNetwork | None = None
    name_server: str = NAME_SERVER
    """
    Where containers ask for names: given to `lo` of every network namespace with a slot in it. On the machine's own
    network each workspace has an address of its own, from this one up. Empty: no name server.
    """
    zone: str = "astra.internal"
    """Under which `<worker>.<workspace>` has its full name; one that no server outside answers for."""
    upstreams: tuple[str, ...] = ()
    """Asked for all other names; empty: the machine's own servers, from its resolv.conf."""
    cgroup_driver: CgroupDriver = "cgroupfs"
    """
    Who makes the cgroups of containers: runc itself, or systemd, which then lists each as a scope and re-applies its
    limits; as the rest of the machine has it.
    """
    cgroup_parent: str = ""
    """
    Below which each container gets a group of its own: absolute in the cgroup hierarchy, default /astraeus; with
    systemd a slice, default astraeus.slice.
    """
    runc_root: Path | None = None
    """Where runc keeps its state; none: containerd's default."""
    init_path: Path | None = None
    """The first process of every container; none: the one that comes along."""
    logger_path: Path | None = None
    """The logger of containers whose standard output and error are kept apart; none: the one that comes along."""
    drives: Mapping[str, Path] = field(default_factory=dict)
    """Names of drives, and where they lie on this machine."""
    image_dirs: tuple[Path, ...] = ()
    """Where `oci-archive:` images may lie; empty: anywhere on this machine."""
    plain_http_registries: tuple[str, ...] = ()
    """Registries (`host[:port]`) that speak plain HTTP, besides those on loopback."""
    registry_mirrors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By registry: URLs that are asked before it, in this order."""
    registry_credentials: Path | None = None
    """A file in the form of Docker's config.json; none: root's own, when there is one."""
    masked_paths: tuple[Path, ...] = ()
    """Hidden from containers of the image `host`, besides this agent's and containerd's own folders."""
    boot_id_file: Path = Path("/proc/sys/kernel/random/boot_id")
    """Its text changes when the machine boots: its slots are gone then. A simulated machine has one of its own."""
    facts_file: Path | None = None
    """
    JSON with fields of `MachineFacts` that stand instead of what was found, for simulated machines: what it claims of
    GPUs, ports and domains is all that the machine has. Read again when it changes.
    """
    machine_file: Path | None = None
    """A captured machine, as `astra capture` writes it, that this simulated one is. Read again when it changes."""
    kernel_log: Path | None = None
    """Where GPU errors are heard of; none: the kernel's own, and nowhere on a simulated machine."""
    glance_s: float = 2.0
    """How often ports are looked at, which go down without an event."""
    log_max_bytes: int = 64 * MIB
    """A log is rotated past this; one older file of it is kept."""
    log_keep_bytes: int = 2 * GIB
    """For the logs of ended slots together; the oldest go first."""
    log_check_s: float = 2.0
    """How often the sizes of growing logs are looked at."""
    stuck_after_s: float = 60.0
    """From SIGKILL until a process that still lives puts the machine out of use."""
    registry_patience_s: float = 300.0
    """How long a registry that does not answer is asked again before the slot fails."""
    probe_max_gbps: float = 0.0
    """What this machine sends in a probe of the network at most, Gbit/s; 0: as much as goes."""
    runtime_check_s: float = 15.0
    """How often containerd is asked whether it is there, while nothing else asks it."""

    def __post_init__(self) -> None:
        if self.socket == Path():
            object.__setattr__(self, "socket", self.state_dir / "agent.sock")
        if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", self.name):
            raise _wrong("name", self.name, "a DNS label such as gpu-1")
        _check_address("address", self.address)
        self._check_cgroups()
        self._check_names()
        if self.coordinator and not self.coordinator.startswith(("http://", "https://")):
            raise _wrong("coordinator", self.coordinator, "a URL such as http://10.0.0.1:7411")
        if self.slot_network not in ("host", "own"):
            raise _wrong("slot_network", self.slot_network, '"host" or "own"')
        for name in ("log_max_bytes", "log_check_s", "stuck_after_s", "runtime_check_s", "glance_s"):
            if getattr(self, name) <= 0:
                raise _wrong(name, getattr(self, name), "more than 0")
        if self.registry_patience_s < 0:
            raise _wrong("registry_patience_s", self.registry_patience_s, "a number of seconds, 0 for a single try")
        if self.probe_max_gbps < 0:
            raise _wrong("probe_max_gbps", self.probe_max_gbps, "a rate in Gbit/s such as 10, or 0 for no bound")
        self._check_paths()
        self._check_own_network()

    def _check_cgroups(self) -> None:
        if self.cgroup_driver not in cgroup_names.DEFAULT_PARENTS:
            raise _wrong("cgroup_driver", self.cgroup_driver, '"cgroupfs" or "systemd"')
        if not self.cgroup_parent:
            object.__setattr__(self, "cgroup_parent", cgroup_names.DEFAULT_PARENTS[self.cgroup_driver])
        if not cgroup_names.is_parent(self.cgroup_driver, self.cgroup_parent):
            kinds = {"cgroupfs": "an absolute path such as /astraeus", "systemd": "a slice such as astraeus.slice"}
            expected = f'{kinds[self.cgroup_driver]}, as cgroup_driver is "{self.cgroup_driver}"'
            raise _wrong("cgroup_parent", self.cgroup_parent, expected)

    def _check_names(self) -> None:
        if self.name_server:
            _check_address("name_server", self.name_server)
            if ipaddress.ip_address(self.name_server).version != 4:
                raise _wrong("name_server", self.name_server, "an IPv4 address such as 169.254.53.53, or nothing")
        for upstream in self.upstreams:
            _check_address("upstreams", upstream)
        try:
            names.absolute(self.zone)
        except ValueError as error:
            raise _wrong("zone", self.zone, "a domain name such as astra.internal") from error

    def _check_paths(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            paths = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else (value,)
            for path in paths:
                if isinstance(path, Path) and not path.is_absolute():
                    raise _wrong(item.name, path, "an absolute path")

    def _check_own_network(self) -> None:
        if self.slot_network != "own":
            return
        if self.own_network is None:
            raise InvalidRequest('slot_network is "own": the table [own_network] with bridge and subnet is missing')
        try:
            subnet = ipaddress.ip_network(self.own_network.subnet)
        except ValueError as error:
            raise _wrong("own_network.subnet", self.own_network.subnet, "a network such as 10.83.3.0/24") from error
        if not 0 < self.own_network.prefix_len <= subnet.prefixlen:
            expected = f"from 1 to {subnet.prefixlen}, the subnet's own"
            raise _wrong("own_network.prefix_len", self.own_network.prefix_len, expected)
        if self.own_network.gateway:
            _check_address("own_network.gateway", self.own_network.gateway)


def load(path: Path) -> AgentConfig:
    """Raises: InvalidRequest naming the file and the field."""
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise InvalidRequest(f"the configuration {path} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidRequest(f"the configuration {path} is no TOML: {error}") from error
    try:
        return parse(document)
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}: {error}", error.field) from error


def parse(document: dict[str, Any]) -> AgentConfig:
    """A configuration from a parsed document. Raises: InvalidRequest naming the field."""
    values = dict(document)
    own = values.pop("own_network", None)
    if own is not None:
        if not isinstance(own, dict):
            raise _wrong("own_network", own, "a table")
        values["own_network"] = OwnNetwork(
            **_values(OwnNetwork, {"prefix_len": _prefix_len(own), **own}, "own_network.")
        )
    return AgentConfig(**_values(AgentConfig, values, ""))


def _prefix_len(own: Mapping[str, Any]) -> int:
    try:
        return ipaddress.ip_network(own.get("subnet", "")).prefixlen
    except ValueError:
        return 24


def _values(cls: type[AgentConfig] | type[OwnNetwork], document: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    known = {item.name: item for item in fields(cls)}
    for name in document:
        if name not in known:
            raise InvalidRequest(
                f"there is no field {prefix}{name}; known are: {', '.join(sorted(known))}", prefix + name
            )
    for name, item in known.items():
        if name not in document and item.default is MISSING and item.default_factory is MISSING:
            raise InvalidRequest(f"the field {prefix}{name} is missing", prefix + name)
    return {name: _convert(str(known[name].type), value, prefix + name) for name, value in document.items()}


def _convert(kind: str, value: Any, name: str) -> Any:
    """*value* as TOML gives it, in the type that the field is annotated with."""
    if kind.startswith(("Path", "str", "Literal")):
        if not isinstance(value, str):
            raise _wrong(name, value, "a string")
        return (Path(value) if value else None) if "None" in kind else Path(value) if kind == "Path" else value
    if kind.startswith("tuple"):
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise _wrong(name, value, "a list of strings")
        return tuple(Path(item) for item in value) if "Path" in kind else tuple(value)
    if kind == "Mapping[str, tuple[str, ...]]":
        if not isinstance(value, dict):
            raise _wrong(name, value, "a table of lists of strings")
        return {key: _convert("tuple[str, ...]", item, f"{name}.{key}") for key, item in value.items()}
    if kind.startswith("Mapping"):
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise _wrong(name, value, "a table of paths")
        return {key: Path(item) for key, item in value.items()}
    if kind in ("int", "float") and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise _wrong(name, value, "a number")
    if kind == "int" and not isinstance(value, int):
        raise _wrong(name, value, "a whole number")
    return value


def _check_address(name: str, value: str) -> None:
    try:
        ipaddress.ip_address(value)
    except ValueError as error:
        raise _wrong(name, value, "an IP address") from error


def _wrong(name: str, value: object, expected: str) -> InvalidRequest:
    return InvalidRequest(f"{name} is {str(value)!r}; expected {expected}", name)
