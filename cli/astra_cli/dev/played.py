"""
Simulated machines that are played by a file: the captured machine that one is, or what it claims to have. And the drill
of taking a port down, which changes that file.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from astra_agent.errors import InvalidRequest
from astra_agent.inventory.capture import parse
from astra_agent.inventory.operator_file import PATH as OPERATOR_FILE
from astra_agent.inventory.order import natural
from astra_cli.dev.plan import Layout
from astra_cli.dev.topology import MachinePlan

Json = dict[str, Any]

_STATE = re.compile(r".*/infiniband/([^/]+)/ports/([0-9]+)/(state|phys_state)")
_STATES = {True: ("4: ACTIVE\n", "5: LinkUp\n"), False: ("1: DOWN\n", "2: Polling\n")}


def machine_file(machine: MachinePlan) -> str:
    """
    The text of its own copy of the captured machine that it is.

    Raises: InvalidRequest: there is no such file, or it is none.
    """
    captured = Path(machine.machine_file or "")
    document = _document(captured)
    parse(document, str(captured))
    files = {**document["files"], "/proc/sys/kernel/hostname": f"{machine.name}\n"}
    if machine.fabric is not None:
        files[OPERATOR_FILE] = f'[fabric]\nname = "{machine.fabric}"\n'
    return json.dumps({**document, "hostname": machine.name, "files": files})


def path_of(machine: MachinePlan, where: Layout) -> Path:
    """The file that plays it."""
    return where.machine(machine.name) / ("machine.json" if machine.machine_file is not None else "facts.json")


def with_port(machine: MachinePlan, text: str, port: str, *, up: bool) -> str:
    """
    The file's text with one port up or down; written, its agent sees it within seconds.

    Raises: InvalidRequest naming the ports that there are.
    """
    document = json.loads(text)
    name = _full(port)
    if machine.machine_file is None:
        known = {_full(entry["name"]): entry for entry in document.get("ports", ())}
        _check(machine, name, known)
        known[name]["up"] = up
        return json.dumps(document, indent=2)
    found = {path: match for path in document["files"] if (match := _STATE.fullmatch(path))}
    _check(machine, name, {f"{match[1]}:{match[2]}" for match in found.values()})
    for path, match in found.items():
        if f"{match[1]}:{match[2]}" == name:
            document["files"][path] = _STATES[up][match[3] == "phys_state"]
    return json.dumps(document)


def _full(port: str) -> str:
    return port if ":" in port else f"{port}:1"


def _check(machine: MachinePlan, name: str, known: set[str] | dict[str, Json]) -> None:
    if name not in known:
        ports = ", ".join(sorted(known, key=natural)) or "none"
        raise InvalidRequest(f"{machine.name} has no port {name}; it has {ports}", "--port")


def _document(file: Path) -> Json:
    try:
        document = json.loads(file.read_bytes())
    except OSError as error:
        raise InvalidRequest(f"machine_file {file} can't be read: {error.strerror}", "machine_file") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"machine_file {file} is no JSON: {error}", "machine_file") from error
    if not isinstance(document, dict):
        raise InvalidRequest(f"machine_file {file} is no captured machine: it holds no JSON object", "machine_file")
    return document
