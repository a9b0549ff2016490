"""
Takes out of a captured machine what says whose it is, and nothing that an answer depends on: names of hosts, serial
numbers, UUIDs, hardware and IP addresses. The same thing becomes the same replacement everywhere, and keeps its kind:
a link-local address stays link-local, a GUID that was made of a hardware address is made of the new one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_GID = r"(?:[0-9a-f]{4}:){7}[0-9a-f]{4}"
_GUID = r"(?:[0-9a-f]{4}:){3}[0-9a-f]{4}"
_MAC = r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}"
_IPV4 = r"(?:[0-9]{1,3}\.){3}[0-9]{1,3}"
_NAMED = re.compile(
    rf"(?<![\w:.-])(?:(?P<uuid>{_UUID})|(?P<gid>{_GID})|(?P<guid>{_GUID})|(?P<mac>{_MAC})|(?P<ip>{_IPV4}))(?![\w:.])"
)
_XML_GUID = re.compile(r'guid="0x[0-9a-fA-F]+"')
_GPU_UUID = re.compile(rf"(GPU|MIG)-({_UUID})")
_DEFAULT_PREFIX = "fe80:0000:0000:0000"
_MAPPED = "0000:0000:0000:0000:0000:ffff"


@dataclass(slots=True)
class Names:
    """Replacements, each made at the first sight of what it stands for."""

    known: dict[tuple[str, str], str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def replaced(self, kind: str, text: str) -> str:
        found = self.known.get((kind, text))
        if found is None:
            self.counts[kind] = count = self.counts.get(kind, 0) + 1
            found = self.known[kind, text] = _MAKERS[kind](count)
        return found


_MAKERS = {
    "host": lambda n: f"machine-{n}",
    "serial": lambda n: f"{n:013}",
    "uuid": lambda n: f"00000000-0000-4000-8000-{n:012x}",
    "mac": lambda n: f"02:00:00:{n >> 16 & 255:02x}:{n >> 8 & 255:02x}:{n & 255:02x}",
    "guid": lambda n: f"0200:0000:{n >> 16:04x}:{n & 0xFFFF:04x}",
    "prefix": lambda n: f"fec0:0000:0000:{n:04x}",
    "global": lambda n: f"2001:0db8:0000:{n:04x}",
    "ip": lambda n: f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}",
    "local": lambda n: f"169.254.{n >> 8 & 255}.{n & 255}",
}


def anonymous(document: dict[str, Any]) -> dict[str, Any]:
    """A new document; the argument stays as it was."""
    names = Names()
    host = str(document["files"].get("/proc/sys/kernel/hostname", "")).strip()
    files = {path: _file(names, host, path, text) for path, text in document["files"].items()}
    nvml = document.get("nvml")
    return {**document, "files": files, "nvml": _library(names, nvml) if nvml else nvml}


def _file(names: Names, host: str, path: str, text: str) -> str:
    if path == "/proc/net/route":
        return _route(names, text)
    if path == "/proc/net/ipv6_route":
        return _route6(names, text)
    if len(host) > 1:
        text = re.sub(rf"(?<![\w-]){re.escape(host)}(?![\w-])", names.replaced("host", host), text)
    text = _GPU_UUID.sub(lambda match: f"{match[1]}-{names.replaced('uuid', match[2].lower())}", text)
    if path.endswith(".xml"):
        text = _XML_GUID.sub('guid="0x0"', text)
    return _NAMED.sub(lambda match: _one(names, match), text)


def _one(names: Names, match: re.Match[str]) -> str:
    kind, text = str(match.lastgroup), match[0]
    if kind == "gid":
        return _gid(names, text)
    if kind == "guid":
        return _guid(names, text)
    if kind == "ip":
        return _ip(names, text)
    return text if not text.strip("0-:") else names.replaced(kind, text.lower())


def _gid(names: Names, gid: str) -> str:
    prefix, rest = gid[:19], gid[20:]
    if not gid.strip("0:"):
        return gid
    if gid.startswith(_MAPPED):
        digits = gid[30:].replace(":", "")
        address = ".".join(str(int(digits[at : at + 2], 16)) for at in (0, 2, 4, 6))
        octets = [int(part) for part in _ip(names, address).split(".")]
        return f"{_MAPPED}:{octets[0]:02x}{octets[1]:02x}:{octets[2]:02x}{octets[3]:02x}"
    if not rest.strip("0:"):  # iWARP: a hardware address, then zeros
        mac = names.replaced("mac", _colons(gid.replace(":", "")[:12])).replace(":", "")
        return f"{mac[:4]}:{mac[4:8]}:{mac[8:]}:{gid[15:]}"
    if prefix != _DEFAULT_PREFIX:
        prefix = names.replaced("prefix" if prefix.startswith("fec0") else "global", prefix)
    return f"{prefix}:{_guid(names, rest)}"


def _guid(names: Names, guid: str) -> str:
    digits = guid.replace(":", "")
    if not digits.strip("0"):
        return guid
    if digits[6:10] == "fffe":
        mac = f"{int(digits[:2], 16) ^ 2:02x}{digits[2:6]}{digits[10:]}"
        new = names.replaced("mac", _colons(mac)).replace(":", "")
        digits = f"{int(new[:2], 16) ^ 2:02x}{new[2:6]}fffe{new[6:]}"
        return ":".join(digits[at : at + 4] for at in (0, 4, 8, 12))
    return names.replaced("guid", guid)


def _ip(names: Names, address: str) -> str:
    if address.startswith(("0.", "127.", "255.")):
        return address
    return names.replaced("local" if address.startswith("169.254.") else "ip", address)


def _colons(digits: str) -> str:
    return ":".join(digits[at : at + 2] for at in range(0, len(digits), 2))


def _route(names: Names, text: str) -> str:
    """Destinations and gateways are 32-bit numbers in the machine's own order."""
    lines = text.split("\n")
    for at, line in enumerate(lines[1:], 1):
        words = line.split("\t")
        for place in (1, 2):
            if len(words) > 2 and re.fullmatch(r"[0-9A-F]{8}", words[place].strip()) and words[place].strip("0 "):
                octets = [int(words[place][two : two + 2], 16) for two in (6, 4, 2, 0)]
                new = [int(part) for part in _ip(names, ".".join(map(str, octets))).split(".")]
                words[place] = "".join(f"{octet:02X}" for octet in reversed(new))
        lines[at] = "\t".join(words)
    return "\n".join(lines)


