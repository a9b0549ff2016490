"""
The files of /etc that every container gets from the agent: hosts, resolv.conf, hostname. Text in, text out.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from astra_agent.errors import HostFault
from astra_agent.wire import Dns

_LOCALHOST = (
    "127.0.0.1 localhost",
    "::1 localhost ip6-localhost ip6-loopback",
    "fe00::0 ip6-localnet",
    "ff00::0 ip6-mcastprefix",
    "ff02::1 ip6-allnodes",
    "ff02::2 ip6-allrouters",
)
_SEARCH_MAX = 6
_SEARCH_BYTES = 255
"""Of musl and of glibc before 2.26."""


def hosts(worker: str, address: str, names: Mapping[str, str], machine_hosts: str = "") -> str:
    """
    An /etc/hosts where the worker's own name is the address that its peers use, never a loopback one.

    Args:
        names: Other names, to addresses.
        machine_hosts: The machine's own file, for the image that brings it along: what it says of other machines stays.
    """
    known = {worker: address} | {name: at for name, at in names.items() if name != worker}
    lines = [*_LOCALHOST, f"{address} {worker}"]
    lines += [f"{known[name]} {name}" for name in sorted(known) if name != worker]
    lines += _of_other_machines(machine_hosts, {"localhost", *known})
    return "\n".join(lines) + "\n"


def _of_other_machines(machine_hosts: str, taken: set[str]) -> list[str]:
    """Lines of a hosts file that are neither loopback nor multicast, without the names that are *taken*."""
    lines = []
    for line in machine_hosts.splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        left = [name for name in names if name not in taken]
        if left and _is_reachable(address):
            lines.append(" ".join([address, *left]))
    return lines


def _is_reachable(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return not (parsed.is_loopback or parsed.is_multicast or parsed.is_unspecified)


def resolv_conf(texts: Sequence[str], *, loopback_reachable: bool) -> str:
    """
    The first of the machine's *texts* that names a server which the container can reach, without those it can't; the
    last one without any when none does. Search domains and options stay.
    """
    filtered = ""
    for text in texts:
        filtered = "".join(f"{line}\n" for line in _usable_lines(text, loopback_reachable))
        if "nameserver" in filtered:
            break
    return filtered


def resolv_conf_of(dns: Dns) -> str:
    lines = [f"nameserver {server}" for server in dns.servers]
    lines += [f"search {' '.join(dns.searches)}"] if dns.searches else []
    lines += [f"options {' '.join(dns.options)}"] if dns.options else []
    return "".join(f"{line}\n" for line in lines)


def own_resolv_conf(server: str, search: Sequence[str]) -> str:
    """
    Our name server alone: musl asks all servers at once and believes the first, also when it says that there is no
    such name. Search domains go as far as every C library reads.
    """
    kept: list[str] = []
    for domain in search:
        if len(kept) < _SEARCH_MAX and len(" ".join([*kept, domain])) <= _SEARCH_BYTES:
            kept.append(domain)
    return f"nameserver {server}\nsearch {' '.join(kept)}\noptions ndots:1 timeout:2 attempts:3\n"


def _usable_lines(text: str, loopback_reachable: bool) -> Iterator[str]:
    for line in text.splitlines():
        word, *rest = line.split()[:2] or [""]
        if word == "nameserver" and (not rest or (not loopback_reachable and _is_loopback(rest[0]))):
            continue
        if word in ("nameserver", "search", "domain", "options"):
            yield line.strip()


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return True


def machine_resolv_confs(root: Path = Path("/")) -> tuple[str, ...]:
    """The machine's files that may name servers, best first: systemd-resolved's own list stands in for its stub."""
    texts = []
    for name in ("etc/resolv.conf", "run/systemd/resolve/resolv.conf"):
        try:
            texts.append((root / name).read_text(errors="replace"))
        except OSError:
            continue
    return tuple(texts)


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write *files* in *folder*, readable for every user of a container. Raises: HostFault."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o644)
    except OSError as error:
        raise HostFault(f"{folder} can't be written: {error.strerror}; make room on that disk") from error


def machine_hosts(root: Path = Path("/")) -> str:
    try:
        return (root / "etc/hosts").read_text(errors="replace")
    except OSError:
        return ""
