"""
Two machines of a Nomad cluster in one: two clients of the real binary as units, the first with the server in it, two
agents' units behind their plugins, and the coordinator's unit with Nomad as its engine. All but the second of each is
as it is shipped. What workers write is in /written of the machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.nomad.jobs import while_cut_off
from tests.nomad.loopback import COMMON
from tests.vm.cluster import PATH, Cluster, install_agents, installed
from tests.vm.machine import Machine, MachineError

NAMES = ("m1", "m2")
AGENTS = ("astra-agent", "astra-agent-m2")
NOMADS = ("nomad", "nomad-m2")
HTTP = 4646

_UNIT = """\
[Unit]
Description=Nomad
Wants=network-online.target
After=network-online.target

[Service]
EnvironmentFile=-/etc/nomad.d/nomad.env
ExecReload=/bin/kill -HUP $MAINPID
ExecStart=/usr/bin/nomad agent -config /etc/nomad.d
KillMode=process
KillSignal=SIGINT
LimitNOFILE=65536
LimitNPROC=infinity
Restart=on-failure
RestartSec=2
TasksMax=infinity
OOMScoreAdjust=-1000

[Install]
WantedBy=multi-user.target
"""
"""What the unit of Nomad's own package says."""
_SERVER = 'server { enabled = true bootstrap_expect = 1 num_schedulers = 1 heartbeat_grace = "10m" }\n'
"""Emulated, heartbeats are late."""
_CLIENT = """\
name = "{name}"
client {{
  enabled = true
  node_pool = "gpu"
  servers = ["127.0.0.1:4647"]
  network_interface = "lo"
  cpu_total_compute = 4000
  options = {{
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean,consul,vault"
    "driver.allowlist" = "astra"
  }}
}}
plugin "astra-nomad-driver" {{
  config {{
    socket = "{socket}"
    allow_mounts = ["/written"]
    allow_devices = ["{device}"]
  }}
}}
plugin "astra-nomad-device" {{ config {{ socket = "{socket}" }} }}
"""
DEVICE = "/dev/fuse"
"""Anybody may open it, and nothing happens then."""
DEVICE_NUMBER = "10 229"
OTHER = "/dev/hwrng"
"""Root of the machine may open it, a worker may not."""
OTHER_NUMBER = "10 183"

_JOB = """\
job "{name}" {{
  type = "batch"
  node_pool = "gpu"
  meta {{ astra_start = "Gang" }}
  group "g" {{
    count = 2
    constraint {{
      operator = "distinct_hosts"
      value = "true"
    }}
    restart {{
      attempts = 0
      mode = "fail"
    }}
    reschedule {{
      attempts = 0
      unlimited = false
    }}
    {while_away}
    task "w" {{
      driver = "astra"
      config {{
        image = "host"
        command = "/bin/sh"
        args = ["-c", <<EOT
{program}
EOT
        ]
        mount {{
          source = "/written"
          target = "/out"
        }}
        {config}
      }}
      resources {{
        cpu = 100
        memory = 64
      }}
    }}
  }}
}}
"""
WRITES = f"""\
ulimit -l >/out/limit-$RANK
mknod /tmp/given c {DEVICE_NUMBER}
mknod /tmp/other c {OTHER_NUMBER}
i=0
while :; do
  i=$((i+1)) given=no by_number=no other=no
  {{ {{ :; }} 3<>{DEVICE} && given=yes; }} 2>/dev/null
  {{ {{ :; }} 3<>/tmp/given && by_number=yes; }} 2>/dev/null
  {{ {{ :; }} 3</tmp/other && other=yes; }} 2>/dev/null
  echo $ASTRAEUS_ATTEMPT $i $given $by_number $other >>/out/$RANK
  sleep 1
done
"""
"""A worker that says for ever which attempt it is of, and which devices it can open: its own, by a node of its own, and
one that it was not given, by a node that it made in the same way."""
CONFIG = f"""\
device {{ host_path = "{DEVICE}" }}
        ulimit {{ memlock = "-1" }}"""


_SINCE = 22
"""Where /proc/PID/stat has the time of the start, counted as there."""


@dataclass(frozen=True, slots=True)
class Program:
    """A process of a container: `since` tells it from another one with its ID."""

    pid: int
    since: int


