"""
The all-reduce of our examples as a run in the user's image: what is submitted, and the judgement on its output. Pure.

The probe tells what the network can do; this tells what the library in the image makes of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from astra_netprobe import nccl, rdma_verdict, stats, tables
from astra_netprobe.nccl import NcclLog
from astra_netprobe.tables import Reading
from astra_netprobe.verdict import TCP_SHARE_MIN, Asked, State, Verdict

Json = dict[str, Any]
Backend = Literal["nccl", "gloo"]

TIME_LIMIT_S = 600
"""For the program itself: 25 all-reduces of 256 MiB take a minute at 1 Gbit/s."""
_START = 'exec torchrun --no-python "$(command -v python || command -v python3)" -u -c "$1"'
"""The program comes as an argument, so that the image and its drives stay as they are."""
_NAME = "all-reduce"
"""What the shell calls itself when there is no torchrun."""
_FOR_NCCL = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,GRAPH"}
_PROMISES = {"infiniband": "InfiniBand", "rdma": "RDMA", "nvlink": "NVLink"}
_KEPT = ("image", "env", "datavolume_refs", "requested_resources")
"""Of a run's template; its command, and what belongs to it, is ours."""


def backend_of(document: Json) -> Backend:
    """NCCL where the run asks for GPUs."""
    gpus = _resources(document).get("gpu_requests")
    return "nccl" if isinstance(gpus, dict) and gpus.get("count") else "gloo"


def of(document: Json, *, name: str, source: str) -> Json:
    """The run of the program *source* in the shape, image and environment of *document*."""
    template = {key: value for key, value in _template(document).items() if key in _KEPT}
    debug = _FOR_NCCL if backend_of(document) == "nccl" else {}
    template |= {
        "command": "sh",
        "args": ["-c", _START, _NAME, source],
        "env": {**(template.get("env") or {}), **debug},
        "time_limit_seconds": TIME_LIMIT_S,
    }
    return {
        "metadata": {"name": name},
        "spec": {"start": "Gang", "on_failure": "FailJob", "task_template": template},
    }


@dataclass(frozen=True, slots=True)
class Ran:
    """
    What came of it.

    Attributes:
        machines: By rank of the worker.
        ranks: How many processes there ought to be.
        promised: The tier that it was placed on, or asked for: `infiniband`, `rdma`, …
        logs: What each worker wrote, by rank.
        failure: Why it did not complete; empty when it did.
    """

    image: str
    backend: Backend
    machines: tuple[str, ...]
    ranks: int
    promised: str
    logs: tuple[str, ...]
    failure: str = ""

    @property
    def reading(self) -> Reading:
        return tables.read("\n".join(self.logs))

    @property
    def libraries(self) -> tuple[NcclLog, ...]:
        """What NCCL says, by rank of the worker."""
        return tuple(nccl.read(log) for log in self.logs)

    @property
    def networks(self) -> tuple[str, ...]:
        """Each once; none where NCCL said nothing."""
        return tuple(dict.fromkeys(library.network for library in self.libraries if library.network))

    @property
    def title(self) -> str:
        """What stands above its line in the table."""
        over = " and ".join(f"NET/{network}" for network in self.networks) if self.backend == "nccl" else "TCP"
        return (
            f"PyTorch with {'NCCL' if self.backend == 'nccl' else 'Gloo'} over {over or 'no network'} in {self.image}"
        )


def promise(tier: str, document: Json) -> str:
    """The network that the run may rely on: where it was placed, else what it asked for."""
    network = _resources(document).get("network")
    asked = network.get("interconnect") if isinstance(network, dict) else None
    return tier if tier in _PROMISES else str(asked or "")


def judge(ran: Ran, asked: Asked) -> Verdict:
    """Sound, below what was promised or asked, or why it can't be said."""
    reading = ran.reading
    if ran.failure:
        return Verdict("unmeasured", f"the all-reduce in {ran.image} did not complete: {ran.failure}")
    if not reading.rows:
        return Verdict("unmeasured", f"the all-reduce in {ran.image} completed and wrote no result")
    if reading.ranks != ran.ranks:
        return Verdict(
            "unmeasured",
            f"the all-reduce in {ran.image} ran over {reading.ranks} ranks instead of {ran.ranks}: its number says "
            "nothing about this network",
        )
    if (broken := _broken_promise(ran)) is not None:
        return broken
    rate = 8 * stats.port_rate(reading.rows[-1].bus_bytes_per_s, ran.ranks, len(ran.machines))
    share = TCP_SHARE_MIN if nccl.SOCKET in ran.networks else rdma_verdict.SHARE_MIN
    if ran.backend == "nccl" and asked.min_bps and rate < share * asked.min_bps:
        return Verdict(
            "below",
            f"{tables.rate_text(rate)} for each GPU's share of the network with {ran.title}, of the "
            f"{tables.rate_text(asked.min_bps)} asked for",
        )
    bus = tables.rate_text(8 * reading.rows[-1].bus_bytes_per_s)
    return Verdict("sound", f"{ran.title}: {bus} bus bandwidth over {reading.ranks} ranks")


def joined(probe: Verdict, program: Verdict) -> Verdict:
    """One judgement of both: the worse goes first, the probe's when neither is."""
    notes = (*probe.notes, *program.notes)
    if probe.exit == 0 and program.exit != 0:
        return Verdict(program.state, program.sentence, (*program.more, probe.sentence), notes, program.blamed)
    return Verdict(probe.state, probe.sentence, (*probe.more, program.sentence), notes, probe.blamed)


def _broken_promise(ran: Ran) -> Verdict | None:
    """Of a run whose library ought to go over RDMA."""
    if ran.backend != "nccl" or ran.promised not in _PROMISES or len(ran.machines) < 2:
        return None
    promised = f"the run was promised {_PROMISES[ran.promised]}"
    by_machine = dict(zip(ran.machines, ran.libraries, strict=True))
    over_sockets = [name for name, library in by_machine.items() if library.network == nccl.SOCKET]
    if over_sockets:
        return Verdict("below", f"{promised}, but NCCL went over NET/Socket on {_named(over_sockets, by_machine)}")
    if ran.promised != "nvlink" and not any(library.network for library in by_machine.values()):
        state: State = "unmeasured"
        return Verdict(state, f"{promised}, and NCCL's log does not say over what it went: does it write to a file?")
    return None


def _named(machines: Sequence[str], libraries: Mapping[str, NcclLog]) -> str:
    reasons = dict.fromkeys(libraries[name].reason for name in machines if libraries[name].reason)
    return ", ".join(machines) + (f" ({'; '.join(reasons)})" if reasons else "")


def _template(document: Json) -> Json:
    spec = document.get("spec")
    template = spec.get("task_template") if isinstance(spec, dict) else None
    return template if isinstance(template, dict) else {}


def _resources(document: Json) -> Json:
    found = _template(document).get("requested_resources")
    return found if isinstance(found, dict) else {}
