"""The levels themselves: a run says which levels ran, names those that did not, and never passes without a test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.levels import LEVELS, chosen_levels, level_of

ROOT = Path(__file__).parents[2]
PASSES = "def test_passes():\n    pass\n"
FAILS_AT_FIRST = """
tries = []

def test_fails_at_first():
    tries.append(1)
    assert len(tries) == 2, f"try {len(tries)} fails"
"""
SKIPS = "import pytest\n\ndef test_skips():\n    pytest.skip('the moon is down')\n"


def run_pytest(root: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """A pytest of its own over *root*, with this project's levels, whatever the outer run was given."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LEVELS", "PYTEST_"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args],
        cwd=root, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small tree with the project's own levels and pytest settings, without tests."""
    tests = tmp_path / "tests"
    for folder in ("gang", "contract", "containers"):
        (tests / folder).mkdir(parents=True)
    for name in ("levels.py", "conftest.py"):
        (tests / name).write_text((ROOT / "tests" / name).read_text())
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    return tmp_path


def test_every_folder_that_is_no_level_is_core() -> None:
    assert level_of(ROOT / "tests/gang/test_core.py") == "core"
    assert level_of(ROOT / "tests/house/test_levels.py") == "core"
    assert level_of(ROOT / "tests/contract/test_store.py") == "contract"


def test_levels_are_chosen_by_name_and_none_means_all_but_the_slow_machine() -> None:
    assert chosen_levels("contract, core") == ("core", "contract")
    assert chosen_levels("") == tuple(level for level in LEVELS if level != "vm")
    assert chosen_levels("vm") == ("vm",)
    with pytest.raises(pytest.UsageError, match="there is no level 'fast'; there are: core, contract"):
        chosen_levels("fast")


def test_the_last_lines_count_each_level_and_name_what_did_not_run(project: Path) -> None:
    (project / "tests/gang/test_a.py").write_text(PASSES)
    (project / "tests/contract/test_b.py").write_text(SKIPS)
    run = run_pytest(project)
    assert run.returncode == 0, run.stdout
    table = run.stdout.partition(" levels ")[2].splitlines()[1:]
    assert table[0].split() == ["core", "1", "passed", "0", "failed", "0", "skipped"]
    assert table[1] == "contract    did not run: all 1 skipped: the moon is down"
    assert table[3].startswith("nomad       did not run: ")
    assert "1 passed, 1 skipped" in table[-1]


def test_a_level_that_was_not_asked_for_is_not_imported(project: Path) -> None:
    (project / "tests/gang/test_a.py").write_text(PASSES)
    (project / "tests/contract/test_b.py").write_text("raise RuntimeError('imported')\n")
    run = run_pytest(project, "--levels", "core")
    assert run.returncode == 0, run.stdout
    assert "contract    did not run: not asked for, only core" in run.stdout


def test_the_level_on_demand_runs_when_it_is_named_and_is_told_otherwise(project: Path) -> None:
    (project / "tests/vm").mkdir()
    (project / "tests/gang/test_a.py").write_text(PASSES)
    (project / "tests/vm/test_b.py").write_text("raise RuntimeError('imported')\n")
    run = run_pytest(project)
    assert run.returncode == 0, run.stdout
    assert "vm          did not run: only on demand, with make test LEVELS=vm" in run.stdout
    assert "imported" in run_pytest(project, "--levels", "vm").stdout
    assert "imported" in run_pytest(project, "tests/vm/test_b.py").stdout


def test_a_file_that_does_not_import_fails_its_level(project: Path) -> None:
    (project / "tests/contract/test_b.py").write_text("raise RuntimeError('imported')\n")
    run = run_pytest(project)
    assert run.returncode != 0
    assert "contract        0 passed     1 failed" in run.stdout


def test_real_parts_have_a_second_try_in_sight_and_pure_ones_have_none(project: Path) -> None:
    (project / "tests/gang/test_a.py").write_text(FAILS_AT_FIRST)
    (project / "tests/devices").mkdir()
    (project / "tests/devices/test_b.py").write_text(FAILS_AT_FIRST)
    (project / "tests/devices/test_c.py").write_text("def test_fails():\n    assert not 1\n")
    run = run_pytest(project)
    assert run.returncode == 1, run.stdout
    assert "core            0 passed     1 failed     0 skipped\n" in run.stdout
    assert "devices         1 passed     1 failed     0 skipped     2 tried twice\n" in run.stdout
    first = run.stdout.partition("the first try of tests/devices/test_b.py::test_fails_at_first")[2]
    assert "AssertionError: try 1 fails" in first


@pytest.mark.parametrize("content", [SKIPS, ""], ids=["all skipped", "none there"])
def test_a_run_without_one_executed_test_has_failed(project: Path, content: str) -> None:
    (project / "tests/gang/test_a.py").write_text(content)
    assert run_pytest(project).returncode == pytest.ExitCode.NO_TESTS_COLLECTED
