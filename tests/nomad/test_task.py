"""`nomad job run` with `driver = "astra"`: one task, as any driver's."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.eventually import eventually
from tests.house.tree import ROOT
from tests.nomad.cluster import NomadCluster, events
from tests.nomad.jobs import job

pytestmark = pytest.mark.timeout(300)

EXAMPLE = ROOT / "examples" / "nomad" / "hello.nomad.hcl"


def test_a_task_runs_to_its_end_and_its_output_is_in_nomads_logs(cluster: NomadCluster) -> None:
    assert cluster.submit(job("hello", "echo hello from $NOMAD_TASK_NAME; echo oops >&2")).code == 0
    allocation = cluster.reaches("hello", "complete")
    assert cluster.logs(allocation["ID"]) == "hello from w\n"
    assert cluster.logs(allocation["ID"], "stderr") == "oops\n"


def test_the_example_runs_as_it_is(cluster: NomadCluster) -> None:
    cluster.nomad("job", "run", "-detach", str(EXAMPLE))

    def ended() -> dict[str, Any] | None:
        """Of the example: a test above has a job of its name, with another group."""
        found = (one for one in cluster.allocations("hello") if one["TaskGroup"] == "hello")
        return next((one for one in found if one["ClientStatus"] in ("complete", "failed")), None)

    allocation: dict[str, Any] = eventually(ended, "the example ends")
    assert allocation["ClientStatus"] == "complete", events(allocation, "hello")
    said = cluster.nomad("alloc", "logs", allocation["ID"])
    assert said == f"hello from hello on hello-{allocation['ID'][:8]}\n"


def test_the_exit_code_is_the_programs(cluster: NomadCluster) -> None:
    cluster.submit(job("exits", "exit 3"))
    allocation = cluster.reaches("exits", "failed")
    assert any(event.startswith("Exit Code: 3") for event in events(allocation, "w"))


def test_out_of_memory_has_an_event_of_its_own(cluster: NomadCluster) -> None:
    script = "python3 -c 'x = bytearray(600 * 1024**2); print(sum(x[::4096]))'"
    cluster.submit(job("hungry", script))
    allocation = cluster.reaches("hungry", "failed")
    assert "Out of memory (limit 128 MiB)" in events(allocation, "w")
    ended = next(event for event in allocation["TaskStates"]["w"]["Events"] if event["Type"] == "Terminated")
    assert ended["Details"]["oom_killed"] == "true"


def test_an_image_that_is_not_there_fails_with_its_sentence(cluster: NomadCluster) -> None:
    cluster.submit(job("imageless", "", image="oci-archive:/no/such.tar"))
    allocation = cluster.reaches("imageless", "failed")
    assert any("/no/such.tar" in event for event in events(allocation, "w")), events(allocation, "w")


@pytest.mark.parametrize(
    ("name", "config", "said"),
    [
        ("typo", 'imagee = "x"', 'No argument or block type is named "imagee"'),
        ("size", 'shm_size = "lots"', 'shm_size is "lots": expected a size such as 512MiB'),
        ("caps", 'cap_add = ["SYS_ADMIN"]', "SYS_ADMIN is not allowed on this machine"),
        (
            "mount",
            'mount {\n source = "/etc"\n target = "/x"\n }',
            "mount.source is /etc: this machine's operator allows mounts from",
        ),
        ("out", 'mount {\n source = "../../.."\n target = "/x"\n }', "expected a path inside of the task's own folder"),
    ],
)
def test_a_mistake_of_the_job_file_is_said_in_the_schemas_words(
    cluster: NomadCluster, name: str, config: str, said: str
) -> None:
    cluster.submit(job(f"bad-{name}", "true", config=config))
    allocation = cluster.reaches(f"bad-{name}", "failed")
    assert any(said in event for event in events(allocation, "w")), events(allocation, "w")


@pytest.fixture
def service(cluster: NomadCluster) -> str:
    """The allocation of a task that runs on and says each signal that it gets."""
    script = """
