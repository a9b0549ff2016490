"""The two shared secrets of a cluster without Nomad: one for operators, one for agents."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from astra_agent.errors import InvalidRequest, Unauthorized

_SHORTEST = 16


class Token:
    """
    A secret that a caller must present as `Authorization: Bearer <token>`.

    Args:
        role: For the sentence: `operator` or `agent`.
    """

    def __init__(self, role: str, secret: str) -> None:
        self._role = role
        self._digest = _digest(secret)

    def check(self, authorization: str | None) -> None:
        """
        Takes the same time whatever is wrong with the token.

        Raises:
            Unauthorized: It is missing or not the right one.
        """
        scheme, _, given = (authorization or "").partition(" ")
        right = hmac.compare_digest(_digest(given.strip()), self._digest)
        if scheme.lower() != "bearer" or not given:
            raise Unauthorized(f"the {self._role} token is missing: send the header Authorization: Bearer <token>")
        if not right:
            raise Unauthorized(f"this is not the {self._role} token of this cluster")


def read_token(role: str, path: Path, field: str) -> Token:
    """
    The token in a file of one line.

    Raises:
        InvalidRequest: The file can't be read, or is too short to be a secret.
    """
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{field} {path} can't be read ({error}): it holds the {role} token", field) from error
    if len(secret) < _SHORTEST or len(secret.split()) != 1:
        raise InvalidRequest(
            f"{field} {path} must hold one word of {_SHORTEST} or more characters, as `openssl rand -hex 32` prints",
            field,
        )
    return Token(role, secret)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
