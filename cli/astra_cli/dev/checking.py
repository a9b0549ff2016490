"""Whether the daemons of a cluster would take its settings: asked of their own parsers, before anything is made."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

from astra_agent import config as agent_config
from astra_agent.errors import InvalidRequest
from astra_cli.dev import files
from astra_cli.dev.plan import API_PORT, SETTINGS, ClusterPlan, Layout
from astra_gang import config as coordinator_config

_ANYWHERE = Path("/")


def check(plan: ClusterPlan, layout: Layout) -> None:
    """Raises: InvalidRequest in the command line's words, with the value and what would be right."""
    if not math.isfinite(plan.disconnect_limit_s):
        raise InvalidRequest(
            f"--disconnect-limit must be a number of seconds, not {plan.disconnect_limit_s}", "--disconnect-limit"
        )
    try:
        coordinator_config.parse(tomllib.loads(files.coordinator_toml(plan, layout, API_PORT)))
        agent = files.agent_toml(plan.machines[0], plan, layout, _ANYWHERE, _ANYWHERE)
        agent_config.parse(tomllib.loads(agent))
    except InvalidRequest as error:
        option = _option(error.field or "")
        if not option:
            raise
        raise InvalidRequest(f"{option}{str(error).removeprefix(error.field or '')}", option.split()[0]) from error


def _option(field: str) -> str:
    """The words of the command line that a daemon's field stands for."""
    if field == "disconnect_limit_s":
        return "--disconnect-limit"
    name = field.removeprefix("policy.")
    return f"--set {name}" if name in SETTINGS else ""
