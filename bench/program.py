"""The program whose first instruction is timed, and an image with nothing else in it."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent / "programs" / "first.c"
IMAGE_NAME = "bench.invalid/first:1"
POLL_S = 0.001

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def build_program(folder: Path) -> Path:
    """Compiles `first`, static, so that it runs in an empty image. Idempotent."""
    program = folder / "first"
    if not program.is_file() or program.stat().st_mtime < SOURCE.stat().st_mtime:
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cc", "-O2", "-static", "-s", "-o", str(program), str(SOURCE)], check=True)
    return program


def build_image(program: Path, archive: Path) -> Path:
    """An OCI archive whose file system is *program* as `/first`, named `IMAGE_NAME`."""
    layer = _tar({"first": program.read_bytes()}, mode=0o755)
    config = _json({
        "architecture": _ARCHITECTURES[platform.machine()], "os": "linux",
        "config": {"Entrypoint": ["/first"], "Env": ["PATH=/"]},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    })  # fmt: skip
    manifest = _json({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": _descriptor("application/vnd.oci.image.config.v1+json", config),
        "layers": [_descriptor("application/vnd.oci.image.layer.v1.tar", layer)],
    })  # fmt: skip
    name = {"io.containerd.image.name": IMAGE_NAME, "org.opencontainers.image.ref.name": "1"}
    entry = {**_descriptor("application/vnd.oci.image.manifest.v1+json", manifest), "annotations": name}
    files = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json({"schemaVersion": 2, "manifests": [entry]}),
    }
    files |= {f"blobs/sha256/{_digest(blob)[7:]}": blob for blob in (layer, config, manifest)}
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(_tar(files))
    return archive


def first_instruction_ns(folder: Path, rank: int = 0, attempt: int = 0, timeout_s: float = 60.0) -> int:
    """
    When the program of *rank* was started in *attempt*, on CLOCK_MONOTONIC; waits for it.

    Raises:
        TimeoutError: it was not started in time.
    """
    file = folder / f"{attempt}-{rank}"
    deadline = time.monotonic() + timeout_s
    while not file.is_file():
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank {rank} of attempt {attempt} was not started within {timeout_s:g} s ({file})")
        time.sleep(POLL_S)
    return int(file.read_text())


def _tar(files: dict[str, bytes], mode: int = 0o644) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True).encode()


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _descriptor(media_type: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}
