"""
This machine's RDMA ports, and `ib_write_bw` between them and a peer's: for each a process of its own, with a bound.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from astra_netprobe import perftest
from astra_netprobe.messages import RdmaDone, RdmaPort, RdmaWrite, RdmaWrites, RdmaWritesDone
from astra_netprobe.perftest import Written

_AGAIN_S = 0.3
"""Until the other side listens."""
_ROCE_V2 = "RoCE v2"
_LINK_LOCAL = "fe80"


def missing(root: Path = Path("/"), netdev: str = "") -> str:
    """What keeps RDMA from being measured here, in words; empty when nothing does. *netdev*: as for `ports`."""
    if not (root / "dev/infiniband").is_dir():
        return "there is no /dev/infiniband"
    if shutil.which(perftest.PROGRAM) is None:
        return f"{perftest.PROGRAM} (perftest) is not installed"
    if ports(root, netdev):
        return ""
    return f"no active RDMA port belongs to {netdev}" if netdev and ports(root) else "no RDMA port is active"


def ports(root: Path = Path("/"), netdev: str = "") -> tuple[RdmaPort, ...]:
    """Those that are active, by name; with *netdev* only those of that network port."""
    found = []
    for folder in sorted((root / "sys/class/infiniband").glob("*/ports/*"), key=_natural):
        if netdev and netdev not in _netdevs(folder):
            continue
        if _text(folder / "state").endswith("ACTIVE") and folder.name.isdigit():
            link = _text(folder / "link_layer")
            found.append(
                RdmaPort(
                    device=folder.parents[1].name, port=int(folder.name), link_layer=link,
                    rate_bps=_rate(_text(folder / "rate")), gid=_gid(folder, netdev) if link == "Ethernet" else None,
                )
            )  # fmt: skip
    return tuple(found)


def write_all(question: RdmaWrites) -> RdmaWritesDone:
    """One side of several measurements at the same time."""
    with ThreadPoolExecutor(len(question.writes)) as threads:
        return RdmaWritesDone(done=tuple(threads.map(write, question.writes)))


def write(question: RdmaWrite) -> RdmaDone:
    """One side of one measurement."""
    until = time.monotonic() + question.limit_s
    words = perftest.command(
        question.device, question.port, gid=question.gid, listen=question.listen, seconds=question.seconds,
        to=question.to or "",
    )  # fmt: skip
    while True:
        found = perftest.read(run(words, until - time.monotonic()))
        if question.to is None or not found.too_early or time.monotonic() + _AGAIN_S >= until:
            return _done(found)
        time.sleep(_AGAIN_S)


def run(words: Sequence[str], limit_s: float) -> str:
    """
    What it wrote on both outputs. After *limit_s* seconds it, and whatever it started, is killed: then its last line is
    a sentence about that.
    """
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        return f"{words[0]} can't be started: {error.strerror}\n"
    try:
        written, _ = process.communicate(timeout=max(0.1, limit_s))
        return written.decode(errors="replace")
    except subprocess.TimeoutExpired:
        return f"{words[0]} did not end within {limit_s:.0f} s\n"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _done(found: Written) -> RdmaDone:
    return RdmaDone(rate_bps=found.rate_bps, link=found.link, mtu=found.mtu, reason=found.reason)


def _netdevs(folder: Path) -> set[str]:
    """Network ports of one RDMA port: those that its GIDs belong to, and, of InfiniBand, those of its device."""
    of_gids = {_text(file) for file in (folder / "gid_attrs/ndevs").glob("*")}
    return of_gids | {found.name for found in (folder.parents[1] / "device/net").glob("*")}


def _natural(folder: Path) -> list[tuple[int, str]]:
    """`mlx5_2` before `mlx5_10`."""
    words = re.findall(r"[0-9]+|[^0-9]+", f"{folder.parents[1].name}/{folder.name}")
    return [(int(word), "") if word.isdigit() else (-1, word) for word in words]


def _gid(folder: Path, netdev: str) -> int | None:
    """
    The first of RoCE v2 with a routable IPv4 address, else the first of RoCE v2 that is not local to the link: perftest
    would take number 0, which often is neither. With *netdev* of that network port's: a VLAN has GIDs of its own.
    """
    chosen: list[tuple[bool, int]] = []
    for file in (folder / "gids").glob("*"):
        value = _text(file)
        if netdev and _text(folder / "gid_attrs/ndevs" / file.name) not in ("", netdev):
            continue
        kind = _text(folder / "gid_attrs" / "types" / file.name)
        if kind == _ROCE_V2 and value.strip("0:") and not value.startswith(_LINK_LOCAL):
            chosen.append((not value.startswith("0000:0000:0000:0000:0000:ffff"), int(file.name)))
    return min(chosen)[1] if chosen else None


def _rate(text: str) -> float:
    """`400 Gb/sec (4X NDR)`."""
    number = text.partition(" ")[0]
    return float(number) * 1e9 if number.replace(".", "", 1).isdigit() else 0.0


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
