"""
Which modules are pure, and what a pure module may not name: it turns values into values and touches nothing else.

Read from the source, with every `astra_*` import followed, whichever way it is written and wherever it stands: what is
loaded at run time says little (pydantic loads `socket`), what a module's own text names says all.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = tuple(ROOT / part for part in ("agent", "cli", "dns", "driver", "gang", "netprobe"))

PURE = (
    "astra_agent.attach",
    "astra_agent.attachments",
    "astra_agent.cgroup_names",
    "astra_agent.containerd.host_layout",
    "astra_agent.containerd.mountinfo",
    "astra_agent.containerd.oci",
    "astra_agent.containerd.passwd",
    "astra_agent.containerd.reference",
    "astra_agent.containerd.rootfs",
    "astra_agent.containerd.spec",
    "astra_agent.containerd.stopping",
    "astra_agent.description",
    "astra_agent.errors",
    "astra_agent.inventory",
    "astra_agent.promises",
    "astra_agent.records",
    "astra_agent.runtime",
    "astra_agent.status",
    "astra_agent.wire",
    "astra_cli.dev.requests",
    "astra_cli.dev.topology",
    "astra_cli.documents",
    "astra_cli.machine.remarks",
    "astra_cli.machine.answers",
    "astra_cli.machine.picture",
    "astra_cli.netcheck.program",
    "astra_cli.netcheck.report",
    "astra_cli.render",
    "astra_cli.runfile",
    "astra_dns.cache",
    "astra_dns.counters",
    "astra_dns.ready",
    "astra_dns.resolv_conf",
    "astra_gang.absence",
    "astra_gang.core",
    "astra_gang.draining",
    "astra_gang.engine",
    "astra_gang.engines.book",
    "astra_gang.engines.nomad.answers",
    "astra_gang.engines.nomad.documents",
    "astra_gang.engines.nomad.job",
    "astra_gang.engines.nomad.machines",
    "astra_gang.engines.nomad.plain",
    "astra_gang.engines.nomad.refusals",
    "astra_gang.engines.nomad.whole",
    "astra_gang.environment",
    "astra_gang.fit",
    "astra_gang.hosts",
    "astra_gang.placement",
    "astra_gang.plan",
    "astra_gang.quantities",
    "astra_gang.ranks",
    "astra_gang.same_names",
    "astra_gang.shape",
    "astra_gang.shortage",
    "astra_gang.sightings",
    "astra_gang.slurm",
    "astra_gang.spec",
    "astra_gang.witness",
    "astra_netprobe.bounds",
    "astra_netprobe.greeting",
    "astra_netprobe.halves",
    "astra_netprobe.localise",
    "astra_netprobe.matrix",
    "astra_netprobe.messages",
    "astra_netprobe.nccl",
    "astra_netprobe.perftest",
    "astra_netprobe.plan",
    "astra_netprobe.rails",
    "astra_netprobe.rdma_verdict",
    "astra_netprobe.reach",
    "astra_netprobe.readings",
    "astra_netprobe.stats",
    "astra_netprobe.tables",
    "astra_netprobe.verdict",
)
"""Modules, and packages with all that is in them. Whatever of ours they import is held to the same."""

REFUSED_MODULES = frozenset(
    """
    aiohttp asyncio concurrent ctypes fcntl grpc http io logging mmap multiprocessing os random secrets select selectors
    shutil signal socket socketserver sqlite3 ssl subprocess sys tempfile threading time urllib uuid
    """.split()  # noqa: SIM905  # a list of words reads best as words
)
REFUSED_NAMES = frozenset({"open", "input", "print", "exec", "eval", "Path", "PosixPath"})
"""Builtins and classes that reach the outside; `pathlib.PurePosixPath` does not."""
REFUSED_CALLS = frozenset({"now", "utcnow", "today"})
"""Methods that ask a clock: `datetime.now()`."""


@dataclass(frozen=True, slots=True)
class Breach:
    """One line of a pure module that names what it may not; *trail* is how the checker came there."""

    trail: tuple[str, ...]
    line: int
    what: str

    def __str__(self) -> str:
        return f"{' → '.join(self.trail)}, line {self.line}: {self.what}"


def source_of(module: str, folders: tuple[Path, ...] = FOLDERS) -> Path | None:
    """The file of one of our modules, or of a package's `__init__`; None when there is no such module."""
    for folder in folders:
        place = folder.joinpath(*module.split("."))
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                return file
    return None


def members(module: str, folders: tuple[Path, ...] = FOLDERS) -> Iterator[str]:
    """*module* and, when it is a package, every module in it."""
    yield module
    for folder in folders:
        package = folder.joinpath(*module.split("."))
        for file in sorted(package.rglob("*.py")):
            parts = file.relative_to(folder).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def breaches(module: str, folders: tuple[Path, ...] = FOLDERS) -> list[Breach]:
    """Everything that *module*, and what it imports of ours, names without being allowed to."""
    found: list[Breach] = []
    seen: set[str] = set()
    ahead: list[tuple[str, ...]] = [(name,) for name in members(module, folders)]
    while ahead:
        trail = ahead.pop()
        file = source_of(trail[-1], folders)
        if trail[-1] in seen or file is None:
            continue
        seen.add(trail[-1])
        tree = ast.parse(file.read_text(), filename=str(file))
        package = trail[-1] if file.name == "__init__.py" else trail[-1].rpartition(".")[0]
        for node in ast.walk(tree):
            found.extend(Breach(trail, node.lineno, what) for what in _refused(node) if hasattr(node, "lineno"))
            ahead.extend((*trail, name) for name in _imports(node, package) if name.startswith("astra_"))
    return found


def _imports(node: ast.AST, package: str) -> Iterator[str]:
    """Modules that an import statement may load: `from a import b` may mean the module `a.b`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        parents = package.split(".")[: -(node.level - 1) or None] if node.level else []
        base = ".".join([*parents, *([node.module] if node.module else [])])
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names)


def _refused(node: ast.AST) -> Iterator[str]:
    for name in _imports(node, ""):
        if name.split(".")[0] in REFUSED_MODULES:
            yield f"imports {name}"
            return
    if isinstance(node, ast.Name) and node.id in REFUSED_NAMES:
        yield f"uses {node.id}"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in REFUSED_CALLS:
        yield f"asks a clock with {node.func.attr}()"
