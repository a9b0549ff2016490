"""System commands that the dev cluster runs: bounded, ended when cancelled, out of reach of the terminal's Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import suppress

from astra_agent.errors import DeadlineExceeded, HostFault

TIMEOUT_S = 20.0
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"


def program(name: str) -> str:
    """Its path; also where the user's PATH has no folders for administrators. Raises: HostFault."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{SBIN}")
    if path is None:
        package = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux"}.get(name, name)
        raise HostFault(f"{name} is not on this machine; on Debian and Ubuntu: apt-get install {package}")
    return path


async def run(*words: str, stdin: str = "") -> str:
    """
    Its standard output and error. Raises: HostFault with what it said, DeadlineExceeded after `TIMEOUT_S`.
    """
    process = await asyncio.create_subprocess_exec(
        program(words[0]), *words[1:], start_new_session=True,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output, _ = await process.communicate(stdin.encode())
    except TimeoutError:
        raise DeadlineExceeded(f"{' '.join(words)} did not end within {TIMEOUT_S:g} s") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    text = output.decode(errors="replace").strip()
    if process.returncode:
        raise HostFault(f"{' '.join(words)} failed: {text or f'exit code {process.returncode}'}")
    return text


async def inside(netns: str, *words: str, stdin: str = "") -> str:
    """As `run`, in a network namespace."""
    return await run("nsenter", f"--net={netns}", program(words[0]), *words[1:], stdin=stdin)
