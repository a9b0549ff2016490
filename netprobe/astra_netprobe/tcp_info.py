"""What the kernel knows of a TCP connection: `struct tcp_info` of linux/tcp.h, of which newer kernels only append."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

_LAYOUT = struct.Struct("=8B24I4Q6I4Q")
_FIELDS_BYTES = 256
_UNACKED, _LOST, _LAST_ACK_RECEIVED, _RTT, _CWND, _TOTAL_RETRANSMITS = 8 + 4, 8 + 6, 8 + 12, 8 + 15, 8 + 18, 8 + 23
_BYTES_ACKED, _MIN_RTT, _BUSY, _WINDOW = 8 + 24 + 2, 8 + 24 + 4 + 3, 8 + 24 + 4 + 6 + 1, 8 + 24 + 4 + 6 + 2


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """
    Attributes:
        busy_s: Time with data not yet acknowledged, since the connection began.
        window_s: Of it, waiting for the receiver's program to read.
        min_rtt_s: The shortest that was seen: of the way itself, without queues. 0.0 before the first.
        silent_s: Since the last acknowledgement.
        cwnd: Packets that may be under way at once.
        lost: Packets that are taken for lost and are not sent again yet.
    """

    unacked: int
    rtt_s: float
    min_rtt_s: float
    retransmits: int
    acked_bytes: int
    busy_s: float
    window_s: float
    silent_s: float
    cwnd: int
    lost: int


NOTHING = TcpInfo(0, 0.0, 0.0, 0, 0, 0.0, 0.0, 0.0, 0, 0)


def read(connection: socket.socket) -> TcpInfo:
    """Zeros for what an older kernel does not tell, and for a connection that is closed."""
    try:
        raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _FIELDS_BYTES)
    except OSError:
        return NOTHING
    return parse(raw)


def parse(raw: bytes) -> TcpInfo:
    fields = _LAYOUT.unpack(raw[: _LAYOUT.size].ljust(_LAYOUT.size, b"\0"))
    return TcpInfo(
        unacked=fields[_UNACKED],
        rtt_s=fields[_RTT] / 1e6,
        min_rtt_s=fields[_MIN_RTT] / 1e6,
        retransmits=fields[_TOTAL_RETRANSMITS],
        acked_bytes=fields[_BYTES_ACKED],
        busy_s=fields[_BUSY] / 1e6,
        window_s=fields[_WINDOW] / 1e6,
        silent_s=fields[_LAST_ACK_RECEIVED] / 1e3,
        cwnd=fields[_CWND],
        lost=fields[_LOST],
    )