@dataclass(slots=True)
class NomadUnits(Cluster):
    """To be made anew when the machine has been rewound."""

    binary: Path = Path("nomad")
    workers: int = len(NAMES)
    _http: int = 0

    def nomad(self, *words: str) -> str:
        """The command, here: there it takes seconds to load."""
        done = self.attempt_nomad(*words)
        if done.returncode != 0:
            raise MachineError(f"nomad {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def attempt_nomad(self, *words: str) -> subprocess.CompletedProcess[str]:
        self._http = self._http or self.machine.forward(HTTP)
        return subprocess.run(
            [str(self.binary), *words],
            env={**os.environ, "NOMAD_ADDR": f"http://127.0.0.1:{self._http}", "NO_COLOR": "1"},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def submit_job(self, name: str, program: str, config: str) -> None:
        """Returns once the coordinator has taken it for a run."""
        path = self.machine.folder / f"{name}.nomad.hcl"
        while_away = while_cut_off(self.nomad("version").split()[1].removeprefix("v"))
        path.write_text(_JOB.format(name=name, program=program, config=config, while_away=while_away))
        self.nomad("job", "run", "-detach", str(path))
        deadline_s = time.monotonic() + 300
        while name not in self.astra("status"):
            if time.monotonic() > deadline_s:
                raise MachineError(f"the coordinator does not adopt {name}: {self.nomad('job', 'status', name)}")
            time.sleep(2)

    def until_settled(self) -> None:
        """The nodes are ready with our driver, and the agents have their link."""
        self.machine.until("systemctl status --no-pager astra-coordinator | grep '2 machines linked'", timeout_s=900)
        deadline_s = time.monotonic() + 900
        while (found := self._drivers()) != dict.fromkeys(NAMES, True):
            if time.monotonic() > deadline_s:
                said = self.machine.run("journalctl -u nomad -u nomad-m2 --no-pager -n 40")
                raise MachineError(f"not every node is ready with our driver: {found}; {said}")
            time.sleep(2)

    def served(self, run: str) -> dict[str, Any]:
        """
        Its status, from a coordinator that may be on its way back: one that Nomad was away from for longer than its
        lock holds ends, and is started again.
        """
        deadline_s = time.monotonic() + 900
        while True:
            try:
                return self.status(run)
            except MachineError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(2)

    def _drivers(self) -> dict[str, bool]:
        """By node that is ready: whether our driver is healthy."""
        done = self.attempt_nomad("node", "status", "-json")
        nodes = json.loads(done.stdout or "[]") if done.returncode == 0 else []
        return {
            node["Name"]: node["Drivers"].get("astra", {}).get("Healthy", False)
            for node in nodes
            if node["Status"] == "ready"
        }

    def allocations(self, job: str) -> dict[str, str]:
        """Their states in Nomad, by ID."""
        return {one["ID"]: one["ClientStatus"] for one in json.loads(self.nomad("job", "allocs", "-json", job))}

    def containers(self) -> dict[str, tuple[Program, ...]]:
        """By container of whatever cgroup driver: its first process, and the program that this has started."""
        said = self.machine.run(
            "find /sys/fs/cgroup -path '*astraeus*' -name cgroup.procs | while read -r c; do "
            "for p in $(cat $c); do echo $c $(cat /proc/$p/stat); done; done 2>/dev/null"
        )
        return _programs([line.split() for line in said.splitlines()])


def _programs(lines: Sequence[Sequence[str]]) -> dict[str, tuple[Program, ...]]:
    """*lines*: a cgroup's file, then what /proc/PID/stat says."""
    found: dict[str, tuple[Program, ...]] = {}
    # Of one that has ended meanwhile nothing is said but its cgroup.
    whole = [words for words in lines if len(words) > _SINCE]
    inits = {words[1] for words in whole if words[2] in ("(astra-init)", "(.astra-init)")}
    for words in whole:
        if words[1] in inits or words[4] in inits:
            found[words[0]] = (*found.get(words[0], ()), Program(int(words[1]), int(words[_SINCE])))
    return found


def two_clients(machine: Machine, binary: Path) -> None:
    """Everything up and linked, no run."""
    machine.prepared("installed", installed)
    machine.send(binary.parent, "/usr/bin", [binary.name])
    machine.write("/lib/systemd/system/nomad.service", _UNIT)
    machine.run(f"modprobe fuse; {PATH} astra nomad install")
    install_agents(machine, NAMES)
    shipped = machine.run("cat /etc/nomad.d/astraeus.hcl")
    for number, name in enumerate(NAMES):
        own = "" if number == 0 else f"-{name}"
        text = (COMMON + _CLIENT).format(
            name=name, data=f"/opt/nomad/data{own}", acl="false",
            socket=f"/run/astraeus{own}/agent.sock", device=DEVICE,
            http=4646 + 10 * number, rpc=4647 + 10 * number, serf=4648 + 10 * number,
        )  # fmt: skip
        machine.write(f"/etc/nomad{own}.d/nomad.hcl", text + (_SERVER if number == 0 else ""))
        if own:
            machine.write(f"/etc/nomad{own}.d/astraeus.hcl", shipped)
            ours = _UNIT.replace("/etc/nomad.d", f"/etc/nomad{own}.d")
            machine.write(f"/lib/systemd/system/nomad{own}.service", ours)
    machine.run("sed -i '1i disconnect_limit_s = 3600' /etc/astraeus/coordinator.toml")
    machine.run(f"systemctl daemon-reload; systemctl enable {' '.join((*AGENTS, *NOMADS, 'astra-coordinator'))}")
    machine.run(f"systemctl start {' '.join(AGENTS)} nomad", timeout_s=1800)
    machine.run("systemctl start nomad-m2 astra-coordinator", timeout_s=1800)
    NomadUnits(machine, binary=binary).until_settled()


def run_gang(units: NomadUnits) -> None:
    """`g`, a gang of two that writes for ever."""
    units.submit_job("g", WRITES, CONFIG)
    units.until_phase("g", "Running")
    units.until_each_wrote(3)


def running_gang(machine: Machine, binary: Path) -> None:
    prepare(machine, binary)
    run_gang(NomadUnits(machine, binary=binary))


def prepare(machine: Machine, binary: Path) -> None:
    machine.prepared("nomad", lambda found: two_clients(found, binary), Path(__file__), binary)


def prepare_gang(machine: Machine, binary: Path) -> None:
    machine.prepared("nomad-gang", lambda found: running_gang(found, binary), Path(__file__), binary)
