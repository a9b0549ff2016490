"""What `astra … install` puts where, what it never touches, and what a removal leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from astra_agent import config as agent_config
from astra_cli.install.sources import text
from astra_cli.main import invoke
from astra_gang import config as gang_config

Capture = pytest.CaptureFixture[str]


class Installer:
    """`astra WORDS --root … --json`, in this process."""

    def __init__(self, root: Path, capture: Capture) -> None:
        self.root = root
        self._capture = capture

    def __call__(self, *words: str, status: int = 0) -> dict[str, Any]:
        self._capture.readouterr()
        assert invoke([*words, "--root", str(self.root), "--json"]) == status
        said = self._capture.readouterr()
        document: dict[str, Any] = json.loads(said.out) if status == 0 else {"error": said.err}
        return document

    def actions(self, *words: str) -> dict[str, str]:
        return {step["path"]: step["action"] for step in self(*words)["steps"]}

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def files(self) -> dict[str, str]:
        """What is below the root: paths with their content or target."""
        return {
            str(path.relative_to(self.root)): str(path.readlink()) if path.is_symlink() else path.read_text()
            for path in sorted(self.root.rglob("*"))
            if path.is_symlink() or path.is_file()
        }


@pytest.fixture
def astra(tmp_path: Path, capsys: Capture) -> Installer:
    return Installer(tmp_path, capsys)


AGENT = ("agent", "install", "--name", "gpu-7", "--address", "10.0.0.7", "--bin", "/opt/astraeus/bin")
NOMAD = ("nomad", "install", "--bin", "/opt/astraeus/bin")
COORDINATOR = ("coordinator", "install", "--bin", "/opt/astraeus/bin")
ALL = (AGENT, NOMAD, COORDINATOR)
UNIT = "/etc/systemd/system/astra-agent.service"
SETTINGS = "/etc/astraeus/agent.toml"


def test_an_agent_gets_its_unit_and_settings_that_it_can_read(astra: Installer) -> None:
    assert astra.actions(*AGENT, "--coordinator", "http://10.0.0.1:7411") == {SETTINGS: "written", UNIT: "written"}
    read = agent_config.load(astra.at(SETTINGS))
    assert (read.name, read.address, read.coordinator) == ("gpu-7", "10.0.0.7", "http://10.0.0.1:7411")
    assert read.token_file == Path("/etc/astraeus/agent.token")


def test_without_a_coordinator_the_agent_looks_for_no_token(astra: Installer) -> None:
    notes = astra(*AGENT)["notes"]
    assert notes == ["no --coordinator was given: plain jobs of Nomad run, nobody starts gangs here"]
    assert agent_config.load(astra.at(SETTINGS)).token_file is None


def test_units_start_the_programs_where_they_are(astra: Installer, tmp_path: Path) -> None:
    astra("agent", "install", "--name", "a", "--address", "10.0.0.7", "--bin", "/srv/astra/bin")
    assert "ExecStart=/srv/astra/bin/astra-agent --config /etc/astraeus/agent.toml\n" in astra.at(UNIT).read_text()


def test_the_coordinator_gets_tokens_that_only_root_reads(astra: Installer) -> None:
    astra(*COORDINATOR)
    tokens = [astra.at(f"/etc/astraeus/{who}.token") for who in ("operator", "agent")]
    assert [token.stat().st_mode & 0o777 for token in tokens] == [0o600, 0o600]
    assert len({token.read_text() for token in tokens}) == 2
    assert gang_config.load(astra.at("/etc/astraeus/coordinator.toml")).engine is not None


def test_the_coordinator_finds_its_tokens_where_its_unit_puts_them() -> None:
    unit, settings = text("systemd/astra-coordinator.service"), text("coordinator.toml")
    for who in ("operator", "agent"):
        assert f"LoadCredential={who}.token:/etc/astraeus/{who}.token\n" in unit
        assert f'"/run/credentials/astra-coordinator.service/{who}.token"' in settings


def test_nomad_gets_links_configuration_and_policies(astra: Installer) -> None:
    assert set(astra.actions(*NOMAD).values()) == {"written"}
    found = astra.files()
    assert found["opt/nomad/plugins/astra-nomad-driver"] == "/opt/astraeus/bin/astra-nomad-driver"
    assert found["opt/nomad/plugins/astra-nomad-device"] == "/opt/astraeus/bin/astra-nomad-device"
    assert 'plugin_dir = "/opt/nomad/plugins"' in found["etc/nomad.d/astraeus.hcl"]
    for name in ("coordinator", "user", "operator"):
        assert found[f"etc/astraeus/nomad/{name}-policy.hcl"] == text(f"nomad/{name}-policy.hcl")


def test_a_plugin_folder_of_the_client_is_used_and_not_said_twice(astra: Installer) -> None:
    astra.at("/etc/nomad.d").mkdir(parents=True)
    astra.at("/etc/nomad.d/nomad.hcl").write_text('data_dir = "/opt/nomad"\nplugin_dir = "/srv/plugins"\n')
    assert "/srv/plugins/astra-nomad-driver" in astra.actions(*NOMAD)
    configuration = astra.at("/etc/nomad.d/astraeus.hcl").read_text()
    assert '# plugin_dir = "/srv/plugins" is in /etc/nomad.d/nomad.hcl.\n' in configuration
    assert "\nplugin_dir" not in configuration


def test_another_plugin_folder_than_the_clients_is_refused(astra: Installer) -> None:
    astra.at("/etc/nomad.d").mkdir(parents=True)
    astra.at("/etc/nomad.d/nomad.json").write_text('{"plugin_dir": "/srv/plugins"}')
    assert astra(*NOMAD, "--plugin-dir", "/elsewhere", status=2)["error"] == (
        "astra: plugin-dir is /elsewhere, and /etc/nomad.d/nomad.json says /srv/plugins: Nomad reads one folder, "
        "so leave it out, or change that file\n"
    )


def test_nvidias_own_plugin_is_named(astra: Installer) -> None:
    astra.at("/etc/nomad.d").mkdir(parents=True)
    astra.at("/etc/nomad.d/gpu.hcl").write_text('plugin "nomad-device-nvidia" {\n}\n')
    assert "nomad-device-nvidia" in " ".join(astra(*NOMAD)["notes"])
    assert astra(*NOMAD, "--no-device")["notes"] == []


def test_without_the_device_plugin_nothing_of_it_is_put_there(astra: Installer) -> None:
    astra(*NOMAD, "--no-device")
    assert not astra.at("/opt/nomad/plugins/astra-nomad-device").is_symlink()
    assert "astra-nomad-device" not in astra.at("/etc/nomad.d/astraeus.hcl").read_text()


@pytest.mark.parametrize("words", ALL, ids=lambda words: words[0])
def test_a_second_time_changes_nothing(astra: Installer, words: tuple[str, ...]) -> None:
    astra(*words)
    before = astra.files()
    assert set(astra.actions(*words).values()) <= {"unchanged", "kept"}
    assert astra.files() == before


@pytest.mark.parametrize("words", ALL, ids=lambda words: words[0])
def test_a_dry_run_says_the_same_and_does_nothing(astra: Installer, words: tuple[str, ...]) -> None:
    would = astra.actions(*words, "--dry-run")
    assert astra.files() == {}
    assert astra.actions(*words) == would


@pytest.mark.parametrize("words", ALL, ids=lambda words: words[0])
def test_a_removal_leaves_nothing_of_ours(astra: Installer, words: tuple[str, ...]) -> None:
    astra(*words)
    assert set(astra.actions(words[0], "uninstall", "--dry-run").values()) == {"removed"}
    assert astra.files() != {}
    assert set(astra.actions(words[0], "uninstall").values()) == {"removed"}
    assert astra.files() == {}
    assert not astra.at("/etc/astraeus").exists()
    assert astra(words[0], "uninstall")["notes"] == [
        f"there is no record of an `astra {words[0]} install` here: nothing was taken away"
    ]


def test_settings_of_the_operator_stay_and_are_told_with_what_differs(astra: Installer) -> None:
    astra(*AGENT)
    mine = astra.at(SETTINGS).read_text() + "log_max_bytes = 1000000\n"
    astra.at(SETTINGS).write_text(mine)
    step = astra("agent", "install", "--bin", "/opt/astraeus/bin")["steps"][0]
    assert (step["action"], step["sentence"]) == (
        "kept",
        "the settings of this machine; this version would write others",
    )
    assert step["difference"].splitlines()[-1] == "+log_max_bytes = 1000000"
    assert astra.at(SETTINGS).read_text() == mine
    assert astra.actions("agent", "uninstall") == {SETTINGS: "kept", UNIT: "removed"}
    assert astra.at(SETTINGS).read_text() == mine


def test_what_was_given_once_need_not_be_given_again(astra: Installer) -> None:
    astra(*AGENT, "--coordinator", "http://10.0.0.1:7411")
    assert set(astra.actions("agent", "install", "--bin", "/opt/astraeus/bin").values()) == {"unchanged"}


def test_an_older_unit_of_ours_is_updated_and_a_changed_one_is_not(astra: Installer) -> None:
    astra(*AGENT)
    elsewhere = (*AGENT[:-1], "/srv/astra-2/bin")
    assert astra.actions(*elsewhere)[UNIT] == "updated"
    assert "/srv/astra-2/bin/" in astra.at(UNIT).read_text()
    astra.at(UNIT).write_text("[Service]\nExecStart=/mine\n")
    assert astra.actions(*AGENT)[UNIT] == "kept"
    assert astra.at(UNIT).read_text() == "[Service]\nExecStart=/mine\n"


def test_a_token_is_never_shown_nor_replaced(astra: Installer) -> None:
    astra.at("/etc/astraeus").mkdir(parents=True)
    astra.at("/etc/astraeus/agent.token").write_text("mine\n")
    document = astra(*COORDINATOR)
    assert "mine" not in json.dumps(document)
    assert astra.at("/etc/astraeus/agent.token").read_text() == "mine\n"
    astra("coordinator", "uninstall")
    assert astra.files() == {"etc/astraeus/agent.token": "mine\n"}


def test_a_program_that_is_in_the_way_of_a_link_stays(astra: Installer) -> None:
    astra.at("/opt/nomad/plugins").mkdir(parents=True)
    astra.at("/opt/nomad/plugins/astra-nomad-driver").write_text("another's")
    steps = astra(*NOMAD)["steps"]
    assert (steps[0]["action"], steps[0]["sentence"]) == (
        "kept",
        "it is no link to /opt/astraeus/bin/astra-nomad-driver; remove it if it is not needed",
    )
    assert astra.at("/opt/nomad/plugins/astra-nomad-driver").read_text() == "another's"


def test_a_folder_in_the_way_is_told(astra: Installer) -> None:
    astra.at(UNIT).mkdir(parents=True)
    steps = astra(*AGENT)["steps"]
    assert (steps[1]["action"], steps[1]["sentence"]) == ("kept", "there is a folder of that name")


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (
            ("agent", "install", "--name", "GPU 1", "--address", "10.0.0.7", "--bin", "/b"),
            2,
            "astra: name is 'GPU 1'; expected a DNS label such as gpu-1\n",
        ),
        (
            ("agent", "install", "--name", "a", "--address", "here", "--bin", "/b"),
            2,
            "astra: address is 'here'; expected an IP address\n",
        ),
        (
            ("agent", "install", "--name", 'a"b', "--address", "10.0.0.7", "--bin", "/b"),
            2,
            "astra: name is 'a\"b': it must have no quote, backslash or line break\n",
        ),
        (
            ("nomad", "install", "--bin", "bin"),
            2,
            "astra: bin is 'bin': it must be an absolute path, such as /opt/astraeus/bin\n",
        ),
        (
            ("nomad", "install", "--bin", "/b", "--plugin-dir", "plugins"),
            2,
            "astra: plugin-dir is 'plugins': it must be an absolute path\n",
        ),
    ],
    ids=lambda value: " ".join(value[2:4]) if isinstance(value, tuple) else "",
)
def test_bad_input_is_one_sentence(astra: Installer, words: tuple[str, ...], status: int, sentence: str) -> None:
    assert astra(*words, status=status)["error"] == sentence


def test_a_root_that_is_not_there_is_one_sentence(capsys: Capture, tmp_path: Path) -> None:
    assert invoke([*AGENT, "--root", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err == f"astra: root is '{tmp_path}/none': it must be a folder that is there\n"


def test_a_file_where_a_folder_has_to_be_is_one_sentence(astra: Installer) -> None:
    astra.at("/etc").write_text("")
    sentence = "astra: /etc/astraeus/agent.toml can't be put in place or taken away (Not a directory): "
    assert astra(*AGENT, status=8)["error"] == f"{sentence}run it as root, or give --root\n"


def test_a_person_reads_what_was_done_and_what_is_left(astra: Installer, capsys: Capture) -> None:
    assert invoke([*AGENT, "--root", str(astra.root)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "written    /etc/astraeus/agent.toml",
        "written    /etc/systemd/system/astra-agent.service",
        "note       no --coordinator was given: plain jobs of Nomad run, nobody starts gangs here",
        "then 1.    systemctl daemon-reload",
        "then 2.    systemctl enable --now astra-agent",
    ]
