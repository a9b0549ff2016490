"""
What `nvidia-ml-py` reads from a library is what the captured machine says: through a small library of our own, compiled
here, so that the package's structures are held to the driver's sizes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from astra_agent.inventory import LibraryReading
from astra_agent.inventory.order import parse_list
from tests.agent.inventory.captured import captured, document

HERE = Path(__file__).parent
SCRIPT = """
import json
from dataclasses import asdict
from astra_agent.nvml import read_library
print(json.dumps(asdict(read_library())))
"""
COMPILER = shutil.which("cc") or shutil.which("gcc")

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C compiler: apt-get install gcc libc6-dev")


def tables(name: str, newest_fabric: int) -> str:
    """The captured machine's GPUs as C."""
    nvml = document(name)["nvml"]
    rows = [_row(gpu) for gpu in nvml["devices"]]
    chassis = (nvml.get("platform_info") or {}).get("chassis_serial", "")
    return "\n".join(
        [
            f'static const char DRIVER[] = "{nvml["driver_version"]}";',
            f'static const char LIBRARY[] = "{nvml["nvml_version"]}";',
            f'static const char CHASSIS[17] = "{chassis}";',
            f"enum {{ CUDA = {nvml['cuda_driver_version']}, COUNT = {len(rows)}, NEWEST_FABRIC = {newest_fabric} }};",
            f"static const struct gpu GPUS[] = {{ {', '.join(rows)} }};",
            "",
        ]
    )


def _row(gpu: dict[str, Any]) -> str:
    cpus = parse_list(gpu["cpu_affinity"]) or frozenset()
    words = [sum(1 << cpu - at * 64 for cpu in cpus if cpu // 64 == at) for at in range(4)]
    fabric = gpu["fabric"]
    fields = {
        "uuid": json.dumps(gpu["uuid"]),
        "name": json.dumps(gpu["name"]),
        "bus": json.dumps(gpu["pci_bus_id"]),
        "minor": gpu["minor_number"],
        "memory": f"{gpu['memory_total_bytes']}ull",
        "cpus": "{" + ",".join(f"{word}ull" for word in words) + "}",
        "nodes": f"{sum(1 << node for node in gpu['memory_affinity_nodes'])}ull",
        "numa_node": -1 if gpu["numa_node_id"] is None else gpu["numa_node_id"],
        "mig": gpu["mig_mode"][0],
        "has_fabric": 1,
        "state": fabric["state"],
        "status": fabric["status"],
        "clique": fabric["clique_id"],
        "health_mask": fabric["health_mask"],
        "health_summary": fabric["health_summary"],
        "cluster": "{" + ",".join(str(byte) for byte in bytes.fromhex(fabric["cluster_uuid"].replace("-", ""))) + "}",
        "failed_rows": gpu["remapped_rows"]["failed"],
        "links": gpu["nvlink"]["links"],
        "active_links": gpu["nvlink"]["active"],
    }
    return "{" + ", ".join(f".{name} = {value}" for name, value in fields.items()) + "}"


def build(folder: Path, name: str, *lacks: str, newest_fabric: int = 0x03000028) -> Path:
    (folder / "gpus.h").write_text(tables(name, newest_fabric))
    flags = [f"-DLACKS_{call}" for call in lacks]
    assert COMPILER is not None
    subprocess.run(
        [
            COMPILER, "-shared", "-fPIC", "-Wall", "-Werror", "-I", folder, *flags, HERE / "mock_nvml.c",
            "-o", folder / "libnvidia-ml.so.1",
        ],
        check=True, timeout=60,
    )  # fmt: skip
    return folder


def ask(folder: Path | None, **environment: str) -> dict[str, Any]:
    """What a process of its own reads: the package keeps the first library that it opens."""
    paths = {"LD_LIBRARY_PATH": str(folder)} if folder is not None else {}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**os.environ, **paths, **environment}, capture_output=True, text=True,
        timeout=60, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def expected(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(asdict(captured(name)[1])))
    return found


@pytest.mark.parametrize("name", ["dgx-h100-ndr", "gb200-nvl72-tray", "gb200-fabric-broken", "dgx-a100-hdr-nps4"])
def test_the_library_is_read_as_the_captured_machine_says(name: str, tmp_path: Path) -> None:
    assert ask(build(tmp_path, name)) == expected(name)


def test_a_library_of_before_the_newer_calls_leaves_their_fields_empty_and_nothing_else(tmp_path: Path) -> None:
    found = ask(build(tmp_path, "gb200-nvl72-tray", "AFFINITY", "NUMA", "FABRIC", "PLATFORM"))
    wanted = expected("gb200-nvl72-tray")
    wanted["chassis"] = ""
    for gpu in wanted["gpus"]:
        gpu |= {"cpus": None, "memory_nodes": None, "memory_node": None, "fabric": None}
    assert found == wanted


def test_a_driver_that_knows_the_older_form_of_the_fabric_is_asked_in_that_one(tmp_path: Path) -> None:
    found = ask(build(tmp_path, "gb200-nvl72-tray", newest_fabric=0x02000024))
    wanted = expected("gb200-nvl72-tray")
    for gpu in wanted["gpus"]:
        gpu["fabric"]["health_summary"] = 0
    assert found == wanted


def test_one_lost_gpu_is_left_out_with_its_code_and_the_others_are_read(tmp_path: Path) -> None:
    found = ask(build(tmp_path, "dgx-h100-ndr"), MOCK_LOST="5")
    assert (found["count"], found["gpus"][5]["error"], found["gpus"][5]["uuid"]) == (8, 15, None)
    assert [gpu["error"] for at, gpu in enumerate(found["gpus"]) if at != 5] == [0] * 7


@pytest.mark.parametrize("code", [9, 18, 999])
def test_a_library_that_can_not_be_started_gives_its_code(code: int, tmp_path: Path) -> None:
    found = ask(build(tmp_path, "dgx-h100-ndr"), MOCK_INIT=str(code))
    assert (found["error"], found["count"], found["gpus"]) == (code, 0, [])


@pytest.mark.skipif(
    any(Path(folder, "libnvidia-ml.so.1").exists() for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64")),
    reason="this machine has the real library",
)
def test_a_machine_without_the_library_says_so() -> None:
    assert ask(None)["error"] == 12
    assert LibraryReading(error=12).gpus == ()
