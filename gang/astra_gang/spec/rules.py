"""
What a document must be beyond names and types of its fields: names that resolve, mounts that can be made, sizes that
the kernel takes, and only what this version can do.

Each rule raises `InvalidRequest` with one sentence and the field; none changes anything.
"""

from __future__ import annotations

import re
from posixpath import normpath

from astra_agent.errors import InvalidRequest
from astra_gang.spec.document import DatavolumeRef, Document, RunSpec, TaskTemplate
from astra_gang.spec.refusal import show

NAME_MAX = 63
"""Of a DNS label (RFC 1035): the longest worker's name."""
SPARE_SUFFIX = "-spare"
"""Behind a run's name: what a slot is called that no worker has yet."""
STRING_MAX = 131071
"""Bytes of one argument or variable: Linux refuses to start a program with a longer one (MAX_ARG_STRLEN)."""
STRINGS_MAX = 1_000_000
"""Bytes of all arguments, and of all variables: Linux takes 2 MiB of both with the usual stack of 8 MiB."""

# A letter first: getaddrinfo takes "10" and "0x10" for addresses.
_LABEL = re.compile(r"[a-z](?:[a-z0-9-]*[a-z0-9])?", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_DRIVE = re.compile(r"[a-z0-9](?:[a-z0-9_.-]{0,61}[a-z0-9])?", re.ASCII)
_TEMPLATE = "spec.task_template"
_LABEL_RULE = 'lower-case letters, digits and "-", starting with a letter and not ending with "-"'
_TAKEN = ("/proc", "/sys", "/dev", "/etc/hosts", "/etc/resolv.conf", "/etc/hostname")
"""What the agent itself mounts into every container."""

NOT_YET = {
    "task_groups": "worker groups are not available yet: use task_template, with machines for how many workers",
    "leader_group": "worker groups are not available yet: leave it out, rank 0 is the leader",
    "complete_with": "worker groups are not available yet: leave it out, the run ends when its workers have ended",
    "segment": "segments are not available yet: leave it out, ranks follow the fabric by themselves",
}
"""Fields of `spec` that the models know and that nothing serves so far."""


def check(document: Document, most_workers: int) -> None:
    """
    Args:
        most_workers: The largest number of workers that the run may come to have.
    Raises:
        InvalidRequest: The first rule that the document breaks.
    """
    spec = document.spec
    check_available(spec)
    if spec.task_template is None:
        raise InvalidRequest(f'{_TEMPLATE} is missing: give an object with an "image"', field=_TEMPLATE)
    check_name(document.metadata.name, most_workers, spec.spares or 0)
    check_start(spec, most_workers)
    check_spares(spec, most_workers)
    check_program(spec.task_template)
    check_env(spec.task_template.env)
    check_mounts(spec.task_template.datavolume_refs)


def check_available(spec: RunSpec) -> None:
    for name, why in NOT_YET.items():
        if getattr(spec, name) not in (None, 0, False):
            raise InvalidRequest(f"spec.{name}: {why}", field=f"spec.{name}")
    if spec.task_template is not None and spec.task_template.health_check is not None:
        field = f"{_TEMPLATE}.health_check"
        raise InvalidRequest(f"{field}: health checks are not available yet: leave it out", field=field)


def check_name(name: str, most_workers: int, spares: int) -> None:
    field = "metadata.name"
    if not _LABEL.fullmatch(name):
        raise InvalidRequest(f"{field} is {show(name)}: a run's name is {_LABEL_RULE}, such as llama-sft", field=field)
    suffix = max(f"-{most_workers - 1}", SPARE_SUFFIX if spares else "", key=len)
    if len(name) + len(suffix) > NAME_MAX:
        raise InvalidRequest(
            f"{field} is {show(name)}, {len(name)} characters: a worker's name has {suffix} behind it and at most "
            f"{NAME_MAX} in all, so {NAME_MAX - len(suffix)} would do",
            field=field,
        )


def check_start(spec: RunSpec, most_workers: int) -> None:
    """A run of one worker may have any start policy; several start as a gang."""
    if spec.start != "Gang" and most_workers > 1:
        raise InvalidRequest(
            f'start "{spec.start}" with {most_workers} workers is not available yet: set start: Gang',
            field="spec.start",
        )
    if spec.min_available is None:
        return
    field = "spec.min_available"
    if spec.start != "MinAvailable":
        raise InvalidRequest(
            f'{field} is for start "MinAvailable", and start is "{spec.start}": leave it out', field=field
        )
    if spec.min_available > most_workers:
        raise InvalidRequest(
            f"{field} is {spec.min_available}: the run has {most_workers} worker, so at most {most_workers} would do",
            field=field,
        )


def check_spares(spec: RunSpec, most_workers: int) -> None:
    """A run of one worker is placed anew as fast as a spare would take over, and needs no second machine for it."""
    if spec.spares and (spec.start != "Gang" or most_workers < 2):
        raise InvalidRequest(
            f"spec.spares is {spec.spares}: spares are for a gang of several machines, so leave it out or set "
            "start: Gang and machines",
            field="spec.spares",
        )


def check_program(template: TaskTemplate) -> None:
    if not template.image or template.image != template.image.strip():
        field = f"{_TEMPLATE}.image"
        raise InvalidRequest(f"{field} is {show(template.image)}: give an image reference without spaces", field=field)
    if template.command == "":
        field = f"{_TEMPLATE}.command"
        raise InvalidRequest(f"{field} is empty: name a program, or leave it out for the image's own", field=field)
    _check_string(f"{_TEMPLATE}.image", template.image)
    _check_string(f"{_TEMPLATE}.command", template.command or "")
    for index, argument in enumerate(template.args):
        _check_string(f"{_TEMPLATE}.args[{index}]", argument)
    _check_total(f"{_TEMPLATE}.args", template.args)


def check_env(env: dict[str, str]) -> None:
    for name, value in env.items():
        field = f"{_TEMPLATE}.env.{name}"
        if not _VARIABLE.fullmatch(name):
            raise InvalidRequest(
                f"{_TEMPLATE}.env has {show(name)}: a variable's name has letters, digits and _, and no digit first",
                field=f"{_TEMPLATE}.env",
            )
        _check_string(field, f"{name}={value}")
    _check_total(f"{_TEMPLATE}.env", tuple(f"{name}={value}" for name, value in env.items()))


def check_mounts(refs: tuple[DatavolumeRef, ...]) -> None:
    seen: dict[str, int] = {}
    for index, ref in enumerate(refs):
        here = f"{_TEMPLATE}.datavolume_refs[{index}]"
        if not _DRIVE.fullmatch(ref.name):
            raise InvalidRequest(
                f"{here}.name is {show(ref.name)}: right is the name of a drive, such as datasets", f"{here}.name"
            )
        field = f"{here}.mount_path"
        _check_mount_path(field, ref.mount_path)
        if ref.mount_path in seen:
            other = refs[seen[ref.mount_path]].name
            raise InvalidRequest(
                f"{field} is {show(ref.mount_path)}, as that of drive {other} is: give each its own",
                field=field,
            )
        seen[ref.mount_path] = index


def _check_mount_path(field: str, path: str) -> None:
    _check_string(field, path)
    # normpath keeps two leading slashes, which POSIX allows to mean something else.
    clean = normpath("/" + path.lstrip("/"))
    if not path.startswith("/"):
        raise InvalidRequest(f"{field} is {show(path)}: a mount path is absolute, such as {clean}", field=field)
    if path == "/":
        raise InvalidRequest(
            f"{field} is /: the root is the image's, mount the drive below it, such as /data", field=field
        )
    if path != clean:
        raise InvalidRequest(f"{field} is {show(path)}: write it in its shortest form, {clean}", field=field)
    for taken in _TAKEN:
        if path == taken or path.startswith(f"{taken}/") or taken.startswith(f"{path}/"):
            raise InvalidRequest(
                f"{field} is {path}: {taken} is Astraeus's own, mount the drive elsewhere, such as /data", field
            )


def _check_string(field: str, text: str) -> None:
    if "\0" in text:
        raise InvalidRequest(f"{field} has a zero byte: no program can be given one", field=field)
    size = len(text.encode())
    if size > STRING_MAX:
        raise InvalidRequest(
            f"{field} has {size} bytes: Linux takes at most {STRING_MAX}, put it into a file", field=field
        )


def _check_total(field: str, strings: tuple[str, ...]) -> None:
    size = sum(len(text.encode()) + 1 for text in strings)
    if size > STRINGS_MAX:
        raise InvalidRequest(
            f"{field} has {size} bytes in all: at most {STRINGS_MAX} would do, put it into a file", field=field
        )
