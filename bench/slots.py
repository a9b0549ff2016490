"""
Slot start: from asking an agent for a slot to the first instruction of its program, against `ctr run` of the same image
on the same containerd, in turn. The image is unpacked beforehand for both; neither's cleaning is counted.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

import aiohttp

from astra_agent import wire
from astra_agent.containerd.private import PrivateContainerd
from bench.barrier import Barrier
from bench.figure import Figure, against_peer
from bench.program import IMAGE_NAME, build_image, build_program, first_instruction_ns

ROUNDS = 20
WARM_UP = 2
GOAL = 0.9
END_TIMEOUT_S = 60.0
CGROUP = "/astraeus-bench"
PEER_NAMESPACE = "bench-peer"
RUN = wire.RunRef(workspace="bench", name="slots", uid="bench")


async def measure() -> list[Figure]:
    folder = Path(mkdtemp(prefix="astra-bench-", dir="/var/tmp"))  # short: sockets lie in it
    try:
        return [await _measure(folder)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _measure(folder: Path) -> Figure:
    archive = build_image(build_program(folder / "program"), folder / "first.tar")
    containerd = PrivateContainerd(folder / "containerd")
    await containerd.start()
    try:
        peer = _Peer(containerd.socket, folder / "peer", archive)
        async with Barrier() as barrier, _agent(folder, containerd, barrier) as agent:
            ours_ms, peer_ms = [], []
            for number in range(WARM_UP + ROUNDS):
                ours_ms.append(await _start_through_agent(agent, barrier, folder, archive, number))
                peer_ms.append(peer.start(number))
        return against_peer(
            "slots", "slot start to first instruction / ctr run", "ms", ours_ms[WARM_UP:], peer_ms[WARM_UP:], GOAL
        )
    finally:
        await containerd.clean()
        for group in Path("/sys/fs/cgroup").glob(f"**{CGROUP}"):
            with suppress(OSError):
                group.rmdir()


async def _start_through_agent(
    agent: aiohttp.ClientSession, barrier: Barrier, folder: Path, archive: Path, number: int
) -> float:
    """Milliseconds from the request to the program's first instruction. The slot is gone when it returns."""
    slot, drive = f"bench-{number}", _emptied(folder / "drive")
    request = wire.SlotRequest(
        slot=slot, run=RUN, worker=slot, image=f"oci-archive:{archive}", command=("/first", "/drive"),
        drives=(wire.DriveMount(name="bench", mount_path="/drive"),),
    )  # fmt: skip
    began_ns = time.monotonic_ns()
    async with agent.put(f"http://agent/v1/slots/{slot}", json=request.model_dump(mode="json")) as answer:
        if answer.status >= 400:
            raise RuntimeError(f"the agent refused the slot: {await answer.text()}")
    async with asyncio.timeout(END_TIMEOUT_S):
        await barrier.ended(slot)
        first_ns = first_instruction_ns(drive)
        await agent.delete(f"http://agent/v1/slots/{slot}", params={"code": "0", "reason": "measured"})
        while (await agent.get(f"http://agent/v1/slots/{slot}")).status != 404:  # noqa: ASYNC110  # another process
            await asyncio.sleep(0.02)
    return (first_ns - began_ns) / 1e6


class _Peer:
    """`ctr run` on the same containerd, in a namespace of its own."""

    def __init__(self, socket: Path, folder: Path, archive: Path) -> None:
        self.folder = folder
        self.ctr = ["ctr", "--address", str(socket), "--namespace", PEER_NAMESPACE]
        subprocess.run([*self.ctr, "images", "import", str(archive)], check=True, capture_output=True)

    def start(self, number: int) -> float:
        """Milliseconds from starting `ctr` to the program's first instruction."""
        folder = _emptied(self.folder)
        mount = f"type=bind,src={folder},dst=/drive,options=rbind:rw"
        command = [*self.ctr, "run", "--rm", "--mount", mount, IMAGE_NAME, f"peer-{number}", "/first", "/drive"]
        began_ns = time.monotonic_ns()
        subprocess.run(command, check=True, capture_output=True, timeout=END_TIMEOUT_S)
        return (first_instruction_ns(folder) - began_ns) / 1e6


@asynccontextmanager
async def _agent(folder: Path, containerd: PrivateContainerd, barrier: Barrier) -> AsyncIterator[aiohttp.ClientSession]:
    """A real agent's process on *containerd*, with *barrier* as its coordinator; yields a session on its socket."""
    state = folder / "agent"
    (folder / "drive").mkdir()
    token, configuration = folder / "token", folder / "agent.toml"
    token.write_text("bench\n")
    settings: dict[str, object] = {
        "name": "bench", "state_dir": str(state), "address": "127.0.0.1",
        "containerd_socket": str(containerd.socket), "containerd_namespace": "bench",
        "runc_root": str(containerd.runc_root), "cgroup_parent": CGROUP, "name_server": "",
        "coordinator": f"http://127.0.0.1:{barrier.port}", "token_file": str(token),
    }  # fmt: skip
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    configuration.write_text("\n".join([*lines, "[drives]", f"bench = {json.dumps(str(folder / 'drive'))}", ""]))
    with (folder / "agent.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "astra_agent.main", "--config", str(configuration), stderr=log
        )
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await barrier.connected.wait()
            async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(state / "agent.sock"))) as session:
                yield session
        except BaseException:
            sys.stderr.write((folder / "agent.log").read_text())
            raise
        finally:
            process.terminate()
            await process.wait()


def _emptied(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    return folder
