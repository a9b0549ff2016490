"""
Makes a plan so, and undoes it.

Next to what it writes it keeps a record of how it wrote it. What is still as recorded is ours: a later version replaces
it, and a removal takes it away. All else is somebody's work: it stays, and is told with its difference.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from astra_agent.errors import HostFault, InvalidRequest
from astra_cli.install.plan import File, Item, Link, Plan, Step, difference

RECORDS = Path("/etc/astraeus/installed")


class Placing:
    """
    Args:
        root: Everything is put below it; paths and links say what they would on the machine itself.
        dry: Nothing is changed; the steps are those that would be taken.
    """

    def __init__(self, name: str, root: Path, *, dry: bool) -> None:
        if not root.is_dir():
            raise InvalidRequest(f"root is {str(root)!r}: it must be a folder that is there", "root")
        self._root = root
        self._dry = dry
        self._record_path = self._at(RECORDS / f"{name}.json")
        self._record = _read_record(self._record_path)

    def install(self, plan: Plan) -> list[Step]:
        """Raises: HostFault when a file can't be written; what was done before stays, and is recorded."""
        try:
            return [self._put(item) for item in plan.items]
        finally:
            self._save()

    def remove(self) -> list[Step]:
        """What the record says, last first. Raises: HostFault."""
        try:
            steps = [self._take(path, was) for path, was in reversed(list(self._record.items()))]
        finally:
            self._save()
        if not self._dry:
            self._remove_empty_folders([step.path for step in steps])
        return steps

    # One item ---------------------------------------------------------------------------------------------------------

    def _put(self, item: Item) -> Step:
        place, wanted = self._at(item.path), _state_wanted(item)
        with _told(item.path):
            there = _state_at(place)
            if there == wanted:
                self._record[str(item.path)] = wanted
                return Step(item.path, "unchanged")
            if there is not None and (_is_settings(item) or there != self._record.get(str(item.path))):
                return Step(item.path, "kept", _why_kept(item, there), _difference(item, place))
            if not self._dry:
                _write(place, item)
            self._record[str(item.path)] = wanted
        return Step(item.path, "written" if there is None else "updated")

    def _take(self, name: str, was: str) -> Step:
        path = Path(name)
        place = self._at(path)
        with _told(path):
            there = _state_at(place)
            if there is not None and there != was:
                return Step(path, "kept", "it was changed since it was installed")
            if not self._dry:
                place.unlink(missing_ok=True)
                del self._record[name]
        return Step(path, "gone" if there is None else "removed")

    def _remove_empty_folders(self, paths: list[Path]) -> None:
        """Only below /etc/astraeus, which nobody else's are in."""
        home = RECORDS.parent
        folders = {RECORDS, home, *(path.parent for path in paths if path.is_relative_to(home))}
        for folder in sorted(folders, key=lambda one: len(one.parts), reverse=True):
            with contextlib.suppress(OSError):
                self._at(folder).rmdir()

    # The record -------------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        if self._dry:
            return
        if not self._record:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                self._record_path.unlink()
            return
        with _told(RECORDS / self._record_path.name):
            _replace(self._record_path, json.dumps(self._record, indent=1) + "\n", 0o644)

    def _at(self, path: Path) -> Path:
        return self._root / path.relative_to("/")


def _read_record(path: Path) -> dict[str, str]:
    try:
        document = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise HostFault(f"{path}, which says what was installed, can't be read: {error}") from error
    return {str(name): str(was) for name, was in document.items()}


def _state_at(place: Path) -> str | None:
    """What is there, so that it can be compared: a link by its target, a file by its content; None: nothing."""
    if place.is_symlink():
        return f"link {place.readlink()}"
    if not place.exists():
        return None
    if not place.is_file():
        return "folder"
    return f"sha256 {hashlib.sha256(place.read_bytes()).hexdigest()}"


def _state_wanted(item: Item) -> str:
    if isinstance(item, Link):
        return f"link {item.target}"
    return f"sha256 {hashlib.sha256(item.content.encode()).hexdigest()}"


def _is_settings(item: Item) -> bool:
    return isinstance(item, File) and (item.settings or item.secret)


def _why_kept(item: Item, there: str) -> str:
    if there == "folder":
        return "there is a folder of that name"
    if isinstance(item, Link):
        return f"it is no link to {item.target}; remove it if it is not needed"
    if item.secret:
        return "there is one already"
    if item.settings:
        return "the settings of this machine; this version would write others"
    return "it is not as it was installed"


def _difference(item: Item, place: Path) -> str:
    if isinstance(item, Link) or item.secret or not place.is_file():
        return ""
    return difference(item.path, item.content, place.read_text(errors="replace"))


def _write(place: Path, item: Item) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(item, File):
        _replace(place, item.content, item.mode)
        return
    beside = place.with_name(f".{place.name}.{os.getpid()}")
    beside.symlink_to(item.target)
    beside.replace(place)


def _replace(place: Path, content: str, mode: int) -> None:
    """Whole or not at all, and never readable for more than *mode* says."""
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
        beside.replace(place)
    finally:
        beside.unlink(missing_ok=True)


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HostFault(
            f"{path} can't be put in place or taken away ({error.strerror}): run it as root, or give --root"
        ) from error
