"""
The levels of tests: which there are, what each needs, and the table that closes every whole run.

A test's level is its folder (`tests/contract`, `tests/containers`, `tests/nomad`, `tests/frameworks`, `tests/devices`,
`tests/vm`); all other folders are core. `--levels`, or LEVELS, chooses; a level that was not chosen is not even
imported. The level vm is slow by nature: it runs when it is named, by level or by path, and at no other time. A level
that can't run here is never silent: the table names it with the reason. A run of no test at all has failed.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
FRAMEWORKS = ROOT / "build" / "frameworks"
"""Where `scripts/setup frameworks` puts PyTorch and JAX."""

VM = ROOT / "build" / "vm"
"""Where `scripts/setup vm` puts the disk of the machine."""

LEVELS = ("core", "contract", "containers", "nomad", "frameworks", "devices", "vm")
ON_DEMAND = ("vm",)
"""Run when they are named, and not as part of all."""

SECOND_TRY = ("containers", "nomad", "frameworks", "devices", "vm")
"""
Levels of real daemons on a machine that does other things too. A test of theirs that fails is run once more; what the
first try said stays in the output, and the table counts it. What is pure has no second try.
"""

SBIN = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
CAP_SYS_ADMIN = 21


# What levels need --------------------------------------------------------------------------------------------------


def containers_missing() -> str | None:
    """What keeps real containers from running here, in a sentence with its fix; None when nothing does."""
    if os.geteuid() != 0:
        return f"needs root, this is uid {os.geteuid()}: run it with sudo"
    absent = [name for name in ("containerd", "ctr", "runc", "ip") if shutil.which(name, path=SBIN) is None]
    if absent:
        return f"needs {', '.join(absent)}: run scripts/setup test"
    if not _has_capability(CAP_SYS_ADMIN):
        return "needs CAP_SYS_ADMIN, which this root does not have: mounts and network namespaces are refused"
    return None


def frameworks_missing() -> str | None:
    """What keeps PyTorch and JAX from running in containers here; None when nothing does."""
    if reason := containers_missing():
        return reason
    if not any(FRAMEWORKS.glob("*/ready")):
        return "needs PyTorch or JAX in build/frameworks: run scripts/setup frameworks"
    return None


def nomad_missing() -> str | None:
    """What keeps a real Nomad from running here; None when nothing does."""
    if shutil.which("nomad") is None:
        return "needs nomad (1.6 or later) on the PATH: it is not part of this project, nor installed by it"
    return containers_missing()


def vm_missing() -> str | None:
    """What keeps an emulated machine from running here; None when nothing does."""
    absent = [name for name in ("qemu-system-x86_64", "qemu-img", "ssh") if shutil.which(name, path=SBIN) is None]
    if absent:
        return f"needs {', '.join(absent)}: run scripts/setup vm"
    if not (VM / "disk").exists():
        return "needs the machine's disk in build/vm: run scripts/setup vm"
    return None


NEEDS: dict[str, Callable[[], str | None]] = {
    "containers": containers_missing,
    "nomad": nomad_missing,
    "frameworks": frameworks_missing,
    "vm": vm_missing,
}
"""By level, and by marker for single tests of other levels."""


def _has_capability(number: int) -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False


# Choosing ----------------------------------------------------------------------------------------------------------


def level_of(path: Path) -> str:
    """The level of a test file, or of a folder under tests/."""
    folder = path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) and path != TESTS else ""
    return folder if folder in LEVELS else "core"


def chosen_levels(text: str) -> tuple[str, ...]:
    """
    Levels named in *text* (by spaces or commas), in the order of `LEVELS`; all but those on demand when it is empty.

    Raises:
        UsageError: a name that is no level.
    """
    names = text.replace(",", " ").split()
    if unknown := [name for name in names if name not in LEVELS]:
        raise pytest.UsageError(f"there is no level {unknown[0]!r}; there are: {', '.join(LEVELS)}")
    return tuple(level for level in LEVELS if (level in names if names else level not in ON_DEMAND))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--levels", default=os.environ.get("LEVELS", ""), help=f"levels to run, of: {', '.join(LEVELS)} (default: all)"
    )


def pytest_configure(config: pytest.Config) -> None:
    text = str(config.getoption("--levels"))
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS or bool(text)
    chosen = chosen_levels(text) if whole else LEVELS
    config.pluginmanager.register(LevelsPlugin(chosen, shows_table=whole), "astra-levels")


class LevelsPlugin:
    """One run's choice of levels, and the count of what came of them."""

    def __init__(self, chosen: tuple[str, ...], *, shows_table: bool) -> None:
        self.chosen = chosen
        self.shows_table = shows_table
        self.lacks = {name: needs() for name, needs in NEEDS.items()}
        self.counts: dict[str, Counter[str]] = {level: Counter() for level in LEVELS}
        self.skip_reasons: dict[str, str] = {}
        self.first_tries: list[pytest.TestReport] = []

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        inside = collection_path.is_relative_to(TESTS) and collection_path != TESTS
        if inside and collection_path.is_dir() and level_of(collection_path) not in self.chosen:
            return True
        return None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: LEVELS.index(level_of(item.path)))
        for item in items:
            needs = {level_of(item.path), *(mark.name for mark in item.iter_markers())}
            if needs.intersection(SECOND_TRY):
                item.add_marker(pytest.mark.flaky(reruns=1))
            for need in needs:
                if reason := self.lacks.get(need):
                    item.add_marker(pytest.mark.skip(reason=reason))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.counts[level_of(ROOT / report.nodeid)]["failed"] += 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        level = level_of(ROOT / report.nodeid.partition("::")[0])
        outcome: str = report.outcome  # pytest-rerunfailures has one that pytest does not
        if outcome == "rerun":
            self.counts[level]["tried twice"] += 1
            self.first_tries.append(report)
        elif report.failed:
            self.counts[level]["failed"] += 1
        elif report.skipped:
            self.counts[level]["skipped"] += 1
            if isinstance(report.longrepr, tuple):
                self.skip_reasons.setdefault(level, report.longrepr[2].removeprefix("Skipped: "))
        elif report.when == "call":
            self.counts[level]["passed"] += 1

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        ran = any(count["passed"] + count["failed"] for count in self.counts.values())
        if exitstatus == pytest.ExitCode.OK and not ran and not session.config.option.collectonly:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for report in self.first_tries:
            terminalreporter.section(f"the first try of {report.nodeid}")
            terminalreporter.write_line(report.longreprtext)
        if self.shows_table:
            terminalreporter.section("levels")
            for line in self.table():
                terminalreporter.write_line(line)

    def table(self) -> Iterable[str]:
        for level in LEVELS:
            count = self.counts[level]
            if count["passed"] + count["failed"]:
                numbers = (f"{count[outcome]:>5} {outcome}" for outcome in ("passed", "failed", "skipped"))
                again = count["tried twice"]
                yield f"{level:<11} {' '.join(numbers)}" + (f" {again:>5} tried twice" if again else "")
            else:
                yield f"{level:<11} did not run: {self.why_not(level)}"

    def why_not(self, level: str) -> str:
        """Why no test of *level* was executed."""
        if level not in self.chosen and level in ON_DEMAND and len(self.chosen) == len(LEVELS) - len(ON_DEMAND):
            return f"only on demand, with make test LEVELS={level}"
        if level not in self.chosen:
            return f"not asked for, only {' '.join(self.chosen)}"
        if not self.counts[level]["skipped"]:
            return self.lacks.get(level) or "it has no tests yet"
        return f"all {self.counts[level]['skipped']} skipped: {self.skip_reasons.get(level, 'no reason given')}"
