"""Names and slots: served before an attempt is armed, taken back at the slot's end, the newest of each run."""

from __future__ import annotations

from pathlib import Path

import pytest

from astra_agent import host_files
from astra_agent.name_places import Place, free_place
from astra_agent.published import Published
from astra_agent.wire import Arm, Names, RunNames
from tests.agent.machine import SLOT, Machine, a_machine, arm, finish, until
from tests.fakes.names import FakeNames


def run_names(address: str = "10.83.0.2", *, term: int = 1, version: int = 1, attempt: int = 0) -> RunNames:
    return RunNames(
        workspace="default", run="llama", addresses={"llama-0": (address,), "llama-1": ("10.83.0.3",)},
        leader="llama-0", port=29500, attempt=attempt, world_size=2, term=term, version=version,
    )  # fmt: skip


def arm_with_names(attempt: int = 0, *, version: int = 1) -> Arm:
    names = run_names(version=version, attempt=attempt)
    return arm(attempt).model_copy(update={"names": names})


def text_of(machine: Machine, name: str) -> str:
    mounts = machine.containers.plan(f"{SLOT}-a0").mounts
    return Path(next(mount.source for mount in mounts if mount.target == f"/etc/{name}")).read_text()


# Slots -------------------------------------------------------------------------------------------------------------


async def test_an_attempt_is_armed_only_once_its_names_are_answered(tmp_path: Path) -> None:
    names = FakeNames()
    async with a_machine(tmp_path, names) as machine:
        await machine.ready()
        names.hold()
        machine.agent.obey(arm_with_names())
        await until(lambda: machine.containers.plans)
        assert names.published[SLOT].version == 1
        assert machine.attempt().state == "arming"
        names.release()
        await until(lambda: machine.attempt().state == "armed")


async def test_names_that_can_not_be_answered_fail_the_attempt_as_the_machines_fault(tmp_path: Path) -> None:
    names = FakeNames()
    async with a_machine(tmp_path, names) as machine:
        await machine.ready()
        names.fault = "the name server of gpu-1 does not answer within 10 s"
        machine.agent.obey(arm_with_names())
        await until(lambda: machine.status().arm_failed == 0)
        assert (machine.status().fault, machine.status().detail) == ("machine", names.fault)


async def test_names_are_taken_back_when_the_slot_ends(tmp_path: Path) -> None:
    names = FakeNames()
    async with a_machine(tmp_path, names) as machine:
        await machine.ready()
        machine.agent.obey(arm_with_names())
        await until(lambda: machine.attempt().state == "armed")
        machine.agent.obey(finish())
        await until(lambda: SLOT not in names.served)
        assert names.published == {}


async def test_an_agent_that_comes_back_serves_and_publishes_what_the_one_before_did(tmp_path: Path) -> None:
    names = FakeNames()
    async with a_machine(tmp_path, names) as machine:
        await machine.ready()
        machine.agent.obey(arm_with_names(version=7))
        await until(lambda: machine.attempt().state == "armed")
        await machine.crash()
        machine.names = again = FakeNames()
        machine.start()
        assert again.served == {SLOT: "169.254.53.53"}
        assert again.published[SLOT].version == 7


async def test_with_a_name_server_the_hosts_file_has_the_worker_itself_and_no_peer(tmp_path: Path) -> None:
    async with a_machine(tmp_path, FakeNames()) as machine:
        await machine.ready()
        machine.agent.obey(arm_with_names())
        await until(lambda: machine.attempt().state == "armed")
        assert "10.83.0.3 llama-1" in text_of(machine, "hosts").splitlines()
        assert "llama-0" not in text_of(machine, "hosts")
        resolv_conf = text_of(machine, "resolv.conf").splitlines()
        assert resolv_conf[0] == "nameserver 169.254.53.53"
        assert resolv_conf[1].split()[:2] == ["search", "default.astra.internal"]
        assert "ndots:1" in resolv_conf[2]


@pytest.mark.parametrize("zone", ["cluster.example", "cluster.example."])
async def test_a_slots_search_line_is_its_workspace_in_the_zone_that_is_set(tmp_path: Path, zone: str) -> None:
    async with a_machine(tmp_path, FakeNames(), zone=zone) as machine:
        await machine.ready()
        machine.agent.obey(arm_with_names())
        await until(lambda: machine.attempt().state == "armed")
        assert text_of(machine, "resolv.conf").splitlines()[1].split()[:2] == ["search", "default.cluster.example"]
        assert "astra.internal" not in text_of(machine, "resolv.conf") + text_of(machine, "hosts")


async def test_a_machine_where_names_can_not_be_served_has_them_in_hosts_files(tmp_path: Path) -> None:
    async with a_machine(tmp_path, FakeNames(address="")) as machine:
        await machine.ready()
        machine.agent.obey(arm_with_names())
        await until(lambda: machine.attempt().state == "armed")
        assert "10.83.0.2 llama-0" in text_of(machine, "hosts").splitlines()
        assert "169.254.53.53" not in text_of(machine, "resolv.conf")


