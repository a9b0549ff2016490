"""
Whether a container's first program will start: found as the runtime will look for it, and said in a sentence if not.

Everything that the kernel would answer with "no such file or directory" or "exec format error" is told apart here: a
missing program, a missing interpreter of a script, a missing dynamic linker, another machine's program.
"""

from __future__ import annotations

import posixpath
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from astra_agent.containerd.inside import Closed, Found, Inside, Missing, head, is_executable_file, may_execute
from astra_agent.containerd.passwd import Identity
from astra_agent.errors import InvalidRequest

_HEAD_BYTES = 4096
_MOST_INTERPRETERS = 4
"""The kernel follows one more script than that."""
_MACHINES = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
_RUNS = {"x86_64": ("x86_64", "i386"), "aarch64": ("aarch64", "arm")}
_PT_INTERP = 3


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be started, and what sentences call it."""

    command: str
    search: str
    """PATH in the container."""
    working_dir: str
    identity: Identity
    image: str
    machine: str
    """As `uname -m` prints it."""
    drives: frozenset[str] = frozenset()
    """Targets of the mounts that are not the image's own, for sentences."""


def check_program(wanted: Wanted, files: Inside, foreign_formats: bool) -> None:
    """
    Args:
        foreign_formats: The machine runs programs of other machines, or files that are neither program nor script.
    Raises:
        InvalidRequest: It will not start; the sentence says why and what to do.
    """
    _check_working_dir(wanted, files)
    found = _find(wanted, files)
    for _ in range(_MOST_INTERPRETERS):
        start = head(found, _HEAD_BYTES)
        if start.startswith(b"\x7fELF"):
            _check_binary(wanted, found, start, files, foreign_formats)
            return
        if not start.startswith(b"#!"):
            if not foreign_formats:
                raise _refused(
                    wanted, found, "is neither a program nor a script with a #! line: run it with its interpreter"
                )
            return
        found = _interpreter(wanted, found, start, files)


def _check_working_dir(wanted: Wanted, files: Inside) -> None:
    path = wanted.working_dir
    if not path.startswith("/"):
        raise InvalidRequest(f'working_dir "{path}" is not absolute: write a path such as "/work"', "working_dir")
    try:
        found = files.find(path)
    except Missing:
        return  # the runtime makes it
    if not found.is_directory:
        raise InvalidRequest(f'working_dir "{path}" in image "{wanted.image}" is no directory', "working_dir")


def _find(wanted: Wanted, files: Inside) -> Found:
    """As execvp: a name with a slash is that file; any other is looked for along PATH."""
    if "/" in wanted.command:
        return _exactly(wanted, files)
    lesser: InvalidRequest | None = None
    for path in _candidates(wanted.command, wanted.search):
        try:
            found = files.find(path, wanted.identity)
        except (Missing, Closed):
            continue
        if may_execute(found, wanted.identity):
            return found
        if not found.is_directory:
            lesser = lesser or _not_executable(wanted, found)
    searched = wanted.search or "nothing: PATH is empty"
    raise lesser or InvalidRequest(
        f'command "{wanted.command}" is not in image "{wanted.image}" (searched {searched})', "command"
    )


def _exactly(wanted: Wanted, files: Inside) -> Found:
    path = posixpath.join(wanted.working_dir, wanted.command)
    try:
        found = files.find(path, wanted.identity)
    except Missing as missing:
        raise InvalidRequest(
            f'command "{wanted.command}" is not in image "{wanted.image}"{_why_missing(wanted, path, missing)}',
            "command",
        ) from None
    except Closed as closed:
        raise InvalidRequest(
            f'command "{wanted.command}" in image "{wanted.image}" is out of reach of user {wanted.identity.uid}: '
            f"the directory {closed.path} is closed to it (mode {closed.mode:04o})",
            "command",
        ) from None
    if found.is_directory:
        raise _refused(wanted, found, "is a directory: name a program")
    if not may_execute(found, wanted.identity):
        raise _not_executable(wanted, found)
    return found


def _candidates(name: str, search: str) -> Iterator[str]:
    """Empty and relative entries of PATH are passed over, as runc does."""
    for folder in search.split(":"):
        if folder.startswith("/"):
            yield posixpath.join(folder, name)


def _why_missing(wanted: Wanted, path: str, missing: Missing) -> str:
    if not wanted.command.startswith("/"):
        return f" (looked for {posixpath.normpath(path)}, from working_dir {wanted.working_dir})"
    if missing.path != posixpath.normpath(path) and not posixpath.normpath(path).startswith(missing.path + "/"):
        return f" (it is a link to {missing.path}, which is not there)"
    return ""


