"""CNI plugins for Nomad's networks `bridge` and `cni/…`, and that nothing is left of what they keep on the machine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.levels import SBIN

PLACES = ("/usr/lib/cni", "/usr/libexec/cni", "/opt/cni/bin")
"""As in scripts/setup."""
PLUGINS = ("bridge", "firewall", "host-local", "loopback", "portmap")
_KEPT = (Path("/run/netns"), Path("/run/cni"), Path("/var/lib/cni"))
"""Where Nomad and the plugins keep something of each allocation, whatever their configuration says."""
_ASKED_OF_THE_KERNEL = (
    "ip link add br0 type bridge",
    "ip link add v0 type veth peer name v1",
    "iptables -t nat -A OUTPUT -m addrtype --dst-type LOCAL -j RETURN",
    "iptables -t nat -A POSTROUTING -m comment --comment x -m mark --mark 1 -j MASQUERADE",
    "iptables -t nat -A PREROUTING -p tcp -m multiport --dports 80 -j DNAT --to-destination 10.0.0.1:80",
    "iptables -A FORWARD -m conntrack --ctstate RELATED -j ACCEPT",
)


def missing() -> str | None:
    """What keeps bridge networks from working here, in a sentence; None when nothing does."""
    if _place() is None or shutil.which("iptables", path=SBIN) is None:
        return "needs containernetworking-plugins and iptables: run scripts/setup test"
    script = "\n".join(f"{command} || exit {100 + at}" for at, command in enumerate(_ASKED_OF_THE_KERNEL))
    ran = subprocess.run(
        ("unshare", "--net", "sh", "-c", script), capture_output=True, text=True, env={"PATH": SBIN}, check=False
    )
    if ran.returncode != 0:
        what = _ASKED_OF_THE_KERNEL[ran.returncode - 100] if ran.returncode >= 100 else "unshare --net"
        return f"`{what}` is refused in a network namespace: {ran.stderr.strip()}"
    if not Path("/sys/module/bridge").exists():
        return "the kernel makes bridges and has no /sys/module/bridge, by which Nomad knows that it does"
    return None


def with_versions(folder: Path) -> Path:
    """
    The plugins, each with a version: some distributions' do not say theirs, and from 1.8 on Nomad then places no task
    with a `bridge` network.
    """
    place = _place()
    assert place is not None
    folder.mkdir()
    for name in PLUGINS:
        said = subprocess.run((f"{place}/{name}",), capture_output=True, text=True, check=False)
        if re.search(r"\bv?\d+\.\d+\.\d+", (said.stdout + said.stderr).partition("\n")[0]):
            (folder / name).symlink_to(f"{place}/{name}")
            continue
        says = f'[ -n "$CNI_COMMAND" ] || {{ echo "CNI {name} plugin v1.0.0"; exit; }}'
        (folder / name).write_text(f'#!/bin/sh\n{says}\nexec {place}/{name} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def own_network(folder: Path, name: str, subnet: str) -> None:
    """A network `cni/<name>` on a bridge of its own, as a file in *folder*."""
    addresses = {"type": "host-local", "ranges": [[{"subnet": subnet}]], "dataDir": str(folder / "addresses")}
    bridge = {"type": "bridge", "bridge": f"{name}0", "isGateway": True, "ipam": addresses}
    document = {"cniVersion": "0.4.0", "name": name, "plugins": [{"type": "loopback"}, bridge]}
    (folder / f"{name}.conflist").write_text(json.dumps(document))


@contextmanager
def nothing_left() -> Iterator[None]:
    """What was not there before is not there afterwards, also of allocations that were still running."""
    before = {path: _entries(path) for path in _KEPT}
    try:
        yield
    finally:
        for path, entries in before.items():
            for name in (_entries(path) or set()) - (entries or set()):
                _remove(path / name)
            if entries is None and path.exists():
                _remove(path)


def _place() -> str | None:
    return next((place for place in PLACES if all(Path(place, name).exists() for name in PLUGINS)), None)


def _entries(path: Path) -> set[str] | None:
    return {entry.name for entry in path.iterdir()} if path.is_dir() else None


def _remove(path: Path) -> None:
    """A mount's place first loses all that is mounted on it."""
    while subprocess.run(("umount", "-l", path), stderr=subprocess.DEVNULL, check=False).returncode == 0:
        pass
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
