"""
Four machines in one: four agents, each a unit made from the one that is shipped, and a coordinator with the embedded
engine, which has their sockets. What workers write is in /written of the machine, a file for each rank.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.vm.machine import ROOT, Machine, MachineError

MACHINES = ("m1", "m2", "m3", "m4")
PORT = 7411
SLOW = "[Service]\nTimeoutStartSec=900\nWatchdogSec=600\n"
"""Emulated, and beside whatever else runs here: a start takes a minute."""
_EMBEDDED = "[Service]\nDynamicUser=no\n"
"""Agents' sockets are root's."""
_COORDINATOR = f"""\
state_dir = "/var/lib/astraeus-coordinator"
listen = ["127.0.0.1:{PORT}"]
operator_token_file = "/run/credentials/astra-coordinator.service/operator.token"
agent_token_file = "/run/credentials/astra-coordinator.service/agent.token"
drives = ["work"]
disconnect_limit_s = 3600
[policy]
backoff_first_s = 1
[agents]
"""
PATH = "export PATH=/opt/astraeus/bin:$PATH; "
WRITES = "i=0; while :; do i=$((i+1)); echo $ASTRAEUS_ATTEMPT $i >> /out/$RANK; sleep 1; done"
"""A worker that says for ever which attempt it is of."""


def installed(machine: Machine) -> None:
    """The project of this tree, and a default route, which the network of the tests does not give."""
    machine.rewind()
    machine.install_project()
    machine.run("ip route add default via 10.0.2.2; mkdir -p /written; chmod 777 /written")


def unit(name: str) -> str:
    return "astra-agent" if name == "m1" else f"astra-agent-{name}"


def install_agents(machine: Machine, names: Sequence[str]) -> None:
    """A coordinator's unit and files, and an agent's for each of *names*: the first as shipped, others made from it."""
    machine.run(
        f"{PATH} astra coordinator install; astra agent install --name {names[0]} --coordinator http://127.0.0.1:{PORT}"
    )
    shipped = machine.run("cat /etc/systemd/system/astra-agent.service")
    settings = machine.run("cat /etc/astraeus/agent.toml")
    for name in names:
        own = "" if name == names[0] else f"-{name}"
        text = settings.replace(f'name = "{names[0]}"', f'name = "{name}"')
        text = text.replace("/astraeus/agent", f"/astraeus{own}/agent").replace("/etc/astraeus" + own, "/etc/astraeus")
        if own:
            text = (
                f'name_server = ""\ncontainerd_namespace = "astraeus{own}"\ncgroup_parent = "/astraeus{own}"\n' + text
            )
            ours = shipped.replace("agent.toml", f"{name}.toml").replace("=astraeus\n", f"=astraeus{own}\n")
            machine.write(f"/etc/systemd/system/{unit(name)}.service", ours)
        machine.write(f"/etc/astraeus/{name if own else 'agent'}.toml", text + '[drives]\nwork = "/written"\n')
        machine.write(f"/etc/systemd/system/{unit(name)}.service.d/slow.conf", SLOW)
    machine.write("/etc/systemd/system/astra-coordinator.service.d/slow.conf", SLOW)


def four_machines(machine: Machine) -> None:
    """As `installed`, with everything up and linked."""
    machine.prepared("installed", installed)
    install_agents(machine, MACHINES)
    folders = {name: "astraeus" if name == "m1" else f"astraeus-{name}" for name in MACHINES}
    sockets = "".join(f'{name} = "/run/{folder}/agent.sock"\n' for name, folder in folders.items())
    machine.write("/etc/astraeus/coordinator.toml", _COORDINATOR + sockets)
    machine.write("/etc/systemd/system/astra-coordinator.service.d/embedded.conf", _EMBEDDED)
    units = " ".join(map(unit, MACHINES))
    machine.run(f"systemctl daemon-reload; systemctl enable {units} astra-coordinator", timeout_s=900)
    machine.run(f"systemctl start {units} astra-coordinator", timeout_s=1800)
    machine.until("systemctl status --no-pager astra-coordinator | grep '4 machines linked'", timeout_s=900)


def running_gang(machine: Machine) -> None:
    machine.prepared("cluster", four_machines)
    cluster = Cluster(machine)
    cluster.submit("g", WRITES)
    cluster.until_phase("g", "Running")
    cluster.until_each_wrote(5)


@dataclass(slots=True)
class Cluster:
    """To be made anew when the machine has been rewound."""

    machine: Machine
    workers: int = len(MACHINES)
    _port: int = 0

    def astra(self, *words: str) -> str:
        """The command of this tree, here: there it takes half a minute to load."""
        self._port = self._port or self.machine.forward(PORT)
        token = self.machine.run("cat /etc/astraeus/operator.token").strip()
        environment = {**os.environ, "ASTRA_API": f"http://127.0.0.1:{self._port}", "ASTRA_TOKEN": token}
        done = subprocess.run(
            [sys.executable, "-m", "astra_cli.main", *words], env=environment, cwd=ROOT, capture_output=True, text=True,
            timeout=300, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise MachineError(f"astra {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def submit(self, name: str, program: str, *, machines: int = 4, memory: int = 64 * 2**20, **spec: Any) -> None:
        template = {
            "image": "host", "command": "/bin/sh", "args": ["-c", program],
            "datavolume_refs": [{"name": "work", "mount_path": "/out", "mode": "ReadWrite"}],
            "requested_resources": {"machines": machines, "cpu_cores": 1, "memory_bytes": memory},
        }  # fmt: skip
        document = {"metadata": {"name": name}, "spec": {"start": "Gang", "task_template": template, **spec}}
        path = Path(self.machine.folder) / f"{name}.json"
        path.write_text(json.dumps(document))
        self.astra("run", str(path))

    def status(self, name: str) -> dict[str, Any]:
        """`phase`, `attempt` and the rest."""
        document: dict[str, dict[str, Any]] = json.loads(self.astra("status", name, "--json"))
        return document["status"]

    def until_phase(self, name: str, phase: str, timeout_s: float = 900) -> dict[str, Any]:
        deadline_s = time.monotonic() + timeout_s
        while (found := self.status(name))["phase"] != phase:
            if time.monotonic() > deadline_s:
                raise MachineError(f"{name} is not {phase} within {timeout_s:g} s: {found}")
            time.sleep(2)
        return found

    # What workers wrote -----------------------------------------------------------------------------------------------

    def lines(self) -> dict[int, list[list[str]]]:
        """By rank, the words of each line. Where the power failed, a file may have zeros before the next line."""
        found = {}
        for rank in range(self.workers):
            lines = self.machine.run(f"cat /written/{rank} 2>/dev/null || true").replace("\0", "").splitlines()
            found[rank] = [line.split() for line in lines]
        return found

    def written(self) -> dict[int, list[tuple[int, int]]]:
        """By rank, each line: attempt, number."""
        return {rank: [(int(line[0]), int(line[1])) for line in lines] for rank, lines in self.lines().items()}

    def until_each_wrote(self, count: int) -> None:
        """*count* more lines."""
        before = {rank: len(lines) for rank, lines in self.lines().items()}
        deadline_s = time.monotonic() + 900
        while any(len(lines) < before[rank] + count for rank, lines in self.lines().items()):
            if time.monotonic() > deadline_s:
                raise MachineError(f"a worker does not write: {before}, {self.lines()}")
            time.sleep(2)

    def programs(self) -> dict[str, str]:
        """By container: the process IDs of its first process and its shell, on the machine."""
        said = self.machine.run(
            "for c in /sys/fs/cgroup/astraeus*/g-*; do "
            "echo $c $(for p in $(cat $c/cgroup.procs); do grep -lE '^(sh|[.]?astra-init)$' /proc/$p/comm; done); done"
        )
        return {line.split()[0]: " ".join(line.split()[1:]) for line in said.splitlines()}
