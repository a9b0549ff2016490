"""Which machine is told which names, and when nothing is said."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from astra_agent import wire
from astra_agent.published import Published
from astra_dns import lookup
from astra_dns.answer import answer
from astra_dns.records import Draft
from astra_gang.core import Policy, RunState, Slot, Worker
from astra_gang.hosts import run_names
from astra_gang.publisher import Publisher


def run(name: str, *machines: str, workspace: str = "default", first: int = 1) -> RunState:
    workers = tuple(
        Worker(
            rank=rank, name=f"{name}-{rank}",
            slot=Slot(id=f"{name}-{rank}-s", machine=machine, address=f"10.0.0.{first + rank}", port=29500),
        )
        for rank, machine in enumerate(machines)
    )  # fmt: skip
    return RunState(
        workspace=workspace, name=name, uid=f"{workspace}-{name}", policy=Policy(), workers=workers, submitted_at=0.0
    )


class Told:
    """What went to each machine since the last look; machines in *away* have no link."""

    def __init__(self, away: frozenset[str] = frozenset()) -> None:
        self.away = away
        self.messages: list[tuple[str, wire.Names]] = []

    def __call__(self, machine: str, names: wire.Names) -> bool:
        if machine in self.away:
            return False
        self.messages.append((machine, names))
        return True

    def take(self) -> dict[str, tuple[bool, list[str], list[str]]]:
        """By machine: whole, runs that are new or changed, runs that are gone."""
        taken = {
            machine: (names.whole, sorted(one.run for one in names.runs), sorted(name for _, name in names.gone))
            for machine, names in self.messages
        }
        self.messages.clear()
        return taken


def test_a_machine_is_told_of_every_run_in_the_workspaces_that_have_slots_there() -> None:
    publisher, told = Publisher(3, count(1)), Told()
    publisher.look([run("a", "m-1"), run("b", "m-2"), run("c", "m-3", workspace="other")], told)
    assert told.take() == {
        "m-1": (True, ["a", "b"], []), "m-2": (True, ["a", "b"], []), "m-3": (True, ["c"], []),
    }  # fmt: skip


def test_only_what_has_changed_is_told_again() -> None:
    publisher, told = Publisher(3, count(1)), Told()
    first, second = run("a", "m-1"), run("b", "m-2")
    publisher.look([first, second], told)
    told.take()
    publisher.look([first, second], told)
    publisher.look([replace(first, reason="another sentence"), second], told)
    assert told.take() == {}
    publisher.look([run("a", "m-1", first=7), second], told)
    assert told.take() == {"m-1": (False, ["a"], []), "m-2": (False, ["a"], [])}
    publisher.look([second], told)
    assert told.take() == {"m-1": (False, [], ["a", "b"]), "m-2": (False, [], ["a"])}


def test_an_agent_that_comes_back_and_one_that_was_away_are_told_everything() -> None:
    publisher, told = Publisher(3, count(1)), Told(away=frozenset({"m-2"}))
    runs = [run("a", "m-1"), run("b", "m-2")]
    publisher.look(runs, told)
    assert told.take() == {"m-1": (True, ["a", "b"], [])}
    told.away = frozenset()
    publisher.forget("m-1")
    publisher.look(runs, told)
    assert told.take() == {"m-1": (True, ["a", "b"], []), "m-2": (True, ["a", "b"], [])}


def test_a_run_without_any_address_has_no_name_yet() -> None:
    publisher, told = Publisher(3, count(1)), Told()
    waiting = run("a", "m-1")
    (worker,) = waiting.workers
    assert worker.slot is not None
    publisher.look([replace(waiting, workers=(replace(worker, slot=replace(worker.slot, address=None)),))], told)
    assert told.take() == {"m-1": (True, [], [])}


def test_each_telling_is_newer_than_the_one_before() -> None:
    publisher, told = Publisher(3, count(1)), Told()
    publisher.look([run("a", "m-1")], told)
    publisher.look([run("a", "m-1", first=5)], told)
    ages = [(one.term, one.version) for _, names in told.messages for one in names.runs]
    assert ages == sorted(set(ages))


def test_many_runs_go_in_several_messages_of_which_the_first_is_whole() -> None:
    publisher, told = Publisher(3, count(1)), Told()
    publisher.look([run(f"r{number}", "m-1") for number in range(450)], told)
    assert [(names.whole, len(names.runs)) for _, names in told.messages] == [(True, 200), (False, 200), (False, 50)]


@pytest.mark.parametrize(("address", "kind", "other"), [("10.0.0.1", "A", "AAAA"), ("fd00::1", "AAAA", "A")])
def test_a_worker_has_a_record_of_its_addresss_family_and_none_of_the_other(
    address: str, kind: str, other: str
) -> None:
    placed = run("a", "m-1")
    (worker,) = placed.workers
    assert worker.slot is not None
    placed = replace(placed, workers=(replace(worker, slot=replace(worker.slot, address=address)),))
    published = Published()
    published.put(worker.slot.id, run_names(placed, term=1, version=1))
    draft = Draft()
    for _, names in published.runs():
        draft.put(names)
    view = draft.freeze().view("default")
    found = {}
    for rtype in (kind, other):
        said = answer(view, lookup.question("a-0", rtype), over_tcp=True)
        assert isinstance(said, bytes)
        reply = lookup.read(said)
        found[rtype] = (reply.rcode, [record.data for record in reply.records])
    assert found == {kind: ("NOERROR", [address]), other: ("NOERROR", [])}
