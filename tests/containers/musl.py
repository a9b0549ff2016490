"""Programs by musl's library on a machine of glibc's, where its compiler is installed."""

from __future__ import annotations

import subprocess
from pathlib import Path

COMPILER = "musl-gcc"
_BUILD_S = 100


def getent(folder: Path) -> Path:
    """`getent` in *folder*, static, as images with musl have it."""
    program = folder / "getent"
    source = Path(__file__).parent / "clients" / "getent.c"
    subprocess.run([COMPILER, "-static", "-o", program, source], check=True, timeout=_BUILD_S)
    return program