trap 'echo hup' HUP
trap 'echo usr1' USR1
trap 'echo asked to end; exit 0' TERM
echo begun
while true; do sleep 0.1; done
"""
    cluster.submit(job("service", script, kind="service", task='kill_signal = "SIGTERM"'))
    found: str = cluster.reaches("service", "running")["ID"]
    eventually(lambda: "begun" in cluster.logs(found), "it has begun")
    return found


def test_exec_gives_output_error_and_exit_code(cluster: NomadCluster, service: str) -> None:
    words = ("alloc", "exec", "-i=false", "-t=false", service)
    ran = cluster.run(*words, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (ran.code, ran.out, ran.err) == (7, "out\n", "err\n")
    assert "no-such-program" in cluster.run(*words, "no-such-program").err


def test_exec_takes_standard_input(cluster: NomadCluster, service: str) -> None:
    ran = cluster.run("alloc", "exec", "-i=true", "-t=false", service, "cat", stdin="one\ntwo\n")
    assert (ran.code, ran.out) == (0, "one\ntwo\n")


def test_exec_with_a_terminal_has_one_of_the_right_size(cluster: NomadCluster, service: str) -> None:
    ours, theirs = pty.openpty()
    command = ("nsenter", f"--net={cluster.netns}", str(cluster.binary), "alloc", "exec", "-i", "-t", service)
    process = subprocess.Popen(
        [*command, "sh", "-c", "test -t 0 && test -t 1 && echo a terminal; read line; echo got $line; exit 5"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "NOMAD_ADDR": f"http://127.0.0.1:{cluster.http}"},
        start_new_session=True,
    )
    os.close(theirs)
    seen = _read_until(ours, "a terminal")
    os.write(ours, b"hello\r")
    seen += _read_until(ours, "got hello")
    assert process.wait(30) == 5, seen
    os.close(ours)


def _read_until(descriptor: int, wanted: str) -> str:
    seen, deadline = "", time.monotonic() + 30
    while wanted not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([descriptor], [], [], 0.5)[0]:
            seen += os.read(descriptor, 4096).decode(errors="replace")
    return seen


def test_a_signal_reaches_the_program_and_an_unknown_one_is_refused(cluster: NomadCluster, service: str) -> None:
    cluster.nomad("alloc", "signal", "-s", "SIGHUP", service)
    eventually(lambda: "hup" in cluster.logs(service), "it says so")
    assert cluster.run("alloc", "signal", "-s", "SIGFOO", service).code != 0


def test_status_has_what_it_uses(cluster: NomadCluster, service: str) -> None:
    text = eventually(
        lambda: next(
            (out for out in [cluster.nomad("alloc", "status", "-stats", service)] if "Memory Stats" in out), None
        ),
        "there are figures",
    )
    assert "CPU Stats" in text and "System Mode" in text


def test_files_of_the_task_are_shown(cluster: NomadCluster, service: str) -> None:
    words = ("alloc", "exec", "-i=false", "-t=false", service)
    assert cluster.run(*words, "sh", "-c", "echo kept > /local/note; echo shared > /alloc/data/note").code == 0
    assert cluster.nomad("alloc", "fs", service, "w/local/note") == "kept\n"
    assert cluster.nomad("alloc", "fs", service, "alloc/data/note") == "shared\n"


def test_restart_starts_it_again_in_the_same_allocation(cluster: NomadCluster, service: str) -> None:
    cluster.nomad("alloc", "restart", service)

    def twice() -> bool:
        return cluster.logs(service).count("begun") >= 2

    eventually(twice, "it has begun again, and its output is there")
    assert cluster.allocation("service")["ID"] == service
    assert "asked to end" in cluster.logs(service)


def test_stop_asks_the_program_and_the_allocation_is_complete(cluster: NomadCluster, service: str) -> None:
    cluster.nomad("job", "stop", "-detach", "service")
    cluster.reaches("service", "complete")
    assert cluster.logs(service).rstrip().endswith("asked to end")
    eventually(lambda: not cluster.clients[0].agent.pids(service[:8]), "no process is left")


def test_a_program_that_ignores_the_signal_is_killed_after_its_time(cluster: NomadCluster) -> None:
    script = "trap '' TERM INT; echo begun; while true; do sleep 1; done"
    cluster.submit(job("stubborn", script, task='kill_timeout = "1s"'))
    cluster.reaches("stubborn", "running")
    cluster.nomad("job", "stop", "-detach", "stubborn")
    allocation = cluster.reaches("stubborn", "complete")
    assert any("Exit Code: 137" in event for event in events(allocation, "w")), events(allocation, "w")


def test_what_a_job_asks_for_is_there_inside(cluster: NomadCluster) -> None:
    (cluster.clients[0].folder / "mounts" / "data").mkdir()
    (cluster.clients[0].folder / "mounts" / "data" / "file").write_text("from the machine\n")
    config = f"""
        mount {{
          source = "{cluster.clients[0].folder}/mounts/data"
          target = "/mnt/data"
          readonly = true
        }}
        tmpfs {{
          target = "/scratch"
          size = "8MiB"
        }}
        readonly_rootfs = true
        shm_size = "32MiB"
        ulimit {{ nofile = "1024:2048" }}
        cap_drop = ["ALL"]
        cap_add = ["CHOWN"]
        hostname = "worker-0"
        working_dir = "/scratch"
        extra_hosts {{ db = "10.0.0.7" }}
    """
    task = """
      template {
        data = "made by a template"
        destination = "local/made"
      }
      env { COLOR = "blue" }
      user = "65534"
    """
    script = r"""
