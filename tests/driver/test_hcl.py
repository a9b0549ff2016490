"""Schemas from models, and what real Nomads have made of configuration blocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import msgpack
import pytest
from pydantic import ConfigDict, Field
from pydantic.fields import FieldInfo

from astra_agent.errors import InvalidRequest
from astra_driver.hcl import Named, Settings, decode, hcl_name, kind_of, spec_of
from astra_driver.proto.hclspec_pb2 import Spec
from astra_driver.settings import PluginSettings, TaskSettings

FIXTURES = Path(__file__).parents[1] / "fixtures" / "nomad-plugin"


class Gang(Settings):
    size: int
    group: str = ""
    on_failure: str = "RestartJob"


class RecordedMount(Settings):
    source: str
    target: str
    readonly: bool = False
    options: tuple[str, ...] = ()


class Recorded(Settings):
    """What of the schema that was recorded with our models can say."""

    model_config = ConfigDict(extra="ignore")
    image: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    mounts: Annotated[tuple[RecordedMount, ...], Named("mount")] = ()
    privileged: bool = False
    shm_size: str = "64MiB"
    shm_num: float | None = None
    frac: float | None = None
    prepare: float | None = None
    cap_drop: tuple[str, ...] = ("ALL",)
    ulimit: dict[str, str] = Field(default_factory=dict)
    gang: Gang | None = None


def recorded(version: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads((FIXTURES / f"driver_config_msgpack.{version}.json").read_text())
    return [entry for entry in entries if "hex" in entry]


@pytest.mark.parametrize("version", ["1.6.5", "2.0.5"])
def test_every_recorded_block_is_decoded_to_what_the_job_file_said(version: str) -> None:
    for entry in recorded(version):
        found, wanted = decode(Recorded, bytes.fromhex(entry["hex"])), entry["decoded"]
        assert found.image == wanted["image"], entry["case"]
        assert found.args == tuple(wanted["args"] or ()), entry["case"]
        assert found.env == (wanted["env"] or {}), entry["case"]
        assert found.ulimit == (wanted["ulimit"] or {}), entry["case"]
        assert [mount.target for mount in found.mounts] == [mount["target"] for mount in wanted["mounts"]]
        assert found.frac == (None if wanted["frac"] is None else float(wanted["frac"])), entry["case"]
        assert (found.gang and found.gang.size) == (wanted["gang"] and wanted["gang"]["size"]), entry["case"]


@pytest.mark.parametrize("version", ["1.6.5", "2.0.5"])
def test_a_recorded_start_has_every_construct(version: str) -> None:
    document = json.loads((FIXTURES / f"start_task.{version}.gpu-batch.json").read_text())
    found = decode(Recorded, msgpack.packb(document["msgpack_driver_config"]["decoded"]))
    assert found.frac == 0.95
    assert found.ulimit == {"memlock": "-1:-1", "nofile": "1048576", "stack": "67108864"}
    assert [mount.readonly for mount in found.mounts] == [True, False]
    assert found.gang == Gang(size=1, group="workers")


@pytest.mark.parametrize(("sent", "got"), [(1, 1.0), (2.5, 2.5), ("0.1", 0.1), ("9223372036854775808", 2.0**63)])
def test_a_number_comes_in_three_forms(sent: Any, got: float) -> None:
    assert decode(Recorded, msgpack.packb({"image": "host", "frac": sent})).frac == got


def test_what_was_not_given_is_nil_and_takes_the_default() -> None:
    document = dict.fromkeys(TaskSettings.model_fields) | {"image": "host", "mounts": [], "tmpfs": [], "devices": []}
    assert decode(TaskSettings, msgpack.packb(document)) == TaskSettings(image="host")
    assert decode(PluginSettings, b"") == PluginSettings()


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "config: image: Field required"),
        ({"image": " "}, 'config: image is " ": expected "host", an image reference or oci-archive:/path.tar'),
        ({"image": "x", "shm_size": "3X"}, 'config: shm_size is "3X": expected a size such as 512MiB'),
        ({"image": "x", "mounts": [{"source": "/a", "target": "b"}]}, "config: mount.target is"),
        ({"image": "x", "ulimit": {"files": "1"}}, "config: ulimit is"),
        ({"image": "x", "ulimit": {"nofile": "9:3"}}, "the soft limit is above the hard one"),
        ({"image": "x", "devices": [{"host_path": "/d", "permissions": "x"}]}, "config: device.permissions is"),
        ({"image": "x", "color": 1}, "config: color: Extra inputs"),
    ],
)
def test_a_mistake_is_named_as_the_job_file_names_it(document: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(TaskSettings, msgpack.packb(document))
    assert str(caught.value).startswith(said) or said in str(caught.value)


def test_what_is_no_messagepack_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="can't be decoded"):
        decode(TaskSettings, b"\xc1")


def test_the_schema_says_names_types_and_defaults() -> None:
    attributes = spec_of(TaskSettings).object.attributes
    assert (attributes["image"].Attr.type, attributes["image"].Attr.required) == ("string", True)
    assert attributes["args"].Attr.type == "list(string)"
    assert attributes["mounts"].block_list.name == "mount"
    assert attributes["mounts"].block_list.nested.object.attributes["target"].Attr.required
    assert attributes["auth"].block_value.name == "auth"
    assert (attributes["ulimit"].block_attrs.name, attributes["ulimit"].block_attrs.type) == ("ulimit", "string")
    assert attributes["readonly_rootfs"].default.primary.Attr.name == "readonly_rootfs"
    assert attributes["readonly_rootfs"].default.default.literal.value == "false"
    socket = spec_of(PluginSettings).object.attributes["socket"].default
    assert socket.default.literal.value == '"/run/astraeus/agent.sock"'


def _specs(spec: Spec) -> list[Spec]:
    inner = [*spec.object.attributes.values()]
    for name in ("block_value", "block_list"):
        if spec.HasField(name):
            inner.append(getattr(spec, name).nested)
    return [spec, *(found for one in inner for found in _specs(one))]


def test_no_attribute_is_a_map_which_no_job_file_can_fill() -> None:
    for model in (TaskSettings, PluginSettings):
        for spec in _specs(spec_of(model)):
            assert "map(" not in spec.Attr.type


class Odd(Settings):
    numbers: tuple[int, ...] = ()


def test_a_field_that_no_job_file_could_fill_is_a_mistake_of_the_model() -> None:
    with pytest.raises(TypeError, match="numbers"):
        spec_of(Odd)


def test_kinds_are_said_in_words() -> None:
    fields: dict[str, FieldInfo] = TaskSettings.model_fields
    kinds = {hcl_name(name, field): kind_of(field) for name, field in fields.items()}
    assert kinds["image"] == "string" and kinds["mount"] == "blocks" and kinds["auth"] == "block"
    assert kinds["args"] == "list of strings" and kinds["ulimit"] == "block of strings"


def test_every_field_says_what_it_is() -> None:
    for model in (TaskSettings, PluginSettings):
        assert [name for name, field in model.model_fields.items() if not field.description] == []
