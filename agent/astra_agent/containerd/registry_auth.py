"""
What a registry's 401 asks for, and how it is answered: Basic, or a Bearer token from the service that it names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from yarl import URL

from astra_agent.containerd.credentials import Credentials
from astra_agent.containerd.registry_hosts import is_loopback

CLIENT_ID = "astraeus"

_SCHEME = re.compile(r"[\s,]*([A-Za-z][\w-]*)(?=[\s,]|$)(?!\s*=)\s*")
_PARAMETER = re.compile(r'\s*,?\s*([\w-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')


@dataclass(frozen=True, slots=True)
class Challenge:
    scheme: str
    """In lower case."""
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """What to send to a token service. With a *form* it is a POST."""

    url: URL
    authorization: str | None = None
    form: Mapping[str, str] | None = None


def parse_challenges(headers: Iterable[str]) -> tuple[Challenge, ...]:
    """Every challenge of every WWW-Authenticate header. What is no challenge is left out; never raises."""
    found: list[Challenge] = []
    for header in headers:
        at = 0
        while scheme := _SCHEME.match(header, at):
            at, parameters = scheme.end(), {}
            while parameter := _PARAMETER.match(header, at):
                name, quoted, plain = parameter.groups()
                parameters[name.lower()] = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else plain
                at = parameter.end()
            found.append(Challenge(scheme[1].lower(), parameters))
    return tuple(found)


def token_request(
    challenge: Challenge, registry: URL, repository: str, credentials: Credentials | None
) -> TokenRequest | None:
    """
    The question to the token service of a Bearer *challenge*. None when it names none, or one that can't be trusted
    with credentials: plain HTTP where the registry itself speaks TLS.
    """
    realm = URL(challenge.parameters.get("realm", ""))
    if realm.scheme not in ("http", "https") or not realm.host:
        return None
    if realm.scheme == "http" and registry.scheme == "https" and not is_loopback(realm.host):
        return None
    query = {"scope": challenge.parameters.get("scope") or f"repository:{repository}:pull"}
    if service := challenge.parameters.get("service"):
        query["service"] = service
    if credentials is None:
        return TokenRequest(realm.update_query(query))
    if credentials.identity_token:
        form = {"grant_type": "refresh_token", "refresh_token": credentials.identity_token, "client_id": CLIENT_ID}
        return TokenRequest(realm, form={**query, **form})
    return TokenRequest(realm.update_query(query), credentials.basic())
