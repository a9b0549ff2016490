"""
The first process of every container: `init.c`, built once for this machine.

`python3 -m astra_agent.init` builds it (`scripts/build-init` does that); the agent does so where it is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from astra_agent.errors import HostFault

_FOLDER = Path(__file__).parent
_SOURCE = _FOLDER / "init.c"
_PROGRAM = _FOLDER / "astra-init"

_FLAGS = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-Os", "-static", "-s")


def program() -> Path:
    """
    The program, built when it is missing or older than its source. Idempotent, also for several processes at once.

    Raises:
        HostFault: it must be built and can't be; the sentence says what to do.
    """
    if _PROGRAM.exists() and _PROGRAM.stat().st_mtime >= _SOURCE.stat().st_mtime:
        return _PROGRAM
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise HostFault(
            f"{_PROGRAM}, the first process of containers, has not been built, and there is no C compiler here: "
            "install one with a static libc (Debian, Ubuntu: apt install gcc libc6-dev), or copy the file from a "
            "machine of the same kind"
        )
    made = _PROGRAM.with_suffix(f".{os.getpid()}")
    built = subprocess.run([compiler, *_FLAGS, "-o", made, _SOURCE], check=False, capture_output=True, text=True)
    if built.returncode != 0:
        made.unlink(missing_ok=True)
        raise HostFault(f"{_SOURCE} does not build with {compiler}: {built.stderr.strip()}")
    made.replace(_PROGRAM)
    return _PROGRAM
