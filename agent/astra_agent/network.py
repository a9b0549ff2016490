"""
The network of a slot: the machine's own, or a namespace of the slot's with an address on the machine's bridge.

Links are made by `ip`, in one batch per namespace. Everything here is idempotent: what an agent that died has left half
made is removed first.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from astra_agent import namespaces
from astra_agent.config import AgentConfig, OwnNetwork
from astra_agent.errors import HostFault

_COMMAND_TIMEOUT_S = 30.0


class SlotNetworks:
    """
    Args:
        config: Its *netns* is the machine's network, *own_network* the bridge in there.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._own = config.own_network if config.slot_network == "own" else None

    def path(self, slot: str) -> Path:
        """The namespace that the slot's containers join."""
        if self._own is not None:
            return self._folder / slot
        return self._config.netns or namespaces.own_path()

    def left(self) -> tuple[str, ...]:
        """Slots with a namespace here, known or not."""
        return tuple(path.name for path in self._folder.glob("*"))

    @property
    def _folder(self) -> Path:
        return self._config.state_dir / "netns"

    def netns(self, slot: str) -> Path | None:
        """The namespace that the slot's containers are in; None: the process's own."""
        return self._config.netns if self._own is None else self.path(slot)

    async def set_up(self, slot: str, address: str) -> None:
        """Make the slot's network, anew when there is one. Raises: HostFault."""
        if self._own is None:
            return
        await self.tear_down(slot)
        path = self.path(slot)
        await asyncio.to_thread(namespaces.make, path)
        mtu = await self._bridge_mtu(self._own)
        outside = link_name(slot)
        await self._ip(
            self._config.netns,
            f"link add {outside} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {path}",
            f"link set {outside} master {self._own.bridge} up",
        )
        await self._ip(path, *inside_commands(self._own, address))

    async def tear_down(self, slot: str) -> None:
        """Nothing is left of the slot's network. Idempotent. Raises: HostFault."""
        if self._own is None:
            return
        if await self._exists(link_name(slot)):
            await self._ip(self._config.netns, f"link delete {link_name(slot)}")
        await asyncio.to_thread(namespaces.remove, self.path(slot))

    async def _bridge_mtu(self, own: OwnNetwork) -> int:
        code, output = await _run(_in(self._config.netns, "ip", "-json", "link", "show", "dev", own.bridge))
        if code != 0:
            where = self._config.netns or "the agent's own network namespace"
            raise HostFault(f"bridge {own.bridge} is not in {where}; make it, or correct own_network.bridge")
        return int(json.loads(output)[0]["mtu"])

    async def _exists(self, link: str) -> bool:
        code, _ = await _run(_in(self._config.netns, "ip", "link", "show", "dev", link))
        return code == 0

    async def _ip(self, netns: Path | None, *commands: str) -> None:
        code, output = await _run(_in(netns, "ip", "-batch", "-"), "\n".join(commands).encode())
        if code != 0:
            raise HostFault(f"the slot's network can't be made: {output.decode(errors='replace').strip()}")


async def address_in(netns: Path) -> str:
    """
    By which others reach the namespace: the first global address, of IPv4 where there is one; that of loopback when
    nobody can. Raises: HostFault.
    """
    code, output = await _run(_in(netns, "ip", "-json", "address", "show", "scope", "global"))
    if code != 0:
        raise HostFault(f"addresses of {netns} can't be seen: {output.decode(errors='replace').strip()}")
    # What is left out by scope is an empty object in the list.
    found = [at for link in json.loads(output or b"[]") for at in link.get("addr_info", ()) if "local" in at]
    found.sort(key=lambda at: at["family"] != "inet")
    return str(found[0]["local"]) if found else "127.0.0.1"


async def give_address(netns: Path | None, address: str) -> None:
    """`lo` of the namespace has *address* and is up. Idempotent. Raises: HostFault."""
    commands = f"address replace {address}/32 dev lo scope host\nlink set lo up"
    code, output = await _run(_in(netns, "ip", "-batch", "-"), commands.encode())
    if code != 0:
        raise HostFault(f"lo can't have {address}: {output.decode(errors='replace').strip()}")


async def take_address(netns: Path | None, address: str) -> None:
    """`lo` of the namespace does not have *address* any more. Idempotent."""
    await _run(_in(netns, "ip", "address", "delete", f"{address}/32", "dev", "lo"))


def link_name(slot: str) -> str:
    """Of the slot's end of the cable on the bridge: at most 15 characters, the same each time."""
    return f"as{hashlib.sha256(slot.encode()).hexdigest()[:12]}"


def inside_commands(own: OwnNetwork, address: str) -> Sequence[str]:
    commands = ["link set lo up", f"address add {address}/{own.prefix_len} dev eth0", "link set eth0 up"]
    if own.gateway:
        commands.append(f"route add default via {own.gateway}")
    return commands


def _in(netns: Path | None, *command: str) -> tuple[str, ...]:
    return command if netns is None else ("nsenter", f"--net={netns}", *command)


async def _run(command: Sequence[str], stdin: bytes = b"") -> tuple[int, bytes]:
    """Exit code, and standard output and error together. Raises: HostFault when it can't run, or takes too long."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
    except OSError as error:
        raise HostFault(f"{command[0]} can't be run: {error.strerror}; install it") from error
    try:
        async with asyncio.timeout(_COMMAND_TIMEOUT_S):
            output, _ = await process.communicate(stdin)
    except TimeoutError as error:
        raise HostFault(f"{' '.join(command)} takes longer than {_COMMAND_TIMEOUT_S:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, output
