"""What has been counted since the server's start, for Prometheus: named as CoreDNS names it, with ours in front."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

_RCODES = {0: "NOERROR", 1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED"}


@dataclass(slots=True)
class Counters:
    """
    Attributes:
        rcodes: Answers over UDP and TCP, by the low four bits of their code.
        ignored: Packets that got no answer, by reason.
        tries: Questions to upstreams, by address.
        failures: Of them without a good answer in time, by address.
    """

    udp_requests: int = 0
    tcp_requests: int = 0
    rcodes: list[int] = field(default_factory=lambda: [0] * 16)
    ignored: Counter[str] = field(default_factory=Counter)
    panics: int = 0
    cache_hits: Counter[str] = field(default_factory=Counter)
    cache_misses: int = 0
    served_stale: int = 0
    coalesced: int = 0
    rejected: int = 0
    tries: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    lies: Counter[str] = field(default_factory=Counter)

    def text(self, *, entries: int, cached: int, healthy: dict[str, bool]) -> str:
        """
        The exposition format of Prometheus.

        Args:
            entries: Names in the snapshot.
            cached: Answers in the cache.
            healthy: Upstreams, and whether they answer.
        """
        lines: list[str] = []

        def add(name: str, kind: str, values: dict[str, float]) -> None:
            lines.append(f"# TYPE astra_{name} {kind}")
            lines.extend(f"astra_{name}{labels} {value:g}" for labels, value in values.items())

        add("dns_requests_total", "counter", _by("proto", {"udp": self.udp_requests, "tcp": self.tcp_requests}))
        said = {_RCODES.get(rcode, str(rcode)): count for rcode, count in enumerate(self.rcodes) if count}
        add("dns_responses_total", "counter", _by("rcode", said))
        add("dns_ignored_total", "counter", _by("reason", self.ignored))
        add("panics_total", "counter", {"": self.panics})
        add("hosts_entries", "gauge", {"": entries})
        add("cache_entries", "gauge", {"": cached})
        add("cache_hits_total", "counter", _by("type", self.cache_hits))
        add("cache_misses_total", "counter", {"": self.cache_misses})
        add("cache_served_stale_total", "counter", {"": self.served_stale})
        add("forward_coalesced_total", "counter", {"": self.coalesced})
        add("forward_max_concurrent_rejects_total", "counter", {"": self.rejected})
        add("forward_requests_total", "counter", _by("to", self.tries))
        add("forward_failures_total", "counter", _by("to", self.failures))
        add("forward_wrong_answers_total", "counter", _by("to", self.lies))
        add("forward_healthy", "gauge", _by("to", {address: int(good) for address, good in healthy.items()}))
        return "\n".join(lines) + "\n"


def _by(label: str, values: dict[str, int] | Counter[str]) -> dict[str, float]:
    return {f'{{{label}="{value}"}}': count for value, count in sorted(values.items())}
