"""The coordinator's configuration: one TOML file, read once, checked before anything is opened."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from astra_agent.errors import InvalidRequest
from astra_gang.core import Policy

_OF_SPECS = ("start", "on_failure", "time_limit_s", "preflight", "spares")
POLICY_FIELDS = tuple(f.name for f in fields(Policy) if f.name not in _OF_SPECS)
"""What `[policy]` may set: bounds and budgets. How a run starts and fails is in its spec."""
PROVE_MIN_S = 5.0
"""For everybody to find everybody, and a few rounds."""

_POLICY = Policy()
_JUDGED_LATER_S = 45.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where the coordinator listens; *netns*: path of the network namespace of that address, empty for its own."""

    host: str
    port: int
    netns: str = ""


@dataclass(frozen=True, slots=True)
class NomadConfig:
    """`[engine]` with `kind = "nomad"`: machines and records are Nomad's."""

    address: str = "http://127.0.0.1:4646"
    """Of any server or client of the cluster."""
    token_file: Path | None = None
    """File with Nomad's token, read at every call; without it: a cluster without ACLs. See deploy/nomad/README.md."""
    namespace: str = "default"
    """Where the records are. A run is in the namespace of its workspace."""
    node_pool: str = "default"
    """Machines are the nodes of this pool; Nomad calls `default` what was given none."""
    prefix: str = "astra"
    """Of the paths of the records: two coordinators with the same one are one cluster's, and one of them waits."""
    priority: int = 50
    """Of the jobs, 1 to 100. Preemption should be off in the pool whatever it is."""
    ca_file: Path | None = None
    """Of the servers' certificate, where it is not a public one."""
    cert_file: Path | None = None
    """A client certificate, where Nomad asks for one; with `key_file`."""
    key_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Config:
    operator_token_file: Path
    """File with the token of the API's users."""
    agent_token_file: Path
    """File with the token of the agents."""
    state_dir: Path | None = None
    """Where the embedded engine's records are; made when missing. One coordinator has it at a time."""
    engine: NomadConfig | None = None
    """`[engine]`; without it, or with `kind = "embedded"`, the engine is the embedded one."""
    listen: tuple[Address, ...] = (Address("127.0.0.1", 7410),)
    """Addresses of API and link: `listen`, then `[[listen_netns]]`."""
    workspaces: tuple[str, ...] = ("default",)
    drives: tuple[str, ...] = ()
    """Names that a spec may mount; where they lie is each agent's configuration."""
    agents: Mapping[str, Path] | None = None
    """The embedded engine's machines: name to path of the agent's unix socket."""
    disconnect_limit_s: float = 300.0
    """
    After this long without an answer an agent stops its workers. Shorter: a lost machine is replaced sooner. Longer:
    the coordinator itself may be away for so long, such as for a boot of its machine.
    """
    lost_margin_s: float = 15.0
    """Beyond limit and grace time, until the workers of a silent machine count as stopped: SIGKILL, slow clocks."""
    runs_kept: int = 1000
    """Ended runs that are remembered; the oldest are forgotten with their events."""
    policy: Policy = _POLICY
    """`[policy]`: seconds and counts, as `astra_gang.core.state.Policy` names and explains them."""


