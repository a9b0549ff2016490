"""Networks of Nomad's making, ports, and services that Nomad itself keeps and checks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.eventually import eventually
from tests.levels import SBIN
from tests.nomad import cni
from tests.nomad.cluster import NomadCluster, events, made
from tests.nomad.jobs import job

pytestmark = pytest.mark.timeout(300)

needs_cni = pytest.mark.usefixtures("cni_works")

SUBNET = "10.77.0.0/24"
SERVES = """
mkdir -p /local/www
echo fine > /local/www/word
echo begun
exec python3 -m http.server {port} --directory /local/www
"""


@pytest.fixture(scope="module")
def no_cni() -> str | None:
    return cni.missing()


@pytest.fixture
def cni_works(no_cni: str | None) -> None:
    if no_cni is not None:
        pytest.skip(no_cni)


@pytest.fixture(scope="module")
def cluster(binary: Path, tmp_path_factory: pytest.TempPathFactory, no_cni: str | None) -> Iterator[NomadCluster]:
    folder = tmp_path_factory.mktemp("cni")
    more = ""
    if no_cni is None:
        (folder / "networks").mkdir()
        cni.own_network(folder / "networks", "own", SUBNET)
        more = f'cni_path = "{cni.with_versions(folder / "plugins")}"\ncni_config_dir = "{folder}/networks"'
    with pytest.MonkeyPatch.context() as environment, cni.nothing_left():
        environment.setenv("PATH", SBIN)  # where iptables is, whoever runs this
        with made(binary, client=more) as one:
            yield one


@pytest.fixture(autouse=True)
def _nothing_runs_on(cluster: NomadCluster) -> Iterator[None]:
    """Networks go while the client is there to take them down."""
    yield
    for found in [one for one in cluster.asked("/v1/jobs") if one["Status"] != "dead"]:
        cluster.nomad("job", "stop", "-detach", found["ID"])
        eventually(lambda name=found["ID"]: _is_over(cluster, name), f"{found['ID']} has ended")  # type: ignore[misc]


def _is_over(cluster: NomadCluster, name: str) -> bool:
    return all(a["ClientStatus"] in ("complete", "failed") for a in cluster.allocations(name))


def network(mode: str, *, to: int = 0, more: str = "") -> str:
    port = f'port "http" {{{f" to = {to} " if to else ""}}}'
    return f'network {{\nmode = "{mode}"\n{port}\n{more}\n}}\n'


def service(name: str, check: str) -> str:
    return f'service {{\nname = "{name}"\nport = "http"\nprovider = "nomad"\n{check}\n}}\n'


def check(kind: str, more: str = "") -> str:
    path = 'path = "/word"' if kind == "http" else ""
    return f'check {{\ntype = "{kind}"\n{path}\ninterval = "1s"\ntimeout = "1s"\n{more}\n}}\n'


def port_of(allocation: dict[str, Any]) -> dict[str, Any]:
    (found,) = allocation["AllocatedResources"]["Shared"]["Ports"]
    return dict(found)


def outside(allocation: dict[str, Any]) -> str:
    """Where its port is on the machine."""
    port = port_of(allocation)
    return f"{port['HostIP']}:{port['Value']}"


def checked(cluster: NomadCluster, allocation: dict[str, Any]) -> str:
    """How the one check of the allocation's service is; empty before it was first made."""
    found = cluster.asked(f"/v1/client/allocation/{allocation['ID']}/checks")
    return next((str(one["Status"]) for one in found.values()), "")


def until_served(cluster: NomadCluster, name: str) -> dict[str, Any]:
    """The job's allocation, once its port answers."""
    allocation = cluster.reaches(name, "running")
    eventually(lambda: cluster.fetch(f"{outside(allocation)}/word") == "fine\n", f"{name} answers on its port")
    return allocation


# The machine's own -------------------------------------------------------------------------------------------------


def test_a_dynamic_port_of_the_machine_is_told_and_its_service_is_checked(cluster: NomadCluster) -> None:
    script = SERVES.format(port="$NOMAD_PORT_http")
    group = network("host") + service("plain", check("http"))
    cluster.submit(job("plain", script, kind="service", group=group))
    allocation = until_served(cluster, "plain")
    eventually(lambda: checked(cluster, allocation) == "success", "Nomad's check of it succeeds")
    (registered,) = cluster.asked("/v1/service/plain")
    assert f"{registered['Address']}:{registered['Port']}" == outside(allocation)
    assert cluster.exec(allocation["ID"], "rm", "/local/www/word").code == 0
    eventually(lambda: checked(cluster, allocation) == "failure", "Nomad's check of it fails")


def test_a_service_that_is_found_ill_is_restarted_and_well_again(cluster: NomadCluster) -> None:
    again = 'check_restart {\nlimit = 2\ngrace = "2s"\n}'
    task = service("ill", check("http", again))
    script = SERVES.format(port="$NOMAD_PORT_http")
    restart = 'attempts = 5\ninterval = "10m"'
    cluster.submit(job("ill", script, kind="service", group=network("host"), task=task, restart=restart))
    allocation = until_served(cluster, "ill")
    assert cluster.exec(allocation["ID"], "rm", "/local/www/word").code == 0
    eventually(lambda: cluster.logs(allocation["ID"]).count("begun") >= 2, "it is started again")
    said = events(cluster.nomad_allocation(allocation["ID"]), "w")
    assert any("unhealthy" in event for event in said), said
    eventually(lambda: checked(cluster, allocation) == "success", "Nomad's check of it succeeds")


