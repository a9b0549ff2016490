"""The files of deploy/, as they come along, and where the installation's programs are."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import astra_cli
from astra_agent.errors import InvalidRequest, NotFound

SHIPPED_BIN = Path("/opt/astraeus/bin")
"""Where the units say that programs are; replaced by where they are."""


def text(name: str) -> str:
    """A file of deploy/: at the top of the tree in a checkout, below share/ in an installation."""
    checkout = Path(astra_cli.__file__).parents[2]
    for folder in (checkout / "deploy", Path(sysconfig.get_path("data")) / "share" / "astraeus" / "deploy"):
        if (folder / name).is_file():
            return (folder / name).read_text()
    raise NotFound(f"deploy/{name} did not come with this installation: install the package anew")


def programs(given: Path | None) -> Path:
    """
    The folder of `astra-agent` and the others: *given*, or that of this very installation.

    Raises: InvalidRequest when it is not absolute; NotFound when they are not there.
    """
    if given is not None:
        if not given.is_absolute():
            raise InvalidRequest(f"bin is {str(given)!r}: it must be an absolute path, such as {SHIPPED_BIN}", "bin")
        return given
    folder = Path(sysconfig.get_path("scripts"))
    if not (folder / "astra-agent").is_file():
        raise NotFound(f"astra-agent is not beside {sys.executable}, in {folder}: say where it is with --bin")
    return folder


def unit(name: str, folder: Path) -> str:
    return text(f"systemd/{name}").replace(f"{SHIPPED_BIN}/", f"{folder}/")
