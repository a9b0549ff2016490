"""IMEX: what shares memory across the machines of an NVLink domain, through channels that the driver offers."""

from __future__ import annotations

import re

from astra_agent.inventory.model import CharDevice, Imex, NvlinkDomain
from astra_agent.inventory.tree import Reader

CHANNELS = "/dev/nvidia-caps-imex-channels"
_REGION = "nvidia-caps-imex-channels"
_CAPABILITIES = "nvidia-caps"
_NODES_CONFIG = "/etc/nvidia-imex/nodes_config.cfg"


def read_imex(reader: Reader, *, service: str | None) -> Imex | None:
    """None where the driver offers no channels at all. *service*: what the service says of itself, if it was asked."""
    majors = _majors(reader)
    if _REGION not in majors:
        return None
    params = reader.may("/proc/driver/nvidia/params", "IMEX", "how many channels the driver offers")
    count = re.search(r"^ImexChannelCount: *([0-9]{1,6})$", params or "", re.MULTILINE)
    if count is None:
        reader.found("warning", "IMEX", "how many channels the driver offers is not known: /proc/driver/nvidia/params")
    return Imex(
        major=majors[_REGION],
        channels=int(count[1]) if count else None,
        present=_present(reader),
        management=_management(reader),
        nodes=_nodes(reader),
        service=service,
    )


def channel(imex: Imex, number: int) -> CharDevice:
    """A channel's device. The node need not be on the machine: the runtime makes it in the container."""
    return CharDevice(f"{CHANNELS}/channel{number}", imex.major, number)


def why_not(imex: Imex | None, nvlink: NvlinkDomain) -> str | None:
    """Why no worker can share memory with another machine's; None when it can, as far as the machine shows."""
    if nvlink.key is None:
        return nvlink.reason
    if imex is None or imex.channels == 0:
        return "the driver offers no IMEX channels (NVreg_ImexChannelCount is 0)"
    if imex.service is not None and imex.service != "READY":
        return f"the IMEX service is {imex.service}, not READY: see nvidia-imex-ctl -N"
    return None


def report(reader: Reader, imex: Imex | None, nvlink: NvlinkDomain) -> None:
    """Findings of a machine in an NVLink domain."""
    if nvlink.key is None:
        return
    reason = why_not(imex, nvlink)
    if reason is not None:
        reader.found("fault", "IMEX", reason, "set the module's parameter and reload it, or start nvidia-imex")
    elif imex is not None and imex.nodes is not None and not imex.nodes:
        reader.found("warning", "IMEX", f"its node list {_NODES_CONFIG} names no machine")


def _majors(reader: Reader) -> dict[str, int]:
    text = reader.need("/proc/devices", "devices", "which kinds of devices there are")
    character = (text or "").partition("Block devices:")[0]
    return {
        words[1]: int(words[0])
        for line in character.splitlines()
        if len(words := line.split()) == 2 and words[0].isdecimal() and len(words[0]) < 6
    }


def _present(reader: Reader) -> tuple[int, ...]:
    matches = (re.fullmatch(r"channel([0-9]{1,6})", name) for name in reader.root.names(CHANNELS))
    return tuple(int(match[1]) for match in matches if match and reader.root.device(f"{CHANNELS}/{match[0]}"))


def _management(reader: Reader) -> CharDevice | None:
    text = reader.may("/proc/driver/nvidia/capabilities/fabric-imex-mgmt", "IMEX", "the capability of its service")
    if text is None:
        reader.found("note", "IMEX", "the capability of its service is not known")
    minor = re.search(r"^DeviceFileMinor: *([0-9]{1,6})$", text or "", re.MULTILINE)
    return reader.root.device(f"/dev/{_CAPABILITIES}/nvidia-cap{minor[1]}") if minor else None


def _nodes(reader: Reader) -> tuple[str, ...] | None:
    text = reader.may(_NODES_CONFIG, "IMEX", "its node list")
    if text is None:
        return None
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return tuple(line for line in lines if line)
