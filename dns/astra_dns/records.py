"""
The names that a machine answers for, as one immutable value: `Snapshot`. A `Draft` takes runs in and out and freezes.

A workspace sees its own names and no other: its `View` holds nothing else, so there is nothing to compare, filter or
forget, and another workspace's name takes the same path as one that never existed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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
class View:
    """
    All that one workspace may know.

    Attributes:
        zone: The cluster's zone, such as `astra.internal`, absolute like the next two.
        home: The workspace within it.
        workspace: The workspace's own name as a top-level name, for `<worker>.<workspace>`.
        names: By relative name (`llama-0`, `_rendezvous._tcp.llama`).
        reverse: By absolute name under `in-addr.arpa` and `ip6.arpa`.
        apex: Of the zone itself.
        server: The zone's name server, and its records.
        soa: Data of the zone's SOA record.
    """

    zone: bytes
    home: bytes
    workspace: bytes
    names: Mapping[bytes, Records]
    reverse: Mapping[bytes, Records]
    apex: Records
    server: bytes
    server_records: Records
    soa: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Immutable. *serial* grows with each one that a draft freezes, and is the zone's own."""

    serial: int
    views: Mapping[str, View]
    nobody: View
    """What a workspace without a run sees: the zone, and no name in it."""

    def view(self, workspace: str) -> View:
        return self.views.get(workspace) or self.nobody


@dataclass(slots=True)
class _Workspace:
    names: dict[bytes, Records] = field(default_factory=dict)
    reverse: dict[bytes, Records] = field(default_factory=dict)
    owners: dict[str, dict[str, None]] = field(default_factory=dict)
    """By address: the workers that have it, in order of arrival."""
    changed: bool = True


