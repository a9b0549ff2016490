"""What Nomad gives a task besides a program to run: limits, processors, templates, secrets, volumes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.eventually import eventually
from tests.nomad.cluster import NomadCluster, events, made
from tests.nomad.jobs import job

pytestmark = pytest.mark.timeout(300)

USES_150_MIB = "python3 -c 'x = bytearray(150 * 1024**2); print(len(x[::4096]))'"


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("volume")
    (folder / "file").write_text("from the volume\n")
    return folder


@pytest.fixture(scope="module")
def cluster(binary: Path, volume: Path) -> Iterator[NomadCluster]:
    with made(binary, client=f'host_volume "data" {{\n path = "{volume}"\n}}') as one:
        one.nomad("operator", "scheduler", "set-config", "-memory-oversubscription=true")
        yield one


def output(cluster: NomadCluster, name: str) -> list[str]:
    """Lines of a job that has completed."""
    ended = eventually(lambda: _ended(cluster, name), f"{name} has ended")
    assert ended["ClientStatus"] == "complete", events(ended, "w")
    return cluster.logs(ended["ID"]).splitlines()


def _ended(cluster: NomadCluster, name: str) -> dict[str, Any]:
    found = cluster.allocation(name)
    return found if found.get("ClientStatus") in ("complete", "failed") else {}


# Limits ------------------------------------------------------------------------------------------------------------


def test_memory_beyond_what_is_reserved_can_be_used_up_to_its_maximum(cluster: NomadCluster) -> None:
    cluster.submit(job("over", USES_150_MIB, resources="cpu = 100\nmemory = 64\nmemory_max = 256"))
    assert output(cluster, "over") == ["38400"]
    cluster.submit(job("under", USES_150_MIB, resources="cpu = 100\nmemory = 32\nmemory_max = 64"))
    said = events(cluster.reaches("under", "failed"), "w")
    assert "Out of memory (limit 64 MiB)" in said, said


def test_memory_without_a_maximum_has_no_limit(cluster: NomadCluster) -> None:
    version = tuple(int(number) for number in re.findall(r"\d+", cluster.nomad("version").split()[1])[:3])
    if version < (2, 0, 4):
        pytest.skip("Nomad knows memory_max = -1 since 2.0.4")
    cluster.submit(job("boundless", USES_150_MIB, resources="cpu = 100\nmemory = 32\nmemory_max = -1"))
    assert output(cluster, "boundless") == ["38400"]


def test_cores_are_the_only_processors_it_runs_on(cluster: NomadCluster) -> None:
    script = "echo $NOMAD_CPU_CORES; python3 -c 'import os; print(*os.sched_getaffinity(0))'; nproc"
    cluster.submit(job("pinned", script, resources="cores = 1\nmemory = 64"))
    given, ran_on, count = output(cluster, "pinned")
    assert ran_on == given
    assert count == "1"


def test_processor_time_is_limited_only_when_the_task_says_so(cluster: NomadCluster) -> None:
    script = "cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null || cat /sys/fs/cgroup/cpu.max"
    cluster.submit(job("soft", script))
    assert output(cluster, "soft")[0].split()[0] in ("-1", "max")
    cluster.submit(job("hard", script, config="cpu_hard_limit = true"))
    assert int(output(cluster, "hard")[0].split()[0]) > 0


def test_sizes_and_limits_are_as_the_task_says(cluster: NomadCluster) -> None:
    config = """
        tmpfs {
          target = "/scratch"
          size = "8MiB"
        }
        shm_size = "32MiB"
        readonly_rootfs = true
        ulimit {
          memlock = "32768:65536"
          nofile = "1024:2048"
          stack = "4194304"
        }
    """
    script = r"""
