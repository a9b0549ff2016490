"""
What has been counted since the server's start, for Prometheus: called as in CoreDNS 1.12 where that counts the same,
with `astra_` in place of `coredns_`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

_RCODES = {0: "NOERROR", 1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED"}


@dataclass(slots=True)
class Counters:
    """
    Attributes:
        rcodes: Answers over UDP and TCP, by the low four bits of their code.
        ignored: Packets that got no answer, by reason.
        broken: Questions to upstreams while none was known to answer.
        tries: Questions to upstreams, by address; those that only look whether one answers, too.
        failures: Of them without a good answer in time, by address.
        lies: Packets from upstreams that answer nothing that was asked, by address.
        answers: Of upstreams, by address and code.
        answers_s: How long they took, together.
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
    broken: int = 0
    tries: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    lies: Counter[str] = field(default_factory=Counter)
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    answers_s: defaultdict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))

    def took(self, upstream: str, rcode: int, seconds: float) -> None:
        """An upstream has answered what was asked so long ago."""
        key = upstream, _RCODES.get(rcode, "other")
        self.answers[key] += 1
        self.answers_s[key] += seconds

    def text(self, *, entries: int, cached: int, healthy: dict[str, bool]) -> str:
        """
        The exposition format of Prometheus.

        Args:
            entries: Names in the snapshot.
            cached: Answers in the cache.
            healthy: Upstreams, and whether they answer.
        """
        lines: list[str] = []

        def add(name: str, kind: str, values: dict[str, int]) -> None:
            lines.append(f"# TYPE astra_{name} {kind}")
            lines.extend(f"astra_{name}{labels} {value}" for labels, value in values.items())

        add("dns_requests_total", "counter", _by("proto", {"udp": self.udp_requests, "tcp": self.tcp_requests}))
        said = {_RCODES.get(rcode, str(rcode)): count for rcode, count in enumerate(self.rcodes) if count}
        add("dns_responses_total", "counter", _by("rcode", said))
        add("dns_ignored_total", "counter", _by("reason", self.ignored))
        add("panics_total", "counter", {"": self.panics})
        add("hosts_entries", "gauge", {"": entries})
        add("cache_entries", "gauge", {"": cached})
        add("cache_hits_total", "counter", _by("type", self.cache_hits))
        hits = self.cache_hits.total()
        add("cache_requests_total", "counter", {"": hits + self.cache_misses})
        add("cache_misses_total", "counter", {"": self.cache_misses})
        add("cache_served_stale_total", "counter", {"": self.served_stale})
        add("forward_coalesced_total", "counter", {"": self.coalesced})
        add("forward_max_concurrent_rejects_total", "counter", {"": self.rejected})
        add("forward_healthcheck_broken_total", "counter", {"": self.broken})
        add("forward_requests_total", "counter", _by("to", self.tries))
        add("forward_failures_total", "counter", _by("to", self.failures))
        add("forward_wrong_answers_total", "counter", _by("to", self.lies))
        add("forward_healthy", "gauge", _by("to", {address: int(good) for address, good in healthy.items()}))
        name = "astra_proxy_request_duration_seconds"
        lines.append(f"# TYPE {name} summary")
        for (to, rcode), count in sorted(self.answers.items()):
            labels = f'{{proxy_name="forward",to="{to}",rcode="{rcode}"}}'
            lines.append(f"{name}_sum{labels} {self.answers_s[to, rcode]:.6f}")
            lines.append(f"{name}_count{labels} {count}")
        return "\n".join(lines) + "\n"


def _by(label: str, values: dict[str, int] | Counter[str]) -> dict[str, int]:
    return {f'{{{label}="{value}"}}': count for value, count in sorted(values.items())}
