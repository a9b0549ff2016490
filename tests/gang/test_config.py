"""The coordinator's configuration: what is read, and the sentence for what is wrong."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from astra_agent.errors import InvalidRequest, Unauthorized
from astra_gang.config import Address, NomadConfig, load, parse
from astra_gang.tokens import Token, read_token

LEAST = {"state_dir": "/s", "operator_token_file": "/o", "agent_token_file": "/a"}


def test_three_paths_are_enough() -> None:
    config = parse(LEAST)
    assert config.listen == (Address("127.0.0.1", 7410),)
    assert (config.workspaces, config.drives, config.agents) == (("default",), (), None)


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.toml"
    path.write_text(
        """
        state_dir = "/s"
        operator_token_file = "/o"
        agent_token_file = "/a"
        listen = ["127.0.0.1:7410", "[::1]:7410"]
        drives = ["datasets"]
        workspaces = ["default", "research"]
        disconnect_limit_s = 20

        [[listen_netns]]
        netns = "/run/netns/m1"
        address = "10.83.0.1:7411"

        [agents]
        m1 = "/run/m1.sock"

        [policy]
        backoff_first_s = 0.5
        budget = 3
        """
    )
    config = load(path)
    assert config.listen == (
        Address("127.0.0.1", 7410),
        Address("::1", 7410),
        Address("10.83.0.1", 7411, "/run/netns/m1"),
    )
    assert config.agents == {"m1": Path("/run/m1.sock")}
    assert (config.policy.backoff_first_s, config.policy.budget, config.policy.backoff_max_s) == (0.5, 3, 300.0)
    assert config.disconnect_limit_s == 20.0
    assert config.policy.silence_s > config.disconnect_limit_s + config.lost_margin_s


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"state_dir": None}, "state_dir is missing: it is the path of a folder"),
        ({"agent_token_file": None}, "agent_token_file is missing: it is the path of a file"),
        ({"state_dir": "relative"}, "state_dir is 'relative': it must be an absolute path"),
        ({"lisen": []}, "lisen is no setting; there are agent_token_file, "),
        ({"listen": "127.0.0.1:7410"}, "listen is '127.0.0.1:7410': it must be a list"),
        ({"listen": ["localhost"]}, "listen[0] is 'localhost': it must be host:port, such as 127.0.0.1:7410"),
        ({"listen": ["127.0.0.1:99999"]}, "listen[0] is '127.0.0.1:99999'"),
        ({"listen": []}, "listen is empty"),
        ({"listen_netns": [{"netns": "/n"}]}, "listen_netns[0] must have exactly netns and address"),
        ({"drives": ["a", 3]}, "drives[1] is 3: it must be a name"),
        ({"agents": ["m1"]}, "agents is ['m1']: it must be a table of machine = path"),
        ({"agents": {"m1": "sock"}}, "agents.m1 is 'sock': it must be an absolute path"),
        ({"disconnect_limit_s": 0}, "disconnect_limit_s is 0: it must be a number from 1"),
        ({"disconnect_limit_s": True}, "disconnect_limit_s is True"),
        ({"runs_kept": -1}, "runs_kept is -1: it must be a whole number from 0"),
        ({"policy": 3}, "policy is 3: it must be a table"),
        ({"policy": {"start": "Gang"}}, "policy.start is no setting; there are stop_grace_s"),
        ({"policy": {"preflight": True}}, "policy.preflight is no setting; there are stop_grace_s"),
        ({"policy": {"prove_s": 2}}, "policy.prove_s is 2: it must be a number from 5"),
        ({"policy": {"budget": 1.5}}, "policy.budget is 1.5: it must be a whole number"),
        ({"policy": {"silence_s": 315}}, "policy.silence_s is 315: it must be more than disconnect_limit_s and"),
        ({"policy": {"backoff_first_s": "10s"}}, "policy.backoff_first_s is '10s': it must be a number from 0"),
        ({"policy": {"backoff_first_s": float("nan")}}, "policy.backoff_first_s is nan"),
    ],
)
def test_what_is_wrong_is_named_with_what_would_be_right(change: dict[str, Any], sentence: str) -> None:
    table = {name: value for name, value in {**LEAST, **change}.items() if value is not None}
    with pytest.raises(InvalidRequest) as refused:
        parse(table)
    assert str(refused.value).startswith(sentence)


def test_a_file_that_is_not_there_or_no_toml_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="can't be read"):
        load(tmp_path / "nothing")
    (tmp_path / "bad").write_text("state_dir = ")
    with pytest.raises(InvalidRequest, match="is no TOML"):
        load(tmp_path / "bad")


def test_the_readmes_example_is_a_configuration() -> None:
    readme = (Path(__file__).parents[2] / "gang" / "README.md").read_text()
    example = readme.partition("```toml\n")[2].partition("```")[0]
    assert parse(tomllib.loads(example)).drives


# Tokens --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, "", "secret", "Bearer", "Bearer ", "Bearer other", "Basic secret", "Bearer é"])
def test_only_the_right_token_passes(given: str | None) -> None:
    token = Token("operator", "secret")
    token.check("Bearer secret")
    token.check("bearer secret")
    with pytest.raises(Unauthorized, match="operator token"):
        token.check(given)


@pytest.mark.parametrize("content", ["", "short", "two words of some length", "\n\n"])
def test_a_token_file_holds_one_long_word(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content)
    with pytest.raises(InvalidRequest, match=r"operator_token_file .* must hold one word of 16 or more characters"):
        read_token("operator", tmp_path / "token", "operator_token_file")


def test_a_token_file_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"agent_token_file .* can't be read"):
        read_token("agent", tmp_path / "token", "agent_token_file")


# Nomad ---------------------------------------------------------------------------------------------------------------

TOKENS = {"operator_token_file": "/o", "agent_token_file": "/a"}


def test_on_nomad_no_state_dir_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.toml"
    path.write_text(
        """
        operator_token_file = "/o"
        agent_token_file = "/a"
        workspaces = ["default", "team-a"]

        [engine]
        kind = "nomad"
        address = "https://nomad.example:4646/"
        token_file = "/secrets/nomad_token"
        namespace = "astra"
        node_pool = "gpu"
        ca_file = "/etc/nomad/ca.pem"
        """
    )
    config = load(path)
    assert config.state_dir is None
    assert config.engine == NomadConfig(
        address="https://nomad.example:4646",
        token_file=Path("/secrets/nomad_token"),
        namespace="astra",
        node_pool="gpu",
        ca_file=Path("/etc/nomad/ca.pem"),
    )


def test_without_an_engine_it_is_the_embedded_one() -> None:
    assert parse(LEAST).engine is None
    assert parse({**LEAST, "engine": {"kind": "embedded"}}).engine is None


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"engine": "nomad"}, "engine is 'nomad': it must be a table"),
        ({"engine": {"kind": "slurm"}}, "engine.kind is 'slurm': it must be embedded or nomad"),
        ({"engine": {"kind": "embedded", "address": "x"}}, "engine.address is no setting; an embedded engine has none"),
        ({"engine": {"kind": "nomad", "adress": "x"}}, "engine.adress is no setting; there are kind, address, "),
        ({"engine": {"kind": "nomad", "address": "nomad:4646"}}, "engine.address is 'nomad:4646': it must be http"),
        ({"engine": {"kind": "nomad", "token_file": "t"}}, "engine.token_file is 't': it must be an absolute path"),
        ({"engine": {"kind": "nomad", "prefix": "a/b"}}, "engine.prefix is 'a/b': it must be 1 to 32 letters"),
        ({"engine": {"kind": "nomad", "priority": 0}}, "engine.priority is 0: it must be a whole number from 1"),
        ({"engine": {"kind": "nomad", "cert_file": "/c"}}, "engine: cert_file and key_file belong together"),
        ({"engine": {"kind": "nomad"}, "state_dir": "/s"}, "state_dir has no use with .engine. kind = .nomad."),
        ({"engine": {"kind": "nomad"}, "agents": {"m": "/m"}}, "agents has no use with .engine. kind = .nomad."),
        ({"engine": {"kind": "nomad"}, "workspaces": ["a_b"]}, "workspaces.0. is 'a_b': on Nomad it is a namespace"),
        ({}, "state_dir is missing"),
    ],
)
def test_what_is_wrong_with_an_engine_is_named(table: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        parse({**TOKENS, **table})
