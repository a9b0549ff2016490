"""
Which coordinator a command talks to, and how it was found.

In this order: flags, the environment (`ASTRA_API`, `ASTRA_TOKEN`, `ASTRA_WORKSPACE`), the dev cluster's `client.json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from astra_agent.errors import InvalidRequest, Unauthorized, Unavailable

DEV_STATE = Path("/var/lib/astraeus/dev")
CLIENT_FILE = "client.json"

_WORKSPACE_PATH = re.compile(r"^(?P<base>.*?)/v1(?:/workspaces/(?P<workspace>[^/]+))?$")


@dataclass(frozen=True, slots=True)
class Flags:
    """What the command line says; empty: nothing."""

    api: str = ""
    token: str = ""
    workspace: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """
    Attributes:
        api: Base address, such as `http://127.0.0.1:7410`, without `/v1`.
        origin: Where the address was found, for error messages.
    """

    api: str
    token: str
    workspace: str
    origin: str

    @property
    def workspace_url(self) -> str:
        """`$API` of the documentation."""
        return f"{self.api}/v1/workspaces/{self.workspace}"


@dataclass(frozen=True, slots=True)
class ClientFile:
    """The dev cluster's `client.json`: how to reach it, for whoever may read the file."""

    api: str
    token: str


def dev_state(environ: Mapping[str, str], flag: str | None = None) -> Path:
    """The dev cluster's state folder: `--state`, else `ASTRA_DEV_STATE`, else the default."""
    return Path(flag or environ.get("ASTRA_DEV_STATE") or DEV_STATE).absolute()


def find(flags: Flags, environ: Mapping[str, str]) -> Target:
    """
    Raises:
        Unavailable: no coordinator is known; says where it was looked for.
        Unauthorized: the dev cluster's file may not be read.
        InvalidRequest: the address is none.
    """
    path = dev_state(environ) / CLIENT_FILE
    asked = flags.api or environ.get("ASTRA_API", "")
    token = flags.token or environ.get("ASTRA_TOKEN", "")
    workspace = flags.workspace or environ.get("ASTRA_WORKSPACE", "")
    if asked:
        base, in_path = _split(asked, "--api" if flags.api else "ASTRA_API")
        return Target(base, token, workspace or in_path or "default", "--api" if flags.api else "ASTRA_API")
    file = read_client_file(path)
    if file is None:
        raise Unavailable(
            f"no coordinator is known: neither --api nor ASTRA_API is given and there is no {path}; "
            "start a cluster on this machine with `astra dev`, or name one with --api"
        )
    return Target(file.api, token or file.token, workspace or "default", str(path))


def read_client_file(path: Path) -> ClientFile | None:
    """None when there is no such file."""
    try:
        document = json.loads(path.read_text())
        return ClientFile(str(document["api"]), str(document["token"]))
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise Unauthorized(
            f"{path} may only be read by the user who started the dev cluster; use sudo, "
            "or set ASTRA_API and ASTRA_TOKEN as `astra dev env` prints them"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unavailable(f"{path} can't be read ({error}); start the dev cluster again with `astra dev`") from error


def _split(address: str, origin: str) -> tuple[str, str]:
    """Base address and workspace; `$API` with its path is taken as well as the bare address."""
    address = address.rstrip("/")
    if not re.match(r"^https?://[^/]+", address):
        raise InvalidRequest(f"{origin} must be an address such as http://127.0.0.1:7410, not {address!r}", origin)
    match = _WORKSPACE_PATH.match(address)
    return (match["base"], match["workspace"] or "") if match else (address, "")
