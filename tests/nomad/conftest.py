"""The level `nomad`: the real binary, every version of it that is on the PATH."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nomad.cluster import NomadCluster, binaries, made


@pytest.fixture(scope="module", params=binaries() or [None], ids=lambda path: path.parent.name if path else "none")
def binary(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture(scope="module")
def cluster(binary: Path) -> Iterator[NomadCluster]:
    """One machine. Not below pytest's own folder: its path is too long for a socket's."""
    with made(binary) as one:
        yield one
