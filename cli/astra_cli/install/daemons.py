"""What the agent and the coordinator are installed with."""

from __future__ import annotations

import re
import secrets
import socket
import tomllib
from pathlib import Path

from astra_agent import config as agent_config
from astra_agent.errors import InvalidRequest
from astra_cli.install import sources
from astra_cli.install.plan import File, Plan

SETTINGS = Path("/etc/astraeus")
UNITS = Path("/etc/systemd/system")
_ANYWHERE = "192.0.2.1"
"""An address of documentation: asked for the way to it, nothing is sent."""


def agent(bin_folder: Path, *, name: str, address: str, coordinator: str, root: Path = Path("/")) -> Plan:
    """
    What is not given is as in the settings that are there, if there are any.

    Raises:
        InvalidRequest: a value is wrong, or is not given and can't be found out.
    """
    there = _there(root)
    name = name or there.get("name", "")
    address = address or there.get("address", "")
    coordinator = coordinator or there.get("coordinator", "")
    name = name or socket.gethostname().partition(".")[0].lower()
    address = address or _own_address()
    settings = _agent_settings(name, address, coordinator)
    notes = []
    if not coordinator:
        notes.append("no --coordinator was given: plain jobs of Nomad run, nobody starts gangs here")
    token = SETTINGS / "agent.token"
    then = ["systemctl daemon-reload", "systemctl enable --now astra-agent"]
    if coordinator:
        then.insert(0, f"put the agents' token of the coordinator into {token} (mode 0600), unless it is there")
    return Plan(
        "agent",
        (
            File(SETTINGS / "agent.toml", settings, settings=True),
            File(UNITS / "astra-agent.service", sources.unit("astra-agent.service", bin_folder)),
        ),
        tuple(notes),
        tuple(then),
    )


def coordinator(bin_folder: Path) -> Plan:
    tokens = tuple(
        File(SETTINGS / f"{who}.token", f"{secrets.token_urlsafe(32)}\n", 0o600, secret=True)
        for who in ("operator", "agent")
    )
    return Plan(
        "coordinator",
        (
            *tokens,
            File(SETTINGS / "coordinator.toml", sources.text("coordinator.toml"), settings=True),
            File(UNITS / "astra-coordinator.service", sources.unit("astra-coordinator.service", bin_folder)),
        ),
        (),
        (
            f"look at {SETTINGS / 'coordinator.toml'}: the address of Nomad, its token, the node pool",
            f"give {SETTINGS / 'agent.token'} to every agent, {SETTINGS / 'operator.token'} to who may use the API",
            "systemctl daemon-reload",
            "systemctl enable --now astra-coordinator",
        ),
    )


def _agent_settings(name: str, address: str, coordinator: str) -> str:
    text = sources.text("agent.toml")
    text = _set(text, "name", name)
    text = _set(text, "address", address)
    if coordinator:
        text = _set(text, "coordinator", coordinator)
    else:
        text = re.sub(r"^token_file = ", "# token_file = ", text, flags=re.MULTILINE)
    agent_config.parse(tomllib.loads(text))
    return text


def _there(root: Path) -> dict[str, str]:
    """Texts of the settings that are there; what is wrong with them the agent says."""
    try:
        document = tomllib.loads((root / SETTINGS.relative_to("/") / "agent.toml").read_text())
    except (OSError, ValueError):
        return {}
    return {name: value for name, value in document.items() if isinstance(value, str)}


def _set(text: str, field: str, value: str) -> str:
    """Also where it is a comment. Raises: InvalidRequest for what would end the string that it is put into."""
    if any(character in value for character in '"\\\n'):
        raise InvalidRequest(f"{field} is {value!r}: it must have no quote, backslash or line break", field)
    return re.sub(rf"^(# )?{field} = .*$", lambda _: f'{field} = "{value}"', text, count=1, flags=re.MULTILINE)

    return tomllib.loads(text)


def _own_address() -> str:
    """The address by which this machine would reach others. Raises: InvalidRequest when it has no way to any."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect((_ANYWHERE, 9))
        except OSError as error:
            raise InvalidRequest(
                "address is not given and this machine has no default route to find it by: give --address, "
                "the IP address by which peers reach this machine",
                "address",
            ) from error
        return str(asking.getsockname()[0])
