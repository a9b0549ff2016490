from __future__ import annotations

from pathlib import Path

import pytest

from astra_cli import doctor


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u2", (1, 6, 20)),
        ("containerd github.com/containerd/containerd/v2 v2.1.9 abc", (2, 1, 9)),
        ("runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1+deb12u1\nspec: 1.0.2-dev", (1, 1, 5)),
        ("containerd dev", None),
    ],
)
def test_versions_are_read_as_programs_say_them(text: str, version: tuple[int, ...] | None) -> None:
    assert doctor.parse_version(text) == version


def test_a_capability_is_a_bit_of_the_effective_set() -> None:
    status = "Name:\tx\nCapPrm:\tffff\nCapEff:\t0000000001000000\n"
    assert doctor.has_capability(status, 24)
    assert not doctor.has_capability(status, 21)
    assert not doctor.has_capability("", 24)


def test_what_it_makes_to_try_something_is_gone_afterwards(tmp_path: Path) -> None:
    findings = doctor.examine(tmp_path)
    assert "astra-doctor-" not in Path("/proc/self/mountinfo").read_text()
    assert all(finding.fix for finding in findings if finding.level != "ok")


async def test_an_agent_that_does_not_answer_is_a_finding_with_its_fix(tmp_path: Path) -> None:
    (finding,) = await doctor.agent(tmp_path / "agent.sock")
    assert finding.level == "missing"
    assert str(tmp_path / "agent.sock") in finding.sentence
    assert "astra-agent --config" in finding.fix
