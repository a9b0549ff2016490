"""
Everything that is not ours: asked of the machine's own servers, remembered for a while, and never asked twice at once.

Whatever upstreams do, a question has its answer, or SERVFAIL, within `LIMIT_S`; questions about our own names never
come here. The order of upstreams is the machine's; one that does not answer goes to the end until it does.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from astra_dns.cache import Cache, Cached
from astra_dns.counters import Counters
from astra_dns.names import absolute
from astra_dns.query import CD, HINFO, IN, MAX_UDP_BYTES, NOERROR, NS, NXDOMAIN, RD, Query
from astra_dns.upstream import Upstream
from astra_dns.upstream_answer import AD, UpstreamAnswer, question_packet

log = logging.getLogger(__name__)

LIMIT_S = 1.8
"""A client that waits two seconds has an answer; glibc waits five, and asks again after that."""
LIMIT_SICK_S = 0.5
"""While no upstream answers, a question is only a probe."""
TRY_S = 0.45
"""Then the next upstream is asked as well; the first one may still answer."""
MAX_IN_FLIGHT = 1024
MAX_WAITING = 256
"""Askers of one question."""
CHECK_EVERY_S = 1.0
"""How often an upstream that does not answer is asked whether it does."""
LOOP_EVERY_S = 20.0
"""How often each upstream is asked something that comes back if it forwards to us: its own list may change any time."""
MAX_LOOP_PROBES = 64
"""That may still come back; the oldest is forgotten."""

_RANDOM = random.SystemRandom()

Done = Callable[[Cached | None], None]
"""Called once, maybe before `ask` returns; None: there is no answer."""


class _Key(NamedTuple):
    name: bytes
    rtype: int
    wishes: int
    dnssec_ok: bool


class Forwarder:
    """Made, used and closed on one event loop."""

    def __init__(self, counters: Counters, *, port: int = 53) -> None:
        self.cache = Cache()
        self._counters = counters
        self._port = port
        self._upstreams: tuple[Upstream, ...] = ()
        self._in_flight: dict[_Key, _Exchange] = {}
        self._probes: dict[bytes, _LoopProbe] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._check: asyncio.TimerHandle | None = None
        self._loop_check: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def upstreams(self) -> dict[str, bool]:
        """Addresses in order, and whether they answer."""
        return {upstream.name: upstream.is_healthy for upstream in self._upstreams}

    @property
    def loops(self) -> tuple[str, ...]:
        """Upstreams that send our own questions back to us."""
        return tuple(upstream.name for upstream in self._upstreams if upstream.loops)

    def set_upstreams(self, addresses: Sequence[str]) -> None:
        """From now on these, in this order. Idempotent; those that stay keep what is known of them."""
        known = {upstream.name: upstream for upstream in self._upstreams}
        if list(known) == list(addresses):
            return
        chosen = []
        for address in addresses:
            try:
                chosen.append(known.pop(address) if address in known else Upstream(address, self._port, self._counters))
            except OSError as error:
                log.warning("upstream_unusable address=%s reason=%s", address, error)
        for upstream in known.values():
            upstream.close()
        self._upstreams = tuple(chosen)
        log.info("upstreams addresses=%s", ",".join(upstream.name for upstream in chosen) or "none")
        if self._loop_check is not None:
            self._loop_check.cancel()
        self._check_loops()

    def ask(self, query: Query, done: Done) -> None:
        if query.rtype == HINFO and self._is_loop(query):
            done(None)
            return
        dnssec_ok = query.edns is not None and query.edns.dnssec_ok
        key = _Key(query.name, query.rtype, query.flags & (RD | CD | AD), dnssec_ok)
        found = self.cache.get(key, self._loop.time())
        if found is not None and found.fresh:
            self._counters.cache_hits["success" if found.answer.counts[0] else "denial"] += 1
            done(found)
            return
        self._counters.cache_misses += 1
        if found is not None and not any(upstream.is_healthy for upstream in self._upstreams):
            self._counters.served_stale += 1
            done(found)
            done = _ignore
        self._exchange(key, query, found, done)

    def _exchange(self, key: _Key, query: Query, stale: Cached | None, done: Done) -> None:
        exchange = self._in_flight.get(key)
        if exchange is not None:
            if len(exchange.waiting) >= MAX_WAITING:
                self._counters.rejected += 1
                done(stale)
                return
            self._counters.coalesced += 1
            exchange.waiting.append(done)
            return
        if not self._upstreams or len(self._in_flight) >= MAX_IN_FLIGHT:
            self._counters.rejected += bool(self._upstreams)
            done(stale)
            return
        exchange = _Exchange(self, key, query, stale, done)
        self._in_flight[key] = exchange
        exchange.begin(self._in_order())

    def _in_order(self) -> tuple[Upstream, ...]:
        return tuple(sorted(self._upstreams, key=lambda upstream: (upstream.loops, upstream.failures >= 3)))

    def finish(self, key: _Key, answer: UpstreamAnswer | None) -> None:
        """An exchange is over."""
        del self._in_flight[key]
        if answer is not None:
            self.cache.put(key, answer, self._loop.time())

    def spawn(self, work: asyncio.Task[None]) -> None:
        """Keep a task until it is done."""
        self._tasks.add(work)
        work.add_done_callback(self._tasks.discard)

    def took(self, upstream: Upstream, answer: UpstreamAnswer, seconds: float) -> None:
        """An upstream has answered what was asked so long ago."""
        self._counters.took(upstream.name, answer.rcode, seconds)

    def note_broken(self) -> None:
        """A question goes to upstreams none of which is known to answer."""
        self._counters.broken += 1

    def note(self, upstream: Upstream, *, good: bool) -> None:
        """An upstream has answered, or has not in time."""
        was = upstream.is_healthy
        upstream.failures = 0 if good else upstream.failures + 1
        if not good:
            self._counters.failures[upstream.name] += 1
            if self._check is None:
                self._check = self._loop.call_later(CHECK_EVERY_S, self._check_sick)
        if was != upstream.is_healthy:
            log.warning("upstream_%s address=%s", "answers" if good else "silent", upstream.name)

    def _check_sick(self) -> None:
        """Ask those that do not answer for the root's servers, which everyone knows, until all answer."""
        self._check = None
        sick = [upstream for upstream in self._upstreams if not upstream.is_healthy and not upstream.loops]
        for upstream in sick:
            _Probe(self, upstream, b"\0", NS).send()
        if sick:
            self._check = self._loop.call_later(CHECK_EVERY_S, self._check_sick)

    # Loops ------------------------------------------------------------------------------------------------------------

    def _check_loops(self) -> None:
        """
        Ask each upstream what nobody else would ask: whoever brings that to us forwards to us. One that does is asked
        nothing else, until it answers without.
        """
        for upstream in self._upstreams:
            while len(self._probes) >= MAX_LOOP_PROBES:
                del self._probes[next(iter(self._probes))]
            name = absolute(f"{_RANDOM.getrandbits(62)}.{_RANDOM.getrandbits(62)}")
            self._probes[name] = probe = _LoopProbe(self, upstream, name, HINFO)
            probe.send()
        self._loop_check = self._loop.call_later(LOOP_EVERY_S, self._check_loops) if self._upstreams else None

    def _is_loop(self, query: Query) -> bool:
        probe = self._probes.get(query.name)
        if probe is not None:
            probe.came_back()
        return probe is not None

    async def close(self) -> None:
        for check in (self._check, self._loop_check):
            if check is not None:
                check.cancel()
        for exchange in list(self._in_flight.values()):
            exchange.finish(None)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for upstream in self._upstreams:
            upstream.close()