def load(path: Path) -> Config:
    """
    Raises:
        InvalidRequest: The file can't be read or a value is wrong; the sentence names the field.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest(f"{path} can't be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} is no TOML: {error}") from error
    return parse(table)


def parse(table: Mapping[str, Any]) -> Config:
    """As `load`, from a table that has been read."""
    unknown = sorted(set(table) - set(_FIELDS) - {"listen_netns"})
    if unknown:
        raise InvalidRequest(f"{unknown[0]} is no setting; there are {', '.join(sorted(_FIELDS))}", unknown[0])
    for name in ("operator_token_file", "agent_token_file"):
        if name not in table:
            raise InvalidRequest(f"{name} is missing: it is the path of a file", name)
    values = {name: _FIELDS[name](table[name], name) for name in _FIELDS if name in table}
    config = Config(**values)
    _check_engine(config)
    if "listen_netns" in table:
        extra = _netns_addresses(table["listen_netns"])
        config = replace(config, listen=(*(config.listen if "listen" in table else ()), *extra))
    if not config.listen:
        raise InvalidRequest("listen is empty: give at least one address, such as 127.0.0.1:7410", "listen")
    return replace(config, policy=_with_silence(config, given="silence_s" in table.get("policy", {})))


def _check_engine(config: Config) -> None:
    """Each engine has its own records and machines."""
    if config.engine is None:
        if config.state_dir is None:
            raise InvalidRequest("state_dir is missing: it is the path of a folder", "state_dir")
        return
    for name in ("state_dir", "agents"):
        if getattr(config, name) is not None:
            raise InvalidRequest(f'{name} has no use with [engine] kind = "nomad": remove it', name)
    for i, workspace in enumerate(config.workspaces):
        if not _NAMESPACE.fullmatch(workspace):
            raise InvalidRequest(
                f"workspaces[{i}] is {workspace!r}: on Nomad it is a namespace, letters, digits and dashes only",
                f"workspaces[{i}]",
            )


def _with_silence(config: Config, given: bool) -> Policy:
    """A machine that is cut off must be lost before its silence about a stop is judged."""
    least = config.disconnect_limit_s + config.lost_margin_s
    if not given:
        return replace(config.policy, silence_s=least + _JUDGED_LATER_S)
    if config.policy.silence_s <= least:
        raise InvalidRequest(
            f"policy.silence_s is {config.policy.silence_s:g}: it must be more than disconnect_limit_s and "
            f"lost_margin_s together, {least:g}",
            "policy.silence_s",
        )
    return config.policy


def parse_address(text: object, field: str, netns: str = "") -> Address:
    if isinstance(text, str):
        host, colon, port = text.rpartition(":")
        if host and colon and port.isdecimal() and 0 <= int(port) <= 65535:
            return Address(host.removeprefix("[").removesuffix("]"), int(port), netns)
    raise InvalidRequest(f"{field} is {text!r}: it must be host:port, such as 127.0.0.1:7410", field)


def _addresses(value: object, field: str) -> tuple[Address, ...]:
    return tuple(parse_address(text, f"{field}[{i}]") for i, text in enumerate(_list(value, field)))


def _netns_addresses(value: object) -> tuple[Address, ...]:
    found = []
    for i, entry in enumerate(_list(value, "listen_netns")):
        field = f"listen_netns[{i}]"
        if not isinstance(entry, dict) or set(entry) != {"netns", "address"}:
            raise InvalidRequest(f"{field} must have exactly netns and address", field)
        netns = str(_path(entry["netns"], f"{field}.netns"))
        found.append(parse_address(entry["address"], f"{field}.address", netns))
    return tuple(found)


def _list(value: object, field: str) -> list[object]:
    if not isinstance(value, list):
        raise InvalidRequest(f"{field} is {value!r}: it must be a list", field)
    return value


def _names(value: object, field: str) -> tuple[str, ...]:
    names = _list(value, field)
    for i, name in enumerate(names):
        if not isinstance(name, str) or not name:
            raise InvalidRequest(f"{field}[{i}] is {name!r}: it must be a name", field)
    return tuple(str(name) for name in names)


def _path(value: object, field: str) -> Path:
    if not isinstance(value, str) or not value.startswith("/"):
        raise InvalidRequest(f"{field} is {value!r}: it must be an absolute path", field)
    return Path(value)


def _engine(value: object, field: str) -> NomadConfig | None:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field} is {value!r}: it must be a table", field)
    kind = value.get("kind", "embedded")
    given = {name: setting for name, setting in value.items() if name != "kind"}
    known: Mapping[str, Callable[[Any, str], Any]] = {"nomad": _NOMAD_FIELDS, "embedded": {}}.get(kind, {})
    if kind not in ("embedded", "nomad"):
        raise InvalidRequest(f"{field}.kind is {kind!r}: it must be embedded or nomad", f"{field}.kind")
    unknown = sorted(set(given) - set(known))
    if unknown:
        there = f"there are kind, {', '.join(known)}" if known else "an embedded engine has none but kind"
        raise InvalidRequest(f"{field}.{unknown[0]} is no setting; {there}", f"{field}.{unknown[0]}")
    if kind == "embedded":
        return None
    config = NomadConfig(**{name: known[name](setting, f"{field}.{name}") for name, setting in given.items()})
    if (config.cert_file is None) != (config.key_file is None):
        raise InvalidRequest(f"{field}: cert_file and key_file belong together", f"{field}.key_file")
    return config


def _url(value: object, field: str) -> str:
    if isinstance(value, str) and _URL.fullmatch(value):
        return value.rstrip("/")
    raise InvalidRequest(f"{field} is {value!r}: it must be http:// or https://, host and port", field)


def _matching(pattern: re.Pattern[str], meaning: str) -> Callable[[object, str], str]:
    def check(value: object, field: str) -> str:
        if isinstance(value, str) and pattern.fullmatch(value):
            return value
        raise InvalidRequest(f"{field} is {value!r}: it must be {meaning}", field)

    return check


def _priority(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 100:
        raise InvalidRequest(f"{field} is {value!r}: it must be a whole number from 1 to 100", field)
    return value


def _sockets(value: object, field: str) -> dict[str, Path]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field} is {value!r}: it must be a table of machine = path of its agent's socket", field)
    return {name: _path(path, f"{field}.{name}") for name, path in value.items()}


def _number(value: object, field: str, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= 1e9:
        raise InvalidRequest(f"{field} is {value!r}: it must be a number from {least:g} to 1e9", field)
    return float(value)


def _count(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**6:
        raise InvalidRequest(f"{field} is {value!r}: it must be a whole number from 0 to 1000000", field)
    return value


def _policy(value: object, field: str) -> Policy:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field} is {value!r}: it must be a table", field)
    unknown = sorted(set(value) - set(POLICY_FIELDS))
    if unknown:
        raise InvalidRequest(f"{field}.{unknown[0]} is no setting; there are {', '.join(POLICY_FIELDS)}", field)
    given: dict[str, Any] = {
        name: _count(v, f"{field}.{name}") if not name.endswith("_s") else _number(v, f"{field}.{name}", _least(name))
        for name, v in value.items()
    }
    return replace(Policy(), **given)


def _least(setting: str) -> float:
    return PROVE_MIN_S if setting == "prove_s" else 0.0


_NAMESPACE = re.compile(r"[a-zA-Z0-9-]{1,128}")
_URL = re.compile(r"https?://[^/\s]+/?")
_NOMAD_FIELDS: dict[str, Callable[[Any, str], Any]] = {
    "address": _url,
    "token_file": _path,
    "namespace": _matching(_NAMESPACE, "letters, digits and dashes"),
    "node_pool": _matching(re.compile(r"[a-zA-Z0-9_-]{1,128}"), "letters, digits, dashes and underscores"),
    "prefix": _matching(re.compile(r"[a-zA-Z0-9_~-]{1,32}"), "1 to 32 letters, digits, dashes, _ and ~"),
    "priority": _priority,
    "ca_file": _path,
    "cert_file": _path,
    "key_file": _path,
}

_FIELDS: dict[str, Callable[[Any, str], Any]] = {
    "state_dir": _path,
    "operator_token_file": _path,
    "agent_token_file": _path,
    "listen": _addresses,
    "workspaces": _names,
    "drives": _names,
    "agents": _sockets,
    "engine": _engine,
    "disconnect_limit_s": lambda value, field: _number(value, field, 1),
    "lost_margin_s": lambda value, field: _number(value, field, 1),
    "runs_kept": _count,
    "policy": _policy,
}