for at in /scratch /dev/shm; do df -k $at | awk 'NR == 2 {print $1, $2}'; done
echo $(ulimit -Sl) $(ulimit -Hl) $(ulimit -Sn) $(ulimit -Hn) $(ulimit -Ss) $(ulimit -Hs)
for at in / /etc /usr /local /alloc /secrets /scratch /dev/shm; do touch $at/x 2>/dev/null && echo $at; done
dd if=/dev/zero of=/scratch/full bs=1M count=9 2>/dev/null || echo full at $(stat -c %s /scratch/full)
"""
    cluster.submit(job("sized", script, config=config))
    assert output(cluster, "sized") == [
        "tmpfs 8192",
        "shm 32768",
        "32 64 1024 2048 4096 4096",
        *("/local", "/alloc", "/secrets", "/scratch", "/dev/shm"),
        f"full at {8 << 20}",
    ]


# Templates, secrets, volumes ---------------------------------------------------------------------------------------


def test_a_template_that_changes_sends_its_signal_or_runs_its_script(cluster: NomadCluster) -> None:
    task = """
      template {
        data = "{{ with nomadVar \\"nomad/jobs/told\\" }}{{ .word }}{{ end }}"
        destination = "secrets/word"
        change_mode = "signal"
        change_signal = "SIGUSR1"
      }
      template {
        data = "{{ with nomadVar \\"nomad/jobs/told\\" }}{{ .other }}{{ end }}"
        destination = "local/other"
        change_mode = "script"
        change_script {
          command = "/bin/sh"
          args = ["-c", "cat /local/other > /alloc/data/seen"]
        }
      }
    """
    script = """
trap 'echo now $(cat /secrets/word)' USR1
echo first $(cat /secrets/word)
while true; do sleep 0.1; done
"""
    cluster.nomad("var", "put", "-force", "nomad/jobs/told", "word=one", "other=two")
    cluster.submit(job("told", script, kind="service", task=task))
    allocation = cluster.reaches("told", "running")["ID"]
    eventually(lambda: "first one" in cluster.logs(allocation), "it has read the first word")
    cluster.nomad("var", "put", "-force", "nomad/jobs/told", "word=three", "other=four")
    eventually(lambda: "now three" in cluster.logs(allocation), "it has the signal, and reads the new word")
    seen = ("alloc", "fs", allocation, "alloc/data/seen")
    eventually(lambda: cluster.nomad(*seen, check=False) == "four", "the script has run, and read the new word")
    cluster.nomad("job", "stop", "-detach", "told")


def test_secrets_are_in_memory_and_shown_to_nobody_else(cluster: NomadCluster) -> None:
    task = """
      template {
        data = "TOKEN=of-the-template"
        destination = "secrets/env"
        env = true
      }
    """
    script = "echo $TOKEN; stat -f -c %T /secrets; cat /secrets/env; echo; sleep 300"
    cluster.submit(job("secretive", script, kind="service", task=task))
    allocation = cluster.reaches("secretive", "running")["ID"]
    wanted = "of-the-template\ntmpfs\nTOKEN=of-the-template\n"
    eventually(lambda: cluster.logs(allocation) == wanted, "it has its secret by variable and by file")
    shown = cluster.run("alloc", "fs", allocation, "w/secrets/env")
    assert "of-the-template" not in shown.out, shown
    assert "prohibited" in shown.out + shown.err, shown
    cluster.nomad("job", "stop", "-detach", "secretive")


@pytest.mark.parametrize("read_only", ["false", "true"])
def test_a_volume_of_the_machine_is_mounted_as_it_is_asked_for(
    cluster: NomadCluster, volume: Path, read_only: str
) -> None:
    group = f'volume "data" {{\ntype = "host"\nsource = "data"\nread_only = {read_only}\n}}'
    task = f'volume_mount {{\nvolume = "data"\ndestination = "/data"\nread_only = {read_only}\n}}'
    script = "cat /data/file; touch /data/touched 2>/dev/null && echo written || echo not written"
    cluster.submit(job(f"volume-{read_only}", script, group=group, task=task))
    said = "not written" if read_only == "true" else "written"
    assert output(cluster, f"volume-{read_only}") == ["from the volume", said]
    if read_only == "false":
        assert (volume / "touched").exists()
