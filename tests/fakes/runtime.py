"""
Containers and images in memory: behaves as the docstrings of `astra_agent.runtime` say, and fails when it is told to.

The object is the machine's runtime, not the agent's: it outlives a crash of the agent, which a test plays by dropping
the agent and making another one on the same fake. Programs are one shell script (`sh -c "…"`) of the few words in
`_Program`; anything else runs until it is ended by `exit`, `terminate` or `kill`.
"""

from __future__ import annotations

import asyncio
import itertools
import shlex
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from astra_agent.errors import AstraError, HostFault, InvalidRequest, NotFound, Unavailable
from astra_agent.runtime import (
    BindMount,
    ContainerPlan,
    ContainerStatus,
    ExecSession,
    ExitStatus,
    FoundContainer,
    ImageConfig,
    PreparedImage,
    RuntimeFacts,
    Usage,
)

_FIRST_PID = 2**22 + 4711
"""Beyond what Linux gives to processes: no look into /proc finds somebody else there."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class _Program:
    """What a script does. It knows `echo words`, `exit N`, `sleep N` (until it is ended), `cat` and `trap '' TERM`."""

    says: bytes = b""
    exits: int | None = 0
    """None: it runs on."""
    ignores_term: bool = False
    copies_stdin: bool = False

    @staticmethod
    def of(args: tuple[str, ...]) -> _Program:
        if len(args) != 3 or args[1] != "-c":
            return _Program.of(("sh", "-c", shlex.join(args)))
        says, exits, ignores, copies = b"", 0, False, False
        for piece in args[2].split(";"):
            match shlex.split(piece):
                case ["echo", *words]:
                    says += (" ".join(words) + "\n").encode()
                case ["exit", code]:
                    return _Program(says, int(code), ignores, copies)
                case ["trap", "", "TERM"]:
                    ignores = True
                case ["cat"]:
                    copies = True
                case ["true"] | []:
                    pass
                case ["false"]:
                    exits = 1
                case _:
                    return _Program(says, None, ignores, copies)
        return _Program(says, exits, ignores, copies)


@dataclass(slots=True)
class _Container:
    plan: ContainerPlan
    program: _Program
    state: Literal["created", "running", "stopped"] = "created"
    exit: ExitStatus | None = None
    pid: int = 0
    leftovers: set[int] = field(default_factory=set)
    stuck: bool = False
    killed_while_stuck: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class FakeContainers:
    """
    The port `Containers`.

    Attributes:
        starts: How often each container's program was really started; more than once is the bug of bugs.
        plans, execs: Everything that was created, in order.
        tried: Trials that were made in each container.
        trial_errors: What trials answer that begin with a word; all others hold.
    """

    def __init__(self) -> None:
        self.starts: Counter[str] = Counter()
        self.terms: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()
        self.signals: list[tuple[str, int]] = []
        self.plans: list[ContainerPlan] = []
        self.execs: list[FakeExec] = []
        self.tried: dict[str, tuple[str, ...]] = {}
        self.trial_errors: dict[str, str] = {}
        self._containers: dict[str, _Container] = {}
        self._pids = itertools.count(_FIRST_PID)
        self._create_errors: list[AstraError] = []
        self._start_errors: list[AstraError] = []
        self._up = asyncio.Event()
        self._up.set()
        self._creating = asyncio.Event()
        self._creating.set()

    # What a test does to the machine ------------------------------------------------------------------------------

    def exit(self, container: str, code: int, *, oom: bool = False) -> None:
        """The container's first process ends."""
        self._end(self._containers[container], ExitStatus(code, oom))

    def leave(self, container: str) -> int:
        """A process of the container lives on after the first one has ended, until a kill. Returns its ID."""
        pid = next(self._pids)
        self._containers[container].leftovers.add(pid)
        return pid

    def stick(self, container: str) -> None:
        """From now on its processes do not die."""
        self._containers[container].stuck = True

    def unstick(self, container: str) -> None:
        """What was killed meanwhile dies now."""
        found = self._containers[container]
        found.stuck = False
        if found.killed_while_stuck:
            self._kill(found)

    def lose(self, container: str) -> None:
        """The runtime forgets the container; its processes are gone."""
        found = self._containers.pop(container)
        found.exit = None
        found.ended.set()

    def go_down(self) -> None:
        """The runtime stops answering. Containers run on, and may exit."""
        self._up.clear()

    def come_back(self) -> None:
        self._up.set()

    def fail_next_create(self, error: AstraError) -> None:
        self._create_errors.append(error)

    def fail_next_start(self, error: AstraError) -> None:
        self._start_errors.append(error)

    def hold_creates(self) -> None:
        """Creates hang until `release_creates`."""
        self._creating.clear()

    def release_creates(self) -> None:
        self._creating.set()

    def write(self, container: str, data: bytes) -> None:
        """The program writes to its standard output."""
        with Path(self._containers[container].plan.log_path).open("ab") as log:
            log.write(data)

    def plan(self, container: str) -> ContainerPlan:
        return self._containers[container].plan

    def names(self) -> tuple[str, ...]:
        """Every container that is there."""
        return tuple(sorted(self._containers))

    def alive(self) -> bool:
        """Whether any container has a process."""
        return any(found.state != "stopped" or found.leftovers for found in self._containers.values())

    # The port -----------------------------------------------------------------------------------------------------

    async def probe(self) -> RuntimeFacts:
        self._answer()
        return RuntimeFacts(version="fake", cgroup_version=2, memlock_unlimited=True)

    async def create(self, plan: ContainerPlan) -> None:
        await asyncio.shield(asyncio.ensure_future(self._create(plan)))

    async def try_inside(self, container: str, trials: tuple[str, ...]) -> tuple[str, ...]:
        self._answer()
        if container not in self._containers:
            raise NotFound(f"container {container} is not there")
        self.tried[container] = trials
        return tuple(
            next((error for start, error in self.trial_errors.items() if trial.startswith(start)), "ok")
            for trial in trials
        )

    async def start(self, container: str) -> None:
        self._answer()
        if self._start_errors:
            raise self._start_errors.pop(0)
        found = self._containers.get(container)
        if found is None:
            raise NotFound(f"container {container} is not there; create it first")
        if found.state != "created":
            return
        self.starts[container] += 1
        found.state = "running"
        self.write(container, found.program.says)
        if found.program.exits is not None:
            self._end(found, ExitStatus(found.program.exits))

    async def status(self, container: str) -> ContainerStatus:
        self._answer()
        found = self._containers.get(container)
        if found is None:
            return ContainerStatus("absent")
        return ContainerStatus(found.state, found.exit, found.pid if found.state != "stopped" else 0)

    async def wait(self, container: str) -> ExitStatus:
        found = self._containers.get(container)
        if found is not None:
            await found.ended.wait()
        await self._up.wait()
        return (found.exit if found is not None else None) or ExitStatus(None)

    async def terminate(self, container: str) -> None:
        found = self._containers.get(container)
        if found is None or found.state == "stopped":
            return
        self.terms[container] += 1
        if not found.program.ignores_term and not found.stuck:
            self._end(found, ExitStatus(143))

    async def signal(self, container: str, number: int) -> None:
        self._answer()
        found = self._containers.get(container)
        if found is None or found.state != "running":
            return
        self.signals.append((container, number))
        if number == signal.SIGKILL:
            self._kill(found)
        elif number in (signal.SIGTERM, signal.SIGINT) and not found.program.ignores_term:
            self._end(found, ExitStatus(128 + number))

    async def usage(self, container: str) -> Usage | None:
        found = self._containers.get(container)
        return Usage(cpu_user_ns=5_000_000, memory_bytes=4096, memory_rss_bytes=4096) if found is not None else None

    async def kill(self, container: str) -> None:
        found = self._containers.get(container)
        if found is None:
            return
        self.kills[container] += 1
        if found.stuck:
            found.killed_while_stuck = True
        else:
            self._kill(found)

    async def processes(self, container: str) -> tuple[int, ...]:
        found = self._containers.get(container)
        if found is None:
            return ()
        first = (found.pid,) if found.state != "stopped" else ()
        return (*first, *sorted(found.leftovers))

    async def remove(self, container: str) -> None:
        self._answer()
        found = self._containers.get(container)
        if found is None:
            return
        if found.stuck:
            raise HostFault(f"process {found.pid} of {container} does not die")
        self._kill(found)
        del self._containers[container]

    async def list(self) -> tuple[FoundContainer, ...]:
        self._answer()
        return tuple(
            [FoundContainer(name, c.plan.labels, await self.status(name)) for name, c in self._containers.items()]
        )

    async def exec(
        self, container: str, args: tuple[str, ...], tty: bool, stdin: bool, width: int, height: int
    ) -> ExecSession:
        self._answer()
        found = self._containers.get(container)
        if found is None or found.state != "running":
            raise NotFound(f"container {container} is not running")
        if args[0] == "/no/such":
            raise InvalidRequest(f'command "{args[0]}" is not in the container')
        session = FakeExec(_Program.of(args), (width, height))
        self.execs.append(session)
        return session

    # Inside -------------------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        if not self._up.is_set():
            raise Unavailable("the container runtime does not answer")

    async def _create(self, plan: ContainerPlan) -> None:
        await self._creating.wait()
        self._answer()
        if self._create_errors:
            raise self._create_errors.pop(0)
        found = self._containers.get(plan.id)
        if found is not None:
            if dict(found.plan.labels) != dict(plan.labels):
                raise HostFault(f"container {plan.id} is there already, with other labels")
            return
        self.plans.append(plan)
        Path(plan.log_path).parent.mkdir(parents=True, exist_ok=True)
        Path(plan.log_path).touch()
        if plan.error_log_path is not None:
            Path(plan.error_log_path).touch()
        self._containers[plan.id] = _Container(plan, _Program.of(plan.args), pid=next(self._pids))

    def _kill(self, found: _Container) -> None:
        found.leftovers.clear()
        self._end(found, ExitStatus(137))

    def _end(self, found: _Container, status: ExitStatus) -> None:
        if found.state != "stopped":
            found.state, found.exit = "stopped", status
            found.ended.set()


