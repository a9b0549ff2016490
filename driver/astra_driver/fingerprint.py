"""What Nomad's node says of the driver: its health, and attributes that a job's constraints can use. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version

from astra_agent.wire import MachineFacts
from astra_driver.agent_watch import AgentState
from astra_driver.proto.driver_pb2 import FingerprintResponse
from astra_driver.proto.structs_pb2 import Attribute

DRIVER = "astra"
_TIERS = ("nvlink", "infiniband", "rdma", "ethernet")
"""Tightest first; `machine` is no network."""
_ABSENT = Attribute(string_val="")
"""Deletes the attribute; one that is merely left out stays on the node."""


def fingerprint(state: AgentState) -> FingerprintResponse:
    healthy = state.trouble is None
    return FingerprintResponse(
        attributes=attributes(state),
        health=FingerprintResponse.HEALTHY if healthy else FingerprintResponse.UNHEALTHY,
        health_description="Healthy" if healthy else state.trouble,
    )


def attributes(state: AgentState) -> Mapping[str, Attribute]:
    """Every key every time. Nothing that changes often: each change registers the node anew."""
    found: dict[str, Attribute] = {"version": Attribute(string_val=version("astraeus"))}
    # Without an attribute that comes and goes with the health, a job that was submitted while the driver was unhealthy
    # would stay blocked: Nomad does not look again at a class of nodes that it has found wanting.
    found["ready"] = Attribute(bool_val=state.trouble is None)
    health, facts = state.health, state.facts
    found["agent.version"] = Attribute(string_val=health.version) if health else _ABSENT
    runtime = health.runtime if health and health.runtime else {}
    found["containerd.version"] = _text(runtime.get("version"))
    found["cgroup.version"] = _text(runtime.get("cgroup_version"))
    found |= _domains(facts)
    found["gpus"] = Attribute(int_val=len(facts.gpus)) if facts else _ABSENT
    found["slot_network"] = Attribute(string_val=facts.slot_network) if facts else _ABSENT
    return {f"driver.{DRIVER}.{name}": value for name, value in found.items()}


def _domains(facts: MachineFacts | None) -> dict[str, Attribute]:
    domains = dict(facts.domains) if facts else {}
    tightest = next((tier for tier in _TIERS if tier in domains), None)
    found = {f"domain.{tier}": _text(dict(domains).get(tier)) for tier in _TIERS}  # type: ignore[call-overload]
    found["tier"] = _text(tightest)
    found["domain"] = found[f"domain.{tightest}"] if tightest else _ABSENT
    ports = [port.gbps for port in facts.ports if port.up] if facts else []
    found["port.gbps"] = Attribute(float_val=max(ports)) if ports else _ABSENT
    return found


def _text(value: object) -> Attribute:
    return Attribute(string_val=str(value)) if value is not None else _ABSENT
