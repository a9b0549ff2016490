"""A machine that was written down reads as it did, and does not say whose it is."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astra_agent.errors import InvalidRequest
from astra_agent.inventory import read
from astra_agent.inventory.capture import parse
from astra_cli.machine.answers import answers
from astra_cli.machine.capturing import capture, from_capture, from_folder
from astra_cli.machine.picture import picture
from astra_cli.main import invoke
from tests.agent.inventory.captured import HOSTS, NAMES, captured, inventory
from tests.agent.inventory.machines import ALL, Written


@pytest.mark.parametrize("name", NAMES)
def test_a_capture_with_its_names_reads_exactly_as_the_machine(name: str) -> None:
    tree, library = captured(name)
    document = json.loads(json.dumps(capture(tree, library, names=True)))
    found = read(*parse(document, name))
    assert replace(found, findings=()) == replace(inventory(name), findings=())


@pytest.mark.parametrize("written", ALL, ids=lambda written: written.__name__)
def test_a_machine_of_our_own_survives_being_captured(written: Any) -> None:
    machine: Written = written()
    tree, library = machine[0].capture()
    document = json.loads(json.dumps(capture(tree, library, names=True)))
    assert answers(read(*parse(document, "the capture"))) == answers(read(tree, library))


@pytest.mark.parametrize("name", NAMES)
def test_a_capture_without_names_gives_the_same_answers(name: str) -> None:
    tree, library = captured(name)
    document = json.loads(json.dumps(capture(tree, library, names=False)))
    found, wanted = answers(read(*parse(document, name))), answers(inventory(name))
    for both in (found, wanted):
        both["nvlink_domain"].pop("key")
    assert found == wanted


@pytest.mark.parametrize("name", NAMES)
def test_a_capture_without_names_says_nothing_of_whose_it_is(name: str) -> None:
    tree, library = captured(name)
    whole = json.dumps(capture(tree, library, names=True))
    text = json.dumps(capture(tree, library, names=False))
    host = tree.files["/proc/sys/kernel/hostname"].decode().strip()
    assert host not in text
    secrets = set(re.findall(r"GPU-[0-9a-f-]{36}|(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?![:0-9a-f])", whole))
    secrets |= set(re.findall(r"[0-9a-f]{4}:[0-9a-f]{4}:[0-9a-f]{4}:[0-9a-f]{4}(?=\\n)", whole)) - {
        "0000:0000:0000:0000"
    }
    kept = {secret for secret in secrets if secret in text}
    assert kept == set()
    if library.chassis:
        assert library.chassis not in text


def test_the_same_thing_has_the_same_replacement_everywhere() -> None:
    tree, library = captured("vm-rxe")
    document = capture(tree, library, names=False)
    text = json.dumps(document)
    assert "fe80:0000:0000:0000:0000:00ff:fe00:0001" in text, "a GID that was made of a MAC is made of the new one"
    assert answers(read(*parse(document, "x")))["netdev"] == {"rxe0": "eth0", "rxe1": "eth1"}


@pytest.mark.parametrize("name", NAMES)
def test_the_picture_shows_every_gpu_every_port_and_every_finding(name: str) -> None:
    found = inventory(name)
    text = "\n".join(cell.text for cell in picture(found))
    assert all(f"GPU {gpu.index}" in text for gpu in found.gpus)
    assert all(port.name in text for port in found.ports())
    assert all(finding.subject in text for finding in found.findings)


# The commands ------------------------------------------------------------------------------------------------------


def test_doctor_prints_a_captured_machines_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["doctor", "--capture", str(HOSTS / "dgx-h100-ndr.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["class"] == "infiniband"


def test_doctor_draws_a_machine_without_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["doctor", "--capture", str(HOSTS / "gb200-nvl72-tray.json")]) == 0
    assert "GPU 3  NVIDIA GB200" in capsys.readouterr().out


def test_capture_and_doctor_of_a_folder_fit_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "root"
    for path, text in {"proc/sys/kernel/hostname": "secret-host", "sys/devices/system/cpu/online": "0-3"}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{text}\n")
    file = tmp_path / "machine.json"
    assert invoke(["capture", "--root", str(root), "-o", str(file)]) == 0
    assert "secret-host" not in file.read_text()
    assert from_capture(file).machine == "machine-1"
    assert from_folder(root).machine == "secret-host"
    assert invoke(["doctor", "--root", str(root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["class"] == "ethernet"
    assert list(tmp_path.iterdir()) == [root, file] or sorted(tmp_path.iterdir()) == sorted([root, file])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{", "is no JSON"),
        (b"[]", "it holds no JSON object"),
        (b"{}", "wrong at files: Field required"),
        (b'{"files": {"/a": 3}}', "wrong at files./a"),
        (b'{"files": {}, "devices": {"/dev/x": [1]}}', "wrong at devices./dev/x"),
        (b"\xff\xfe", "is no JSON"),
    ],
)
def test_a_file_that_is_no_capture_is_refused_with_the_field(content: bytes, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(content)
    with pytest.raises(InvalidRequest, match=re.escape(sentence)):
        from_capture(file)


def test_a_file_that_is_not_there_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["doctor", "--capture", "/nowhere/x.json"]) == 2
    assert "/nowhere/x.json can't be read: No such file" in capsys.readouterr().err