# Nomad's bridge ----------------------------------------------------------------------------------------------------


@needs_cni
def test_a_port_of_a_bridge_network_is_mapped_and_its_service_is_checked(cluster: NomadCluster) -> None:
    script = "echo ports $NOMAD_PORT_http $NOMAD_HOST_PORT_http\n" + SERVES.format(port=8080)
    group = network("bridge", to=8080) + service("bridged", check("tcp"))
    cluster.submit(job("bridged", script, kind="service", group=group))
    allocation = until_served(cluster, "bridged")
    said = f"ports 8080 {port_of(allocation)['Value']}\n"
    eventually(lambda: said in cluster.logs(allocation["ID"]), "it says its ports")
    eventually(lambda: checked(cluster, allocation) == "success", "Nomad's check of it succeeds")


@needs_cni
def test_a_bridge_network_is_a_world_of_its_own_with_its_address_under_its_name(cluster: NomadCluster) -> None:
    dns = 'dns {\nservers = ["192.0.2.53"]\nsearches = ["corp.example"]\n}'
    script = f"""
hostname -I
getent ahostsv4 $(hostname)
cat /etc/resolv.conf
curl -sS -m 3 http://127.0.0.1:{cluster.http}/v1/status/leader || echo Nomad is not here
sleep 300
"""
    cluster.submit(job("apart", script, kind="service", group=network("bridge", to=8080, more=dns)))
    allocation = cluster.reaches("apart", "running")
    eventually(lambda: "Nomad is not here" in cluster.logs(allocation["ID"]), "it has looked")
    address = cluster.nomad_allocation(allocation["ID"])["NetworkStatus"]["Address"]
    addresses, name, *rest = cluster.logs(allocation["ID"]).splitlines()
    assert addresses.split() == [address]
    assert name.split()[0] == address
    assert "nameserver 192.0.2.53" in rest
    assert "search corp.example" in rest


@needs_cni
def test_tasks_of_a_group_share_its_network(cluster: NomadCluster) -> None:
    server = f"""
    task "server" {{
      driver = "astra"
      lifecycle {{
        hook = "prestart"
        sidecar = true
      }}
      config {{
        image = "host"
        command = "sh"
        args = ["-c", <<EOT
{SERVES.format(port=8080)}
EOT
        ]
      }}
      resources {{
        cpu = 100
        memory = 128
      }}
    }}
    """
    script = "until curl -sS -f -m 3 http://127.0.0.1:8080/word; do sleep 0.2; done"
    cluster.submit(job("shared", script, group=network("bridge", to=8080) + server))
    allocation = cluster.reaches("shared", "complete")
    assert cluster.logs(allocation["ID"]) == "fine\n"


@needs_cni
def test_a_bridge_network_outlives_a_stop_of_the_client_and_a_restart_of_the_task(cluster: NomadCluster) -> None:
    """A stop, no kill: Nomad writes down what it knows of a network when it ends, and once a minute."""
    cluster.submit(job("kept", SERVES.format(port=8080), kind="service", group=network("bridge", to=8080)))
    allocation = until_served(cluster, "kept")
    client = cluster.clients[0]
    client.end_client()
    assert cluster.fetch(f"{outside(allocation)}/word") == "fine\n"
    client.start_client()
    restart = ("alloc", "restart", allocation["ID"])
    eventually(lambda: cluster.run(*restart).code == 0, "the servers have a path to the client again")
    eventually(lambda: cluster.logs(allocation["ID"]).count("begun") >= 2, "it has begun again")
    assert until_served(cluster, "kept")["ID"] == allocation["ID"]


@needs_cni
def test_a_bridge_network_is_gone_with_its_allocation(cluster: NomadCluster) -> None:
    cluster.submit(job("brief", "sleep 300", kind="service", group=network("bridge", to=8080)))
    allocation = cluster.reaches("brief", "running")["ID"]
    netns = Path("/run/netns", allocation)
    assert netns.exists()
    cluster.nomad("job", "stop", "-detach", "brief")
    cluster.reaches("brief", "complete")
    client = cluster.clients[0]
    busy = f"failed to unmount NS: at /var/run/netns/{allocation}: device or resource busy"
    # 1.6.5 may have it open itself, until its garbage is collected, and does not try again.
    eventually(lambda: not netns.exists() or busy in client.log.read_text(), "its network namespace is gone")
    assert set(users(netns)) <= {client.pid}


def users(path: Path) -> Iterator[int]:
    """IDs of processes that have the file open, or are in the network namespace that it is; none once it is gone."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if any(link.exists() and link.samefile(path) for link in (*(entry / "fd").iterdir(), entry / "ns" / "net")):
                yield int(entry.name)


# A network of the operator's ---------------------------------------------------------------------------------------


@needs_cni
def test_a_cni_network_of_the_operators_is_joined(cluster: NomadCluster) -> None:
    script = "hostname -I; getent ahostsv4 $(hostname); sleep 300"
    cluster.submit(job("joined", script, kind="service", group='network {\nmode = "cni/own"\n}'))
    allocation = cluster.reaches("joined", "running")
    eventually(lambda: "\n" in cluster.logs(allocation["ID"]).strip(), "it has looked")
    address = cluster.nomad_allocation(allocation["ID"])["NetworkStatus"]["Address"]
    assert address.startswith("10.77.0.")
    addresses, name, *_ = cluster.logs(allocation["ID"]).splitlines()
    assert addresses.split() == [address]
    assert name.split()[0] == address
