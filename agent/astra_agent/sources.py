"""
Where a machine's inventory comes from: the machine itself, or files that a simulated one is played by.

All of it blocks, for seconds on a sick card: `astra_agent.lookout` asks it in threads.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from astra_agent.config import AgentConfig
from astra_agent.errors import InvalidRequest
from astra_agent.inventory import Besides, Inventory, LibraryReading, read
from astra_agent.inventory.capture import parse
from astra_agent.inventory.claimed import ClaimedGpu, ClaimedPort, claimed
from astra_agent.inventory.library import MISSING
from astra_agent.nvml import read_library
from astra_agent.sysfs import DirectoryRoot
from astra_agent.wire import GpuFacts, PortFacts, Tier

_IMEX_TOOL = "nvidia-imex-ctl"
_IMEX_S = 5.0


class Source(Protocol):
    @property
    def is_played(self) -> bool:
        """Nothing of it is on this machine: files and processors that it names are not there."""
        ...

    def library(self) -> LibraryReading:
        """What the GPU library answers."""
        ...

    def read(self, library: LibraryReading, besides: Besides) -> Inventory:
        """Raises: InvalidRequest when the file that plays the machine is wrong."""
        ...

    def glance(self, inventory: Inventory) -> object:
        """What changes without the kernel saying so, cheaply: as long as it is equal, *inventory* still holds."""
        ...


def source_of(config: AgentConfig) -> Source:
    if config.machine_file is not None:
        return CapturedMachine(config.name, config.machine_file)
    if config.facts_file is not None:
        return ClaimedMachine(config.name, config.facts_file)
    return RealMachine(config.name)


class RealMachine:
    """This machine. *name*: what the coordinator calls it."""

    is_played = False

    def __init__(self, name: str) -> None:
        self._name = name
        self._root = DirectoryRoot()

    def library(self) -> LibraryReading:
        return read_library()

    def read(self, library: LibraryReading, besides: Besides) -> Inventory:
        asked = replace(besides, imex_service=_imex_service())
        return replace(read(self._root, library, asked), machine=self._name)

    def glance(self, inventory: Inventory) -> object:
        """A port of InfiniBand goes down without any event that a process could wait for."""
        return tuple(_head(Path(f"/sys/class/infiniband/{p.device}/ports/{p.number}/state")) for p in inventory.ports())


class CapturedMachine:
    """A machine that was written down, such as by `astra capture`; changed by writing the file again."""

    is_played = True

    def __init__(self, name: str, file: Path) -> None:
        self._name = name
        self._file = file

    def library(self) -> LibraryReading:
        return parse(_document(self._file, "machine_file"), str(self._file))[1]

    def read(self, library: LibraryReading, besides: Besides) -> Inventory:
        tree, _ = parse(_document(self._file, "machine_file"), str(self._file))
        return replace(read(tree, library, besides), machine=self._name)

    def glance(self, inventory: Inventory) -> object:
        return _stamp(self._file)


class _Claims(BaseModel):
    """The fields of a facts file that are of the inventory."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    gpus: tuple[GpuFacts, ...] = ()
    ports: tuple[PortFacts, ...] = ()
    domains: dict[Tier, str] = {}


class ClaimedMachine:
    """A machine of which a facts file claims GPUs, ports and domains."""

    is_played = True

    def __init__(self, name: str, file: Path) -> None:
        self._name = name
        self._file = file

    def library(self) -> LibraryReading:
        return MISSING

    def read(self, library: LibraryReading, besides: Besides) -> Inventory:
        try:
            claims = _Claims.model_validate(_document(self._file, "facts_file"))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise InvalidRequest(f"{self._file}: {where}: {first['msg']}", where) from error
        gpus = [
            ClaimedGpu(gpu.index, gpu.uuid, gpu.memory_bytes, gpu.model, gpu.pci_bus_id, gpu.numa_node)
            for gpu in claims.gpus
        ]
        ports = [ClaimedPort(port.name, port.tier, port.gbps, port.up) for port in claims.ports]
        return claimed(self._name, gpus, ports, {str(tier): name for tier, name in claims.domains.items()})

    def glance(self, inventory: Inventory) -> object:
        return _stamp(self._file)


def _document(file: Path, field: str) -> dict[str, object]:
    try:
        document = json.loads(file.read_bytes())
    except OSError as error:
        raise InvalidRequest(f"{field} {file} can't be read: {error.strerror}", field) from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{field} {file} is no JSON: {error}", field) from error
    if not isinstance(document, dict):
        raise InvalidRequest(f"{field} {file} must hold one JSON object", field)
    return document


def _stamp(file: Path) -> object:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _head(file: Path) -> bytes:
    try:
        with file.open("rb", buffering=0) as opened:
            return opened.read(64)
    except OSError:
        return b""


def _imex_service() -> str | None:
    """What the IMEX service says of itself (`READY`); None where there is no tool to ask it with."""
    tool = shutil.which(_IMEX_TOOL, path="/usr/bin:/usr/sbin:/bin:/sbin")
    if tool is None:
        return None
    try:
        asked = subprocess.run([tool, "-q"], capture_output=True, text=True, timeout=_IMEX_S, check=False)
    except subprocess.TimeoutExpired:
        return f"silent for {_IMEX_S:g} s"
    except OSError as error:
        return f"not asked: {error.strerror}"
    return next(iter(asked.stdout.split()), "") or "silent"
