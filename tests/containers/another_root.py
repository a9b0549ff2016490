"""
This machine with other files in /etc, for whoever runs in it: a mount and a network namespace of its own whose root is
a copy-on-write layer over this one. The machine's own files are not touched, and nothing is left.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_SCRIPT = """
set -e
folder=$1 kept=$2; shift 2
mount -t tmpfs none "$folder"
mkdir "$folder/upper" "$folder/work" "$folder/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" "$folder/root"
cd "$folder/root"
for part in proc sys dev; do mount --rbind "/$part" "$part"; done
mount --bind "$kept" "./$kept"
cp -a "$kept/changes/." .
if [ -e "$kept/links" ]; then while read -r name target; do ln -sfn "$target" "./$name"; done < "$kept/links"; fi
mkdir -p mnt/before
pivot_root . mnt/before
umount -l /mnt/before
ip link set lo up
cd "$kept"
exec "$@"
"""


def run(
    folder: Path, files: Mapping[str, str], links: Mapping[str, str], command: Sequence[str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """
    Run *command* there, with the loopback device up and no other.

    Args:
        folder: Seen from both sides; on a disk, and the caller's.
        files: Text by path, without the leading `/`.
        links: Symbolic links by path, the same way.
    """
    for name, text in files.items():
        path = folder / "changes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "changes").mkdir(exist_ok=True)
    (folder / "links").write_text("".join(f"{name} {target}\n" for name, target in links.items()))
    (folder / "root").mkdir()
    inside = ["unshare", "--mount", "--net", "--propagation", "private", "sh", "-c", _SCRIPT, "sh"]
    return subprocess.run(
        [*inside, str(folder / "root"), str(folder), *command],
        capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip
