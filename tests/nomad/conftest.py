"""The level `nomad`: the real binary, every version of it that is on the PATH."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nomad.cluster import NomadCluster, binaries


@pytest.fixture(scope="module", params=binaries() or [None], ids=lambda path: path.parent.name if path else "none")
def binary(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture(scope="module")
def cluster(binary: Path) -> Iterator[NomadCluster]:
    """One machine. Not below pytest's own folder: its path is too long for a socket's."""
    with made(binary) as one:
        yield one


class made:  # noqa: N801 -- reads as a verb where it is used
    """A started cluster, of which nothing is left afterwards."""

    def __init__(self, binary: Path, **settings: object) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="nomad-", dir="/var/tmp"))
        self._cluster = NomadCluster(self._folder, binary, **settings)  # type: ignore[arg-type]

    def __enter__(self) -> NomadCluster:
        try:
            self._cluster.start()
        except BaseException:
            self.__exit__()
            raise
        return self._cluster

    def __exit__(self, *_: object) -> None:
        self._cluster.clean()
        if "ASTRA_KEEP" not in os.environ:
            shutil.rmtree(self._folder, ignore_errors=True)
