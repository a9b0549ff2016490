"""The all-reduces themselves, on loopback: right for any number of positions and elements, and broken ones end."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_netprobe import doubling, groups, pattern, ring, tcp_info
from astra_netprobe.ring import Broken, Lane
from astra_netprobe.tcp_info import NOTHING

BOUND_S = 40.0


def together(works: list[Callable[[], float]]) -> list[float]:
    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result(BOUND_S) for future in [pool.submit(work) for work in works]]


def lanes_of(count: int, elements: int) -> tuple[list[Lane], list[socket.socket]]:
    links = [socket.socketpair() for _ in range(count)]
    for link in links:
        for end in link:
            end.setblocking(False)
    lanes = [Lane(links[i][0], links[i - 1][1], position=i, count=count, elements=elements) for i in range(count)]
    return lanes, [end for link in links for end in link]


@given(count=st.integers(2, 7), elements=st.integers(1, 400_000))
@settings(max_examples=25, deadline=None)
def test_a_ring_sums_every_element_of_every_position(count: int, elements: int) -> None:
    lanes, opened = lanes_of(count, elements)
    until = time.monotonic() + BOUND_S

    def work(lane: Lane) -> Callable[[], float]:
        return lambda: ring.all_reduce([lane], deadline=until, stall_s=BOUND_S)

    for _ in range(2):
        together([work(lane) for lane in lanes])
    assert [lane.wrong for lane in lanes] == [0] * count
    whole = pattern.block(range(count))
    bounds = [i * elements // count for i in range(count + 1)]
    for lane in lanes:
        for begin, end in itertools.pairwise(bounds):
            segment = lane._result[begin:end]
            assert np.array_equal(segment, np.resize(whole, len(segment)))
    for end_ in opened:
        end_.close()


@given(count=st.integers(2, 11), elements=st.integers(1, 16_384))
@settings(max_examples=25, deadline=None)
def test_doubling_sums_for_any_number_of_positions(count: int, elements: int) -> None:
    ends: list[dict[int, socket.socket]] = [{} for _ in range(count)]
    for one in range(count):
        for other in doubling.peers(one, count):
            if one < other:
                ends[one][other], ends[other][one] = socket.socketpair()
    exchanges = [doubling.Doubling(ends[i], position=i, count=count, elements=elements) for i in range(count)]
    for _ in range(2):
        together([exchange.all_reduce for exchange in exchanges])
    for exchange in exchanges:
        assert exchange.wrong == {}
        assert np.array_equal(exchange._sum, pattern.block(range(count))[:elements])
    for own in ends:
        for end in own.values():
            end.close()


def test_a_changed_element_is_counted_and_put_right_once() -> None:
    expected = pattern.block([1, 2])
    found = np.resize(expected, 3 * pattern.BLOCK + 5)
    found[pattern.BLOCK + 7] += 1
    found.view(np.uint32)[-1] ^= 1
    assert pattern.check(found, expected) == 2
    assert pattern.check(found, expected) == 0


def test_sums_stay_exact_for_as_many_positions_as_there_may_be() -> None:
    largest = pattern.summed(pattern.RANKS_MAX, 15 * pattern.RANKS_MAX).max()
    assert largest < 2**24


def test_a_ring_whose_neighbour_is_gone_ends_at_once_and_one_that_is_silent_with_a_bound() -> None:
    lanes, opened = lanes_of(3, 100_000)
    opened[1].close()
    with pytest.raises(Broken):
        ring.all_reduce([lanes[0]], deadline=time.monotonic() + BOUND_S, stall_s=0.2)
    with pytest.raises(Broken, match="nothing moves"):
        ring.all_reduce([lanes[2]], deadline=time.monotonic() + BOUND_S, stall_s=0.2)
    for end in opened:
        end.close()


def test_the_kernel_tells_what_a_connection_carried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sending = socket.create_connection(listener.getsockname())
        receiving, _ = listener.accept()
    with sending, receiving:
        drain = threading.Thread(target=lambda: [None for _ in iter(lambda: receiving.recv(1 << 16), b"")], daemon=True)
        drain.start()
        sending.sendall(bytes(1 << 20))
        sending.shutdown(socket.SHUT_WR)
        drain.join(BOUND_S)
        until = time.monotonic() + BOUND_S
        while (found := tcp_info.read(sending)).acked_bytes < 1 << 20 and time.monotonic() < until:
            time.sleep(0.01)  # the last acknowledgement may be on its way
    assert found.acked_bytes >= 1 << 20
    assert 0 < found.rtt_s < 1 and 0 < found.min_rtt_s < 1
    assert 0 < found.cwnd < 1 << 20 and found.lost == 0
    assert tcp_info.read(sending) == tcp_info.NOTHING


@given(st.binary(max_size=300))
def test_what_a_kernel_tells_is_read_however_much_it_is(raw: bytes) -> None:
    tcp_info.parse(raw)


@pytest.mark.parametrize(("min_rtt_s", "size"), [(0.0, None), (2e-5, groups.SEND_BUFFER), (1e-3, None), (4e-2, None)])
def test_only_a_way_that_is_short_gets_a_short_queue(min_rtt_s: float, size: int | None) -> None:
    """A bound on what is under way would be one on the rate of a way that is long, or not known."""
    assert groups.send_buffer(replace(NOTHING, min_rtt_s=min_rtt_s)) == size
