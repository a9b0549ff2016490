from __future__ import annotations

import json
from pathlib import Path

import pytest

from astra_agent.errors import InvalidRequest, Unavailable
from astra_cli.context import Flags, Target, dev_state, find


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "client.json").write_text(json.dumps({"api": "http://127.0.0.1:7412", "token": "t"}))
    return tmp_path


def test_flags_come_before_the_environment_and_that_before_the_dev_cluster(state: Path) -> None:
    environ = {"ASTRA_DEV_STATE": str(state)}
    assert find(Flags(), environ) == Target("http://127.0.0.1:7412", "t", "default", str(state / "client.json"))
    environ |= {"ASTRA_API": "http://b:1/", "ASTRA_TOKEN": "u", "ASTRA_WORKSPACE": "w"}
    assert find(Flags(), environ) == Target("http://b:1", "u", "w", "ASTRA_API")
    assert find(Flags("https://c", "v", "x"), environ) == Target("https://c", "v", "x", "--api")


def test_the_documentations_api_variable_may_be_given_whole(state: Path) -> None:
    target = find(Flags("http://b:1/v1/workspaces/nlp"), {})
    assert (target.api, target.workspace) == ("http://b:1", "nlp")
    assert target.workspace_url == "http://b:1/v1/workspaces/nlp"


def test_the_dev_clusters_token_goes_to_the_dev_cluster_only(state: Path) -> None:
    assert find(Flags("http://elsewhere:1"), {"ASTRA_DEV_STATE": str(state)}).token == ""


@pytest.mark.parametrize("address", ["localhost:7410", "ftp://a", "http://", "7410"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InvalidRequest, match="ASTRA_API"):
        find(Flags(), {"ASTRA_API": address})


def test_a_broken_client_file_is_said_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "client.json").write_text("{")
    with pytest.raises(Unavailable, match=r"client\.json can't be read"):
        find(Flags(), {"ASTRA_DEV_STATE": str(tmp_path)})


def test_the_state_folder_comes_from_the_flag_the_environment_or_is_the_default() -> None:
    assert dev_state({"ASTRA_DEV_STATE": "/a"}, "/b") == Path("/b")
    assert dev_state({"ASTRA_DEV_STATE": "/a"}) == Path("/a")
    assert dev_state({}) == Path("/var/lib/astraeus/dev")