class _Exchange:
    """One question, from the first upstream that is asked to the answer for all who wait."""

    def __init__(self, owner: Forwarder, key: _Key, query: Query, stale: Cached | None, done: Done) -> None:
        self.question = query.question
        self.waiting: list[Done] = [done]
        self._owner = owner
        self._key = key
        self._stale = stale
        self._tail = question_packet(query, MAX_UDP_BYTES)
        self._loop = asyncio.get_running_loop()
        self._timers: list[asyncio.TimerHandle] = []
        self._ends: list[Callable[[], None]] = []
        self._tries: list[Upstream] = []
        self._silent: set[Upstream] = set()
        self._asked_at: dict[Upstream, float] = {}
        self._last: UpstreamAnswer | None = None
        self._over = False

    def begin(self, upstreams: tuple[Upstream, ...]) -> None:
        healthy = [upstream for upstream in upstreams if upstream.is_healthy]
        usable = [upstream for upstream in upstreams if not upstream.loops]
        limit_s = LIMIT_S if healthy else LIMIT_SICK_S
        if not healthy:
            self._owner.note_broken()
        rounds = max(int(limit_s / TRY_S), 1)
        self._tries = (usable * rounds)[:rounds] if len(usable) < rounds else list(usable)
        self._timers.append(self._loop.call_later(limit_s, self._time_over))
        self._next()

    def _next(self) -> None:
        """Ask the next one, and the one after it when that has not answered soon."""
        while self._tries and not self._over:
            upstream = self._tries.pop(0)
            try:
                self._ends.append(upstream.send(self._tail, self))
            except OSError:
                self._owner.note(upstream, good=False)
                continue
            self._silent.add(upstream)
            self._asked_at[upstream] = self._loop.time()
            if self._tries:
                self._timers.append(self._loop.call_later(TRY_S, self._next))
            return
        if not self._silent and not self._over:
            self.finish(self._last)

    def answered(self, upstream: Upstream, answer: UpstreamAnswer) -> None:
        if self._over:
            return
        self._silent.discard(upstream)
        self._owner.took(upstream, answer, self._loop.time() - self._asked_at[upstream])
        self._owner.note(upstream, good=True)
        if answer.truncated:
            self._silent.add(upstream)
            self._owner.spawn(self._loop.create_task(self._ask_tcp(upstream, answer)))
        elif answer.rcode in (NOERROR, NXDOMAIN):
            self.finish(answer)
        else:
            self._no_use(upstream, answer)

    def refused(self, upstream: Upstream) -> None:
        if not self._over and upstream in self._silent:
            self._owner.note(upstream, good=False)
            self._no_use(upstream, None)

    def _no_use(self, upstream: Upstream, answer: UpstreamAnswer | None) -> None:
        """SERVFAIL, REFUSED and the like are no answer while somebody else may have one."""
        self._silent.discard(upstream)
        self._last = answer or self._last
        self._tries = [other for other in self._tries if other is not upstream]
        if self._tries:
            self._next()
        elif not self._silent:
            self.finish(self._last)

    async def _ask_tcp(self, upstream: Upstream, short: UpstreamAnswer) -> None:
        began_s = self._loop.time()
        answer = await upstream.ask_tcp(self._tail, self.question)
        if answer is not None:
            self._owner.took(upstream, answer, self._loop.time() - began_s)
        if not self._over:
            self.finish(short if answer is None else answer)

    def _time_over(self) -> None:
        for upstream in self._silent:
            self._owner.note(upstream, good=False)
        self.finish(self._last)

    def finish(self, answer: UpstreamAnswer | None) -> None:
        """Tell everybody, once."""
        if self._over:
            return
        self._over = True
        for timer in self._timers:
            timer.cancel()
        for end in self._ends:
            end()
        self._owner.finish(self._key, answer)
        good = answer is not None and answer.rcode in (NOERROR, NXDOMAIN)
        said = Cached(answer, 0, True) if answer is not None and (good or self._stale is None) else self._stale
        for done in self.waiting:
            done(said)


