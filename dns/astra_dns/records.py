"""
The names that a machine answers for, as one immutable value: `Snapshot`. A `Draft` takes runs in and out and freezes.

A workspace sees its own names and no other: its `View` holds nothing else, so there is nothing to compare, filter or
forget, and another workspace's name takes the same path as one that never existed.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from struct import pack
from types import MappingProxyType

from astra_dns import names
from astra_dns.query import AAAA, NS, PTR, SOA, SRV, TXT, A

TTL_S = 1
"""
Of every own record, and of every "no". Nothing in a container caches by itself, so one second costs nothing there; what
does cache (the JVM, nscd, curl) forgets a worker that was swapped well before the next attempt's back-off is over.
Not 0: some caches take it for "never forget" or refuse the record.
"""
RENDEZVOUS = "_rendezvous._tcp"
_PROTOCOL = names.relative("_tcp")
_SERVICE = names.relative(RENDEZVOUS)

Records = tuple[tuple[int, bytes], ...]
"""Type and data of each record of a name, in the order they are given; empty for a name that only has others below."""
RunKey = tuple[str, str]
"""Workspace and run."""


@dataclass(frozen=True, slots=True)
class RunNames:
    """
    What one attempt of a run is called.

    Attributes:
        addresses: By worker's name: IPv4 and IPv6 addresses; none while it has no network yet.
        leader: The worker that the run's own name stands for; empty while none runs.
        port: Where the leader listens.
    """

    workspace: str
    run: str
    addresses: Mapping[str, tuple[str, ...]]
    leader: str = ""
    port: int = 0
    attempt: int = 0
    world_size: int = 0

    @property
    def key(self) -> RunKey:
        return self.workspace, self.run


@dataclass(frozen=True, slots=True)
class RunRecords:
    """
    One run's names as records. Nobody changes it; it is shared by every snapshot that the run is in unchanged.

    Attributes:
        workers: By relative name.
        leader: Of the run's own name; *protocol* and *service* of the names below it.
        reverse: By absolute name under `in-addr.arpa` and `ip6.arpa`.
    """

    workers: dict[bytes, Records]
    leader: Records
    protocol: Records | None
    service: Records | None
    reverse: dict[bytes, Records]


@dataclass(frozen=True, slots=True)
class View:
    """
    All that one workspace may know.

    Attributes:
        zone: The cluster's zone, such as `astra.internal`, absolute like the next two.
        home: The workspace within it.
        workspace: The workspace's own name as a top-level name, for `<worker>.<workspace>`.
        runs: By the run's name, in lower case.
        apex: Records of the zone itself.
        server: The zone's name server, and its records.
        soa: Data of the zone's SOA record.
    """

    zone: bytes
    home: bytes
    workspace: bytes
    runs: Mapping[bytes, RunRecords]
    apex: Records
    server: bytes
    server_records: Records
    soa: bytes

    def find(self, name: bytes) -> Records | None:
        """
        Records of a relative name, in lower case; None: there is no such name.

        A name may be one run's worker and another run's own (`a-1`): it is the worker's, of the longest run's name.
        """
        if name[:1] == b"\x04" and name.startswith(_PROTOCOL):
            run = self.runs.get(name[len(_PROTOCOL) + 1 :])
            return None if run is None else run.protocol
        if name.startswith(_SERVICE):
            run = self.runs.get(name[len(_SERVICE) + 1 :])
            return None if run is None else run.service
        label = name[1:]
        at = len(label)
        while (at := label.rfind(b"-", 0, at)) > 0:
            run = self.runs.get(label[:at])
            if run is not None and (records := run.workers.get(name)) is not None:
                return records
        run = self.runs.get(label)
        return run.leader if run is not None and name[0] == len(label) else None

    def find_reverse(self, name: bytes) -> Records | None:
        """PTR records of every worker with the address. Looks at each run in turn: this is asked for log lines."""
        found = [records for run in self.runs.values() if (records := run.reverse.get(name)) is not None]
        return tuple(itertools.chain.from_iterable(found)) if found else None

    @property
    def count(self) -> int:
        """How many workers have a name."""
        return sum(len(run.workers) for run in self.runs.values())


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Immutable. *serial* grows with each one that a draft freezes; a view's SOA record has that of its last change."""

    serial: int
    views: Mapping[str, View]
    nobody: View
    """What a workspace without a run sees: the zone, and no name in it."""

    def view(self, workspace: str) -> View:
        return self.views.get(workspace) or self.nobody


