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


def read_gids(reader: Reader, port: str, subject: str, *, only_first: bool) -> tuple[Gid, ...]:
    """Those that are set. *only_first*: an InfiniBand port, whose first one has all that is asked of it."""
    gids: list[Gid] = []
    empty = 0
    for name in reader.root.names(f"{port}/gids"):
        value = reader.parsed(f"{port}/gids/{name}", subject, f"its GID {name}", _gid)
        if value is None or value == _ZERO:
            empty += 1
            if empty == _MOST_EMPTY:
                break
            continue
        empty = 0
        attributes = f"{port}/gid_attrs"
        kind = reader.may(f"{attributes}/types/{name}", subject, f"the type of its GID {name}", often=_NOT_THERE)
        netdev = reader.may(
            f"{attributes}/ndevs/{name}", subject, f"the network device of its GID {name}", often=_NOT_THERE
        )
        gids.append(Gid(int(name), value, kind or "", netdev or ""))
        if only_first:
            break
    return tuple(gids)


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
