"""
Domain names as bytes: labels with a length before each, absolute ones with the root's zero at the end (RFC 1035, 3.1).

Lengths are below 0x40 and letters begin at 0x41, so `bytes.lower` on a whole name changes letters only.
"""

from __future__ import annotations

from ipaddress import ip_address

MAX_LABEL_BYTES = 63
MAX_NAME_BYTES = 255


def relative(text: str) -> bytes:
    """
    Labels without a root, in lower case: `llama-0` to 7, `llama-0`.

    Raises:
        ValueError: a label is empty or longer than 63 bytes, or the whole is too long for a name.
    """
    wire = bytearray()
    for label in text.lower().split("."):
        data = label.encode("ascii")
        if not 0 < len(data) <= MAX_LABEL_BYTES:
            raise ValueError(f"{text!r} is no name: a label has 1 to {MAX_LABEL_BYTES} bytes")
        wire.append(len(data))
        wire += data
    if len(wire) >= MAX_NAME_BYTES:
        raise ValueError(f"{text!r} is no name: it is longer than {MAX_NAME_BYTES} bytes")
    return bytes(wire)


def absolute(text: str) -> bytes:
    """The whole name, in lower case; a dot at the end changes nothing, `.` is the root. Raises: ValueError."""
    bare = text.removesuffix(".")
    return relative(bare) + b"\0" if bare else b"\0"


def to_text(wire: bytes) -> str:
    """An absolute name for a person: `llama-0.nlp.astra.internal.`; bytes that are no letters come as `\\ddd`."""
    labels = []
    at = 0
    while at < len(wire) and (size := wire[at]):
        labels.append("".join(_printable(byte) for byte in wire[at + 1 : at + 1 + size]))
        at += 1 + size
    return ".".join(labels) + "."


def _printable(byte: int) -> str:
    character = chr(byte)
    if character in '.\\"();@$':
        return f"\\{character}"
    return character if 0x20 < byte < 0x7F else f"\\{byte:03d}"


def reverse(address: str) -> bytes:
    """The absolute name under `in-addr.arpa` or `ip6.arpa` where PTR records of *address* are. Raises: ValueError."""
    return absolute(ip_address(address).reverse_pointer)
