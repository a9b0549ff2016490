"""
What a dev cluster is: its machines, its settings, its folders and names. `files` writes it down.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from astra_agent.errors import InvalidRequest
from astra_cli.dev.topology import MachinePlan, Port
from astra_gang.config import POLICY_FIELDS

Json = dict[str, Any]

SUBNET = "10.83.0.0/16"
PREFIX_LEN = 16
HUB_ADDRESS = "10.83.0.1"
LINK_PORT = 7411
"""Where the coordinator listens inside the hub; nothing else is there."""
API_PORT = 7410
"""Of 127.0.0.1; the next free one when it is taken."""

AGENT_SETTINGS = ("stuck_after_s", "log_max_bytes", "log_check_s", "registry_patience_s", "runtime_check_s")
"""Of every agent: fields of `astra_agent.config.AgentConfig`."""

SETTINGS = (*POLICY_FIELDS, "lost_margin_s", *AGENT_SETTINGS)
"""For tests and drills."""

LONGEST_STATE = 70
"""A socket's path may have 107 characters, and containerd's takes 33 below the state folder."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """
    Attributes:
        slot_network: `host`: workers share their machine's address; `own`: each has one of its own.
        settings: Of the coordinator (fields of its `[policy]`, and `lost_margin_s`) and of the agents.
    """

    machines: tuple[MachinePlan, ...]
    slot_network: str = "host"
    drives: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, float] = field(default_factory=dict)
    disconnect_limit_s: float = 60.0

    def machine(self, name: str) -> MachinePlan:
        """Raises: InvalidRequest with the names that there are."""
        for machine in self.machines:
            if machine.name == name:
                return machine
        names = ", ".join(m.name for m in self.machines)
        raise InvalidRequest(f"the dev cluster has no machine {name!r}; it has {names}", "--machine")

    def to_json(self) -> Json:
        document = asdict(self)
        document["machines"] = [{**asdict(m), "domains": dict(m.domains)} for m in self.machines]
        return {**document, "drives": dict(self.drives), "settings": dict(self.settings)}

    @staticmethod
    def from_json(document: Json) -> ClusterPlan:
        """Of what `to_json` gave. Raises ValueError, KeyError or TypeError when it is something else."""
        machines = tuple(
            MachinePlan(**{**m, "ports": tuple(Port(**p) for p in m["ports"])}) for m in document["machines"]
        )
        return ClusterPlan(**{**document, "machines": machines})


def address(machine: MachinePlan) -> str:
    return f"10.83.{machine.number}.1"


def slot_subnet(machine: MachinePlan) -> str:
    """Addresses of the machine's slots, and its own."""
    return f"10.83.{machine.number}.0/24"


@dataclass(frozen=True, slots=True)
class Layout:
    """
    Where everything of a cluster lies, all below its state folder.

    `run/` is what a machine's memory is: it goes when the cluster stops. The rest stays.
    """

    state: Path

    @property
    def cluster_id(self) -> str:
        """Tells two dev clusters of one machine apart; the same each time for one state folder."""
        return hashlib.sha256(str(self.state).encode()).hexdigest()[:8]

    @property
    def cgroup(self) -> str:
        return f"/astraeus-dev-{self.cluster_id}"

    def machine_cgroup(self, machine: str) -> str:
        return f"{self.cgroup}/{machine}"

    @property
    def run(self) -> Path:
        return self.state / "run"

    @property
    def lock(self) -> Path:
        return self.state / "lock"

    @property
    def control(self) -> Path:
        return self.run / "control.sock"

    @property
    def hub(self) -> Path:
        return self.run / "net" / "hub"

    @property
    def client_file(self) -> Path:
        return self.state / "client.json"

    @property
    def plan_file(self) -> Path:
        return self.state / "cluster.json"

    @property
    def running_file(self) -> Path:
        """What the running cluster has changed since it started: links, machines that are off."""
        return self.run / "running.json"

    @property
    def coordinator(self) -> Path:
        return self.state / "coordinator"

    @property
    def containerd(self) -> Path:
        return self.state / "containerd"

    @property
    def logs(self) -> Path:
        return self.state / "log"

    def netns(self, machine: str) -> Path:
        return self.run / "net" / f"machine-{machine}"

    def machine(self, machine: str) -> Path:
        return self.state / "machines" / machine

    def agent_socket(self, number: int) -> Path:
        """By the machine's number: a socket's path may not be long."""
        return self.run / f"agent-{number}.sock"

    def boot_id(self, number: int) -> Path:
        """The file that stands for the kernel's boot ID on a simulated machine."""
        return self.run / f"boot-{number}"

    def token(self, name: str) -> Path:
        return self.state / "tokens" / name

    def containerd_namespace(self, machine: str) -> str:
        return f"astra-{self.cluster_id}-{machine}"


def layout(state: Path) -> Layout:
    """Raises: InvalidRequest for a folder that sockets or containers could not live in."""
    state = state.resolve()
    if len(str(state)) > LONGEST_STATE:
        raise InvalidRequest(
            f"the state folder's path may have at most {LONGEST_STATE} characters, since sockets lie in it; "
            f"{state} has {len(str(state))}", "--state",
        )  # fmt: skip
    if state in (Path("/"), Path.home()) or any(c in str(state) for c in ':,\\"\n '):
        raise InvalidRequest(
            f"the state folder must be one of its own, without spaces, `:` or `,` in its path, not {state}", "--state"
        )
    return Layout(state)


def drive(item: str) -> tuple[str, str]:
    """`--drive NAME=PATH`. Raises: InvalidRequest."""
    name, equals, path = item.partition("=")
    if not equals or not name or not path:
        raise InvalidRequest(f"--drive must be NAME=PATH, not {item!r}", "--drive")
    where = Path(path).absolute()
    if not where.is_dir():
        raise InvalidRequest(f"--drive {name}: there is no folder {where}; make it first", "--drive")
    return name, str(where)


def setting(item: str) -> tuple[str, float]:
    """`--set NAME=NUMBER`. Raises: InvalidRequest."""
    name, equals, value = item.partition("=")
    try:
        if not equals:
            raise ValueError
        number = float(value)
        if not math.isfinite(number):
            raise ValueError
    except ValueError:
        raise InvalidRequest(f"--set must be NAME=NUMBER such as backoff_first_s=0, not {item!r}", "--set") from None
    if name not in SETTINGS:
        raise InvalidRequest(f"--set has no {name!r}; there are {', '.join(SETTINGS)}", "--set")
    return name, int(number) if number.is_integer() else number