class Draft:
    """
    Runs go in and out one at a time; `freeze` costs what has changed since the last time, and little of that.

    Args:
        zone: Of the cluster.
        server: Address of the name server, for the zone's NS record.
    Raises:
        ValueError: a zone that is no name.
    """

    def __init__(self, zone: str = "astra.internal", server: str = "169.254.53.53") -> None:
        self._zone = names.absolute(zone)
        self._server = server
        self._runs: dict[RunKey, RunRecords] = {}
        self._workspaces: dict[str, dict[bytes, RunRecords]] = {}
        self._views: dict[str, View] = {}
        self._changed: set[str] = set()
        self._serial = 0

    @property
    def runs(self) -> Collection[RunKey]:
        return self._runs.keys()

    def put(self, run: RunNames) -> None:
        """*run* in the place of what was known of it. Raises: ValueError, and nothing has changed."""
        for _ in self.putting(run):
            pass

    def putting(self, run: RunNames) -> Iterator[None]:
        """As `put`, a name at a time; nothing of it is there before the end of the iteration."""
        _check(run, self._zone)
        home = names.relative(run.workspace) + self._zone
        workers: dict[bytes, Records] = {}
        reverse: dict[bytes, Records] = {}
        for worker, addresses in run.addresses.items():
            _check_worker(run, worker, home)
            name = names.relative(worker)
            workers[name] = _address_records(addresses)
            for address in addresses:
                at = names.reverse(address)
                reverse[at] = (*reverse.get(at, ()), (PTR, name + home))
            yield
        target = names.relative(run.run) + home
        service = ((SRV, pack("!3H", 0, 0, run.port) + target),) if run.leader else None
        made = RunRecords(workers, _leader_records(run), () if run.leader else None, service, reverse)
        self._runs[run.key] = made
        self._workspaces.setdefault(run.workspace, {})[run.run.lower().encode()] = made
        self._changed.add(run.workspace)

    def drop(self, key: RunKey) -> None:
        """Nothing is known of it any more. Idempotent."""
        if self._runs.pop(key, None) is not None:
            workspace, run = key
            del self._workspaces[workspace][run.lower().encode()]
            self._changed.add(workspace)

    def freeze(self) -> Snapshot:
        self._serial += 1
        soa = self._soa()
        for workspace in self._changed:
            runs = self._workspaces[workspace]
            if runs:
                self._views[workspace] = self._view(workspace, runs.copy(), soa)
            else:
                del self._workspaces[workspace]
                self._views.pop(workspace, None)
        self._changed.clear()
        return Snapshot(self._serial, MappingProxyType(self._views.copy()), self._view("", {}, soa))

    def _view(self, workspace: str, runs: dict[bytes, RunRecords], soa: bytes) -> View:
        own = names.relative(workspace) if workspace else b""
        server = b"\2ns" + self._zone
        return View(
            zone=self._zone,
            home=own + self._zone,
            workspace=own + b"\0",
            runs=MappingProxyType(runs),
            apex=((SOA, soa), (NS, server)),
            server=server,
            server_records=_address_records((self._server,)),
            soa=soa,
        )

    def _soa(self) -> bytes:
        refresh_s, retry_s, expire_s = 60, 10, 3600
        times = pack("!5I", self._serial & 0xFFFFFFFF, refresh_s, retry_s, expire_s, TTL_S)
        return b"\2ns" + self._zone + b"\12hostmaster" + self._zone + times


def _address_records(addresses: tuple[str, ...]) -> Records:
    parsed = (ip_address(address) for address in addresses)
    return tuple((A if address.version == 4 else AAAA, address.packed) for address in parsed)


def _leader_records(run: RunNames) -> Records:
    about = (f"attempt={run.attempt}", f"world_size={run.world_size}")
    text = b"".join(bytes([len(item)]) + item.encode() for item in about)
    return (*_address_records(run.addresses.get(run.leader, ())), (TXT, text))


def _check(run: RunNames, zone: bytes) -> None:
    """Raises: ValueError naming what is no name."""
    for name in (run.workspace, run.run):
        _check_label(name)
    if run.leader and run.leader not in run.addresses:
        raise ValueError(f"leader {run.leader!r} is no worker of run {run.run!r}")
    _check_length(run.run, run.workspace, names.relative(run.workspace) + zone)


def _check_worker(run: RunNames, worker: str, home: bytes) -> None:
    """Raises: ValueError naming what is no worker's name."""
    _check_label(worker)
    if not worker.lower().startswith(f"{run.run.lower()}-"):
        raise ValueError(f"{worker!r} is no worker of run {run.run!r}: expected {run.run}- in front")
    _check_length(worker, run.workspace, home)


def _check_label(name: str) -> None:
    if "." in name or len(names.relative(name)) > names.MAX_LABEL_BYTES + 1:
        raise ValueError(f"{name!r} is no name: expected one label")


def _check_length(name: str, workspace: str, home: bytes) -> None:
    if len(_SERVICE) + 1 + len(name) + len(home) > names.MAX_NAME_BYTES:
        raise ValueError(f"{name!r} of workspace {workspace!r} is no name: too long with the zone behind it")
