"""Slots that an agent calls otherwise than the coordinator does."""

from __future__ import annotations

from typing import Any

from astra_agent import wire
from astra_gang.slot_names import SlotNames
from tests.fakes.runs import facts

RUN = wire.RunRef(workspace="default", name="llama", uid="u1")
THEIRS, OURS = "46347b18-worker", "llama-u1-0"


def status(slot: str, called: str | None = None) -> wire.SlotStatus:
    return wire.SlotStatus(slot=slot, rev=1, run=RUN, worker="llama-0", phase="ready", called=called)


def report(slot: str, called: str | None = None) -> wire.Report:
    return wire.Report(seq=1, status=status(slot, called))


def finish(slot: str) -> wire.DirectiveMessage:
    return wire.DirectiveMessage(directive=wire.Finish(slot=slot, term=1, code=0))


def test_a_slot_with_one_name_goes_through_as_it_is() -> None:
    names = SlotNames()
    message: Any
    for message in (report("a"), finish("a"), wire.SlotGone(slot="a"), wire.Lease(n=1)):
        assert names.heard(message) == message
        assert names.said(message) == message


def test_what_is_reported_has_the_coordinator_s_name_and_what_is_told_the_agent_s() -> None:
    names = SlotNames()
    assert names.heard(report(THEIRS, OURS)).status.slot == OURS
    assert names.said(finish(OURS)).directive.slot == THEIRS
    logs = wire.OpenStream(stream="s", request=wire.LogsRequest(slot=OURS))
    asked = names.said(logs).request
    assert isinstance(asked, wire.LogsRequest) and asked.slot == THEIRS
    assert names.heard(wire.SlotGone(slot=THEIRS)).slot == OURS
    assert names.heard(wire.Refused(slot=THEIRS, reason="stale")).slot == OURS


def test_a_hello_brings_all_the_names() -> None:
    names = SlotNames()
    hello = wire.Hello(version="1", boot="b", facts=facts(), slots=(status(THEIRS, OURS), status("plain")))
    assert [known.slot for known in names.heard(hello).slots] == [OURS, "plain"]
    assert names.said(finish(OURS)).directive.slot == THEIRS


def test_a_slot_that_is_put_again_has_the_name_and_the_older_one_s_last_words_are_its_own() -> None:
    names, again = SlotNames(), "9f0c2e55-worker"
    names.heard(report(THEIRS, OURS))
    assert names.heard(report(again, OURS)).status.slot == OURS
    assert names.heard(report(THEIRS, OURS)).status.slot == THEIRS
    assert names.heard(wire.SlotGone(slot=THEIRS)).slot == THEIRS
    assert names.said(finish(OURS)).directive.slot == again
    assert names.heard(wire.SlotGone(slot=again)).slot == OURS


def test_a_hello_with_both_gives_the_name_to_the_one_that_has_not_ended() -> None:
    over = status(THEIRS, OURS).model_copy(update={"phase": "finished"})
    for slots in ((over, status("9f0c2e55-worker", OURS)), (status("9f0c2e55-worker", OURS), over)):
        names = SlotNames()
        hello = wire.Hello(version="1", boot="b", facts=facts(), slots=slots)
        assert {known.slot for known in names.heard(hello).slots} == {THEIRS, OURS}
        assert names.said(finish(OURS)).directive.slot == "9f0c2e55-worker"
