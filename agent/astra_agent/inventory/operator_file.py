"""The operator's file on the machine, `/etc/astraeus/machine.toml`: what stands above what was found."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping

from astra_agent.inventory.model import Overrides
from astra_agent.inventory.tree import AbsentError, Reader, UnreadableError

PATH = "/etc/astraeus/machine.toml"

_SHAPE: dict[str, tuple[str, ...]] = {
    "fabric": ("name",),
    "ports": ("use", "leave"),
    "gbps": (),
    "env": (),
    "imex": ("exclusive_channels",),
    "nccl": ("topology",),
}
_FREE = ("gbps", "env")
_DOMAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,127}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class OperatorFileError(Exception):
    """The message names the field, its value and what would be right."""


def read_overrides(reader: Reader) -> Overrides:
    """Nothing stands above what was found where there is no such file, or it is wrong; the latter with a finding."""
    try:
        return parse(reader.root.read(PATH).decode())
    except AbsentError:
        return Overrides()
    except (UnreadableError, UnicodeDecodeError) as error:
        reader.found("fault", PATH, f"the operator's file can't be read ({error}): it is taken as not there")
    except OperatorFileError as error:
        reader.found("fault", PATH, f"the operator's file is not used: {error}")
    return Overrides()


def parse(text: str) -> Overrides:
    """Raises: OperatorFileError."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise OperatorFileError(f"it is no TOML: {error}") from error
    tables = {name: _table(document, name) for name in _SHAPE}
    if unknown := sorted(set(document) - set(_SHAPE)):
        raise OperatorFileError(f"[{unknown[0]}] is not known; it may have {', '.join(f'[{name}]' for name in _SHAPE)}")
    fabric = tables["fabric"].get("name")
    if fabric is not None and not (isinstance(fabric, str) and _DOMAIN.fullmatch(fabric)):
        raise OperatorFileError(f'fabric.name is {fabric!r}; it should be a word such as "ib-hall-2"')
    exclusive = tables["imex"].get("exclusive_channels", False)
    if not isinstance(exclusive, bool):
        raise OperatorFileError(f"imex.exclusive_channels is {exclusive!r}; it should be true or false")
    topology = tables["nccl"].get("topology")
    if topology is not None and not (isinstance(topology, str) and topology.startswith("/")):
        raise OperatorFileError(f'nccl.topology is {topology!r}; it should be a path such as "/opt/nccl/topology.xml"')
    return Overrides(
        fabric=fabric,
        use=_ports(tables["ports"], "use"),
        leave=_ports(tables["ports"], "leave"),
        gbps=_rates(tables["gbps"]),
        env=_variables(tables["env"]),
        exclusive_channels=exclusive,
        nccl_topology=topology,
    )


def _table(document: Mapping[str, object], name: str) -> dict[str, object]:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise OperatorFileError(f"{name} is {table!r}; it should be a table, [{name}]")
    if name not in _FREE and (unknown := sorted(set(table) - set(_SHAPE[name]))):
        raise OperatorFileError(f"{name}.{unknown[0]} is not known; [{name}] may have {', '.join(_SHAPE[name])}")
    return table


def _ports(table: Mapping[str, object], name: str) -> tuple[str, ...]:
    value = table.get(name, [])
    if not isinstance(value, list) or not all(isinstance(port, str) and port for port in value):
        raise OperatorFileError(f'ports.{name} is {value!r}; it should be a list such as ["mlx5_0", "mlx5_3:1"]')
    return tuple(value)


def _rates(table: Mapping[str, object]) -> tuple[tuple[str, float], ...]:
    for name, value in table.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1_000_000:
            raise OperatorFileError(f"gbps.{name} is {value!r}; it should be a number of Gbit/s such as 800")
    return tuple((name, float(str(value))) for name, value in sorted(table.items()))


def _variables(table: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    for name, value in table.items():
        if not _VARIABLE.fullmatch(name) or not isinstance(value, str):
            raise OperatorFileError(f'env.{name} is {value!r}; it should be a text, such as NCCL_IB_TC = "106"')
    return tuple((name, str(value)) for name, value in sorted(table.items()))
