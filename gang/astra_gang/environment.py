"""
The variables that Astraeus gives each worker. `docs/spec.md` lists them; a test keeps that list and this module alike.

The agent merges: the user's own `env` wins over every one of these. Astraeus reads none of them back: whatever a user
sets changes the user's program only. Variables about devices (`NCCL_IB_HCA`) come from the machine's agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from astra_agent.wire import MachineFacts
from astra_gang import shape as shapes
from astra_gang import slurm
from astra_gang.core.state import RunState, Worker
from astra_gang.spec import Spec

_SOCKET_INTERFACES = "^lo,docker,virbr,veth,cni,wg"


def environment(run: RunState, spec: Spec, rank: int, facts: Mapping[str, MachineFacts]) -> dict[str, str]:
    """
    Everything that worker *rank* is given for the attempt it is a member of.

    Args:
        run: Its leader's slot is ready: it has an address and a port.
        facts: By name of machine. Where one is missing, the leader's machine is taken to be reached at the leader's own
            address, a machine to be in no block, and a worker without a limit to have one core.
    Raises:
        ValueError: The leader's slot is not ready.
    """
    worker = run.workers[rank]
    leader = _ready(run.leader)
    shape = shapes.of(spec.resources, len(run.workers))
    leader_machine = facts.get(leader.machine)
    return {
        **_ranks(run, worker, leader, leader_machine.address if leader_machine is not None else leader.address),
        **_group(worker),
        **slurm.variables(run, worker, shape, leader.address, facts),
        **_torchrun(run, worker, leader, shape.gpus),
        **_jax(leader, shape.gpus),
        **({"NCCL_IB_DISABLE": "1"} if run.tier == "ethernet" else {}),
        **(_nccl(run, facts) if shape.gpus else {}),
    }


@dataclass(frozen=True, slots=True)
class _Leader:
    """Where the workers of an attempt meet."""

    machine: str
    address: str
    port: int


def _ready(leader: Worker) -> _Leader:
    slot = leader.slot
    if slot is None or slot.address is None or slot.port is None:
        raise ValueError(f"{leader.name} leads and is not ready: it has no address and port yet")
    return _Leader(slot.machine, slot.address, slot.port)


def _ranks(run: RunState, worker: Worker, leader: _Leader, leader_machine_address: str) -> dict[str, str]:
    rank, count, attempt = str(worker.rank), str(len(run.workers)), str(worker.attempt)
    gpus = worker.slot.gpus if worker.slot is not None else ()
    return {
        "RANK": rank,
        "WORLD_SIZE": count,
        "MASTER_ADDR": leader.address,
        "MASTER_PORT": str(leader.port),
        "ASTRAEUS_REPLICA_INDEX": rank,
        "ASTRAEUS_WORLD_SIZE": count,
        "ASTRAEUS_GPU_COUNT": str(len(gpus)),
        "ASTRAEUS_LEADER_TASK_NAME": f"{run.workspace}.{run.leader.name}",
        "ASTRAEUS_LEADER_ADDRESS": leader_machine_address,
        "ASTRAEUS_ATTEMPT": attempt,
        "ASTRAEUS_RESTART_COUNT": attempt,
    }


def _group(worker: Worker) -> dict[str, str]:
    if worker.group is None:
        return {}
    return {"ASTRAEUS_GROUP_NAME": worker.group, "ASTRAEUS_GROUP_REPLICA_INDEX": str(worker.group_index)}


def _torchrun(run: RunState, worker: Worker, leader: _Leader, gpus: int) -> dict[str, str]:
    """Defaults of torchrun's flags, so that a bare `torchrun train.py` is right. Without GPUs it starts one process."""
    own = worker.slot.address if worker.slot is not None else None
    return {
        "PET_NNODES": str(len(run.workers)),
        "PET_NODE_RANK": str(worker.rank),
        "PET_NPROC_PER_NODE": str(max(gpus, 1)),
        "PET_MASTER_ADDR": leader.address,
        "PET_MASTER_PORT": str(leader.port),
        # With another rendezvous than its default, torchrun would look its own address up by name.
        **({"PET_LOCAL_ADDR": own} if own is not None else {}),
    }


def _jax(leader: _Leader, gpus: int) -> dict[str, str]:
    """
    JAX takes Slurm's names for "one process for each GPU" and would use the GPU numbered SLURM_LOCALID alone, even when
    it is given address, count and rank. The list keeps all GPUs of the worker in use.
    """
    address = {"JAX_COORDINATOR_ADDRESS": f"{leader.address}:{leader.port}"}
    return address | ({"JAX_LOCAL_DEVICE_IDS": ",".join(map(str, range(gpus)))} if gpus else {})


def _nccl(run: RunState, facts: Mapping[str, MachineFacts]) -> dict[str, str]:
    found = {
        "NCCL_DEBUG": "WARN",
        # PyTorch's old and new name of one setting: a collective that loses a peer fails instead of hanging.
        "NCCL_ASYNC_ERROR_HANDLING": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "NCCL_SOCKET_IFNAME": _SOCKET_INTERFACES,
    }
    if run.tier not in ("machine", "nvlink") and _has_nvlink_domain(run, facts):
        # NCCL would try to share memory across the domain, find no IMEX channel and end with an error.
        found["NCCL_MNNVL_ENABLE"] = "0"
    return found


def _has_nvlink_domain(run: RunState, facts: Mapping[str, MachineFacts]) -> bool:
    machines = (facts.get(worker.slot.machine) for worker in run.workers if worker.slot is not None)
    return any(machine is not None and "nvlink" in machine.domains for machine in machines)
