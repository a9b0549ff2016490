"""
Users and groups by the files of an image, as Docker reads them. Pure: the files come as text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from astra_agent.errors import InvalidRequest

_LARGEST_ID = 2**31 - 1
"""runc takes no larger one."""


@dataclass(frozen=True, slots=True)
class Identity:
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    """Additional ones, sorted."""


@dataclass(frozen=True, slots=True)
class _User:
    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class _Group:
    name: str
    gid: int
    members: tuple[str, ...]


def resolve(user: str, passwd: str, group: str, image: str) -> Identity:
    """
    *user* is `user[:group]`, each a name or a number; empty is root. Without a group: the user's own by *passwd*, and
    every group of which *group* says that the user is in. A number that is in no file is fine, a name must be in one.

    Raises:
        InvalidRequest: There is no such user or group in *image*.
    """
    wanted, colon, wanted_group = user.partition(":")
    if colon and not wanted_group:
        raise InvalidRequest(f'user "{user}" ends in a colon: write user or user:group', "user")
    found = _find_user(wanted, passwd)
    if found is None and wanted and not wanted.isdecimal():
        raise InvalidRequest(f'user "{wanted}" is not in image "{image}" (looked in /etc/passwd)', "user")
    uid = found.uid if found else _number("user", wanted or "0")
    if wanted_group:
        return Identity(uid, _group_id(wanted_group, group, image))
    if found is None:
        return Identity(uid, 0)
    also = {entry.gid for entry in _groups(group) if found.name in entry.members} - {found.gid}
    return Identity(uid, found.gid, tuple(sorted(also)))


def _find_user(wanted: str, passwd: str) -> _User | None:
    for user in _users(passwd):
        if user.name == wanted or (wanted or "0") == str(user.uid):
            return user
    return None


def _group_id(wanted: str, group: str, image: str) -> int:
    for entry in _groups(group):
        if wanted in (entry.name, str(entry.gid)):
            return entry.gid
    if wanted.isdecimal():
        return _number("group", wanted)
    raise InvalidRequest(f'group "{wanted}" is not in image "{image}" (looked in /etc/group)', "user")


def _number(what: str, text: str) -> int:
    if len(text) > 10 or int(text) > _LARGEST_ID:
        raise InvalidRequest(f"{what} {text} is too large a number: the largest is {_LARGEST_ID}", "user")
    return int(text)


def _users(passwd: str) -> Iterator[_User]:
    for line in passwd.splitlines():
        fields = line.split(":")
        if len(fields) >= 4 and fields[2].isdecimal() and fields[3].isdecimal():
            yield _User(fields[0], int(fields[2]), int(fields[3]))


def _groups(group: str) -> Iterator[_Group]:
    for line in group.splitlines():
        fields = line.split(":")
        if len(fields) >= 3 and fields[2].isdecimal():
            members = tuple(fields[3].strip().split(",")) if len(fields) > 3 else ()
            yield _Group(fields[0], int(fields[2]), members)
