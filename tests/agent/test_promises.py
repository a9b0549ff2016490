"""What was promised, as trials and sentences."""

from __future__ import annotations

import pytest

from astra_agent.attach import Edits, Placement, Request, attach
from astra_agent.promises import Place, Trial, broken, promise
from tests.agent.inventory.captured import inventory

LOCK = Trial("lock", "locked memory")


def test_a_worker_on_infiniband_was_promised_its_nodes_its_limit_and_its_ports() -> None:
    edits = attach(inventory("dgx-h100-ndr"), Placement("infiniband"), Request(min_gbps=400))
    found = promise(edits)
    words = [trial.word for trial in found.trials]
    assert "open:231:192:/dev/infiniband/uverbs0" in words
    assert words[-2:] == ["capability:14", "lock"]
    assert len(found.ports) == 8
    assert found.ports[0] == "mlx5_0:1"


def test_a_worker_that_gets_nothing_extra_was_promised_nothing() -> None:
    assert promise(Edits()).trials == ()


@pytest.mark.parametrize(
    ("answer", "is_played", "sentence"),
    [
        ("ok", False, None),
        ("ENXIO", True, None),
        ("ENXIO", False, "nothing answers behind /dev/x of gpu-2 (ENXIO): is its driver loaded?"),
        ("ENOENT", True, "/dev/x is not in the container of llama-1 on gpu-2"),
        ("EIO", False, "/dev/x can't be opened in the container of llama-1 on gpu-2 (EIO)"),
    ],
)
def test_an_answer_that_is_not_what_was_promised_is_a_sentence(
    answer: str, *, is_played: bool, sentence: str | None
) -> None:
    found = broken([Trial("open:1:2:/dev/x", "/dev/x")], [answer], Place("llama-1", "gpu-2", is_played))
    assert found == sentence


def test_memory_that_may_not_be_locked_is_told_with_its_fix() -> None:
    found = broken([LOCK], ["ENOMEM"], Place("llama-1", "gpu-2"))
    assert found is not None
    assert found.endswith("set LimitMEMLOCK=infinity in containerd's unit")