cat /mnt/data/file; touch /mnt/data/x 2>/dev/null || echo mount is read-only
touch /x 2>/dev/null || echo root is read-only
pwd; touch here && echo scratch is ours
df -k /dev/shm | awk 'NR == 2 {print "shm", $2}'
echo nofile $(ulimit -Sn) $(ulimit -Hn)
grep CapBnd /proc/self/status
hostname; grep db /etc/hosts; id -u
cat /local/made; echo; echo $COLOR $NOMAD_ALLOC_DIR $NOMAD_SECRETS_DIR
"""
    cluster.submit(job("inside", script, config=config, task=task))
    allocation = cluster.reaches("inside", "complete")
    out = cluster.logs(allocation["ID"])
    for line in (
        "from the machine",
        "mount is read-only",
        "root is read-only",
        "/scratch",
        "scratch is ours",
        "shm 32768",
        "nofile 1024 2048",
        "CapBnd:\t0000000000000001",
        "worker-0",
        "10.0.0.7 db",
        "65534",
        "made by a template",
        "blue /alloc /secrets",
    ):
        assert line in out, (line, out)


def test_the_node_tells_what_the_agent_found(cluster: NomadCluster) -> None:
    nodes = json.loads(cluster.nomad("node", "status", "-json"))
    node = json.loads(cluster.nomad("node", "status", "-json", nodes[0]["ID"]))
    assert node["Drivers"]["astra"]["Healthy"]
    assert node["Attributes"]["driver.astra.containerd.version"]
    assert node["Attributes"]["driver.astra.slot_network"] == "host"


def test_nothing_of_an_ended_task_is_left(cluster: NomadCluster) -> None:
    client = cluster.clients[0]
    cluster.submit(job("short", "echo done"))
    allocation = cluster.reaches("short", "complete")["ID"]
    eventually(lambda: not client.agent.pids(allocation), "its processes are gone")
    holds = f"ASTRA_HOLDS_FOR={allocation}".encode()
    assert [path for path in Path("/proc").glob("[0-9]*/environ") if holds in _bytes(path)] == []
    assert not list((client.agent.folder / "state" / "slots").glob(f"{allocation}*"))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
