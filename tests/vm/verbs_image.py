"""An image with the verbs' programs of the machine and nothing else, for a user who is not root."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.containers.images import Entries, File, Image, Link
from tests.vm.machine import FOLDER

_PROGRAMS = ("/usr/bin/ib_write_bw", "/usr/bin/ibv_devices")
_PROVIDER = "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so"


def write(path: Path) -> None:
    root = FOLDER / "root"
    entries: dict[str, File | Link] = {}
    for file in (*_PROGRAMS, _PROVIDER, *_libraries(root)):
        entries[file.lstrip("/")] = File((root / file.lstrip("/")).read_bytes(), 0o755)
    entries["etc/libibverbs.d/rxe.driver"] = File(b"driver rxe\n")
    entries["etc/passwd"] = File(b"root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n")
    entries["bin/busybox"] = File((root / "bin" / "busybox").read_bytes(), 0o755)
    for name in ("sh", "id", "sleep", "cat"):
        entries[f"bin/{name}"] = Link("busybox")
    image: Entries = entries
    Image().layer(image).config(User="1000", Env=["PATH=/usr/bin:/bin"]).write_oci_archive(path)


def _libraries(root: Path) -> set[str]:
    said = subprocess.run(
        ["chroot", str(root), "ldd", *_PROGRAMS, _PROVIDER], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    return set(re.findall(r"(/lib\S+)", said.replace(":\n", "\n"))) - {_PROVIDER}
