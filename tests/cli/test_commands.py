"""Every command against an API that answers as the coordinator's does: what is printed where, and the exit status."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from astra_agent.inventory.document import dump
from astra_cli import doctor
from astra_cli.main import invoke
from tests.agent.inventory.captured import inventory
from tests.fakes.api import TOKEN, FakeApi, event, job

RUN_FILE = {"metadata": {"name": "first-gang"}, "spec": {"start": "Gang", "task_template": {"image": "host"}}}


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(RUN_FILE))
    return path


def test_status_lists_runs_in_columns_without_colour_in_a_pipe(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["status"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == ["NAME", "PHASE", "WORKERS", "ATTEMPT", "AGE", "REASON"]
    assert "first-gang" in out
    assert "\x1b" not in out


def test_a_pending_run_says_why_it_waits(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    why = "Gang cannot be placed whole: 4 machines are wanted and 3 are free"
    api.job = job(phase="Pending", reason=why)
    assert invoke(["status", "first-gang"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["first-gang: Pending", why]


def test_spares_stand_below_the_workers(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.job = job()
    api.job["status"]["spares"] = [{"machine": "m-5", "state": "ReadyToStart", "detail": ""}]
    assert invoke(["status", "first-gang"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[:5] == ["-", "a", "spare", "m-5", "ReadyToStart"]


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (["status"], "/jobs"),
        (["status", "first-gang"], "/jobs/first-gang"),
        (["run", "FILE"], "/jobs/first-gang"),
        (["stop", "first-gang"], "/jobs/first-gang/stop"),
        (["ranks", "first-gang"], "/jobs/first-gang/ranks"),
        (["events", "first-gang"], "/jobs/first-gang/events"),
        (["dns", "show"], "/names"),
        (["nodes"], "/v1/machines"),
        (["nodes", "m-1"], "/v1/machines/m-1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_json_is_the_coordinators_own_document(
    api: FakeApi, run_file: Path, capsys: pytest.CaptureFixture[str], words: list[str], path: str
) -> None:
    api.events = [event(1, "Looking for machines")]
    api.job = job(a_field_of_tomorrow={"n": 1})
    assert invoke([*(str(run_file) if word == "FILE" else word for word in words), "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == said_by(api, path)
    assert captured.err == ""


def said_by(api: FakeApi, path: str) -> object:
    """What the API itself answers there, asked without the client."""
    url = api.url + (path if path.startswith("/v1") else f"/v1/workspaces/default{path}")
    method = "POST" if path.endswith("/stop") else "GET"
    question = urllib.request.Request(url, method=method, headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(question, timeout=30) as answer:
        document: object = json.load(answer)
    return document


def test_the_commands_are_those_of_astra_astraeus_too(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["astraeus", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"][0]["metadata"]["name"] == "first-gang"


def test_a_command_loads_nothing_that_only_others_need() -> None:
    unwanted = ("astra_cli.dev.cluster", "astra_cli.netcheck.lead", "astra_gang.core", "astra_agent.inventory", "numpy")
    check = f"invoke(['status', '--api', 'no address']); print(*[name for name in {unwanted} if name in sys.modules])"
    command = [sys.executable, "-c", f"import sys; from astra_cli.main import invoke; {check}"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert ran.stdout == "\n"
    assert "--api must be an address" in ran.stderr


def test_a_run_is_submitted_by_the_other_name_too(
    api: FakeApi, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["astraeus", "run", str(run_file)]) == 0
    assert api.submitted == [RUN_FILE]
    assert capsys.readouterr().out == "first-gang submitted: 2 workers.\n"


def test_ranks_show_the_attempt_that_was_asked_for(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["ranks", "first-gang", "--attempt", "0"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Attempt 0 (also: 1)")
    assert "03:04:05.250Z" in out


def test_followed_events_are_json_lines_when_asked_for(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.events = [event(1, "Looking for machines"), event(2, "Gang restart: first-gang-1 failed.", "warning")]
    assert invoke(["events", "first-gang", "-f", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["id"] for line in lines] == [1, 2]


def test_logs_are_the_bytes_that_were_written(api: FakeApi, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    api.logs = {0: b"caf\xc3\xa9\xff\x00 without a newline"}
    assert invoke(["logs", "first-gang"]) == 0
    assert capfdbinary.readouterr().out == api.logs[0]


@pytest.mark.parametrize("cut_after", [0, 333], ids=["before the first byte", "later"])
def test_a_followed_log_that_breaks_off_goes_on_where_it_was(
    api: FakeApi, capfdbinary: pytest.CaptureFixture[bytes], cut_after: int
) -> None:
    api.logs = {0: b"".join(b"line %d\n" % n for n in range(200))}
    api.cut_after = cut_after
    assert invoke(["logs", "first-gang", "-f"]) == 0
    captured = capfdbinary.readouterr()
    assert captured.out == api.logs[0]
    assert b"does not answer" in captured.err


@pytest.mark.parametrize("words", [[], ["-f"], ["-f", "--tail", "9"], ["-f", "--json"]], ids=" ".join)
def test_the_log_of_a_run_that_never_started_is_status_3(
    api: FakeApi, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    api.job = job(phase="Failed")
    assert invoke(["logs", "first-gang", *words]) == 3
    assert complaint(capsys) == "astra: first-gang-0 never started: there is no log\n"


def test_an_empty_log_of_a_worker_that_did_start_is_no_error(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.logs = {0: b""}
    assert invoke(["logs", "first-gang", "-f"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("what", ["logs", "events"])
def test_a_coordinator_that_was_never_there_is_not_waited_for(
    api: FakeApi, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    api.stop()
    assert invoke([what, "first-gang", "-f"]) == 6
    assert "no coordinator answers at" in complaint(capsys)


@pytest.mark.parametrize("what", ["logs", "events"])
def test_what_is_no_coordinator_is_not_waited_for(api: FakeApi, capsys: pytest.CaptureFixture[str], what: str) -> None:
    api.refusal = (502, {"oops": 1})
    assert invoke([what, "first-gang", "-f"]) == 6
    assert "is no coordinator: HTTP 502" in complaint(capsys)


def test_exec_hands_on_output_and_exit_code(api: FakeApi, capfd: pytest.CaptureFixture[str]) -> None:
    api.exec_code = 7
    assert invoke(["exec", "first-gang", "1", "--", "sh", "-c", "exit 7"]) == 7
    assert capfd.readouterr() == ("out\n", "err\n")
    assert api.execs[0]["query"]["command"] == ["sh", "-c", "exit 7"]
    assert api.execs[0]["query"]["rank"] == ["1"]


def test_run_submits_the_file_as_it_is(api: FakeApi, run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["run", str(run_file)]) == 0
    assert api.submitted == [RUN_FILE]
    captured = capsys.readouterr()
    assert captured.out == "first-gang submitted: 2 workers.\n"
    assert "astra logs first-gang -f" in captured.err


def test_run_by_flags_with_several_machines_is_a_gang(api: FakeApi) -> None:
    words = ["run", "--name", "n", "--image", "host", "--machines", "4", "--env", "A=b=c", "--", "sh", "-c", "true"]
    assert invoke(words) == 0
    assert api.submitted == [{
        "metadata": {"name": "n"},
        "spec": {
            "start": "Gang",
            "task_template": {
                "image": "host", "command": "sh", "args": ["-c", "true"], "env": {"A": "b=c"},
                "requested_resources": {"machines": 4},
            },
        },
    }]  # fmt: skip


@pytest.mark.parametrize(
    ("phase", "status", "code"),
    [("Completed", {}, 0), ("Failed", {}, 1), ("Stopped", {}, 1), ("Failed", {"refused": True}, 2)],
    ids=["completed", "failed", "stopped", "refused"],
)
def test_a_followed_run_ends_with_the_runs_own_status(
    api: FakeApi, run_file: Path, capsys: pytest.CaptureFixture[str], phase: str, status: dict[str, Any], code: int
) -> None:
    api.job = job(phase=phase, reason="so it ended", **status)
    api.logs = {0: b"rank 0 wrote this\n"}
    assert invoke(["run", str(run_file), "--follow"]) == code
    out = capsys.readouterr().out
    assert "so it ended" in out


def test_a_followed_run_shows_events_and_rank_0s_log(
    api: FakeApi, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.events = [event(1, "Starting together: 1 of 2 ready")]
    api.job = job(phase="Completed")
    api.logs = {0: b"hello\nlast"}
    assert invoke(["run", str(run_file), "--follow"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "Starting together: 1 of 2 ready" in lines
    assert lines[-2:] == ["hello", "last"]


# Errors ---------------------------------------------------------------------------------------------------------------


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    """What was said of an error: one line that begins with the command's name, and nothing on standard output."""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("astra: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_a_refusal_of_the_api_is_its_sentence_and_status_2(
    api: FakeApi, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = "Cannot plan workers: cannot evenly distribute 12 gpus across 5 machines"
    api.refusal = (400, {"error": {"message": sentence, "field": "machines", "code": "InvalidRequest"}})
    assert invoke(["run", str(run_file)]) == 2
    assert complaint(capsys) == f"astra: {sentence}\n"


