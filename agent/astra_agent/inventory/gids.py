"""GIDs of a port, and the one that RoCE traffic can be routed with."""

from __future__ import annotations

import re
from collections.abc import Sequence

from astra_agent.inventory.model import Gid
from astra_agent.inventory.tree import Reader

ROCE_V2 = "RoCE v2"

_GID = re.compile(r"[0-9a-f]{4}(:[0-9a-f]{4}){7}")
_ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"
_IPV4_MAPPED = "0000:0000:0000:0000:0000:ffff:"
_LINK_LOCAL = ("fe80:", _IPV4_MAPPED + "a9fe:")
_MOST_EMPTY = 32
"""Empty slots in a row after which the rest of a table, up to 1024 slots, is taken as empty too."""
_NOT_THERE = ("EINVAL",)
"""What the attributes of an empty slot answer, and those of one whose network device is in another namespace."""


def read_gids(reader: Reader, port: str, subject: str, *, is_roce: bool) -> tuple[Gid, ...]:
    """Those that are set. Of a port that is not RoCE's only the first matters, and it has no network device."""
    gids: list[Gid] = []
    empty = 0
    names = [name for name in reader.root.names(f"{port}/gids") if re.fullmatch(r"[0-9]{1,5}", name)]
    for at, name in enumerate(names):
        if int(name) != at:
            reader.found("fault", subject, f"its GIDs are not all known: {port}/gids/{at} is not there")
            break
        value = reader.parsed(f"{port}/gids/{name}", subject, f"its GID {name}", _gid)
        empty = empty + 1 if value in (None, _ZERO) else 0
        if value is not None and value != _ZERO:
            gids.append(_with_attributes(reader, port, subject, at, value) if is_roce else Gid(at, value, "", ""))
        if empty == _MOST_EMPTY or (gids and not is_roce):
            break
    if not gids:
        reader.found("fault", subject, f"it has no GID: {port}/gids has none that is set")
    return tuple(gids)


def _with_attributes(reader: Reader, port: str, subject: str, index: int, value: str) -> Gid:
    found = {
        name: reader.may(f"{port}/gid_attrs/{name}/{index}", subject, f"{what} of its GID {index}", often=_NOT_THERE)
        for name, what in (("types", "the type"), ("ndevs", "the network device"))
    }
    if None in found.values():
        reader.found("note", subject, f"its GID {index} can't be used here: its network device is gone or elsewhere")
    return Gid(index, value, found["types"] or "", found["ndevs"] or "")


def routable(gids: Sequence[Gid]) -> int | None:
    """
    The index of the GID to use for RoCE v2: the first with an IPv4 address, else the first with a global IPv6 one;
    link-local ones connect and then time out.
    """
    usable = [gid for gid in gids if gid.kind == ROCE_V2 and not gid.value.startswith(_LINK_LOCAL)]
    mapped = [gid for gid in usable if is_ipv4(gid)]
    return next((gid.index for gid in (*mapped, *usable)), None)


def is_ipv4(gid: Gid) -> bool:
    return gid.value.startswith(_IPV4_MAPPED)


def _gid(text: str) -> str | None:
    return text.strip() if _GID.fullmatch(text.strip()) else None
