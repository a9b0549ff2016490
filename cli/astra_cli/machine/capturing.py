"""Where a machine is read from: this one, a folder, or a captured machine's document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from astra_agent.errors import InvalidRequest
from astra_agent.inventory import Inventory, LibraryReading, Root, read
from astra_agent.inventory.anonymity import anonymous
from astra_agent.inventory.capture import parse, write
from astra_agent.inventory.library import MISSING
from astra_agent.nvml import read_library
from astra_agent.recording import RecordingRoot
from astra_agent.sysfs import DirectoryRoot

LIBRARY_FILE = "nvml.json"
"""In a folder that a machine was laid out in: what its GPU library answered, as in a capture's `nvml`."""


def from_capture(file: Path) -> Inventory:
    """Raises: InvalidRequest when the file is none, naming the field."""
    return read(*parse(_document(file), str(file)))


def from_folder(folder: Path) -> Inventory:
    """Raises: InvalidRequest."""
    if not folder.is_dir():
        raise InvalidRequest(f"{folder} is no folder; --root is where a machine's /sys, /proc and /dev were laid out")
    library = folder / LIBRARY_FILE
    reading = parse({"files": {}, "nvml": _document(library)}, str(library))[1] if library.is_file() else MISSING
    return read(DirectoryRoot(folder), reading)


def from_this_machine() -> Inventory:
    return read(DirectoryRoot(), read_library())


def capture(root: Root, library: LibraryReading, *, names: bool) -> dict[str, Any]:
    """
    Everything that an inventory asks of *root*, as a document that reads the same. *names*: keep what says whose
    machine it is; otherwise it is replaced.
    """
    recording = RecordingRoot(root)
    read(recording, library)
    document = write(recording.files, recording.links, recording.errors, recording.devices, library)
    return document if names else anonymous(document)


def _document(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except OSError as error:
        raise InvalidRequest(f"{file} can't be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{file} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidRequest(f"{file} is no captured machine: it holds no JSON object")
    return found
