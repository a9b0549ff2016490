"""
Dev clusters of two machines whose own hosts file calls every worker 127.0.1.1, as Debian does with a machine's name,
and the environments of `scripts/setup frameworks` as a drive at their own path.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.containers.images import File, Image, Link
from tests.levels import FRAMEWORKS

ASTRA = Path(sys.executable).parent / "astra"
PROGRAMS = Path(__file__).parent / "programs"
START_TIMEOUT_S = 60.0
RUN_TIMEOUT_S = 240.0
PACKAGES = ("base-files", "coreutils", "dash", "libc-bin", "libquadmath0", "libstdc++6", "python3", "python3-minimal")
"""What a Python needs, and what it depends on: an image as a user would take it, with a shell and the usual places."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cluster:
    """A dev cluster that runs, through the commands of a user."""

    state: Path

    def run(self, name: str, template: Json, **resources: Any) -> list[str]:
        """
        Run a gang of two to its end.

        Returns: What each rank wrote, in order of rank.
        """
        followed = self.astra("run", str(self._file(name, template, "FailJob", **resources)), "--follow")
        logs = [self.astra("logs", name, str(rank)).stdout for rank in (0, 1)]
        assert followed.returncode == 0, f"{followed.stdout}\n{followed.stderr}\nrank 1 wrote:\n{logs[1]}"
        return logs

    def submit(self, name: str, template: Json, *, on_failure: str) -> None:
        """Start a gang of two."""
        submitted = self.astra("run", str(self._file(name, template, on_failure)))
        assert submitted.returncode == 0, submitted.stderr

    def until_said(self, name: str, rank: int, line: str, *, attempt: int | None = None) -> None:
        which = () if attempt is None else ("--attempt", str(attempt))
        self._until(lambda: self.astra("logs", name, str(rank), *which).stdout, line)

    def until_phase(self, name: str, phase: str) -> None:
        self._until(lambda: str(json.loads(self.astra("status", name, "--json").stdout)["status"]["phase"]), phase)

    def _until(self, said: Callable[[], str], expected: str) -> None:
        deadline = time.monotonic() + RUN_TIMEOUT_S
        while expected not in said():
            assert time.monotonic() < deadline, f"waited for {expected!r}, found:\n{said()}"
            time.sleep(0.2)

    def _file(self, name: str, template: Json, on_failure: str, **resources: Any) -> Path:
        spec = {"metadata": {"name": name}, "spec": {"start": "Gang", "on_failure": on_failure, "task_template": {
            **template,
            "datavolume_refs": [
                {"name": "frameworks", "mount_path": str(FRAMEWORKS), "mode": "ReadOnly"},
                {"name": "programs", "mount_path": "/programs", "mode": "ReadOnly"},
            ],
            "requested_resources": {"machines": 2, **resources},
        }}}  # fmt: skip
        file = self.state.parent / f"{name}.json"
        file.write_text(json.dumps(spec))
        return file

    def astra(self, *words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "ASTRA_DEV_STATE": str(self.state)}
        return subprocess.run(
            [ASTRA, *words], env=environment, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False
        )


@contextmanager
def dev_cluster(*options: str) -> Iterator[Cluster]:
    """
    Two machines with *options* of `astra dev`. It runs in a mount namespace of its own, so that the hosts file that it
    finds on its machine can be made up.
    """
    with TemporaryDirectory(prefix="astra-fw-", dir="/var/tmp") as folder:
        cluster, hosts = Cluster(Path(folder) / "state"), Path(folder) / "hosts"
        names = [f"{run}-{rank}" for run in ("torch", "bare", "jax") for rank in (0, 1)]
        hosts.write_text("127.0.0.1 localhost\n" + "".join(f"127.0.1.1 {name}.example {name}\n" for name in names))
        command = [
            "unshare", "--mount", "--propagation", "private", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"',
            str(hosts), str(ASTRA), "dev", "--state", str(cluster.state), "--machines", "2", *options,
            "--drive", f"frameworks={FRAMEWORKS}", "--drive", f"programs={PROGRAMS}",
        ]  # fmt: skip
        with (Path(folder) / "dev.log").open("w+") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            try:
                _wait_until_up(cluster, process, Path(log.name))
                yield cluster
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(timeout=START_TIMEOUT_S)
                cluster.astra("dev", "stop", "--purge")


def _wait_until_up(cluster: Cluster, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while cluster.astra("nodes").returncode != 0:
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"the dev cluster did not come up:\n{log.read_text()}")
        time.sleep(0.2)


@pytest.fixture(scope="session")
def cluster_with() -> Iterator[Callable[..., Cluster]]:
    """A cluster for some options of `astra dev`, shared by all tests that ask for the same."""
    with ExitStack() as stack:
        running: dict[tuple[str, ...], Cluster] = {}

        def cluster(*options: str) -> Cluster:
            if options not in running:
                running[options] = stack.enter_context(dev_cluster(*options))
            return running[options]

        yield cluster


@pytest.fixture(scope="session")
def environment() -> Callable[[str], Path]:
    """The virtual environment of that name; the test is skipped where it was not made."""

    def find(name: str) -> Path:
        if not (FRAMEWORKS / name / "ready").is_file():
            pytest.skip(f"build/frameworks/{name} is not there: run scripts/setup frameworks")
        return FRAMEWORKS / name

    return find


@pytest.fixture(scope="session")
def python_image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A normal image: Python with what it needs, out of the files of this machine's own packages."""
    entries: dict[str, File | Link] = {}
    for name in _files_of(_with_dependencies(PACKAGES)):
        path = Path(name)
        if path.is_symlink():
            entries[name.lstrip("/")] = Link(str(path.readlink()))
        elif path.is_file():
            entries[name.lstrip("/")] = File(path.read_bytes(), path.stat().st_mode & 0o777)
    # A system with a merged /usr: its packages may still name the old folders.
    merged = {f"usr/{name}" if name.split("/")[0] in ("bin", "sbin", "lib", "lib64") else name: entry
              for name, entry in entries.items()}  # fmt: skip
    links = {name: Link(f"usr/{name}") for name in ("bin", "sbin", "lib", "lib64")}
    users = {"etc/passwd": File(b"root:x:0:0:root:/root:/bin/sh\n"), "etc/group": File(b"root:x:0:\n")}
    archive = tmp_path_factory.mktemp("image") / "python.tar"
    Image().layer({**links, **merged, **users}, compressed=False).config(Cmd=["/bin/sh"]).write_oci_archive(archive)
    return f"oci-archive:{archive}"


def _with_dependencies(packages: tuple[str, ...]) -> list[str]:
    listing = _output_of(
        "apt-cache", "depends", "--recurse", "--installed", "--no-recommends", "--no-suggests", "--no-conflicts",
        "--no-breaks", "--no-replaces", "--no-enhances", *packages,
    )  # fmt: skip
    return [line for line in listing.splitlines() if line and not line.startswith((" ", "<"))]


def _files_of(packages: list[str]) -> list[str]:
    listing = _output_of("dpkg-query", "--listfiles", *packages)
    skipped = ("/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/", "/usr/share/perl/", "/var/")
    return [name for name in listing.splitlines() if name.startswith("/") and not name.startswith(skipped)]


def _output_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
