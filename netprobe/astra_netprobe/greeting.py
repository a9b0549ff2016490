"""
The first bytes of a connection between two machines of a probe: who calls, whom, what for; and the answer.

Both prove that they know the probe's secret and say nothing of it. Whatever else arrives on the port is cut off.
"""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass
from enum import IntEnum

from astra_netprobe.messages import PROTOCOL

_MAGIC = b"ASTP"
_ANSWER_MAGIC = b"ASTA"
_PACKET_MAGIC = b"ASTU"
_BODY = struct.Struct("!4sBBHHHI8s")
_PROOF_BYTES = 16

GREETING_BYTES = _BODY.size + _PROOF_BYTES
ANSWER_BYTES = len(_ANSWER_MAGIC) + _PROOF_BYTES
PACKET_BYTES = 4 + 4 + 4 + _PROOF_BYTES
"""What is read of a UDP packet, and all of an answer to one."""


class Purpose(IntEnum):
    REACH = 1
    RING = 2
    DOUBLING = 3
    FLOW = 4
    TRIP = 5


@dataclass(frozen=True, slots=True)
class Greeting:
    """*tag* tells rounds apart, *stream* the connections of one pair in one round."""

    purpose: Purpose
    source: int
    target: int
    stream: int
    tag: int
    nonce: bytes


def encode(greeting: Greeting, secret: bytes) -> bytes:
    body = _BODY.pack(
        _MAGIC, PROTOCOL, greeting.purpose, greeting.source, greeting.target, greeting.stream, greeting.tag,
        greeting.nonce,
    )  # fmt: skip
    return body + _proof(secret, body)


def decode(raw: bytes, secret: bytes) -> Greeting | None:
    """None for everything that is no greeting of this probe."""
    if len(raw) != GREETING_BYTES or not hmac.compare_digest(raw[_BODY.size :], _proof(secret, raw[: _BODY.size])):
        return None
    magic, version, purpose, source, target, stream, tag, nonce = _BODY.unpack(raw[: _BODY.size])
    if magic != _MAGIC or version != PROTOCOL or purpose not in set(Purpose):
        return None
    return Greeting(Purpose(purpose), source, target, stream, tag, nonce)


def answer(greeting_bytes: bytes, secret: bytes) -> bytes:
    """What the machine that was greeted says."""
    return _ANSWER_MAGIC + _proof(secret, _ANSWER_MAGIC + greeting_bytes)


def is_answer(raw: bytes, greeting_bytes: bytes, secret: bytes) -> bool:
    return hmac.compare_digest(raw, answer(greeting_bytes, secret))


def packet(number: int, target: int, size: int, secret: bytes) -> bytes:
    """A UDP packet of *size* bytes for *target*; it is padded with zeros."""
    head = _PACKET_MAGIC + struct.pack("!II", number, target)
    return (head + _proof(secret, head)).ljust(size, b"\0")


def packet_number(raw: bytes, target: int, secret: bytes) -> int | None:
    """Its number; None for what is no packet of this probe for *target*."""
    head, proof = raw[:12], raw[12:PACKET_BYTES]
    if len(raw) < PACKET_BYTES or not hmac.compare_digest(proof, _proof(secret, head)):
        return None
    number, addressed = struct.unpack("!II", head[4:])
    return int(number) if addressed == target else None


def _proof(secret: bytes, content: bytes) -> bytes:
    return hmac.digest(secret, content, "sha256")[:_PROOF_BYTES]
