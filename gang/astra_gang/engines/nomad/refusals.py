"""
What Nomad means when it refuses: by the text more than by the status, since most of it is HTTP 500 as plain text.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from astra_agent.errors import AstraError, Conflict, InvalidRequest, NotFound, Unavailable


@dataclass(frozen=True, slots=True)
class Need:
    """A right of the coordinator's token. *rule*: the lines of an ACL policy that give it."""

    name: str
    rule: str

    def within(self, namespace: str) -> Need:
        return Need(self.name, self.rule.replace("NAMESPACE", namespace))


def _capability(name: str) -> Need:
    return Need(name, f'namespace "NAMESPACE" {{ capabilities = ["{name}"] }}')


def _variables(name: str) -> Need:
    return Need(
        f"variables {name}",
        f'namespace "NAMESPACE" {{ variables {{ path "PATH" {{ capabilities = ["{name}"] }} }} }}',
    )


SUBMIT = _capability("submit-job")
READ = _capability("read-job")
LIST = _capability("list-jobs")
NODES = Need("node read", 'node { policy = "read" }')
READ_VARIABLES = _variables("read")
LIST_VARIABLES = _variables("list")
WRITE_VARIABLES = _variables("write")
DESTROY_VARIABLES = _variables("destroy")
NOTHING = Need("", "")


@dataclass(frozen=True, slots=True)
class Call:
    """
    What was asked, for the sentence.

    Attributes:
        what: Such as `register job llama-u1-1`.
        token: How the token can be told, such as `the token in /etc/astraeus/nomad.token`.
    """

    what: str
    need: Need
    namespace: str
    token: str


class Denied(Unavailable):
    """
    `Permission denied`: a right is missing, or the token is none any more. Nomad says the same of both (seen: 1.6.5,
    2.0.5), so who has to tell them apart asks it about the token: `of_token`.
    """


def refusal(call: Call, status: int, text: str) -> AstraError:
    """The error that an answer with this status, which is no success, stands for."""
    said = " ".join(text.split())[:300]
    if status == 403 or said == "Permission denied":
        return _denied(call, said)
    if status == 404:
        return NotFound(f"Nomad can't {call.what}: {said or 'not found'}")
    if status == 409:
        return Conflict(f"Nomad did not {call.what}: somebody else was there first ({said[:80]})")
    if said.startswith("Enforcing job modify index"):
        return Conflict(f"Nomad did not {call.what}: {said}")
    if status == 400 or said.startswith(_INVALID):
        return InvalidRequest(f"Nomad does not {call.what}: {said}")
    if status == 429:
        return Unavailable(f"Nomad is too busy to {call.what} (HTTP 429): its limits on requests are reached")
    if "No cluster leader" in said or "leadership lost" in said:
        return Unavailable(f"Nomad has no leader now, so it can't {call.what}")
    if any(word in said for word in _SERVER_AWAY):
        # Of who was asked itself, or of a client: for seconds after a leader is gone, and now and then while none is.
        return Unavailable(f"Nomad can't {call.what}: the server that it asks for that does not answer ({said})")
    return Unavailable(f"Nomad can't {call.what} (HTTP {status}: {said or 'without a word'})")


def of_token(token: str, status: int, body: object, asked_at: datetime | None) -> Unavailable | None:
    """
    What an answer to `/v1/acl/token/self`, with the token, says of it: that it is none now; None: it is one, or nobody
    knows. Seen: 1.6.5 shows one that has expired as it was, 2.0.5 says so with 500; one that was deleted is 404 or 403.

    Args:
        token: As `Call.token`.
        asked_at: By the clock of who answered.
    """
    said = " ".join(body.split())[:300] if isinstance(body, str) else ""
    if isinstance(body, dict):
        until = _time(body.get("ExpirationTime"))
        if status != 200 or until is None or asked_at is None or until > asked_at:
            return None
        return _no_token(token, f"it expired at {until:%Y-%m-%dT%H:%M:%SZ}")
    if "expired" in said:
        return _no_token(token, "it has expired")
    if status in (403, 404):
        return _no_token(token, "it was deleted, or has expired and been forgotten")
    if "token lookup failed" in said or "parse signed token" in said:
        return _no_token(token, "what is in the file is no token")
    return None


def _denied(call: Call, said: str) -> AstraError:
    """Nothing is lost: what was wanted is tried again, and goes through once the token is right."""
    if "token" in said.lower():
        return _no_token(call.token, f"it has expired or was deleted ({said})")
    if not call.need.name:
        return Denied(f"Nomad does not let {call.token} {call.what} ({said})")
    need = call.need.within(call.namespace)
    return Denied(
        f"Nomad does not let {call.token} {call.what}: it lacks {need.name}; its policy needs the line {need.rule}"
    )


def _no_token(token: str, why: str) -> Unavailable:
    return Unavailable(
        f"Nomad does not know {token}: {why}; write a new one into the file, which is read at every call"
    )


def _time(text: object) -> datetime | None:
    """Of RFC 3339, to the second."""
    try:
        return datetime.strptime(str(text)[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None


_SERVER_AWAY = ("failed to get conn", "rpc error: stream closed", "rpc error: EOF")
_INVALID = ("1 error occurred", "2 errors occurred", "3 errors occurred", "invalid path", "variables are limited")
