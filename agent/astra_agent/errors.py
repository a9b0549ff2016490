"""
The errors of all parts: the class says whose fault it is and what may be done next.

One table, `HANDLING`, gives each class its HTTP status, exit status and whether trying again makes sense.
"""

from __future__ import annotations

from dataclasses import dataclass


class AstraError(Exception):
    """Base. The message is one sentence for a person: what was wanted, what was found, what to do."""


class InvalidRequest(AstraError):
    """The caller's fault; the message names the field, the value and what would be right."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class Unauthorized(AstraError):
    """A token that is missing or wrong."""


class NotFound(AstraError):
    """No such run, worker, attempt or machine."""


class Conflict(AstraError):
    """What is asked for is there already, such as a second live run of one name."""


class Stale(AstraError):
    """An older attempt or term spoke."""


class NoCapacity(AstraError):
    """Too few machines now; later may do."""


class Unavailable(AstraError):
    """containerd, Nomad, a registry or a peer does not answer; back off and try again."""


class DeadlineExceeded(AstraError):
    """We stopped waiting; what was asked for may have happened."""


class HostFault(AstraError):
    """This machine is at fault; another one may do."""


@dataclass(frozen=True, slots=True)
class Handling:
    http: int
    exit: int
    retry: bool


HANDLING: dict[type[AstraError], Handling] = {
    InvalidRequest: Handling(http=400, exit=2, retry=False),
    Unauthorized: Handling(http=401, exit=2, retry=False),
    NotFound: Handling(http=404, exit=3, retry=False),
    Conflict: Handling(http=409, exit=2, retry=False),
    Stale: Handling(http=412, exit=4, retry=False),
    NoCapacity: Handling(http=503, exit=5, retry=True),
    Unavailable: Handling(http=503, exit=6, retry=True),
    DeadlineExceeded: Handling(http=504, exit=7, retry=True),
    HostFault: Handling(http=500, exit=8, retry=True),
}


def handling(error: BaseException) -> Handling:
    """The row of an error's class; anything that is no `AstraError` is a bug of ours: HTTP 500, exit 70."""
    for cls in type(error).__mro__:
        if cls in HANDLING:
            return HANDLING[cls]
    return Handling(http=500, exit=70, retry=False)


def first_of(error: BaseException) -> BaseException:
    """What went wrong first, out of its groups: tasks that run together raise a group also for a single error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
