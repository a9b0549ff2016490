"""
What this machine is, but for its inventory: found out at start. A facts file stands instead of what was found.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from pydantic import ValidationError

from astra_agent.config import AgentConfig
from astra_agent.errors import InvalidRequest
from astra_agent.wire import MachineFacts

_SIZE = frozenset({"cpu_cores", "memory_bytes"})
_OVERRIDABLE = _SIZE | {"gpus", "ports", "domains"}


def find(config: AgentConfig, proc: Path = Path("/proc")) -> MachineFacts:
    """Raises: InvalidRequest when the facts file is wrong."""
    found: dict[str, object] = {
        "name": config.name,
        "address": config.address,
        "cpu_cores": float(len(os.sched_getaffinity(0))),
        "memory_bytes": memory_bytes((proc / "meminfo").read_text()),
        "drives": tuple(sorted(config.drives)),
        "slot_network": config.slot_network,
    }
    if config.facts_file is not None:
        claims = _read(config.facts_file)
        found |= {name: claims[name] for name in _SIZE & claims.keys()}
    try:
        return MachineFacts.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(f"{config.facts_file}: {where}: {first['msg']}", where) from error


def memory_bytes(meminfo: str) -> int:
    """MemTotal of /proc/meminfo."""
    for line in meminfo.splitlines():
        name, _, rest = line.partition(":")
        if name == "MemTotal":
            return int(rest.split()[0]) * 1024
    raise ValueError("/proc/meminfo has no MemTotal")


def boot_id(path: Path) -> str:
    """Changes with each boot of the machine. Raises: InvalidRequest when the file can't be read."""
    try:
        return path.read_text().strip()
    except OSError as error:
        raise InvalidRequest(f"boot_id_file {path} can't be read: {error.strerror}", "boot_id_file") from error


def _read(path: Path) -> dict[str, object]:
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise InvalidRequest(f"the facts file {path} can't be read: {error.strerror}", "facts_file") from error
    except ValueError as error:
        raise InvalidRequest(f"the facts file {path} is no JSON: {error}", "facts_file") from error
    if not isinstance(document, dict):
        raise InvalidRequest(f"the facts file {path} must hold one JSON object", "facts_file")
    if unknown := sorted(set(document) - _OVERRIDABLE):
        allowed = ", ".join(sorted(_OVERRIDABLE))
        raise InvalidRequest(f"the facts file {path} may not set {unknown[0]}; it may set {allowed}", unknown[0])
    return document
