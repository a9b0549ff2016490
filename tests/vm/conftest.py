"""One machine for the whole level; each test takes up a state of it that was kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.vm.cluster import Cluster, four_machines, installed, running_gang
from tests.vm.machine import Machine


@pytest.fixture(scope="session")
def booted() -> Iterator[Machine]:
    with Machine() as machine:
        yield machine


@pytest.fixture
def machine(booted: Machine) -> Machine:
    """With the project, and nothing of it installed."""
    booted.prepared("installed", installed)
    return booted


@pytest.fixture
def cluster(booted: Machine) -> Cluster:
    """Four agents and a coordinator, no run."""
    booted.prepared("cluster", four_machines)
    return Cluster(booted)


@pytest.fixture
def gang(booted: Machine) -> Cluster:
    """With a gang of four, `g`, that writes for ever."""
    booted.prepared("gang", running_gang)
    return Cluster(booted)
