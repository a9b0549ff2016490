"""Writes a cluster's plan down as what its processes read: configurations, facts of machines, tokens."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from astra_cli.dev import network
from astra_cli.dev.plan import (
    AGENT_SETTINGS,
    HUB_ADDRESS,
    LINK_PORT,
    PREFIX_LEN,
    ClusterPlan,
    Layout,
    address,
    slot_subnet,
)
from astra_cli.dev.topology import MachinePlan
from astra_gang.config import POLICY_FIELDS

Json = dict[str, Any]


def write_all(plan: ClusterPlan, layout: Layout, port: int, containerd_socket: Path, runc_root: Path) -> None:
    """Everything but `client.json`, which says that the cluster serves. Idempotent."""
    for folder in (layout.state, layout.run, layout.logs, layout.coordinator, layout.token("x").parent):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in ("operator", "agent"):
        token(layout, name)
    write(layout.plan_file, json.dumps(plan.to_json(), indent=2))
    write(layout.coordinator / "coordinator.toml", coordinator_toml(plan, layout, port))
    for machine in plan.machines:
        folder = layout.machine(machine.name)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write(folder / "facts.json", json.dumps(machine.facts(), indent=2))
        write(folder / "agent.toml", agent_toml(machine, plan, layout, containerd_socket, runc_root))


def read_plan(layout: Layout) -> ClusterPlan | None:
    """Of the last start; None when there was none, or another version wrote it."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return ClusterPlan.from_json(json.loads(layout.plan_file.read_text()))
    return None


def token(layout: Layout, name: str) -> str:
    """Made once, kept with the state."""
    path = layout.token(name)
    with suppress(FileNotFoundError):
        if text := path.read_text().strip():
            return text
    text = secrets.token_urlsafe(32)
    write(path, text)
    return text


def write_client(layout: Layout, port: int) -> None:
    document = {"api": f"http://127.0.0.1:{port}", "token": token(layout, "operator")}
    write(layout.client_file, json.dumps(document, indent=2))


def coordinator_toml(plan: ClusterPlan, layout: Layout, port: int) -> str:
    values: Json = {
        "state_dir": str(layout.coordinator),
        "listen": [f"127.0.0.1:{port}"],
        "operator_token_file": str(layout.token("operator")),
        "agent_token_file": str(layout.token("agent")),
        "drives": sorted(plan.drives),
        "disconnect_limit_s": plan.disconnect_limit_s,
    }
    values |= {n: value for n, value in plan.settings.items() if n not in (*POLICY_FIELDS, *AGENT_SETTINGS)}
    tables: dict[str, Mapping[str, Any]] = {
        "agents": {m.name: str(layout.agent_socket(m.number)) for m in plan.machines},
        "policy": {name: value for name, value in plan.settings.items() if name in POLICY_FIELDS},
    }
    inside = {"netns": str(layout.hub), "address": f"{HUB_ADDRESS}:{LINK_PORT}"}
    return _toml(values, tables) + "\n[[listen_netns]]\n" + _lines(inside)


def agent_toml(
    machine: MachinePlan, plan: ClusterPlan, layout: Layout, containerd_socket: Path, runc_root: Path
) -> str:
    values: Json = {
        "name": machine.name,
        "state_dir": str(layout.machine(machine.name)),
        "socket": str(layout.agent_socket(machine.number)),
        "address": address(machine),
        "netns": str(layout.netns(machine.name)),
        "coordinator": f"http://{HUB_ADDRESS}:{LINK_PORT}",
        "token_file": str(layout.token("agent")),
        "containerd_socket": str(containerd_socket),
        "containerd_namespace": layout.containerd_namespace(machine.name),
        "runc_root": str(runc_root),
        "cgroup_parent": layout.machine_cgroup(machine.name),
        "slot_network": plan.slot_network,
        "masked_paths": [str(layout.state)],
        "facts_file": str(layout.machine(machine.name) / "facts.json"),
        "boot_id_file": str(layout.boot_id(machine.number)),
        **{name: value for name, value in plan.settings.items() if name in AGENT_SETTINGS},
    }
    tables: dict[str, Mapping[str, Any]] = {"drives": plan.drives}
    if plan.slot_network == "own":
        tables["own_network"] = {
            "bridge": network.BRIDGE, "subnet": slot_subnet(machine), "prefix_len": PREFIX_LEN,
        }  # fmt: skip
    return _toml(values, tables)


def write(path: Path, text: str) -> None:
    """For root's eyes only, whole or not at all."""
    beside = path.with_name(f".{path.name}.new")
    beside.touch(mode=0o600)
    beside.write_text(text)
    beside.replace(path)


def _toml(values: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]) -> str:
    return _lines(values) + "".join(f"\n[{name}]\n{_lines(table)}" for name, table in tables.items() if table)


def _lines(values: Mapping[str, Any]) -> str:
    """Strings, numbers and lists of strings are written in TOML as in JSON."""
    return "".join(f"{json.dumps(name)} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in values.items())
