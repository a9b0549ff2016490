"""What a machine says of itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from astra_agent import facts
from astra_agent.attachment import attach
from astra_agent.config import AgentConfig
from astra_agent.errors import InvalidRequest
from tests.agent.machine import request


def config(folder: Path, overrides: Any = None) -> AgentConfig:
    path = folder / "facts.json"
    if overrides is not None:
        path.write_text(overrides if isinstance(overrides, str) else json.dumps(overrides))
    return AgentConfig(
        name="gpu-1", state_dir=folder, address="10.0.0.1", drives={"b": Path("/b"), "a": Path("/a")},
        facts_file=path if overrides is not None else None,
    )  # fmt: skip


def test_processors_memory_and_drives_are_found(tmp_path: Path) -> None:
    found = facts.find(config(tmp_path))
    assert found.cpu_cores >= 1
    assert found.memory_bytes > 1024**2
    assert found.drives == ("a", "b")


def test_memory_is_read_from_meminfo() -> None:
    assert facts.memory_bytes("MemTotal:       16000 kB\nMemFree: 1 kB\n") == 16000 * 1024


def test_a_facts_file_stands_instead_of_what_was_found(tmp_path: Path) -> None:
    gpus = [{"index": index, "uuid": f"GPU-{index}"} for index in range(2)]
    found = facts.find(config(tmp_path, {"cpu_cores": 96, "gpus": gpus, "domains": {"infiniband": "f1"}}))
    assert (found.cpu_cores, found.domains) == (96.0, {"infiniband": "f1"})
    attached = attach(found, request(gpus=(0, 1)))
    assert attached.env == {"NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-1"}
    assert attach(found, request()).env == {}
    with pytest.raises(InvalidRequest, match="GPU 2 is not on gpu-1; it has: 0, 1"):
        attach(found, request(gpus=(2,)))


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ("{", "is no JSON"),
        ("[]", "must hold one JSON object"),
        ({"name": "other"}, "may not set name"),
        ({"cpu_cores": "many"}, "cpu_cores"),
        ({"gpus": [{"index": 0}]}, r"gpus\.0\.uuid"),
    ],
)
def test_a_wrong_facts_file_is_named(tmp_path: Path, overrides: Any, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        facts.find(config(tmp_path, overrides))
