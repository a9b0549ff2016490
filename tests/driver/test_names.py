from __future__ import annotations

import re

import pytest
from pydantic import TypeAdapter

from astra_agent.errors import InvalidRequest
from astra_agent.wire import SlotId
from astra_driver.names import TaskId, host_name, of_engine_ref, slot_id

ALLOCATION = "27b40bac-a468-4140-a9a7-ca5e09e2caaf"
_SLOT = TypeAdapter(SlotId)


def test_a_task_id_has_slashes_between_its_three_parts() -> None:
    found = TaskId.parse(f"{ALLOCATION}/web/server/ca7e380e")
    assert (found.allocation, found.task, found.start) == (ALLOCATION, "web/server", "ca7e380e")


@pytest.mark.parametrize("text", ["", "a/b", "//"])
def test_what_is_no_task_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="the task ID is"):
        TaskId.parse(text)


@pytest.mark.parametrize("task", ["w", "Web", "web_server", "x" * 200, "a.b", "ü", "web/server", "-"])
def test_every_task_has_a_slot_of_its_own_whatever_its_name(task: str) -> None:
    slot = slot_id(ALLOCATION, task)
    assert _SLOT.validate_python(slot) == slot == slot_id(ALLOCATION, task)
    assert slot != slot_id(ALLOCATION, task + "x")


def test_a_slot_does_not_change_with_the_start() -> None:
    first, second = (TaskId.parse(f"{ALLOCATION}/w/{start}") for start in ("11111111", "22222222"))
    assert first.slot == second.slot == f"{ALLOCATION}-w"


def test_an_engine_ref_leads_back_to_allocation_and_task() -> None:
    assert of_engine_ref(TaskId.parse(f"{ALLOCATION}/w/1").engine_ref) == (ALLOCATION, "w")
    assert of_engine_ref("") is None


@pytest.mark.parametrize("words", [("Web_Server", "27b40bac"), ("x" * 80, "1"), ("ü",)])
def test_a_host_name_is_a_dns_label(words: tuple[str, ...]) -> None:
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", host_name(*words))
