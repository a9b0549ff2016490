"""
The programs of ours that run for containers, built once for this machine: `init.c`, the first process of each, and
`log.c`, the logger of those whose standard output and error are kept apart.

`python3 -m astra_agent.init` builds them (`scripts/build-init` does that); the agent does so where it is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from astra_agent.errors import HostFault

_FOLDER = Path(__file__).parent
_FLAGS = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-Os", "-static", "-s")


def program() -> Path:
    """The first process of containers. Raises: HostFault, as `_built`."""
    return _built(_FOLDER / "init.c", _FOLDER / "astra-init")


def logger() -> Path:
    """The logger of containers. Raises: HostFault, as `_built`."""
    return _built(_FOLDER / "log.c", _FOLDER / "astra-log")


def _built(source: Path, made: Path) -> Path:
    """
    The program *made*, built when it is missing or older than its source. Idempotent, also for several processes.

    Raises:
        HostFault: it must be built and can't be; the sentence says what to do.
    """
    if made.exists() and made.stat().st_mtime >= source.stat().st_mtime:
        return made
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise HostFault(
            f"{made}, which runs for containers, has not been built, and there is no C compiler here: "
            "install one with a static libc (Debian, Ubuntu: apt install gcc libc6-dev), or copy the file from a "
            "machine of the same kind"
        )
    beside = made.with_suffix(f".{os.getpid()}")
    built = subprocess.run([compiler, *_FLAGS, "-o", beside, source], check=False, capture_output=True, text=True)
    if built.returncode != 0:
        beside.unlink(missing_ok=True)
        raise HostFault(f"{source} does not build with {compiler}: {built.stderr.strip()}")
    beside.replace(made)
    return made
