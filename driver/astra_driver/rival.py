"""Whether Nomad's own NVIDIA device plugin runs beside ours: then both would give away the same GPUs."""

from __future__ import annotations

import os
from pathlib import Path

_RIVAL = "nomad-device-nvidia"


def rival_sentence(parent: int | None = None, proc: Path = Path("/proc")) -> str | None:
    """
    A sentence when it is there, else None.

    Args:
        parent: Whose child it would be; None: whoever has started us.
    """
    parent = os.getppid() if parent is None else parent
    for folder in proc.glob("[0-9]*"):
        try:
            program = (folder / "cmdline").read_bytes().split(b"\0", 1)[0].decode(errors="replace")
            above = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if above == parent and Path(program).name.startswith(_RIVAL):
            return (
                f"{_RIVAL} runs beside Astraeus's device plugin and would give the same GPUs away a second time: "
                "remove one of the two from plugin_dir"
            )
    return None
