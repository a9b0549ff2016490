"""
A machine under QEMU: a Debian 12 with systemd and cgroup v2 from build/vm, which `scripts/setup vm` makes.

It is booted once and its running state is kept in its disk; every start and every `rewind` after that takes up there,
in seconds, with memory and disk as they were. Emulated throughout (TCG): everything is 15 to 25 times slower than here,
so bounds are wide. Commands go over ssh on a port of loopback; the machine itself reaches nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "vm"
PACKAGES = ("agent/astra_agent", "cli/astra_cli", "dns/astra_dns", "driver/astra_driver", "gang/astra_gang",
            "netprobe/astra_netprobe")  # fmt: skip
SHARE = "/opt/astraeus/share/astraeus"
SITE = "/opt/astraeus/lib/python3.11/site-packages"

BOOT_S = 600.0
COMMAND_S = 240.0
_KEPT = "up"
_POLITE = ("nice", "-n", "19")
_DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")
_KERNEL = "root=/dev/vda rw console=ttyS0,115200 net.ifnames=0 panic=-1 mitigations=off systemd.show_status=0"


class MachineError(Exception):
    """QEMU, or the machine in it, does not do what the tests need."""


class Machine:
    """Use as a context; one at a time uses build/vm."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.folder = folder
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = (folder / "lock").open("w")

    def __enter__(self) -> Machine:
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            self._take_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _take_up(self) -> None:
        kept = self.folder / "kept"
        if kept.exists() and kept.read_text() == self._kind():
            self._start("-loadvm", _KEPT)
        else:
            self._first_boot()
            kept.write_text(self._kind())
        self._until_answers()
        self._set_clock()

    def __exit__(self, *_: object) -> None:
        self.power_off()
        self._lock.close()

    # What tests do with it --------------------------------------------------------------------------------------------

    def run(self, command: str, *, stdin: bytes = b"", timeout_s: float = COMMAND_S) -> str:
        """Standard output of a shell command that ends with 0. Raises: MachineError with all that it said."""
        done = self.attempt(command, stdin=stdin, timeout_s=timeout_s)
        if done.returncode != 0:
            raise MachineError(
                f"`{command}` ended with {done.returncode}: {done.stdout.decode()}{done.stderr.decode()}"
            )
        return done.stdout.decode()

    def attempt(
        self, command: str, *, stdin: bytes = b"", timeout_s: float = COMMAND_S
    ) -> subprocess.CompletedProcess[bytes]:
        """As `run`, whatever its exit status."""
        return subprocess.run(
            [*self._ssh(), "root@127.0.0.1", command], input=stdin, capture_output=True, timeout=timeout_s, check=False
        )

    def until(self, command: str, *, timeout_s: float = COMMAND_S) -> str:
        """What a command says once it ends with 0. Raises: MachineError when it does not in time."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            done = self.attempt(command)
            if done.returncode == 0:
                return done.stdout.decode()
            if time.monotonic() > deadline_s:
                said = (done.stdout + done.stderr).decode()
                raise MachineError(f"`{command}` did not succeed within {timeout_s:g} s; at last it said: {said}")
            time.sleep(0.5)

    def write(self, path: str, content: str | bytes, mode: int = 0o644) -> None:
        data = content.encode() if isinstance(content, str) else content
        self.run(f"install -D -m {mode:o} /dev/stdin {path}", stdin=data)

    def send(self, source: Path, target: str, names: Sequence[str] = (".",)) -> None:
        """Files below *source*, with their times."""
        packed = subprocess.run(
            ["tar", "-C", str(source), "-cf", "-", *names], check=True, stdout=subprocess.PIPE, timeout=COMMAND_S
        ).stdout
        self.run(f"mkdir -p {target} && tar -C {target} -xf - --no-same-owner", stdin=packed)

    def install_project(self) -> None:
        """The packages of this tree instead of those that the disk was made with."""
        self.run(f"rm -rf {SITE}/astra_* {SHARE}")
        self.send(ROOT, SHARE, ["deploy"])
        for package in PACKAGES:
            folder = ROOT / package
            subprocess.run([*_POLITE, "/usr/bin/python3", "-m", "compileall", "-q", str(folder)], check=True)
            self.send(folder.parent, SITE, [folder.name])

    # Its life ---------------------------------------------------------------------------------------------------------

    def prepared(self, name: str, make: Callable[[Machine], None], *made_from: Path) -> None:
        """
        Its state after *make*, memory and disk: made once and kept until this tree changes, taken up again in seconds
        from then on. *make* begins at the state that it leaves the machine in when it was just taken up.

        Args:
            made_from: Files that this state was made from besides those of every state.
        """
        key, kept = " ".join((self._kind(), _tree(), *map(_sum, made_from))), self.folder / f"kept-{name}"
        if not kept.exists() or kept.read_text() != key:
            kept.unlink(missing_ok=True)
            make(self)
            self._leave()
            self._keep(name)
            kept.write_text(key)
        self.rewind(name)

    def rewind(self, name: str = _KEPT) -> None:
        """Memory and disk as they were when that state was kept; without a name after its first boot."""
        self._leave()
        self.monitor(f"loadvm {name}")
        self._until_answers()
        self._set_clock()

    def crash(self) -> None:
        """Its power fails: nothing is synced. It boots anew from its disk."""
        self._leave()
        self._quit()
        self._start()
        self._until_answers()
        self.until_booted()

    def forward(self, port: int) -> int:
        """A port of loopback here for one of loopback there, until it is another machine."""
        here = _free_port()
        words = [*self._ssh(), "-O", "forward", "-L", f"127.0.0.1:{here}:127.0.0.1:{port}", "root@127.0.0.1"]
        subprocess.run(words, check=True, capture_output=True, timeout=60)
        return here

    def until_booted(self) -> None:
        self.attempt("systemctl is-system-running --wait", timeout_s=BOOT_S)

    def power_off(self) -> None:
        self._leave()
        self._quit()

    def monitor(self, command: str) -> str:
        """A line for QEMU's monitor. Returns what it says until it asks for the next one."""
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.settimeout(BOOT_S)
            monitor.connect(str(self.folder / "mon.sock"))
            _until_prompt(monitor)
            monitor.sendall(command.encode() + b"\n")
            return _until_prompt(monitor)

    def _first_boot(self) -> None:
        self._start()
        self._until_answers()
        self.until_booted()
        self._leave()
        self._keep(_KEPT)

    def _keep(self, name: str) -> None:
        if "rror" in (said := self.monitor(f"savevm {name}")):
            raise MachineError(f"its state can't be kept: {said}")

    def _start(self, *more: str) -> None:
        folder = self.folder
        (folder / "mon.sock").unlink(missing_ok=True)
        with (folder / "qemu.log").open("wb") as said:
            self._process = subprocess.Popen(
                [*_POLITE, *_DIES_WITH_US, *self._command(), *more], stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )

    def _command(self) -> list[str]:
        folder = self.folder
        forward = f"hostfwd=tcp:127.0.0.1:{self._port}-:22"
        return [
            "qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2",
            "-m", "2048", "-nodefaults", "-no-user-config", "-display", "none",
            "-kernel", str(folder / "vmlinuz"), "-initrd", str(folder / "initrd.img"), "-append", _KERNEL,
            "-drive", f"file={folder / 'disk.qcow2'},format=qcow2,if=virtio,cache=unsafe",
            "-netdev", f"user,id=n0,restrict=on,{forward}", "-device", "virtio-net-pci,netdev=n0",
            "-device", "virtio-rng-pci", "-chardev", f"file,id=ser,path={folder / 'serial.log'}",
            "-serial", "chardev:ser", "-monitor", f"unix:{folder / 'mon.sock'},server=on,wait=off",
        ]  # fmt: skip

    def _kind(self) -> str:
        """Of which machine the kept state is: another disk or another command line is another machine."""
        words = [word for word in self._command() if "hostfwd" not in word]
        disk = (self.folder / "disk").read_text()
        return hashlib.sha256("\n".join([*words, disk]).encode()).hexdigest()

    def _quit(self) -> None:
        """At once; what its disk was told has reached this machine's page cache."""
        if self._process is None:
            return
        try:
            with socket.socket(socket.AF_UNIX) as monitor:
                monitor.settimeout(10)
                monitor.connect(str(self.folder / "mon.sock"))
                _until_prompt(monitor)
                monitor.sendall(b"quit\n")
            self._process.wait(60)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._process = None

    # Reaching it ------------------------------------------------------------------------------------------------------

    def _ssh(self) -> list[str]:
        master = self.folder / f"ssh-{self._port}"
        options = [
            "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "BatchMode=yes",
            "ConnectTimeout=30", "ControlMaster=auto", f"ControlPath={master}", "ControlPersist=yes",
            "ServerAliveInterval=30", "ServerAliveCountMax=10",
        ]  # fmt: skip
        words = ["ssh", "-F", "none", "-i", str(self.folder / "key"), "-p", str(self._port)]
        for option in options:
            words += ["-o", option]
        return words

    def _leave(self) -> None:
        """The connection belongs to a machine that is about to be another one."""
        subprocess.run([*self._ssh(), "-O", "exit", "root@127.0.0.1"], capture_output=True, timeout=30, check=False)

    def _until_answers(self) -> None:
        deadline_s = time.monotonic() + BOOT_S
        while True:
            try:
                if self.attempt("true", timeout_s=60).returncode == 0:
                    return
            except subprocess.TimeoutExpired:
                self._leave()
            if self._process is None or self._process.poll() is not None:
                raise MachineError(f"QEMU has ended: {(self.folder / 'qemu.log').read_text()}")
            if time.monotonic() > deadline_s:
                raise MachineError(f"it does not answer within {BOOT_S:g} s; see {self.folder / 'serial.log'}")
            time.sleep(1)

    def _set_clock(self) -> None:
        """It stands where it was kept."""
        self.run(f"date -s @{time.time():.0f}")


def _tree() -> str:
    """Of everything that a kept state was made from."""
    found = hashlib.sha256()
    made_from = [path for folder in (*PACKAGES, "deploy") for path in (ROOT / folder).rglob("*")]
    for path in sorted((*made_from, *(ROOT / "tests" / "vm" / name for name in ("machine.py", "cluster.py")))):
        if path.is_file() and "__pycache__" not in path.parts:
            found.update(f"{path.relative_to(ROOT)} {path.stat().st_size}".encode())
            found.update(path.read_bytes())
    return found.hexdigest()


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _until_prompt(monitor: socket.socket) -> str:
    said = b""
    while not said.endswith(b"(qemu) "):
        piece = monitor.recv(4096)
        if not piece:
            break
        said += piece
    return said.decode(errors="replace")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