def test_search_domains_go_as_far_as_every_c_library_reads() -> None:
    many = host_files.own_resolv_conf("169.254.53.53", [f"d{number}.example" for number in range(9)])
    assert many.splitlines()[1].split()[1:] == [f"d{number}.example" for number in range(6)]
    long = host_files.own_resolv_conf("169.254.53.53", ["default.astra.internal", "x" * 240, "b.example"])
    assert long.splitlines()[1] == "search default.astra.internal b.example"


# What is published -------------------------------------------------------------------------------------------------


ORDERS = [
    ((1, 1), (1, 2), "second"), ((1, 2), (1, 1), "first"), ((2, 1), (1, 9), "first"), ((1, 9), (2, 1), "second"),
]  # fmt: skip
"""Terms and versions of two, and which is the newer."""


@pytest.mark.parametrize(("first", "second", "wins"), ORDERS)
@pytest.mark.parametrize("slots", [("a", "a"), ("a", "b")])
def test_the_newest_names_of_a_run_win_in_whatever_order_they_come(
    first: tuple[int, int], second: tuple[int, int], wins: str, slots: tuple[str, str]
) -> None:
    published = Published()
    for slot, text, (term, version) in zip(slots, ("10.0.0.1", "10.0.0.2"), (first, second), strict=True):
        published.put(slot, run_names(text, term=term, version=version))
    (found,) = (run for _, run in published.runs())
    assert found.addresses["llama-0"] == (("10.0.0.1",) if wins == "first" else ("10.0.0.2",))


def test_a_run_is_known_until_its_last_slot_here_has_ended() -> None:
    published = Published()
    for slot in ("a", "b"):
        published.put(slot, run_names())
    published.drop("a")
    assert len(list(published.runs())) == 1
    published.drop("b")
    published.drop("b")
    assert list(published.runs()) == []


# Where it is asked -------------------------------------------------------------------------------------------------


def test_each_workspace_on_the_machines_network_has_an_address_of_its_own() -> None:
    known: list[Place] = []
    for workspace, expected in (("nlp", "169.254.53.53"), ("vision", "169.254.53.54"), ("nlp", "169.254.53.53")):
        place = free_place(workspace, None, "169.254.53.53", known)
        assert place == Place(workspace, expected, None)
        known.append(place)
    elsewhere = free_place("audio", Path("/run/net/m-1"), "169.254.53.53", known)
    assert elsewhere == Place("audio", "169.254.53.53", Path("/run/net/m-1"))


def test_no_address_is_made_up_when_all_are_taken() -> None:
    known = [Place(f"w{last}", f"169.254.53.{last}", None) for last in range(53, 255)]
    assert free_place("one-more", None, "169.254.53.53", known) is None


def test_what_the_coordinator_tells_of_other_runs_is_known_until_it_says_that_they_are_gone() -> None:
    published = Published()
    published.learn(Names(term=1, whole=True, runs=(run_names(), other_run())))
    assert {key for key, _ in published.runs()} == {("default", "llama"), ("default", "etl")}
    published.learn(Names(term=1, gone=(("default", "etl"),)))
    assert {key for key, _ in published.runs()} == {("default", "llama")}
    published.learn(Names(term=1, whole=True))
    assert list(published.runs()) == []


@pytest.mark.parametrize(("version", "wins"), [(1, "10.0.0.5"), (9, "10.0.0.9")])
def test_of_what_a_slot_brought_and_what_the_coordinator_tells_the_newer_counts(version: int, wins: str) -> None:
    published = Published()
    published.put("a", run_names("10.0.0.5", version=5))
    published.learn(Names(term=1, whole=True, runs=(run_names("10.0.0.9", version=version),)))
    (found,) = (run for _, run in published.runs())
    assert found.addresses["llama-0"] == (wins,)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("first", "second", "wins"), ORDERS)
def test_the_newest_of_what_the_coordinator_tells_counts_in_whatever_order_it_comes(
    first: tuple[int, int], second: tuple[int, int], wins: str, whole: bool
) -> None:
    published = Published()
    for text, (term, version) in zip(("10.0.0.1", "10.0.0.2"), (first, second), strict=True):
        runs = (run_names(text, term=term, version=version), other_run())
        published.learn(Names(term=term, whole=whole, runs=runs))
    found = dict(published.runs())
    assert found["default", "llama"].addresses["llama-0"] == (("10.0.0.1",) if wins == "first" else ("10.0.0.2",))
    assert set(found) == {("default", "llama"), ("default", "etl")}


def test_a_run_that_was_gone_is_told_anew_whatever_its_version() -> None:
    published = Published()
    published.learn(Names(term=1, whole=True, runs=(run_names("10.0.0.9", version=9),)))
    published.learn(Names(term=1, gone=(("default", "llama"),), runs=(run_names("10.0.0.5", version=5),)))
    (found,) = (run for _, run in published.runs())
    assert found.addresses["llama-0"] == ("10.0.0.5",)


def other_run() -> RunNames:
    return RunNames(workspace="default", run="etl", addresses={"etl-0": ("10.83.0.9",)}, leader="etl-0", term=1)
