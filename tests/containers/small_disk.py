"""A disk that a test can fill."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[None]:
    """Under this folder, empty."""
    folder.mkdir(exist_ok=True)
    subprocess.run(("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "astra-test", folder), check=True)
    try:
        yield
    finally:
        subprocess.run(("umount", "--lazy", folder), check=True)


def enlarge(folder: Path, megabytes: int) -> None:
    subprocess.run(("mount", "-o", f"remount,size={megabytes}m", folder), check=True)


def fill(path: Path) -> None:
    """With a file, to the last byte."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue
