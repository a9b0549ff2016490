"""
What a machine is good for, as one JSON document: the answers that a captured machine carries under `expect`. Pure.

The document says for each row of the table of attachments what a worker would get, or why it is refused. Variables and
devices are taken from the attachments themselves, so that it can't say anything else than what happens.
"""

from __future__ import annotations

import math
from typing import Any

from astra_agent.attach import Edits, Placement, Request, attach
from astra_agent.attach.memlock import IPC_LOCK
from astra_agent.attach.rdma import nccl_ib_hca
from astra_agent.errors import AstraError
from astra_agent.inventory.fabric import DEFAULT_PREFIX, SHARED_CLIQUE
from astra_agent.inventory.gids import is_ipv4
from astra_agent.inventory.imex import channel, why_not
from astra_agent.inventory.model import Inventory, Port
from astra_agent.inventory.numa import formula
from astra_agent.inventory.order import format_list, natural
from astra_agent.inventory.reports import dead_rails, down
from astra_agent.inventory.training import kind_of, usable
from astra_cli.machine.remarks import hides_pcie, remarks

Document = dict[str, Any]

BOUNDS_GBPS = (100, 200, 400)
"""What runs usually ask for; machines whose ports have less are asked for the best that they have as well."""
_TABLE = ("NCCL_DEBUG", "NCCL_ASYNC_ERROR_HANDLING", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_DISABLE")
"""Variables of the table of attachments; what else an attachment sets is under `recommended_env`."""


def answers(inventory: Inventory) -> Document:
    document: Document = {
        "class": inventory.transport,
        "nccl": {str(bound): _nccl(inventory, bound) for bound in _bounds(inventory)},
        "excluded_ports": dict(inventory.excluded),
        "down_ports": {port.name: "not ACTIVE" for port in down(inventory)},
        "fabric": _fabric(inventory),
        "nvlink_domain": _nvlink_domain(inventory),
        "gpu_numa": {str(gpu.index): gpu.numa_node for gpu in inventory.gpus},
        "gpu_cpus": {str(gpu.index): format_list(gpu.cpus) for gpu in inventory.gpus},
        "numa_formula": _numa_formula(inventory),
        "gpu_device_nodes": {
            "per_gpu": [gpu.node.path for gpu in inventory.gpus if gpu.node is not None],
            "common": [node.path for node in inventory.gpu_nodes],
        },
        "attach": _attach(inventory),
        **_where_it_applies(inventory),
    }
    return document


def _where_it_applies(inventory: Inventory) -> Document:
    """Answers to questions that only some machines raise."""
    found: Document = {
        "gpu_nics": {str(index): list(names) for index, names in inventory.near} if inventory.sees_bridges else {},
        "gpu_memory_numa": {str(gpu.index): gpu.memory_node for gpu in inventory.gpus if gpu.memory_node is not None},
        "netdev": {
            device.name: device.netdevs[0] for device in inventory.rdma if device.pci is None and device.netdevs
        },
        "imex": _imex(inventory),
        "bond_rate": _bond_rate(inventory),
        "degraded": _degraded(inventory),
        "prefix_trap": _prefix_trap(inventory),
        "recommended_env": _recommended_env(inventory),
        **_best(inventory),
        **remarks(inventory, _bounds(inventory)),
    }
    if found["gpu_memory_numa"]:
        found["cpuset_mems"] = {
            str(gpu.index): str(gpu.numa_node) for gpu in inventory.gpus if gpu.numa_node is not None
        }
    return {name: answer for name, answer in found.items() if answer}


# Ports -------------------------------------------------------------------------------------------------------------


def _bounds(inventory: Inventory) -> tuple[int, ...]:
    fastest = max((port.gbps or 0 for port in inventory.ports() if port.is_active), default=0)
    lower = (math.floor(fastest),) if 1 <= fastest < BOUNDS_GBPS[0] else ()
    return (*BOUNDS_GBPS, *lower)


def _best(inventory: Inventory) -> Document:
    """The choice at the best rate that training ports have, where none of the usual bounds is met."""
    best = math.floor(max((port.gbps or 0 for port in usable(inventory.ports(), inventory.training, 0)), default=0))
    if not 1 <= best < BOUNDS_GBPS[0] or best in _bounds(inventory):
        return {}
    choice = _nccl(inventory, best)
    return {f"nccl_at_{best}": {name: choice[name] for name in ("recommended", "nccl_ib_hca")}}


def _nccl(inventory: Inventory, bound: float) -> Document:
    enough = [port for port in inventory.ports() if port.is_active and (port.gbps or 0) >= bound]
    recommended = [] if inventory.transport == "efa" else usable(inventory.ports(), inventory.training, bound)
    kinds = {port.name: kind_of(inventory.device_of(port.name), port) for port in enough}
    return {
        "active_and_fast_enough": [port.name for port in enough],
        **{kind: [port.name for port in enough if kinds[port.name] == kind] for kind in ("infiniband", "roce", "efa")},
        "recommended": [port.name for port in recommended],
        "nccl_ib_hca": nccl_ib_hca(recommended) if recommended else None,
    }


def _fabric(inventory: Inventory) -> Document:
    kind = inventory.transport
    if kind == "infiniband":
        return _infiniband(inventory)
    label = inventory.overrides.fabric
    fabric: Document = {"kind": kind, "key": None, "needs_label": kind != "ethernet" and label is None}
    if label is not None:
        fabric["label"] = label
    if kind == "roce":
        fabric["rocev2_ipv4_gid_index"] = {
            port.name: port.gid for port in inventory.ports() if port.gid is not None and _has_ipv4(port)
        }
        fabric["why"] = (
            "nothing in sysfs names the Ethernet pod; it comes from site data or the cloud's topology service"
        )
    if kind == "efa":
        fabric["why"] = "sysfs has no fabric identity; use the cloud's instance-topology answer or a label"
    return fabric


def _infiniband(inventory: Inventory) -> Document:
    ours = [group for group in inventory.groups if set(group.ports) & set(inventory.training)]
    default = any(group.prefix == DEFAULT_PREFIX for group in ours)
    fabric: Document = {
        "kind": "infiniband",
        "key": ours[0].key if ours else None,
        "groups": [
            {"subnet_prefix": group.prefix, "sm_lid": f"{group.sm_lid:#x}", "ports": list(group.ports)}
            for group in inventory.groups
        ],
        "needs_label": (default or not ours) and inventory.overrides.fabric is None,
    }
    if inventory.overrides.fabric is not None:
        fabric["label"] = inventory.overrides.fabric
    elif not ours:
        fabric["why"] = "no training port is ACTIVE: without one sysfs shows no subnet"
    elif default:
        fabric["why"] = (
            "the default subnet prefix is shared by unrelated fabrics, so this key can only say 'maybe the same'"
        )
    return fabric


def _has_ipv4(port: Port) -> bool:
    return any(gid.index == port.gid and is_ipv4(gid) for gid in port.gids)


def _bond_rate(inventory: Inventory) -> Document:
    bonds = {netdev.name: netdev.speed_gbps for netdev in inventory.netdevs if netdev.is_bond and netdev.speed_gbps}
    for port in inventory.ports():
        speed = max((bonds.get(gid.netdev) or 0 for gid in port.gids), default=0)
        if port.name in inventory.training and port.rate_gbps is not None and speed > port.rate_gbps:
            return {
                "sysfs_gbps": _number(port.rate_gbps),
                "bond_netdev_gbps": _number(speed),
                "rule": "for a device whose GID netdev is a bond take the larger of ports/N/rate and the bond netdev's "
                "speed",
            }
    return {}


def _number(value: float) -> int | float:
    return int(value) if value == int(value) else value


def _prefix_trap(inventory: Inventory) -> Document:
    """The first device whose name is the start of others': what NCCL takes without the sign that makes names exact."""
    names = [device.name for device in inventory.rdma]
    for name in names:
        longer = [other for other in names if other != name and other.startswith(name)]
        if longer:
            return {"without_equals": name, "also_matches": longer}
    return {}


_COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def _degraded(inventory: Inventory) -> Document:
    dead = dead_rails(inventory) if inventory.sees_bridges else ()
    if not dead:
        return {}
    lost, all_ports = len(down(inventory)), len(inventory.training)
    words = [_COUNTS[count] if count < len(_COUNTS) else str(count) for count in (lost, all_ports)]
    are = "is" if lost == 1 else "are"
    verdict = "usable" if lost < all_ports else "not usable"
    return {
        "gpus_without_a_live_nearby_port": list(dead),
        "policy": f"{words[0]} of {words[1]} rails {are} dead: {verdict}, but tell the operator",
    }


# GPUs --------------------------------------------------------------------------------------------------------------


def _nvlink_domain(inventory: Inventory) -> Document:
    domain = inventory.nvlink
    found: Document = {
        "key": domain.key,
        "usable": domain.key is not None,
        "spans_machines": domain.key is not None,
        "reason": domain.reason,
    }
    if domain.key is not None and domain.key.endswith(f".{SHARED_CLIQUE}"):
        found["note"] = (
            f"clique {SHARED_CLIQUE} is a default partition id that other racks share: compare UUID and clique together"
        )
    return found


def _numa_formula(inventory: Inventory) -> Document | None:
    if not inventory.gpus:
        return None
    each, right = formula(tuple(gpu.numa_node for gpu in inventory.gpus), inventory.numa)
    gives = {str(gpu.index): gpu.index // each for gpu in inventory.gpus}
    return {"gpus_per_numa": each, "gives": gives, "right": right}


def _imex(inventory: Inventory) -> Document:
    imex = inventory.imex
    if imex is None:
        return {}
    first = channel(imex, 0)
    found: Document = {
        "channel": first.path,
        "major": first.major,
        "minor": first.minor,
        "present": 0 in imex.present,
        "channel_count": imex.channels,
    }
    if imex.management is not None and inventory.nvlink.key is not None:
        found["management_cap"] = imex.management.path
    return found


# Attachments -------------------------------------------------------------------------------------------------------


def _attach(inventory: Inventory) -> Document:
    rows: Document = {
        "one_machine": _row(inventory, Placement("machine"), Request()),
        "ethernet": _row(inventory, Placement("ethernet"), Request()),
        "nvlink_domain": _row(inventory, Placement("nvlink"), Request()),
        "rdma": {},
    }
    if "refuse" in rows["nvlink_domain"]:
        rows["nvlink_domain"] = {"refuse": why_not(inventory.imex, inventory.nvlink)}
    for bound in _bounds(inventory):
        row = _row(inventory, Placement("rdma"), Request(min_gbps=bound))
        if "refuse" in row:
            row = {"refuse": f"no usable port at {bound} Gb/s or more; never emit an empty NCCL_IB_HCA"}
        else:
            row["devices_whole_machine"] = _whole_machine(inventory)
        if inventory.transport == "efa" and "refuse" not in row:
            row["note"] = "EFA: NCCL reaches it through the aws-ofi-nccl plugin; no NCCL_IB_HCA, no rdma_cm"
        rows["rdma"][str(bound)] = row
    return rows


def _row(inventory: Inventory, placement: Placement, request: Request) -> Document:
    """Without GPUs: their nodes are the same in every row."""
    try:
        edits = attach(inventory, placement, request)
    except AstraError as error:
        return {"refuse": str(error)}
    return {
        "env": {name: value for name, value in edits.env if name in _TABLE},
        "devices": _devices(edits),
        "caps_add": list(edits.capabilities),
        "memlock_unlimited": IPC_LOCK in edits.capabilities and bool(edits.rlimits),
    }


def _devices(edits: Edits) -> list[str]:
    """The connection manager's node last."""
    paths = sorted((device.path for device in edits.devices), key=natural)
    return sorted(paths, key=lambda path: path.endswith("/rdma_cm"))


def _whole_machine(inventory: Inventory) -> list[str]:
    paths = sorted((device.verbs.path for device in inventory.rdma if device.verbs is not None), key=natural)
    if inventory.rdma_cm is not None and inventory.transport != "efa":
        paths.append(inventory.rdma_cm.path)
    return paths


def _recommended_env(inventory: Inventory) -> Document:
    """Variables outside of the table that are needed here, or that the operator's file sets."""
    rdma: Document = dict(inventory.overrides.env) if inventory.transport != "ethernet" else {}
    found: Document = {}
    if inventory.nvlink.key is not None:
        found["one_machine"] = {
            "NCCL_MNNVL_ENABLE": "0 if the workers of the job run in more than one container with different host names"
        }
        rdma["NCCL_MNNVL_ENABLE"] = "0 when no IMEX channel is attached"
    elif inventory.rack_scale:
        rdma["NCCL_MNNVL_ENABLE"] = "0"
    if hides_pcie(inventory):
        rdma["NCCL_TOPO_FILE"] = (
            "the VM size's topology file from the image; without it NCCL cannot see which NIC is near which GPU (every "
            "PCI domain has its own root)"
        )
    return {**found, "rdma": rdma} if rdma else found
