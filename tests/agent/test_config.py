"""agent.toml: what is taken, and how what is wrong is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astra_agent.config import load, parse
from astra_agent.errors import InvalidRequest

LEAST = {"name": "gpu-1", "state_dir": "/var/lib/astraeus/agent", "address": "10.83.0.3"}
OWN = {"slot_network": "own", "own_network": {"bridge": "br0", "subnet": "10.83.3.0/24"}}


def test_the_least_is_three_fields() -> None:
    config = parse(LEAST)
    assert config.socket == Path("/var/lib/astraeus/agent/agent.sock")
    assert (config.coordinator, config.netns, config.slot_network, config.stuck_after_s) == ("", None, "host", 60.0)


def test_everything_arrives_in_its_type() -> None:
    config = parse(
        LEAST
        | OWN
        | {
            "drives": {"data": "/mnt/data"},
            "masked_paths": ["/opt/secret"],
            "netns": "/run/netns/m1",
            "log_max_bytes": 1000,
            "stuck_after_s": 5,
            "registry_mirrors": {"docker.io": ["https://mirror.lan"]},
            "plain_http_registries": ["registry.lan:5000"],
        }
    )
    assert config.drives == {"data": Path("/mnt/data")}
    assert config.masked_paths == (Path("/opt/secret"),)
    assert config.netns == Path("/run/netns/m1")
    assert config.registry_mirrors == {"docker.io": ("https://mirror.lan",)}
    assert config.own_network is not None and config.own_network.prefix_len == 24


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"colour": "red"}, "colour", "there is no field colour"),
        ({"name": "GPU 1"}, "name", "expected a DNS label"),
        ({"name": 1}, "name", "expected a string"),
        ({"address": "gpu-1.lan"}, "address", "expected an IP address"),
        ({"state_dir": "here"}, "state_dir", "expected an absolute path"),
        ({"drives": {"d": "mnt"}}, "drives", "expected an absolute path"),
        ({"drives": ["d"]}, "drives", "expected a table"),
        ({"coordinator": "10.0.0.1:7411"}, "coordinator", "expected a URL"),
        ({"slot_network": "bridge"}, "slot_network", 'expected "host" or "own"'),
        ({"cgroup_driver": "docker"}, "cgroup_driver", 'expected "cgroupfs" or "systemd"'),
        ({"cgroup_parent": "astraeus.slice"}, "cgroup_parent", 'an absolute path .*, as cgroup_driver is "cgroupfs"'),
        (
            {"cgroup_driver": "systemd", "cgroup_parent": "/astraeus"},
            "cgroup_parent",
            'a slice such as astraeus.slice, as cgroup_driver is "systemd"',
        ),
        ({"slot_network": "own"}, None, r"\[own_network\] with bridge and subnet is missing"),
        ({"own_network": {"bridge": "br0"}}, "own_network.subnet", "is missing"),
        (OWN | {"own_network": {"bridge": "b", "subnet": "10.0.0.0/33"}}, "own_network.subnet", "a network such as"),
        (
            OWN | {"own_network": {"bridge": "b", "subnet": "10.0.0.0/24", "prefix_len": 25}},
            "own_network.prefix_len",
            "from 1 to 24",
        ),
        ({"log_max_bytes": 0}, "log_max_bytes", "more than 0"),
        ({"log_max_bytes": 1.5}, "log_max_bytes", "a whole number"),
        ({"stuck_after_s": True}, "stuck_after_s", "a number"),
        ({"masked_paths": "/a"}, "masked_paths", "a list of strings"),
        ({"registry_mirrors": {"docker.io": "x"}}, "registry_mirrors.docker.io", "a list of strings"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], field: str | None, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        parse(LEAST | changes)
    assert caught.value.field == field


def test_a_missing_field_is_named() -> None:
    with pytest.raises(InvalidRequest, match="the field name is missing"):
        parse({"state_dir": "/s", "address": "10.0.0.1"})


def test_a_file_is_named_with_what_is_wrong_in_it(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    with pytest.raises(InvalidRequest, match=r"agent\.toml can't be read"):
        load(path)
    path.write_text("name = ")
    with pytest.raises(InvalidRequest, match=r"agent\.toml is no TOML"):
        load(path)
    path.write_text('name = "gpu-1"\nstate_dir = "/s"\naddress = "x"\n')
    with pytest.raises(InvalidRequest, match=r"agent\.toml: address is 'x'"):
        load(path)
