"""The all-reduce in the user's image: what is submitted, and what its output and NCCL's log are judged to say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from astra_agent.errors import InvalidRequest
from astra_cli.client import Client
from astra_cli.context import Flags, find
from astra_cli.main import cli
from astra_cli.narrator import Quiet
from astra_cli.netcheck import program, report, with_program
from astra_cli.netcheck.program import Ran
from astra_cli.output import Output
from astra_gang.spec import parse
from astra_netprobe.readings import Evidence, Sized
from astra_netprobe.verdict import Asked, Verdict
from tests.fakes.api import TOKEN, FakeApi, job

EXAMPLES = Path(__file__).parents[2] / "examples"
RESULT = "bus bandwidth: 48.0 GB/s over 4 GPUs\n"
IB = """\
m:9:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>
m:9:9 [0] NCCL INFO Using network IB
m:9:9 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
"""
SOCKETS = """\
m:9:9 [0] NCCL INFO NET/IB : No device found.
m:9:9 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.2<0>
m:9:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
"""
RAN = Ran("torch:1", "nccl", ("m-1", "m-2"), 4, "infiniband", (IB + RESULT, IB))
SOUND = Verdict("sound", "2 machines are sound")


def document(**resources: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "train"},
        "spec": {
            "start": "Gang",
            "priority": 3,
            "task_template": {
                "image": "torch:1",
                "command": "python",
                "args": ["train.py"],
                "env": {"NCCL_DEBUG": "WARN", "PATH": "/opt/bin"},
                "datavolume_refs": [{"name": "envs", "mount_path": "/opt", "mode": "ReadOnly"}],
                "requested_resources": {"machines": 2, **resources},
            },
        },
    }


# What is submitted ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("resources", "backend"), [({}, "gloo"), ({"gpu_requests": {"count": 4}}, "nccl")])
def test_the_run_has_the_shape_and_image_of_the_users_and_a_program_of_ours(resources: Any, backend: str) -> None:
    asked = document(**resources)
    made = program.of(asked, name="netcheck-1", source="print()")
    template = made["spec"]["task_template"]
    assert program.backend_of(asked) == backend
    assert template["image"] == "torch:1" and template["requested_resources"] == {"machines": 2, **resources}
    assert template["datavolume_refs"] == asked["spec"]["task_template"]["datavolume_refs"]
    assert template["env"]["PATH"] == "/opt/bin"
    assert template["env"]["NCCL_DEBUG"] == ("INFO" if backend == "nccl" else "WARN")
    assert template["command"] == "sh" and template["args"][-1] == "print()"
    assert template["time_limit_seconds"] == program.TIME_LIMIT_S
    assert parse(made).name == "netcheck-1"


def test_the_programs_that_come_with_the_command_are_the_examples() -> None:
    folder = Path(program.__file__).parent / "programs"
    assert (folder / "nccl.program").read_text() == (EXAMPLES / "allreduce.py").read_text()
    assert (folder / "gloo.program").read_text() == (EXAMPLES / "allreduce_gloo.py").read_text()


# The judgement -------------------------------------------------------------------------------------------------------


def test_infiniband_that_was_promised_and_used_is_sound() -> None:
    found = program.judge(RAN, Asked())
    assert found == Verdict(
        "sound", "PyTorch with NCCL over NET/IB in torch:1: 384.00 Gbit/s bus bandwidth over 4 ranks"
    )


def test_sockets_where_infiniband_was_promised_fail_the_check_and_name_the_machine_and_the_reason() -> None:
    found = program.judge(replace(RAN, logs=(IB + RESULT, SOCKETS)), Asked())
    assert (found.state, found.exit) == ("below", 1)
    assert found.sentence == ("the run was promised InfiniBand, but NCCL went over NET/Socket on m-2 (No device found)")


def test_sockets_where_nothing_was_promised_are_told_and_no_failure() -> None:
    found = program.judge(replace(RAN, promised="", logs=(SOCKETS + RESULT, SOCKETS)), Asked())
    assert found.exit == 0 and "NCCL over NET/Socket" in found.sentence


def test_a_log_that_does_not_say_is_not_taken_for_infiniband() -> None:
    found = program.judge(replace(RAN, logs=(RESULT, "")), Asked())
    assert (found.state, found.exit) == ("unmeasured", 3) and "does not say over what" in found.sentence


def test_fewer_ranks_than_were_asked_for_are_no_result() -> None:
    found = program.judge(replace(RAN, logs=(IB + RESULT.replace("4 GPUs", "1 GPUs"), IB)), Asked())
    assert (found.state, found.exit) == ("unmeasured", 3) and "over 1 ranks instead of 4" in found.sentence


def test_what_did_not_complete_or_wrote_nothing_is_not_sound() -> None:
    failed = program.judge(replace(RAN, failure="rank 0 exited with 1"), Asked())
    assert failed.exit == 3 and failed.sentence == "the all-reduce in torch:1 did not complete: rank 0 exited with 1"
    assert program.judge(replace(RAN, logs=(IB, IB)), Asked()).exit == 3


def test_the_rate_that_was_asked_for_is_that_of_a_port_not_of_the_bus() -> None:
    """4 GPUs on 2 machines: of 384 Gbit/s bus bandwidth a third crossed each GPU's port."""
    assert program.judge(RAN, Asked(min_bps=140e9)).exit == 0
    below = program.judge(RAN, Asked(min_bps=200e9))
    assert below.exit == 1 and "128.00 Gbit/s for each GPU's share" in below.sentence


