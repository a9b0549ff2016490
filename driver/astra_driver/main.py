"""`astra-nomad-driver` and `astra-nomad-device`: what Nomad starts from its plugin folder."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Literal

from astra_driver import plugin_log, serving
from astra_driver.serving import Life, Plugin


def driver() -> int:
    return _run("driver")


def device() -> int:
    return _run("device")


def _run(kind: Literal["driver", "device"]) -> int:
    if not serving.has_cookie():
        return serving.refuse()
    plugin_log.set_up()

    def make(life: Life) -> Plugin:
        if kind == "device":
            from astra_driver.device_plugin import DevicePlugin

            return DevicePlugin(life)
        from astra_driver.task_plugin import TaskPlugin

        return TaskPlugin(life, Path("/proc/cpuinfo").read_text())

    asyncio.run(serving.serve(make))
    # Nothing is left to do, and Nomad waits two seconds for the end: no time for an orderly one.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(driver())
