"""
Credentials for a registry, without ever saying them: no `repr`, no log, no sentence has them.

Looked for in this order; the first that is found is used, alone:

1. those of the request, for the registry that the image names and for none of its mirrors;
2. each of the configured files in the form of Docker's config.json: `credHelpers` for this registry, then `credsStore`,
   then `auths`;
3. none: the registry is asked as anybody may.

A helper that fails is remembered in a sentence and passed over: a public image needs none.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from astra_agent.containerd.reference import DOCKER_HUB
from astra_agent.containerd.registry_hosts import RegistryConfig

_DOCKER_HUB_KEY = "https://index.docker.io/v1/"
"""What Docker calls its own registry in its files and towards helpers."""
_HELPER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
T = TypeVar("T")

_LONGEST_ANSWER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Credentials:
    source: str
    """Where they are from, for sentences: `the run`, or a path."""
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    """Exchanged for a registry token, instead of name and password."""

    def basic(self) -> str:
        """As the value of an Authorization header."""
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


@dataclass(frozen=True, slots=True)
class Found:
    credentials: Credentials | None = None
    notes: tuple[str, ...] = ()
    """What went wrong on the way, for the sentence in case that the registry wants credentials."""


async def find_credentials(registry: str, own: tuple[str, str] | None, config: RegistryConfig) -> Found:
    """*own* is what the request brought for exactly this registry. Never raises for what is in files or helpers."""
    if own is not None:
        return Found(Credentials("the run", *own))
    notes: list[str] = []
    for path in config.docker_configs:
        found = await _from_file(path, registry, config.helper_timeout_s)
        notes.extend(found.notes)
        if found.credentials is not None:
            return Found(found.credentials, tuple(notes))
    return Found(None, tuple(notes))


def _or_empty(value: object) -> object:
    return {} if value is None else value


class _Auth(BaseModel):
    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)
    auth: str = ""
    username: str = ""
    password: str = ""
    identity_token: str = Field(default="", alias="identitytoken")


class _DockerConfig(BaseModel):
    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)
    auths: Annotated[dict[str, _Auth], BeforeValidator(_or_empty)] = {}
    helpers: Annotated[dict[str, str], BeforeValidator(_or_empty)] = Field(default={}, alias="credHelpers")
    store: str | None = Field(default=None, alias="credsStore")


class _HelperAnswer(BaseModel):
    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)
    username: str = Field(default="", alias="Username")
    secret: str = Field(default="", alias="Secret")


async def _from_file(path: Path, registry: str, helper_timeout_s: float) -> Found:
    try:
        parsed = _DockerConfig.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return Found()
    except OSError as error:
        return Found(notes=(f"{path} can't be read: {error.strerror}",))
    except ValidationError as error:
        where = ".".join(str(step) for step in error.errors()[0]["loc"][:1])
        return Found(notes=(f"{path} is not in the form of Docker's config.json{where and f': {where}'}",))
    notes: list[str] = []
    for helper in dict.fromkeys(filter(None, (_by_registry(parsed.helpers, registry), parsed.store))):
        found = await _from_helper(helper, registry, path, helper_timeout_s)
        notes.extend(found.notes)
        if found.credentials is not None:
            return Found(found.credentials, tuple(notes))
    entry = _by_registry(parsed.auths, registry)
    return Found(_from_entry(entry, str(path)) if entry else None, tuple(notes))


def _by_registry(table: dict[str, T], registry: str) -> T | None:
    for key, value in table.items():
        if _registry_of(key) == registry:
            return value
    return None


def _registry_of(key: str) -> str:
    """Keys are `host`, `host:port`, or URLs of which only that counts."""
    host = key.removeprefix("https://").removeprefix("http://").partition("/")[0]
    return DOCKER_HUB if host in ("index.docker.io", "registry-1.docker.io") else host


def _from_entry(entry: _Auth, source: str) -> Credentials | None:
    username, password = entry.username, entry.password
    if entry.auth:
        try:
            username, _, password = base64.b64decode(entry.auth, validate=True).decode().rstrip("\0").partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
    if not username and not entry.identity_token:
        return None
    return Credentials(source, username, password, entry.identity_token)


async def _from_helper(helper: str, registry: str, path: Path, timeout_s: float) -> Found:
    program = f"docker-credential-{helper}"
    if not _HELPER_NAME.fullmatch(helper):
        return Found(notes=(f'{path} names the credential helper "{helper}", which is no name of a program',))
    server = _DOCKER_HUB_KEY if registry == DOCKER_HUB else registry
    try:
        code, out = await _run(program, server, timeout_s)
    except FileNotFoundError:
        return Found(notes=(f"{program}, which {path} names, is not installed",))
    except TimeoutError:  # which is an OSError as well
        return Found(notes=(f"{program} did not answer within {timeout_s:g} s",))
    except OSError as error:
        return Found(notes=(f"{program} can't be run: {error.strerror}",))
    if code != 0:
        # The one text that helpers agree on; it is no failure.
        missing = b"credentials not found" in out
        return Found(notes=() if missing else (f"{program} failed with exit code {code}",))
    try:
        answer = _HelperAnswer.model_validate_json(out)
    except ValidationError:
        return Found(notes=(f"{program} answered something else than credentials",))
    if answer.username == "<token>":
        return Found(Credentials(program, identity_token=answer.secret))
    return Found(Credentials(program, answer.username, answer.secret) if answer.username else None)


async def _run(program: str, server: str, timeout_s: float) -> tuple[int, bytes]:
    """Raises: OSError when it can't be started, TimeoutError after having killed it."""
    process = await asyncio.create_subprocess_exec(
        program, "get",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        limit=_LONGEST_ANSWER_BYTES,
    )  # fmt: skip
    try:
        async with asyncio.timeout(timeout_s):
            out, _ = await process.communicate(server.encode())
        return process.returncode or 0, out
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