def test_the_promise_is_where_it_was_placed_else_what_it_asked_for() -> None:
    asked = document(network={"interconnect": "rdma"})
    assert program.promise("infiniband", asked) == "infiniband"
    assert program.promise("ethernet", asked) == "rdma"
    assert program.promise("ethernet", document()) == ""


def test_the_worse_of_probe_and_program_comes_first() -> None:
    below = Verdict("below", "sockets")
    assert program.joined(SOUND, below) == Verdict("below", "sockets", (SOUND.sentence,))
    assert program.joined(SOUND, Verdict("sound", "fine")) == replace(SOUND, more=("fine",))
    sick = Verdict("below", "slow", blamed=("m-1",))
    assert program.joined(sick, below) == replace(sick, more=("sockets",))


def test_its_line_is_in_the_table_of_the_probe() -> None:
    evidence = Evidence(("m-1", "m-2"), sizes=(Sized(8, 2, "doubling", (3e-5,)),))
    text = report.text(evidence, SOUND, RAN)
    below = text[text.index("#wrong") :].splitlines()
    assert "# PyTorch with NCCL over NET/IB in torch:1:" in below
    assert any(line.split()[0] == str(256 << 20) and line.endswith("N/A") for line in below if line.strip())
    kept = report.document(evidence, SOUND, RAN, at="now")["program"]
    assert kept["nccl"][0]["network"] == "IB" and kept["ranks"] == 4


# Through the API -----------------------------------------------------------------------------------------------------


async def ran(api: FakeApi, *, limit_s: float = 20.0) -> Ran:
    async with Client(find(Flags(api.url, TOKEN, ""), {})) as client:
        return await with_program.run(client, document(), Quiet(Output()), limit_s=limit_s)


async def test_what_the_workers_wrote_is_read(api: FakeApi) -> None:
    api.job = job(phase="Completed", tier="rdma")
    api.logs = {0: b"bus bandwidth: 0.115 GB/s over 2 ranks, 67108864 bytes\n"}
    found = await ran(api)
    assert found.machines == ("m-1", "m-2") and found.promised == "rdma" and found.failure == ""
    assert found.reading.ranks == 2
    assert api.submitted[0]["metadata"]["name"].startswith("netcheck-")
    assert api.stopped == []


async def test_a_run_that_failed_tells_why_with_what_it_wrote_last(api: FakeApi) -> None:
    api.job = job(phase="Failed", reason="rank 0 exited with code 127")
    api.logs = {0: b"sh: 1: exec: torchrun: not found\n"}
    failure = (await ran(api)).failure
    assert failure == "rank 0 exited with code 127; rank 0 wrote last: sh: 1: exec: torchrun: not found"


async def test_a_run_that_takes_too_long_is_stopped_and_says_so(api: FakeApi) -> None:
    api.job = job(phase="Pending", reason="waits for room")
    found = await ran(api, limit_s=0.5)
    assert found.failure.startswith("0 s were over; waits for room")
    assert api.stopped == ["first-gang"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--machines", "2", "--image", "a"), "--image goes with --with torch"),
        (("--machines", "2", "--with", "torch"), "--image is missing"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(words: tuple[str, ...], sentence: str) -> None:
    done = CliRunner().invoke(cli, ["netcheck", "preflight", *words])
    assert isinstance(done.exception, InvalidRequest) and sentence in str(done.exception)
