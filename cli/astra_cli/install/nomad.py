"""What Nomad's client is installed with: links to the plugins, the configuration that loads them, the policies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from astra_agent.errors import InvalidRequest
from astra_cli.install import sources
from astra_cli.install.daemons import SETTINGS
from astra_cli.install.plan import File, Item, Link, Plan

PLUGIN_DIR = Path("/opt/nomad/plugins")
CONFIG_DIR = Path("/etc/nomad.d")
OURS = "astraeus.hcl"
DRIVER, DEVICE = "astra-nomad-driver", "astra-nomad-device"
FOR_HAND = ("coordinator-policy.hcl", "user-policy.hcl", "operator-policy.hcl", "gpu-pool.hcl", "coordinator.nomad.hcl")
"""Applied by a person, once for the cluster; put beside the settings to be at hand."""
_PLUGIN_DIR = re.compile(r'(?:^|[{,])\s*"?plugin_dir"?\s*[=:]\s*"([^"]*)"', re.MULTILINE)
_RIVAL = re.compile(r'"?plugin"?\s*[:{]?\s*\{?\s*"nomad-device-nvidia"')


@dataclass(frozen=True, slots=True)
class Client:
    """What the other files of the client's configuration folder say."""

    plugin_dir: Path | None
    where: Path | None
    has_rival: bool


def look(config_dir: Path, root: Path) -> Client:
    """Of files that can't be read nothing is known: Nomad says so itself."""
    plugin_dir, where, has_rival = None, None, False
    for path, text in _texts(root / config_dir.relative_to("/")):
        if found := _PLUGIN_DIR.search(text):
            plugin_dir, where = Path(found.group(1)), config_dir / path.name
        has_rival = has_rival or _RIVAL.search(text) is not None
    return Client(plugin_dir, where, has_rival)


def plan(bin_folder: Path, client: Client, *, plugin_dir: Path | None, config_dir: Path, with_device: bool) -> Plan:
    """
    Raises:
        InvalidRequest: a path is not absolute, or the plugin folder is another one than the client's.
    """
    for name, path in (("plugin-dir", plugin_dir), ("config-dir", config_dir)):
        if path is not None and not path.is_absolute():
            raise InvalidRequest(f"{name} is {str(path)!r}: it must be an absolute path", name)
    if plugin_dir is not None and client.plugin_dir not in (None, plugin_dir):
        raise InvalidRequest(
            f"plugin-dir is {plugin_dir}, and {client.where} says {client.plugin_dir}: Nomad reads one folder, "
            "so leave it out, or change that file",
            "plugin-dir",
        )
    folder = plugin_dir or client.plugin_dir or PLUGIN_DIR
    names = (DRIVER, DEVICE) if with_device else (DRIVER,)
    items: list[Item] = [Link(folder / name, bin_folder / name) for name in names]
    items.append(File(config_dir / OURS, _configuration(folder, client.where, with_device)))
    items += [File(SETTINGS / "nomad" / name, sources.text(f"nomad/{name}")) for name in FOR_HAND]
    return Plan("nomad", tuple(items), tuple(_notes(client, with_device)), _THEN)


_THEN = (
    "systemctl restart nomad (tasks run on meanwhile)",
    "nomad node status -self -verbose shows the driver astra as healthy",
    "nomad acl policy apply, for what is in /etc/astraeus/nomad, once for the cluster and only where it has ACLs",
)


def _configuration(plugin_dir: Path, elsewhere: Path | None, with_device: bool) -> str:
    text = sources.text(f"nomad/{OURS}")
    line = f'plugin_dir = "{plugin_dir}"'
    if elsewhere is not None:
        line = f"# {line} is in {elsewhere}."
    text = re.sub(r"^plugin_dir = .*$", lambda _: line, text, flags=re.MULTILINE)
    if not with_device:
        text = text[: text.index("\n# Stands in for")]
    return text


def _notes(client: Client, with_device: bool) -> Iterator[str]:
    if client.has_rival and with_device:
        yield (
            "the client's configuration has the plugin nomad-device-nvidia, which would give the same GPUs away: "
            f"remove it, or leave {DEVICE} out with --no-device"
        )


def _texts(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted((*folder.glob("*.hcl"), *folder.glob("*.json"))):
        if path.name == OURS:
            continue
        try:
            yield path, path.read_text(errors="replace")
        except OSError:
            continue