class _Probe:
    """A question whose answer does not matter, only that there is one."""

    def __init__(self, owner: Forwarder, upstream: Upstream, name: bytes, rtype: int) -> None:
        self.question = name + rtype.to_bytes(2, "big") + IN.to_bytes(2, "big")
        self._owner = owner
        self._upstream = upstream
        self._end: Callable[[], None] = lambda: None
        self._query = Query(RD, self.question, name, (), rtype, IN, None)

    def send(self) -> None:
        try:
            self._end = self._upstream.send(question_packet(self._query, MAX_UDP_BYTES), self)
        except OSError:
            return
        asyncio.get_running_loop().call_later(CHECK_EVERY_S, self._over)

    def _over(self) -> None:
        """No answer is waited for any more."""
        self._end()

    def answered(self, upstream: Upstream, answer: UpstreamAnswer) -> None:
        self._end()
        if not upstream.is_healthy:
            self._owner.note(upstream, good=True)

    def refused(self, upstream: Upstream) -> None:
        self._end()


class _LoopProbe(_Probe):
    """
    A question that comes back where its upstream forwards to us. An upstream may ask us and others at once, and pass on
    what the others say: an answer tells nothing before the time is over in which the question would have come back.
    """

    _is_answered = False
    _is_back = False

    def came_back(self) -> None:
        self._is_back = True
        if not self._upstream.loops:
            self._upstream.loops = True
            log.error("upstream_loops address=%s reason=it forwards to this name server", self._upstream.name)

    def answered(self, upstream: Upstream, answer: UpstreamAnswer) -> None:
        self._is_answered = True
        super().answered(upstream, answer)

    def _over(self) -> None:
        super()._over()
        if self._upstream.loops and self._is_answered and not self._is_back:
            self._upstream.loops = False
            log.warning("upstream_loops_no_more address=%s", self._upstream.name)


def _ignore(_: Cached | None) -> None:
    """For a question that was answered from stale and is asked again all the same."""