def _interpreter(wanted: Wanted, script: Found, start: bytes, files: Inside) -> Found:
    line = start[2:].split(b"\n", 1)[0].decode(errors="replace").strip(" \t")
    if line.endswith("\r"):
        raise _refused(wanted, script, "has Windows line ends, which its #! line can't have: save it with Unix ones")
    path, _, argument = line.partition(" ")
    if not path.startswith("/"):
        raise _refused(wanted, script, f'has the interpreter "{path}", which is no absolute path: correct its #! line')
    found = _needed(wanted, script, path, files)
    program = _program_of_env(argument) if posixpath.basename(path) == "env" else None
    if program is None:
        return found
    for candidate in _candidates(program, wanted.search):
        try:
            through_env = files.find(candidate, wanted.identity)
        except (Missing, Closed):
            continue
        if may_execute(through_env, wanted.identity):
            return through_env
    raise _refused(wanted, script, f'needs the interpreter "{program}", which is not there (searched {wanted.search})')


def _program_of_env(argument: str) -> str | None:
    """What `env` starts; None when that can't be told, or is a path that env itself will look at."""
    words = argument.split()
    if words[:1] == ["-S"]:
        words = words[1:]
    words = [word for word in words if "=" not in word]
    return words[0] if words and not words[0].startswith("-") and "/" not in words[0] else None


def _needed(wanted: Wanted, by: Found, path: str, files: Inside) -> Found:
    try:
        found = files.find(path)
    except Missing:
        raise _refused(wanted, by, f'needs the interpreter "{path}", which is not there') from None
    if not is_executable_file(found):
        raise _refused(wanted, by, f'needs the interpreter "{path}", which is not executable')
    return found


def _check_binary(wanted: Wanted, found: Found, start: bytes, files: Inside, foreign_formats: bool) -> None:
    order = "<" if start[5:6] == b"\x01" else ">"
    machine = _MACHINES.get(int.from_bytes(start[18:20], "little" if order == "<" else "big"), "another machine")
    if machine not in _RUNS.get(wanted.machine, (wanted.machine,)):
        if not foreign_formats:
            raise _refused(wanted, found, f"is a program for {machine}; this machine is {wanted.machine}")
        return
    linker = _dynamic_linker(start, order)
    if linker is None:
        return
    try:
        files.find(linker)
    except Missing:
        reason = f"needs the dynamic linker {linker}, which is not there: it was built for another C library"
        raise _refused(wanted, found, reason) from None


def _dynamic_linker(start: bytes, order: str) -> str | None:
    """From a program's headers; None for a static one, and for headers past what was read."""
    wide = start[4:5] == b"\x02"
    try:
        (table,) = struct.unpack_from(order + ("Q" if wide else "I"), start, 32 if wide else 28)
        size, count = struct.unpack_from(order + "HH", start, 54 if wide else 42)
        for at in range(table, table + size * count, size):
            if struct.unpack_from(order + "I", start, at)[0] != _PT_INTERP:
                continue
            offset, length = (
                struct.unpack_from(order + "Q16xQ", start, at + 8)
                if wide
                else struct.unpack_from(order + "I8xI", start, at + 4)
            )
            return start[offset : offset + length].rstrip(b"\0").decode() or None
    except (struct.error, UnicodeDecodeError, ValueError):
        return None
    return None


def _not_executable(wanted: Wanted, found: Found) -> InvalidRequest:
    if is_executable_file(found):
        mode = found.info.st_mode & 0o7777
        return _refused(
            wanted, found, f"is not executable for user {wanted.identity.uid} (mode {mode:04o}): chmod a+rx it"
        )
    return _refused(wanted, found, "is not executable: chmod +x it, or run it with its interpreter")


def _refused(wanted: Wanted, found: Found, why: str) -> InvalidRequest:
    where = f"on the drive at {found.mount}" if found.mount in wanted.drives else f'in image "{wanted.image}"'
    what = "" if found.path.endswith("/" + posixpath.basename(wanted.command)) else f" ({found.path})"
    return InvalidRequest(f'command "{wanted.command}"{what} {where} {why}', "command")


def runs_foreign_formats(registry: Path = Path("/proc/sys/fs/binfmt_misc")) -> bool:
    """Whether the machine's kernel has been told how to run more than its own programs and scripts."""
    try:
        return any(entry.name not in ("register", "status") for entry in registry.iterdir())
    except OSError:
        return False
