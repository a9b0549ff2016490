"""Laws of merging edits and of applying them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_agent.attach.applying import apply
from astra_agent.attach.edits import Device, Edits, File, Hook, Mount, Rlimit, Rule, merge
from astra_agent.errors import Conflict

SLOT_SPEC = Path(__file__).parents[2] / "fixtures" / "containerd" / "slot-spec.json"

NAMES = st.sampled_from(["A", "B", "NCCL_IB_HCA"])
PATHS = st.sampled_from(["/dev/nvidia0", "/dev/nvidia10", "/dev/infiniband/uverbs2", "/x", "/a/b"])
SMALL = st.integers(0, 3)


def tuples(items: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, max_size=2).map(tuple)


def edits_of(values: st.SearchStrategy[str]) -> st.SearchStrategy[Edits]:
    """Edits whose things of one name differ in what *values* gives, and so conflict where it gives different ones."""
    return st.builds(
        Edits,
        env=tuples(st.tuples(NAMES, values)),
        devices=tuples(PATHS.map(lambda path: Device(path, "c", 195, len(path)))),
        rules=tuples(st.builds(Rule, st.just("c"), st.just(195), SMALL, st.sampled_from(["r", "rw", "rwm"]))),
        mounts=tuples(st.builds(Mount, PATHS, values, st.just("bind"), st.just(("ro", "rbind")))),
        rlimits=tuples(st.just(Rlimit("RLIMIT_MEMLOCK", 1, 2))),
        capabilities=tuples(st.sampled_from(["CAP_IPC_LOCK", "CAP_SYS_NICE"])),
        hooks=tuples(st.builds(Hook, st.sampled_from(["createContainer", "poststop"]), PATHS)),
        groups=tuples(SMALL),
        files=tuples(st.builds(File, PATHS, values)),
        shm_bytes=st.sampled_from([None, 7]),
        cpus=st.sampled_from([None, frozenset({0, 1})]),
        memory_nodes=st.sampled_from([None, frozenset({0})]),
    )


EDITS = edits_of(st.just("same"))
CLASHING = edits_of(st.sampled_from(["one", "other"]))


def merged(*edits: Edits) -> Edits | None:
    """None where the sides want different things."""
    try:
        return merge(*edits)
    except Conflict:
        return None


@settings(deadline=None, max_examples=60)
@given(EDITS, EDITS, EDITS)
def test_merging_is_associative(one: Edits, two: Edits, three: Edits) -> None:
    assert merge(merge(one, two), three) == merge(one, merge(two, three)) == merge(one, two, three)


@settings(deadline=None, max_examples=60)
@given(EDITS)
def test_merging_with_itself_or_with_nothing_changes_nothing(one: Edits) -> None:
    found = merge(one)
    assert merge(found, found) == merge(found, Edits()) == merge(Edits(), found) == found


@settings(deadline=None, max_examples=60)
@given(CLASHING, CLASHING)
def test_the_order_of_the_sides_matters_for_hooks_alone(one: Edits, two: Edits) -> None:
    forth, back = merged(one, two), merged(two, one)
    assert (forth is None) == (back is None)
    if forth is not None and back is not None:
        assert set(forth.hooks) == set(back.hooks)
        assert repr(Edits(**{**fields(forth), "hooks": ()})) == repr(Edits(**{**fields(back), "hooks": ()}))


def fields(edits: Edits) -> dict[str, Any]:
    return {name: getattr(edits, name) for name in Edits.__slots__}


@pytest.mark.parametrize(
    ("one", "two", "both"),
    [
        (Edits(env=(("A", "1"),)), Edits(env=(("A", "2"),)), ("'1'", "'2'")),
        (Edits(devices=(Device("/dev/x", "c", 1, 2),)), Edits(devices=(Device("/dev/x", "c", 1, 3),)), ("2", "3")),
        (
            Edits(mounts=(Mount("/m", "/one", "bind", ()),)),
            Edits(mounts=(Mount("/m", "/two", "bind", ()),)),
            ("/one", "/two"),
        ),
        (Edits(shm_bytes=5), Edits(shm_bytes=7), ("5", "7")),
        (Edits(shm_bytes=5), Edits(mounts=(Mount("/dev/shm", "/host", "bind", ()),)), ("5", "/host")),
        (Edits(cpus=frozenset({0, 1, 2})), Edits(cpus=frozenset({4})), ("0-2", "4")),
    ],
)
def test_a_conflict_names_both_sides(one: Edits, two: Edits, both: tuple[str, str]) -> None:
    with pytest.raises(Conflict) as caught:
        merge(one, two)
    assert all(side in str(caught.value) for side in both)


# Applying ----------------------------------------------------------------------------------------------------------


def slot_spec() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(SLOT_SPEC.read_text())
    return loaded


@settings(deadline=None, max_examples=60)
@given(EDITS)
def test_applying_twice_is_applying_once_and_the_argument_stays(one: Edits) -> None:
    edits = merge(one)
    spec = slot_spec()
    before = copy.deepcopy(spec)
    once = apply(spec, edits)
    assert spec == before
    assert apply(once, edits) == once


@settings(deadline=None, max_examples=60)
@given(EDITS, EDITS)
def test_applying_one_after_the_other_is_applying_both(one: Edits, two: Edits) -> None:
    after = apply(apply(slot_spec(), merge(one)), merge(two))
    assert unordered(after) == unordered(apply(slot_spec(), merge(one, two)))


def unordered(spec: dict[str, Any]) -> dict[str, Any]:
    """The spec without the order of those lists in which it means nothing; rules of one device as their letters."""
    found = copy.deepcopy(spec)
    found["process"]["env"].sort()
    found["process"]["rlimits"].sort(key=str)
    found["process"]["user"]["additionalGids"].sort()
    for names in found["process"]["capabilities"].values():
        names.sort()
    found["mounts"].sort(key=str)
    found["linux"]["devices"].sort(key=str)
    allowed: dict[str, set[str]] = {}
    for rule in found["linux"]["resources"]["devices"]:
        key = str({name: value for name, value in rule.items() if name != "access"})
        allowed.setdefault(key, set()).update(rule["access"])
    found["linux"]["resources"]["devices"] = {key: sorted(letters) for key, letters in allowed.items()}
    return found


def test_nothing_applied_is_the_same_spec() -> None:
    assert apply(slot_spec(), Edits()) == slot_spec()
    assert apply({}, Edits()) == {}


def test_a_capability_is_in_every_set_so_that_any_user_has_it() -> None:
    found = apply({}, Edits(capabilities=("CAP_IPC_LOCK",)))
    assert {kind for kind, names in found["process"]["capabilities"].items() if names == ["CAP_IPC_LOCK"]} == {
        "bounding", "effective", "permitted", "inheritable", "ambient",
    }  # fmt: skip


def test_a_rule_comes_behind_the_one_that_denies_everything() -> None:
    found = apply(slot_spec(), Edits(rules=(Rule("c", 231, 200, "rw"),)))
    rules = found["linux"]["resources"]["devices"]
    assert rules[0] == {"allow": False, "access": "rwm"}
    assert rules[-1] == {"allow": True, "type": "c", "major": 231, "minor": 200, "access": "rw"}


def test_a_variable_is_replaced_in_its_place_and_a_new_one_comes_last() -> None:
    spec = {"process": {"env": ["A=1", "B=2", "A=3"]}}
    found = apply(spec, Edits(env=(("A", "new"), ("C", "c"))))
    assert found["process"]["env"] == ["A=new", "B=2", "C=c"]


def test_mounts_lie_in_their_parents() -> None:
    spec = {"mounts": [{"destination": "/a/b/c"}, {"destination": "/"}]}
    found = apply(spec, Edits(mounts=(Mount("/a", "/x", "bind", ("ro",)),)))
    assert [mount["destination"] for mount in found["mounts"]] == ["/", "/a", "/a/b/c"]


def test_a_device_without_an_owner_belongs_to_the_containers_user() -> None:
    spec = {"process": {"user": {"uid": 1000, "gid": 100}}}
    found = apply(spec, Edits(devices=(Device("/dev/x", "c", 1, 2, uid=None, gid=None),)))
    assert (found["linux"]["devices"][0]["uid"], found["linux"]["devices"][0]["gid"]) == (1000, 100)