CORES = "spec.task_template.requested_resources.cpu_cores"


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--name", "n", "--image", "host", "--cpus", "-1"], "--cpus is"), (["FILE"], f"{CORES} is")],
    ids=["flags", "file"],
)
def test_a_refusal_names_what_was_written_flags_or_fields(
    api: FakeApi, run_file: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    api.refusal = (400, {"error": {"message": f"{CORES} is -1: no", "field": CORES, "code": "InvalidRequest"}})
    assert invoke(["run", *(str(run_file) if word == "FILE" else word for word in words)]) == 2
    assert complaint(capsys) == f"astra: {said} -1: no\n"


def test_a_run_that_is_not_there_is_status_3(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["status", "other"]) == 3
    assert "there is no run other" in complaint(capsys)


def test_a_wrong_token_is_status_2(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["status", "--token", "wrong"]) == 2
    assert "token" in complaint(capsys)


def test_an_api_that_is_away_is_named_with_where_it_was_found(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.stop()
    assert invoke(["status"]) == 6
    said = complaint(capsys)
    assert api.url in said
    assert "ASTRA_API" in said
    assert "astra dev" in said


def test_without_any_coordinator_it_says_where_it_looked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ASTRA_API", raising=False)
    monkeypatch.setenv("ASTRA_DEV_STATE", str(tmp_path))
    assert invoke(["status"]) == 6
    assert str(tmp_path / "client.json") in complaint(capsys)


def test_something_else_behind_the_address_is_found_out(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    api.refusal = (502, {"oops": 1})
    assert invoke(["status"]) == 6
    assert "is no coordinator: HTTP 502" in complaint(capsys)


EXAMPLES = Path(__file__).parents[2] / "examples"
FLAGS = ["run", "--name", "n", "--image", "host"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["run"], "give one FILE"),
        (["run", "/no/such/file.json"], "/no/such/file.json can't be read: No such file or directory; give the path"),
        (["run", "a.json", "b.json"], "give one FILE"),
        (["run", "a.json", "--machines", "4"], "--machines does not go with a file"),
        (["run", str(EXAMPLES / "first-gang.json"), "--image", "host", "--name", "n"], "--image does not go with"),
        ([*FLAGS, "sh", "-c", "x"], "no such option '-c'; options of the command itself come behind `--`"),
        (["exec", "r", "0", "sh", "-c", "x"], "come behind `--`; see `astra exec --help`"),
        (["run", "--image", "host", "--", "true"], "--name is missing"),
        ([*FLAGS, "--env", "X"], "--env must be NAME=VALUE, not 'X'"),
        ([*FLAGS, "--drive", "d"], "--drive must be NAME:/PATH"),
        ([*FLAGS, "--time-limit", "1w"], "--time-limit must be a time such as"),
        ([*FLAGS, "--memory", "1 GB"], "--memory must be a size such as"),
        (["status", "--api", "localhost:7410"], "--api must be an address such as"),
        (["logs", "r", "minus"], "invalid value for 'RANK': 'minus' is not a valid integer; see `astra logs --help`"),
        (["run", "x.json", "--image"], "option '--image' requires an argument; see `astra run --help`"),
        (["netcheck", "pair", "--api"], "option '--api' requires an argument; see `astra netcheck pair --help`"),
        (["exec", "r", "0", "--json", "true"], "no such option '--json'"),
        (["frobnicate"], "no such command 'frobnicate'; see `astra --help`"),
        (["stats"], "no such command 'stats' (did you mean"),
        (["status", "--frob"], "see `astra status --help`"),
        (["run", "--folow"], "no such option '--folow'; did you mean '--follow'? See `astra run --help`"),
        ([*FLAGS, "--start", "gang"], "invalid value for '--start': 'gang' is not one of 'Gang', 'MinAvailable', 'In"),
        (["run", "--cpus", "x"], "invalid value for '--cpus': 'x' is not a valid number; see `astra run --help`"),
        (["completion"], "missing argument 'SHELL'; choose from: bash, zsh, fish; see `astra completion --help`"),
        (["run", "--name", "n", "--", "true"], "true is no file, and --image is missing"),
        (["run", "--name", "n", "--", "sh", "-c", "true"], "--image is missing"),
        (["dev", "link", "--machine", "m-1"], "say what the link is to be"),
        (["dev", "link", "--machine", "m-1", "--up", "--down"], "--down and --up are opposites: give one of them"),
        (["dev", "link", "--machine", "m-1", "--rate", "fast"], "--rate must be from 8kbit to 100gbit"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_what_is_said_wrong_is_one_sentence_and_status_2(
    api: FakeApi, capsys: pytest.CaptureFixture[str], words: list[str], part: str
) -> None:
    assert invoke(words) == 2
    assert part in complaint(capsys)
    assert api.submitted == []


@pytest.mark.parametrize(
    "words",
    [[], ["dns"], ["astraeus"], ["netcheck"], ["agent"], ["nomad"]],
    ids=lambda words: " ".join(words) or "astra",
)
def test_a_group_alone_is_answered_with_its_help(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert invoke(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"Usage: {' '.join(['astra', *words])} [OPTIONS] COMMAND [ARGS]...\n")
    assert "\nCommands:\n" in captured.err
    assert "; see `" not in captured.err
    assert "...\n" not in captured.err.partition("\n")[2], "a command's line is cut off"


@pytest.mark.parametrize("shell", ["zsh", "fish", "bash"])
def test_completion_prints_the_shells_script(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    assert invoke(["completion", shell]) == 0
    assert "_ASTRA_COMPLETE" in capsys.readouterr().out


def test_doctor_speaks_json_with_a_fix_for_everything_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # No test asks this machine's own name servers: as on a machine that has none.
    monkeypatch.setattr(doctor, "examine", functools.partial(doctor.examine, files=tmp_path))
    code = invoke(["doctor", "--json", "--agent", "/no/such/agent.sock"])
    document = json.loads(capsys.readouterr().out)
    assert code == 1
    assert not document["fit"]
    assert "outside names will not resolve" in " ".join(finding["sentence"] for finding in document["findings"])
    missing = [finding for finding in document["findings"] if finding["level"] == "missing"]
    assert all(finding["fix"] for finding in missing)
    assert any("/no/such/agent.sock" in finding["sentence"] for finding in missing)


def test_colours_are_for_terminals_and_no_color_takes_them_away(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    green = "\x1b[32m"
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert invoke(["status", "first-gang"]) == 0
    assert f"{green}first-gang: Running" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    assert invoke(["status", "first-gang"]) == 0
    assert green not in capsys.readouterr().out


def test_names_are_shown_with_the_leader_first(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["dns", "show"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["NAME", "ADDRESSES", "IS"]
    assert lines[1][:3] == ["first-gang", "10.83.1.1", "leader,"]
    assert lines[3][:2] == ["first-gang-1", "10.83.2.1"]


def test_names_of_a_run_that_is_not_live_are_refused(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["dns", "show", "other"]) == 3
    assert "no live run is named other" in capsys.readouterr().err


@pytest.mark.parametrize(("asker", "name"), [("first-gang-1", "first-gang-1"), ("first-gang", "first-gang-0")])
def test_a_name_is_asked_for_as_a_worker(
    api: FakeApi, capsys: pytest.CaptureFixture[str], asker: str, name: str
) -> None:
    assert invoke(["dns", "query", "first-gang-1", "--as", asker]) == 0
    out = capsys.readouterr().out
    assert "first-gang-1 A: NOERROR" in out
    assert f"asked as {name} at 169.254.53.53 on m-1, 0.4 ms" in out
    assert "10.83.2.1" in out


def test_a_name_without_a_record_exits_1(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["dns", "query", "nobody", "--as", "first-gang-0", "--type", "aaaa"]) == 1
    assert "nobody AAAA: NXDOMAIN, no record" in capsys.readouterr().out


def test_a_worker_that_does_not_exist_can_not_ask(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["dns", "query", "first-gang-1", "--as", "first-gang-7"]) == 3
    assert "no worker is named first-gang-7" in capsys.readouterr().err


def test_one_machine_is_a_picture_of_what_it_has_and_what_is_wrong(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.inventory = json.loads(dump(inventory("hgx-h100-partial-ib")))
    assert invoke(["nodes", "m-1"]) == 0
    out = capsys.readouterr().out
    assert "GPU 0  NVIDIA H100 80GB HBM3" in out
    assert "what is wrong" in out
    assert invoke(["nodes", "m-1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["inventory"]["transport"] == "infiniband"


def test_a_machine_that_is_away_is_said_to_be(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["nodes", "m-1"]) == 0
    assert "what it has is not known now" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("drain", "lines"),
    [
        (None, []),
        ([], ["draining it costs no run anything"]),
        (
            [
                {
                    "workspace": "default",
                    "run": "llama",
                    "workers": 4,
                    "sentence": "draining it restarts llama (4 workers)",
                },
                {"workspace": "nlp", "run": "hello", "workers": 1, "sentence": "draining it moves hello (1 worker)"},
            ],
            ["draining it restarts llama (4 workers)", "workspace nlp: draining it moves hello (1 worker)"],
        ),
    ],
    ids=["an older coordinator", "nothing", "two runs"],
)
def test_what_a_drain_of_a_machine_would_cost_is_said_before_it(
    api: FakeApi, capsys: pytest.CaptureFixture[str], drain: list[dict[str, object]] | None, lines: list[str]
) -> None:
    api.drain = drain
    assert invoke(["nodes", "m-1"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "draining it" in line] == lines
    assert invoke(["nodes", "m-1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).get("drain") == drain
