"""
What Nomad means when it refuses: by the text more than by the status, since most of it is HTTP 500 as plain text.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    return Unavailable(f"Nomad can't {call.what} (HTTP {status}: {said or 'without a word'})")


def _denied(call: Call, said: str) -> AstraError:
    """Nothing is lost: what was wanted is tried again, and goes through once the token is right."""
    if "token" in said.lower():
        return Unavailable(
            f"Nomad does not know {call.token} ({said}): it has expired or was deleted; "
            "write a new one into the file, which is read at every call"
        )
    if not call.need.name:
        return Unavailable(f"Nomad does not let {call.token} {call.what} ({said})")
    need = call.need.within(call.namespace)
    return Unavailable(
        f"Nomad does not let {call.token} {call.what}: it lacks {need.name}; its policy needs the line {need.rule}"
    )


_INVALID = ("1 error occurred", "2 errors occurred", "3 errors occurred", "invalid path", "variables are limited")