def _route6(names: Names, text: str) -> str:
    def shown(match: re.Match[str]) -> str:
        digits = match[0]
        gid = ":".join(digits[at : at + 4] for at in range(0, 32, 4))
        return digits if not digits.strip("0") else _gid(names, gid).replace(":", "")

    return re.sub(r"\b[0-9a-f]{32}\b", shown, text)


def _library(names: Names, nvml: dict[str, Any]) -> dict[str, Any]:
    found = {**nvml, "devices": [_gpu(names, gpu) for gpu in nvml.get("devices", ())]}
    serial = (nvml.get("platform_info") or {}).get("chassis_serial")
    if serial:
        found["platform_info"] = {"chassis_serial": names.replaced("serial", serial)}
    return found


def _gpu(names: Names, gpu: dict[str, Any]) -> dict[str, Any]:
    found = dict(gpu)
    if gpu.get("uuid"):
        found["uuid"] = _uuids(names, gpu["uuid"])
    if gpu.get("fabric"):
        found["fabric"] = {**gpu["fabric"], "cluster_uuid": _uuids(names, gpu["fabric"].get("cluster_uuid", ""))}
    found["mig_devices"] = [{**mig, "uuid": _uuids(names, mig["uuid"])} for mig in gpu.get("mig_devices", ())]
    return found


def _uuids(names: Names, text: str) -> str:
    """A UUID of zeros means none, and stays."""
    return re.sub(
        _UUID, lambda match: match[0] if not match[0].strip("0-") else names.replaced("uuid", match[0].lower()), text
    )
