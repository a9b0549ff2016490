"""`astra-agent --config agent.toml`: wires the agent to containerd and runs it until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from astra_agent import init
from astra_agent.config import AgentConfig, load
from astra_agent.containerd.client import Client
from astra_agent.containerd.containers import ContainerdContainers
from astra_agent.containerd.host_image import HostImage
from astra_agent.containerd.images import ContainerdImages
from astra_agent.containerd.registry_hosts import RegistryConfig
from astra_agent.daemon import serve
from astra_agent.errors import AstraError, first_of, handling
from astra_agent.runtime import Containers, Images
from astra_agent.service_manager import ServiceManager, told

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    _log_to_stderr(options.log_level)
    try:
        with told() as manager:
            asyncio.run(_run(load(options.config), manager))
    except (AstraError, BaseExceptionGroup) as error:
        cause = first_of(error)
        if not isinstance(cause, AstraError):
            raise
        print(f"astra-agent: {cause}", file=sys.stderr)
        return handling(cause).exit
    return 0


def _log_to_stderr(level: str) -> None:
    """One line for each event, `key=value`, in UTC: the same form as the coordinator's."""
    handler = logging.StreamHandler(sys.stderr)
    form = logging.Formatter(
        "time=%(asctime)s.%(msecs)03dZ level=%(levelname)s part=%(name)s %(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    form.converter = time.gmtime
    handler.setFormatter(form)
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="astra-agent", description="The daemon of one machine: its slots.")
    parser.add_argument("--config", type=Path, required=True, help="TOML; every field is in agent/README.md")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    return parser.parse_args(arguments)


async def _run(config: AgentConfig, manager: ServiceManager) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with adapters(config) as (containers, images):
        await serve(config, containers, images, stop, manager)


@contextlib.asynccontextmanager
async def adapters(config: AgentConfig) -> AsyncIterator[tuple[Containers, Images]]:
    """The ports on this machine's containerd, which need not be there yet. Raises: HostFault."""
    init_path = config.init_path if config.init_path is not None else await asyncio.to_thread(init.program)
    logger_path = config.logger_path if config.logger_path is not None else await asyncio.to_thread(init.logger)
    host = HostImage(config.state_dir, masked_paths=_masked(config))
    async with Client(config.containerd_socket, config.containerd_namespace) as client:
        containers = ContainerdContainers(
            client,
            state_dir=config.state_dir,
            cgroup_driver=config.cgroup_driver,
            cgroup_parent=config.cgroup_parent,
            init_path=init_path,
            logger_path=logger_path,
            host_image=host,
            runc_root=config.runc_root,
        )
        images = ContainerdImages(
            client, state_dir=config.state_dir, host=host, registry=_registry(config), image_dirs=config.image_dirs
        )
        try:
            yield containers, images
        finally:
            await containers.close()


def _masked(config: AgentConfig) -> tuple[Path, ...]:
    """What containers of the image `host` must not see of ours: doors and tokens."""
    token = (config.token_file,) if config.token_file is not None else ()
    return (config.socket, config.containerd_socket, *token, *config.masked_paths)


def _registry(config: AgentConfig) -> RegistryConfig:
    registry = RegistryConfig(plain_http_registries=config.plain_http_registries, mirrors=config.registry_mirrors)
    if config.registry_credentials is None:
        return registry
    return dataclasses.replace(registry, docker_configs=(config.registry_credentials,))


if __name__ == "__main__":
    sys.exit(main())
