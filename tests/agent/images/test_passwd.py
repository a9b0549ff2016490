"""Users and groups by an image's files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_agent.containerd.passwd import Identity, resolve
from astra_agent.errors import InvalidRequest

PASSWD = "root:x:0:0::/root:/bin/sh\n# a comment\nworker:x:1000:100::/:/bin/sh\nbroken:x:NaN\n"
GROUP = "root:x:0:\nusers:x:100:\nvideo:x:44:other,worker\nrender:x:105:worker\nwheel:x:10:root\n"


@pytest.mark.parametrize(
    ("user", "identity"),
    [
        ("", Identity(0, 0, (10,))),
        ("root", Identity(0, 0, (10,))),
        ("worker", Identity(1000, 100, (44, 105))),
        ("1000", Identity(1000, 100, (44, 105))),
        ("worker:video", Identity(1000, 44)),
        ("worker:7", Identity(1000, 7)),
        ("4711", Identity(4711, 0)),
        ("4711:4712", Identity(4711, 4712)),
        ("0:0", Identity(0, 0)),
    ],
)
def test_users_are_those_of_the_image(user: str, identity: Identity) -> None:
    assert resolve(user, PASSWD, GROUP, "x") == identity


def test_numbers_need_no_files() -> None:
    assert resolve("", "", "", "x") == Identity(0, 0)
    assert resolve("5:6", "", "", "x") == Identity(5, 6)


@pytest.mark.parametrize(
    ("user", "sentence"),
    [
        ("nobody", 'user "nobody" is not in image "x" (looked in /etc/passwd)'),
        ("worker:nogroup", 'group "nogroup" is not in image "x" (looked in /etc/group)'),
        ("broken", 'user "broken" is not in image "x"'),
        ("99999999999", "user 99999999999 is too large a number"),
        ("4294967295", "user 4294967295 is too large a number"),
        ("worker:", "ends in a colon"),
        ("-1", 'user "-1" is not in image "x"'),
    ],
)
def test_a_user_that_is_none_is_told_why(user: str, sentence: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        resolve(user, PASSWD, GROUP, "x")
    assert sentence in str(raised.value)
    assert raised.value.field == "user"


@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=12))
def test_any_files_give_a_user_or_a_sentence(passwd: str, group: str, user: str) -> None:
    try:
        found = resolve(user, passwd, group, "x")
    except InvalidRequest:
        return
    assert found.uid >= 0
