"""Parameters of a request's address, checked: a wrong one is refused with what would be right, another one by name."""

from __future__ import annotations

from collections.abc import Collection

from aiohttp import web

from astra_agent.errors import InvalidRequest

_LARGEST = 2**53
_TRUE, _FALSE = ("1", "true", "yes"), ("0", "false", "no")


class Query:
    """
    Args:
        allowed: The parameters of this endpoint.
    Raises:
        InvalidRequest: The address has another one.
    """

    def __init__(self, request: web.Request, allowed: Collection[str]) -> None:
        self._values = request.query
        for name in self._values:
            if name not in allowed:
                there = f"there are {', '.join(sorted(allowed))}" if allowed else "this endpoint has none"
                raise InvalidRequest(f"{name[:64]} is no parameter: {there}", name[:64])

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(self._values.getall(name, ()))

    def number(self, name: str, default: int | None = None, *, least: int = 0, most: int = _LARGEST) -> int | None:
        text = self._values.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
            raise InvalidRequest(f"{name} is {text[:64]!r}: it must be a whole number from {least} to {most}", name)
        return int(text)

    def flag(self, name: str) -> bool:
        text = self._values.get(name, "false").lower()
        if text not in (*_TRUE, *_FALSE):
            raise InvalidRequest(f"{name} is {text[:64]!r}: it must be true or false", name)
        return text in _TRUE
