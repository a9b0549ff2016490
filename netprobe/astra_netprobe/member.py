"""
One machine's part in a probe: a process of its own that answers a conductor's questions, one after the other.

Questions come as lines on standard input, answers go as lines to standard output. When standard input ends, so does the
process, at once and whatever it is doing: nothing of a probe outlives who asked for it.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from astra_netprobe import messages, port, rdma
from astra_netprobe.calling import Caller, Unreached
from astra_netprobe.door import Door
from astra_netprobe.groups import DoublingGroup, Group, RingGroup
from astra_netprobe.messages import (
    AllReduce,
    Answer,
    CountErrors,
    Done,
    ErrorsCounted,
    Failed,
    FindPeers,
    JoinDoubling,
    JoinRing,
    Leave,
    Open,
    Opened,
    PacketsSent,
    PeersFound,
    Question,
    RdmaWrites,
    RoundTrips,
    SendPackets,
    Transfer,
)  # fmt: skip
from astra_netprobe.pairs import round_trips, transfer_with

_CLONE_NEWNET = 0x40000000
_WHY = {
    "refused": "refuses", "rejected": "is cut off by somebody on the way", "no_neighbour": "is at no address here",
    "silent": "does not answer", "stranger": "is somebody else",
}  # fmt: skip

AnyQuestion = TypeVar("AnyQuestion", bound=messages.Message)


class Member:
    """
    Answers questions.

    Args:
        root: Where this machine's devices are looked for.
        max_bps: What this machine sends at most, whatever the conductor asks for; 0: as much as goes.
    """

    def __init__(self, root: Path = Path("/"), max_bps: float = 0.0) -> None:
        self._root = root
        self._max_bps = max_bps
        self._opened: contextlib.ExitStack | None = None
        self._door: Door | None = None
        self._caller: Caller | None = None
        self._mtu = 0
        self._device = ""
        self._errors = 0
        self._groups: dict[int, Group] = {}

    def close(self) -> None:
        """Close everything that was opened. Idempotent."""
        for group in self._groups.values():
            group.close()
        self._groups.clear()
        if self._opened is not None:
            self._opened.close()
        self._opened = self._door = self._caller = None

    def hear(self, line: bytes) -> Answer:
        """The answer to what came in: a question of this protocol, or anything else."""
        if (theirs := messages.other_protocol(line)) is not None:
            ours = messages.PROTOCOL
            return Failed(
                sentence=f"the conductor speaks protocol {theirs} of the probe, this machine {ours}: "
                "install the same version on both"
            )
        try:
            question = messages.QUESTION.validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "question"
            return Failed(sentence=f"this is no question: {where}: {first['msg']}")
        return self.answer(question)

    def answer(self, question: Question) -> Answer:
        """What is asked for is done when this returns; a peer that does not take part is a `Failed` with its rank."""
        try:
            if isinstance(question, Open):
                return self._open(question)
            if self._door is None or self._caller is None:
                return Failed(sentence="no probe is open")
            return self._do(question, self._door, self._caller)
        except Unreached as error:
            return Failed(sentence=f"rank {error.rank} {_WHY[error.outcome]}", rank=error.rank)
        except OSError as error:
            return Failed(sentence=f"this machine can't do {question.kind}: {error.strerror or error}")
        except MemoryError:
            return Failed(sentence=f"this machine has too little memory for {question.kind}")

    def _open(self, question: Open) -> Answer:
        self.close()
        if question.device and not (address := port.address_of(question.device)):
            devices = ", ".join(port.with_addresses()) or "none"
            return Failed(sentence=f"there is no port {question.device} with an IPv4 address here: there are {devices}")
        address = address if question.device else question.address
        secret = bytes.fromhex(question.secret)
        stack = contextlib.ExitStack()
        door = stack.enter_context(Door(address, question.rank, secret))
        facts = port.of_address(address)
        self._opened, self._door = stack, door
        bounds = [bound for bound in (question.max_bps, self._max_bps) if bound]
        self._caller = Caller(question.rank, address, secret, min(bounds, default=0.0))
        self._mtu = facts.mtu or 1500
        self._device, self._errors = facts.device, port.errors(facts.device)
        no_rdma = "its rate is bounded" if bounds else rdma.missing(self._root, question.device)
        rdma_ports = () if no_rdma else rdma.ports(self._root, question.device)
        return Opened(
            port=door.port, packet_port=door.packet_port, device=facts.device, driver=facts.driver, mtu=facts.mtu,
            speed_bps=facts.speed_bps, duplex=facts.duplex, rdma=rdma_ports, no_rdma=no_rdma,
            address=address if question.device else "", max_bps=self._max_bps,
        )  # fmt: skip

    def _do(self, question: Question, door: Door, caller: Caller) -> Answer:
        match question:
            case FindPeers():
                return PeersFound(outcomes=caller.reach(question.peers, question.limit_s))
            case SendPackets():
                small, large = caller.packets(question.peers, min(self._mtu, 65535), question.limit_s)
                return PacketsSent(mtu=self._mtu, small=tuple(sorted(small)), large=tuple(sorted(large)))
            case JoinRing():
                return self._join(question.tag, lambda: RingGroup.join(question, door, caller))
            case JoinDoubling():
                return self._join(question.tag, lambda: DoublingGroup.join(question, door, caller))
            case AllReduce():
                return self._all_reduce(question)
            case Leave():
                return self._leave(question.tag)
            case Transfer():
                return transfer_with(question, door, caller)
            case RoundTrips():
                return round_trips(question, door, caller)
            case CountErrors():
                return ErrorsCounted(errors=max(0, port.errors(self._device) - self._errors))
            case RdmaWrites():
                return rdma.write_all(question)
            case Open():
                return self._open(question)

    def _join(self, tag: int, join: Callable[[], Group]) -> Answer:
        self._leave(tag)
        self._groups[tag] = join()
        return Done()

    def _leave(self, tag: int) -> Answer:
        if (group := self._groups.pop(tag, None)) is not None:
            group.close()
        return Done()

    def _all_reduce(self, question: AllReduce) -> Answer:
        group = self._groups.get(question.tag)
        if group is None or group.algorithm != question.algorithm:
            return Failed(sentence=f"there is no {question.algorithm} {question.tag}: join it first")
        reduced = group.all_reduce(question)
        if reduced.broken:
            self._leave(question.tag)  # the others hear of it by the end of their connections
        return reduced


# The process ---------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m astra_netprobe.member [--netns PATH] [--max-bps N]`."""
    parser = argparse.ArgumentParser(prog="astra-netprobe-member")
    parser.add_argument("--netns", help="path of the network namespace that is this machine's network")
    parser.add_argument("--max-bps", type=float, default=0.0, help="what this machine sends at most")
    given = parser.parse_args(arguments)
    if given.netns:
        enter(given.netns)
    asked: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(asked,), name="questions", daemon=True).start()
    member = Member(max_bps=given.max_bps)
    while True:
        sys.stdout.write(member.hear(asked.get()).model_dump_json() + "\n")
        sys.stdout.flush()


def enter(netns: str) -> None:
    """Move this process into a network namespace; before it has threads. Raises: OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"network namespace {netns} can't be entered")
    finally:
        os.close(descriptor)


def _listen(asked: queue.SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        asked.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
