"""One machine for the whole level; each test takes up a state of it that was kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nomad.cluster import binaries
from tests.vm.cluster import Cluster, four_machines, installed, running_gang
from tests.vm.machine import Machine
from tests.vm.nomad import NomadUnits, prepare, prepare_gang


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


@pytest.fixture(scope="session")
def nomad_binary() -> Path:
    """The first that is on the PATH."""
    found = binaries()
    if not found:
        pytest.skip("there is no nomad on the PATH: units beside Nomad's own are not tested")
    return found[0]


@pytest.fixture
def two_nomads(nomad_binary: Path, booted: Machine) -> NomadUnits:
    """Two of Nomad's clients, two agents and a coordinator, no run."""
    prepare(booted, nomad_binary)
    return NomadUnits(booted, binary=nomad_binary)


@pytest.fixture
def nomad_gang(nomad_binary: Path, booted: Machine) -> NomadUnits:
    """With a gang of two, `g`, that writes for ever."""
    prepare_gang(booted, nomad_binary)
    return NomadUnits(booted, binary=nomad_binary)
