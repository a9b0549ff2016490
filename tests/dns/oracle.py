"""
What must be answered, worked out a second time: dnspython reads the packet, names are text, runs are looked through.

Nothing of `astra_dns` but the runs' record is used, so that one mistake does not confirm the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.reversename

from astra_dns.records import RunNames

FORWARD = "forward"
META = {"TKEY", "TSIG", "IXFR", "AXFR", "MAILB", "MAILA"}


@dataclass(frozen=True, slots=True)
class Expected:
    """*data*: type and text of each answer; None: nothing is said about them."""

    rcode: int
    data: frozenset[tuple[str, str]] = frozenset()
    authoritative: bool = True


def expected(runs: Sequence[RunNames], workspace: str, message: dns.message.Message) -> Expected | str:
    """What *workspace* must get for a well-formed query."""
    question = message.question[0]
    kind = dns.rdatatype.to_text(question.rdtype)
    if message.edns > 0:
        return Expected(dns.rcode.BADVERS, authoritative=False)
    if kind == "OPT":
        return Expected(dns.rcode.FORMERR, authoritative=False)
    if question.rdclass != 1 or kind in META:
        return Expected(dns.rcode.REFUSED, authoritative=False)
    records = records_of(runs, workspace, question.name, kind)
    if records is None:
        return Expected(dns.rcode.NXDOMAIN)
    if isinstance(records, str):
        return records
    if kind == "ANY":
        return Expected(dns.rcode.NOERROR, frozenset({("HINFO", "")} if records else ()))
    return Expected(dns.rcode.NOERROR, frozenset(record for record in records if record[0] == kind))


def records_of(
    runs: Sequence[RunNames], workspace: str, name: dns.name.Name, kind: str
) -> set[tuple[str, str]] | str | None:
    """All records of a name; None: there is no such name; FORWARD: it is not ours."""
    labels = [label.lower() for label in name.labels[:-1]]
    zone = [b"astra", b"internal"]
    own = workspace.encode()
    if labels[-2:] == zone:
        inside = labels[:-2]
        if not inside:
            return {("SOA", ""), ("NS", "ns.astra.internal.")}
        if inside[-1] == own and len(inside) == 1:
            return set()
        if inside[-1] == own:
            return worker_records(runs, workspace, inside[:-1])
        return {("A", "169.254.53.53")} if inside == [b"ns"] else None
    if labels and (found := worker_records(runs, workspace, labels)) is not None:
        return found
    if len(labels) == 1 and kind in ("A", "AAAA") and labels[0] not in (b"localhost", b"invalid", b"onion"):
        return set() if labels == [own] else None
    if len(labels) > 1 and labels[-1] == own and (found := worker_records(runs, workspace, labels[:-1])) is not None:
        return found
    if labels[-2:] in ([b"in-addr", b"arpa"], [b"ip6", b"arpa"]):
        if labels == [b"1", b"0", b"0", b"127", b"in-addr", b"arpa"]:
            return {("PTR", "localhost.")}
        return reverse_records(runs, workspace, labels) or FORWARD
    if labels[-1:] == [b"localhost"]:
        return {("A", "127.0.0.1"), ("AAAA", "::1")}
    return None if labels[-1:] in ([b"invalid"], [b"onion"]) else FORWARD


def worker_records(runs: Sequence[RunNames], workspace: str, labels: Sequence[bytes]) -> set[tuple[str, str]] | None:
    for run in (run for run in runs if run.workspace == workspace):
        for worker, addresses in run.addresses.items():
            if list(labels) == [worker.encode()]:
                return addresses_of(addresses)
        if list(labels) == [run.run.encode()]:
            about = ("TXT", f'"attempt={run.attempt}" "world_size={run.world_size}"')
            return addresses_of(run.addresses[run.leader]) | {about}
        if list(labels) == [b"_rendezvous", b"_tcp", run.run.encode()]:
            return {("SRV", f"0 0 {run.port} {run.run}.{workspace}.astra.internal.")}
        if list(labels) == [b"_tcp", run.run.encode()]:
            return set()
    return None


def addresses_of(addresses: Sequence[str]) -> set[tuple[str, str]]:
    return {("A" if ip_address(one).version == 4 else "AAAA", one) for one in addresses}


def reverse_records(runs: Sequence[RunNames], workspace: str, labels: Sequence[bytes]) -> set[tuple[str, str]]:
    return {
        ("PTR", f"{worker}.{workspace}.astra.internal.")
        for run in runs
        if run.workspace == workspace
        for worker, addresses in run.addresses.items()
        for address in addresses
        if dns.reversename.from_address(address).labels[:-1] == tuple(labels)
    }
