"""
What the coordinator asks of one machine beside the link: each request opens a stream (a WebSocket that the agent dials)
of its own, with the messages that go over it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from astra_agent.wire.base import SlotId, Wire
from astra_agent.wire.slots import SlotRequest


class LogsRequest(Wire):
    """The agent sends binary messages with the log's bytes and closes at its end."""

    kind: Literal["logs"] = "logs"
    slot: SlotId
    attempt: int | None = None
    """None: the newest."""
    follow: bool = False
    """Go on until the attempt has ended and all its output is sent."""
    tail_bytes: int | None = None


class InventoryRequest(Wire):
    """The agent sends one text message, its machine's inventory as JSON, and closes."""

    kind: Literal["inventory"] = "inventory"


class LookAheadRequest(Wire):
    """
    The agent looks whether it could prepare *request*, sends one `LookAhead` as text and closes. Nothing is held by
    that, and its *slot* names nothing.
    """

    kind: Literal["look_ahead"] = "look_ahead"
    request: SlotRequest


class LookAhead(Wire):
    kind: Literal["looked_ahead"] = "looked_ahead"
    refusal: str = ""
    """One sentence when what the user asked for is not there; empty: nothing speaks against it, as far as was seen."""
    field: str | None = None
    """Of the request, that *refusal* is about."""


class ExecRequest(Wire):
    """
    Binary messages: towards the agent standard input, from it one byte (1 stdout, 2 stderr) and then output.
    Text messages: towards the agent `Resize` or `StdinEnd`, from it one `ExecExit`, then it closes.
    """

    kind: Literal["exec"] = "exec"
    slot: SlotId
    command: tuple[str, ...]
    tty: bool = False
    stdin: bool = False
    width: int = 80
    height: int = 24


class Resize(Wire):
    kind: Literal["resize"] = "resize"
    width: int
    height: int


class StdinEnd(Wire):
    kind: Literal["stdin_end"] = "stdin_end"


class ExecExit(Wire):
    kind: Literal["exec_exit"] = "exec_exit"
    code: int
    error: str = ""


DnsName = Annotated[str, Field(max_length=254, pattern=r"^([!-\-/-~]{1,63}\.)*[!-\-/-~]{1,63}\.?$")]

RecordType = Literal["A", "AAAA", "CNAME", "MX", "NS", "PTR", "SOA", "SRV", "TXT"]


class LookupRequest(Wire):
    """The agent asks its name server what the slot's workers would be told, sends one `Lookup` as text and closes."""

    kind: Literal["lookup"] = "lookup"
    slot: SlotId
    name: DnsName
    type: RecordType = "A"


class LookupRecord(Wire):
    name: str
    type: str
    ttl_s: int
    data: str


class Lookup(Wire):
    """*error* is a sentence when nobody could be asked; nothing else is said then."""

    kind: Literal["lookup_done"] = "lookup_done"
    server: str = ""
    """The address that the slot's workers ask."""
    rcode: str = ""
    took_s: float = 0.0
    records: tuple[LookupRecord, ...] = ()
    error: str = ""


class ProbeRequest(Wire):
    """
    The machine takes part in a probe of the network: each text message towards the agent is a question of
    `astra_netprobe.messages`, from it the answer. Whatever it does for the probe ends with the stream.
    """

    kind: Literal["probe"] = "probe"
    slot: SlotId | None = None
    """In the network that this slot's containers join; None: in the machine's own."""


StreamRequest = Annotated[
    LogsRequest | ExecRequest | LookupRequest | InventoryRequest | LookAheadRequest | ProbeRequest,
    Field(discriminator="kind"),
]
