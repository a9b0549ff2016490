"""
A real registry (Debian's docker-registry) for one test, and ways to make its answers go wrong.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from tests.levels import SBIN

_START_TIMEOUT_S = 20.0


class DebianRegistry:
    """
    On a port of loopback, with its data below *folder*. Stopped and started again, it is the same.

    Args:
        users: With these passwords it wants credentials.
        tls: Certificate and key; then it speaks TLS.
    """

    def __init__(
        self, folder: Path, *, users: dict[str, str] | None = None, tls: tuple[Path, Path] | None = None
    ) -> None:
        self.host = f"127.0.0.1:{free_port()}"
        self.url = f"{'https' if tls else 'http'}://{self.host}"
        self._folder = folder
        self._tls = tls
        self._users = users
        self._log = folder / "access.log"
        self._process: subprocess.Popen[bytes] | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[DebianRegistry]:
        await self.start()
        try:
            yield self
        finally:
            self.kill()

    async def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "config.yml"
        config.write_text(self._configuration())
        program = shutil.which("docker-registry", path=SBIN)
        assert program, "docker-registry is not installed: run scripts/setup test"
        self._spawn(program, config)
        host, _, port = self.host.partition(":")
        async with asyncio.timeout(_START_TIMEOUT_S):
            while not await _listens(host, int(port)):  # noqa: ASYNC110 -- a process of its own, which tells nobody
                await asyncio.sleep(0.02)

    def _spawn(self, program: str, config: Path) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([program, "serve", str(config)], stdout=log, stderr=log)

    def kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
            self._process.wait(10)
            self._process = None

    def blob_file(self, digest: str) -> Path:
        """Where it keeps that blob."""
        algorithm, _, number = digest.partition(":")
        return self._folder / "data/docker/registry/v2/blobs" / algorithm / number[:2] / number / "data"

    def asked(self, part: str) -> int:
        """How many GETs there were whose path has *part* in it."""
        lines = self._log.read_text(errors="replace").splitlines()
        return sum('"GET ' in line and part in line for line in lines)

    def _configuration(self) -> str:
        lines = [
            "version: 0.1",
            "log: {level: error}",
            f"storage: {{filesystem: {{rootdirectory: {self._folder / 'data'}}}}}",
            "http:",
            f"  addr: {self.host}",
        ]
        if self._tls:
            lines.append(f"  tls: {{certificate: {self._tls[0]}, key: {self._tls[1]}}}")
        if self._users:
            path = self._folder / "htpasswd"
            path.write_text("".join(_htpasswd(user, password) for user, password in self._users.items()))
            lines.append(f"auth: {{htpasswd: {{realm: tests, path: {path}}}}}")
        return "\n".join(lines) + "\n"


class Gate:
    """A TCP proxy before a registry: counts what it lets through, and can stop in the middle of an answer."""

    def __init__(self, behind: str) -> None:
        self._behind = behind
        self.host = ""
        self.passed_bytes = 0
        self.stops_at: int | None = None
        self.stopped = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()

    def stop_after(self, size_bytes: int) -> None:
        """Once that many more bytes went to clients, no more do, until `open`."""
        self.stops_at = self.passed_bytes + size_bytes
        self.stopped.clear()

    def open(self) -> None:
        self.stops_at = None
        self._open.set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Gate]:
        async with _server(self._serve) as self.host:
            yield self

    async def _serve(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        host, _, port = self._behind.partition(":")
        registry, questions = await asyncio.open_connection(host, int(port))
        asking = asyncio.create_task(_copy(client, questions))
        try:
            while data := await registry.read(16 * 1024):
                if self.stops_at is not None and self.passed_bytes >= self.stops_at:
                    self._open.clear()
                    self.stopped.set()
                await self._open.wait()
                self.passed_bytes += len(data)
                answers.write(data)
                await answers.drain()
        finally:
            asking.cancel()
            await asyncio.wait([asking])
            await _closed(questions)


@asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """Accepts connections, reads, and never answers. Gives its `host:port`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)

    async with _server(serve) as host:
        yield host


@asynccontextmanager
async def _server(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """Serves each connection until the block ends, and closes all that is left then. Gives its `host:port`."""
    connections: set[asyncio.Task[None]] = set()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                await serve(reader, writer)
        finally:
            await _closed(writer)

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(connection(reader, writer))
        connections.add(task)
        task.add_done_callback(connections.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def certificate(folder: Path) -> tuple[Path, tuple[Path, Path]]:
    """An authority as old tools make it (without a key usage), and a certificate of it with its key for 127.0.0.1."""
    folder.mkdir(parents=True, exist_ok=True)
    ca, ca_key, cert, key = (folder / name for name in ("ca.crt", "ca.key", "server.crt", "server.key"))
    names = folder / "names"
    names.write_text("subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
    _openssl("req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=tests", *_new_key(ca_key), "-out", ca)
    request = folder / "request"
    _openssl("req", "-nodes", "-subj", "/CN=127.0.0.1", *_new_key(key), "-out", request)
    signed_by = ("-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-days", "2", "-extfile", names)
    _openssl("x509", "-req", "-in", request, *signed_by, "-out", cert)
    return ca, (cert, key)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _listens(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    await _closed(writer)
    return True


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(16 * 1024):
            writer.write(data)
            await writer.drain()


def _htpasswd(user: str, password: str) -> str:
    """bcrypt, the only form that docker-registry takes."""
    program = shutil.which("htpasswd", path=SBIN)
    assert program, "htpasswd is not installed: run scripts/setup test"
    return subprocess.run(
        [program, "-nbBC", "4", user, password], capture_output=True, text=True, check=True, timeout=20
    ).stdout


def _new_key(path: Path) -> tuple[Any, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", path)


def _openssl(*args: Any) -> None:
    subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True, timeout=30)
