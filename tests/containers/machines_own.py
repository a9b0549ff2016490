"""A containerd that a dev cluster finds where the machine's own is, with a container of somebody else's on it."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from astra_agent.containerd.private import PrivateContainerd
from tests.containers.dev_cluster import DevCluster
from tests.containers.images import Image

OWN = Path("/run/containerd")
NAMESPACE = "somebody-else"
BOUND_S = 60.0


@dataclass
class BesideCluster(DevCluster):
    """Each of its commands, and so what they start, sees *beside* as the machine's own containerd."""

    beside: Path = field(default_factory=Path)

    def command(self, *words: str) -> list[str]:
        script = f'mount --bind {self.beside} {OWN} && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", script, "sh", *super().command(*words)]


class MachinesOwn:
    """
    Attributes:
        folder: Its socket is `containerd.sock` in there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.containerd = PrivateContainerd(folder)

    def picture(self) -> dict[str, object]:
        """All that a client of it can see, and the processes behind it."""
        namespaces = self.ctr("namespaces", "list", "--quiet").split()
        kinds = ("containers", "tasks", "snapshots", "leases", "images")
        inside = {f"{kind} of {name}": self.ctr("-n", name, kind, "list") for name in namespaces for kind in kinds}
        return {"process": self.containerd.pid, "namespaces": namespaces, **inside}

    def ctr(self, *words: str) -> str:
        command = ["ctr", "--address", str(self.containerd.socket), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=BOUND_S).stdout

    def run_one(self) -> None:
        archive = self.folder.parent / "theirs.tar"
        Image().with_programs("/bin/sleep").write_oci_archive(archive)
        self.ctr("--namespace", NAMESPACE, "images", "import", "--index-name", "theirs", str(archive))
        reference = self.ctr("--namespace", NAMESPACE, "images", "list", "--quiet").split()[0]
        cgroup = ("--cgroup", f"/{NAMESPACE}/one")
        self.ctr("--namespace", NAMESPACE, "run", "--detach", *cgroup, reference, "one", "/bin/sleep", "1000")

    def end_all(self) -> None:
        """runc keeps its states in a folder that all containerds of a machine share."""
        self.ctr("--namespace", NAMESPACE, "tasks", "delete", "--force", "one")
        self.ctr("--namespace", NAMESPACE, "containers", "delete", "one")


@contextmanager
def machines_own(folder: Path) -> Iterator[MachinesOwn]:
    made = not OWN.exists()
    OWN.mkdir(exist_ok=True)
    own = MachinesOwn(folder / "own")
    try:
        asyncio.run(own.containerd.start())
        own.run_one()
        try:
            yield own
        finally:
            own.end_all()
    finally:
        asyncio.run(own.containerd.clean())
        if made and not any(OWN.iterdir()):
            OWN.rmdir()