class Draft:
    """
    Runs go in and out one at a time; `freeze` copies what has changed since the last time.

    Args:
        zone: Of the cluster.
        server: Address of the name server, for the zone's NS record.
    Raises:
        ValueError: a zone that is no name.
    """

    def __init__(self, zone: str = "astra.internal", server: str = "169.254.53.53") -> None:
        self._zone = names.absolute(zone)
        self._server = server
        self._runs: dict[RunKey, RunNames] = {}
        self._workspaces: dict[str, _Workspace] = {}
        self._views: dict[str, View] = {}
        self._serial = 0

    @property
    def runs(self) -> Mapping[RunKey, RunNames]:
        return MappingProxyType(self._runs)

    def put(self, run: RunNames) -> None:
        """*run* in the place of what was known of it. Raises: ValueError, and nothing has changed."""
        for _ in self.putting(run):
            pass

    def drop(self, key: RunKey) -> None:
        """Nothing is known of it any more. Idempotent."""
        for _ in self.dropping(key):
            pass

    def putting(self, run: RunNames) -> Iterator[None]:
        """As `put`, a name at a time: it is done at the end of the iteration, and not to be frozen before."""
        _check(run, self._zone)
        before = self._runs.pop(run.key, None)
        self._runs[run.key] = run
        if before is not None:
            yield from self._settle(before)
        yield from self._settle(run)

    def dropping(self, key: RunKey) -> Iterator[None]:
        """As `drop`, a name at a time."""
        before = self._runs.pop(key, None)
        if before is not None:
            yield from self._settle(before)

    def freeze(self) -> Snapshot:
        self._serial += 1
        soa = self._soa()
        for name, workspace in list(self._workspaces.items()):
            if not workspace.names:
                del self._workspaces[name]
                self._views.pop(name, None)
            elif workspace.changed:
                self._views[name] = self._view(name, workspace.names.copy(), workspace.reverse.copy(), soa)
                workspace.changed = False
        return Snapshot(self._serial, MappingProxyType(self._views.copy()), self._view("", {}, {}, soa))

    def _view(self, workspace: str, known: dict[bytes, Records], reverse: dict[bytes, Records], soa: bytes) -> View:
        own = names.relative(workspace) if workspace else b""
        server = b"\2ns" + self._zone
        return View(
            zone=self._zone,
            home=own + self._zone,
            workspace=own + b"\0",
            names=MappingProxyType(known),
            reverse=MappingProxyType(reverse),
            apex=((SOA, soa), (NS, server)),
            server=server,
            server_records=_address_records((self._server,)),
            soa=soa,
        )

    def _soa(self) -> bytes:
        refresh_s, retry_s, expire_s = 60, 10, 3600
        times = pack("!5I", self._serial & 0xFFFFFFFF, refresh_s, retry_s, expire_s, TTL_S)
        return b"\2ns" + self._zone + b"\12hostmaster" + self._zone + times

    # Which run a name belongs to -------------------------------------------------------------------------------------

    def _settle(self, run: RunNames) -> Iterator[None]:
        """Look again at every name and address that *run* has, or had."""
        workspace = self._workspaces.setdefault(run.workspace, _Workspace())
        workspace.changed = True
        for worker, addresses in run.addresses.items():
            self._settle_name(workspace, run.workspace, worker)
            for address in addresses:
                self._settle_address(workspace, run.workspace, address, worker)
            yield
        self._settle_name(workspace, run.workspace, run.run)
        self._settle_service(workspace, run)

    def _settle_name(self, workspace: _Workspace, of: str, name: str) -> None:
        key = names.relative(name)
        owner = self._owner(of, name)
        if owner is None:
            workspace.names.pop(key, None)
        elif name in owner.addresses:
            workspace.names[key] = _address_records(owner.addresses[name])
        else:
            about = (f"attempt={owner.attempt}", f"world_size={owner.world_size}")
            text = b"".join(bytes([len(item)]) + item.encode() for item in about)
            workspace.names[key] = (*_address_records(owner.addresses.get(owner.leader, ())), (TXT, text))

    def _owner(self, workspace: str, name: str) -> RunNames | None:
        """The run that *name* belongs to: as a worker's name first, of the run with the longest name, then as a run."""
        at = len(name)
        while (at := name.rfind("-", 0, at)) > 0:
            run = self._runs.get((workspace, name[:at]))
            if run is not None and name in run.addresses:
                return run
        return self._runs.get((workspace, name))

    def _settle_service(self, workspace: _Workspace, run: RunNames) -> None:
        protocol, service = names.relative(f"_tcp.{run.run}"), names.relative(f"{RENDEZVOUS}.{run.run}")
        known = self._runs.get(run.key)
        if known is None or not known.leader:
            workspace.names.pop(protocol, None)
            workspace.names.pop(service, None)
            return
        target = names.relative(run.run) + names.relative(run.workspace) + self._zone
        workspace.names[protocol] = ()
        workspace.names[service] = ((SRV, pack("!3H", 0, 0, known.port) + target),)

    def _settle_address(self, workspace: _Workspace, of: str, address: str, worker: str) -> None:
        owners = workspace.owners.setdefault(address, {})
        owner = self._owner(of, worker)
        if owner is not None and address in owner.addresses.get(worker, ()):
            owners[worker] = None
        else:
            owners.pop(worker, None)
        key = names.reverse(address)
        if owners:
            home = names.relative(of) + self._zone
            workspace.reverse[key] = tuple((PTR, names.relative(name) + home) for name in owners)
        else:
            del workspace.owners[address]
            workspace.reverse.pop(key, None)


def _address_records(addresses: tuple[str, ...]) -> Records:
    parsed = (ip_address(address) for address in addresses)
    return tuple((A if address.version == 4 else AAAA, address.packed) for address in parsed)


def _check(run: RunNames, zone: bytes) -> None:
    """Raises: ValueError naming what is no name or no address."""
    for name in (run.run, run.leader or run.run, *run.addresses):
        whole = names.relative(f"{RENDEZVOUS}.{name}") + names.relative(run.workspace) + zone
        if "." in name or len(whole) > names.MAX_NAME_BYTES:
            raise ValueError(f"{name!r} of workspace {run.workspace!r} is no name: expected one label, and room for it")
    if "." in run.workspace:
        raise ValueError(f"workspace {run.workspace!r} is no name: expected one label")
    for address in _addresses(run):
        ip_address(address)


def _addresses(run: RunNames) -> Iterator[str]:
    for addresses in run.addresses.values():
        yield from addresses