class FakeExec:
    """The port `ExecSession`: what the script says, then its standard input when it is `cat`, then its code."""

    def __init__(self, program: _Program, size: tuple[int, int]) -> None:
        self.size = size
        self.closed = False
        self._program = program
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if program.says:
            self._pieces.put_nowait(program.says)
        if program.exits is not None and not program.copies_stdin:
            self._finish(program.exits)

    async def output(self) -> AsyncIterator[tuple[Literal[1, 2], bytes]]:
        while (piece := await self._pieces.get()) is not None:
            yield 1, piece

    async def write(self, data: bytes) -> None:
        if self._program.copies_stdin and not self._code.done():
            self._pieces.put_nowait(data)

    async def close_stdin(self) -> None:
        if self._program.copies_stdin:
            self._finish(self._program.exits or 0)

    async def resize(self, width: int, height: int) -> None:
        self.size = (width, height)

    async def wait(self) -> int:
        return await asyncio.shield(self._code)

    async def close(self) -> None:
        self.closed = True
        self._finish(137)

    def _finish(self, code: int) -> None:
        if not self._code.done():
            self._code.set_result(code)
            self._pieces.put_nowait(None)


class FakeImages:
    """
    The port `Images`. Has `host` and whatever is in *images*.

    Attributes:
        missing_commands: Programs that no image has.
        users: Names that every image knows.
        says: Of how far a pull is; without any, 43 %.
        errors: Raised by the next calls of `prepare`, in order, one each.
        look_error, missing_bytes: What `look` raises, or answers.
    """

    def __init__(self) -> None:
        self.images: dict[str, ImageConfig] = {"host": ImageConfig(env={"PATH": _PATH})}
        self.missing_commands: set[str] = {"/no/such"}
        self.users: dict[str, tuple[int, int, tuple[int, ...]]] = {"": (0, 0, ()), "worker": (1000, 1000, (27,))}
        self.says: list[str] = []
        self.errors: list[AstraError] = []
        self.look_error: AstraError | None = None
        self.missing_bytes = 0
        self.asked: list[tuple[str, tuple[str, str] | None]] = []
        self._open = asyncio.Event()
        self._open.set()

    def hold(self) -> None:
        """Pulls hang until `release`."""
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    async def look(self, reference: str, auth: tuple[str, str] | None, progress: Callable[[str], None]) -> int:
        if self.look_error is not None:
            raise self.look_error
        if reference not in self.images:
            raise InvalidRequest(f'there is no image "{reference}"', "image")
        return self.missing_bytes

    async def prepare(
        self, reference: str, auth: tuple[str, str] | None, progress: Callable[[str], None]
    ) -> PreparedImage:
        self.asked.append((reference, auth))
        for sentence in self.says or [f"Pulling {reference}: 43 %"]:
            progress(sentence)
        await self._open.wait()
        if self.errors:
            raise self.errors.pop(0)
        if reference not in self.images:
            raise InvalidRequest(f'there is no image "{reference}"', "image")
        return PreparedImage(reference, f"handle of {reference}", self.images[reference])

    async def check_command(
        self, image: PreparedImage, args: tuple[str, ...], path: str, working_dir: str, user: str,
        mounts: tuple[BindMount, ...] = (),
    ) -> tuple[int, int, tuple[int, ...]]:  # fmt: skip
        if args[0] in self.missing_commands:
            raise InvalidRequest(f'command "{args[0]}" is not in image "{image.reference}"', "command")
        if user in self.users:
            return self.users[user]
        uid, _, gid = user.partition(":")
        if not uid.isdigit() or (gid and not gid.isdigit()):
            raise InvalidRequest(f'user "{user}" is not in image "{image.reference}"', "user")
        return int(uid), int(gid or 0), ()
