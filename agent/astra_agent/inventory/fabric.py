"""Which networks the machine is on: InfiniBand subnets, the NVLink domain, and what proves each tier."""

from __future__ import annotations

import re
from collections.abc import Sequence

from astra_agent.inventory.library import SUCCESS, LibraryReading, meaning
from astra_agent.inventory.model import Evidence, Fabric, Gpu, NvlinkDomain, Overrides, Port, SubnetGroup, Transport

DEFAULT_PREFIX = "fe80:0000:0000:0000"
"""What most sites leave: it says nothing about which fabric it is."""
SHARED_CLIQUE = 32766
"""A default partition that different racks share."""

_RACK_SCALE = {"GB200", "GB300"}
_NO_CLUSTER = "00000000-0000-0000-0000-000000000000"
_NOT_SUPPORTED, _NOT_STARTED, _IN_PROGRESS, _COMPLETED = range(4)
_UNHEALTHY = 2
_TRUE = 1


# InfiniBand --------------------------------------------------------------------------------------------------------


def subnet_groups(ports: Sequence[Port]) -> tuple[SubnetGroup, ...]:
    """Active ports by subnet and subnet manager, the largest group first, then in order of port."""
    groups: dict[tuple[str, int], list[str]] = {}
    for port in ports:
        if port.subnet is not None:
            groups.setdefault(port.subnet, []).append(port.name)
    found = [SubnetGroup(prefix, sm_lid, tuple(names)) for (prefix, sm_lid), names in groups.items()]
    return tuple(sorted(found, key=lambda group: -len(group.ports)))


# NVLink ------------------------------------------------------------------------------------------------------------


def is_rack_scale(reading: LibraryReading) -> bool:
    """
    Whether the GPUs are made for a domain of several machines. By exact words of the name: "GB200" holds "B200", and
    a B200 is no such product.
    """
    words = {word for gpu in reading.gpus if gpu.name for word in re.split(r"[^A-Za-z0-9]+", gpu.name)}
    return bool(words & _RACK_SCALE) or bool(reading.chassis.strip())


def nvlink_domain(gpus: Sequence[Gpu], *, rack_scale: bool) -> NvlinkDomain:
    """Unsupported and broken are different answers: a machine whose registration failed is not one without a domain."""
    if not gpus:
        return NvlinkDomain(None, "no GPU")
    fabrics = [gpu.fabric for gpu in gpus if gpu.fabric is not None and gpu.fabric.state != _NOT_SUPPORTED]
    if not fabrics:
        return _without_registration(rack_scale)
    for gpu in gpus:
        trouble = _trouble(gpu, rack_scale=rack_scale)
        if trouble is not None:
            return NvlinkDomain(None, trouble, broken=True)
    keys = {gpu.index: _key(gpu.fabric) for gpu in gpus}
    distinct = sorted({key or "none" for key in keys.values()})
    if len(distinct) > 1:
        return NvlinkDomain(None, f"the GPUs are in different NVLink domains: {', '.join(distinct)}", broken=True)
    if keys[gpus[0].index] is None:
        return NvlinkDomain(None, "cluster UUID is zero: the NVLink switches join only this machine's GPUs")
    return NvlinkDomain(keys[gpus[0].index], None)


def _without_registration(rack_scale: bool) -> NvlinkDomain:
    if rack_scale:
        return NvlinkDomain(
            None,
            "fabric state is NOT_SUPPORTED on a rack-scale product: its NVLink fabric is broken; refuse NVLink-domain "
            "placement and report the machine",
            broken=True,
        )
    return NvlinkDomain(None, "fabric state is NOT_SUPPORTED: this GPU has no fabric registration")


def _trouble(gpu: Gpu, *, rack_scale: bool) -> str | None:
    """What keeps one GPU out of a domain that it is made for; None when nothing does."""
    fabric = gpu.fabric
    if fabric is None or fabric.state == _NOT_SUPPORTED:
        return f"GPU {gpu.index} says nothing of a fabric while others do: refuse NVLink-domain placement and report it"
    if fabric.state in (_NOT_STARTED, _IN_PROGRESS):
        word = "has not started" if fabric.state == _NOT_STARTED else "is in progress"
        return f"fabric registration of GPU {gpu.index} {word}: wait with a bound, then report the machine"
    if fabric.state == _COMPLETED and (fabric.status != SUCCESS or (rack_scale and _key(fabric) is None)):
        zero = ", zero UUID" if _key(fabric) is None else ""
        return (
            f"fabric-capable GPU whose registration failed (status {fabric.status} {_status(fabric)}{zero}): refuse "
            "NVLink-domain placement and report the machine, do not treat it as a machine without a domain"
        )
    if _key(fabric) is not None and (sick := _sick(fabric)) is not None:
        return f"the NVLink fabric of GPU {gpu.index} is unhealthy ({sick}): refuse NVLink-domain placement"
    return None


def _status(fabric: Fabric) -> str:
    return "Success" if fabric.status == SUCCESS else meaning(fabric.status)


def _sick(fabric: Fabric) -> str | None:
    """By the summary where the driver has one, else by the mask; a mask of 0 is an old driver's, and says nothing."""
    if fabric.health_summary == _UNHEALTHY:
        return "health summary 2"
    if fabric.health_mask >> 4 & 3 == _TRUE:
        return "route unhealthy"
    if fabric.health_mask >> 8 & 15 > _TRUE:
        return f"incorrect configuration {fabric.health_mask >> 8 & 15}"
    return None


def is_degraded(fabric: Fabric) -> bool:
    """In the domain, at less than its full bandwidth."""
    return fabric.health_mask & 3 == _TRUE or fabric.health_summary == 3


def _key(fabric: Fabric | None) -> str | None:
    if fabric is None or fabric.cluster.lower() in ("", _NO_CLUSTER):
        return None
    return f"{fabric.cluster.lower()}.{fabric.clique}"


# Tiers -------------------------------------------------------------------------------------------------------------


def tiers(
    nvlink: NvlinkDomain, transport: Transport, training: Sequence[Port], groups: Sequence[SubnetGroup], said: Overrides
) -> tuple[Evidence, ...]:
    """
    What the machine can share with others, tightest first. A name is a domain only where it proves something: the
    operator's word, an NVLink cluster, a subnet prefix that somebody chose. A default prefix and an Ethernet pod prove
    nothing, and two machines must not be put together because they both say it.
    """
    found: list[Evidence] = []
    if nvlink.key is not None:
        found.append(Evidence("nvlink", nvlink.key, "cluster UUID and clique of every GPU"))
    names = ", ".join(port.name for port in training if port.is_active)
    if transport == "infiniband":
        domain, why = _infiniband(training, groups, said)
        found.append(Evidence("infiniband", domain, f"{why}; active ports: {names or 'none'}"))
        found.append(Evidence("rdma", domain, "InfiniBand is RDMA"))
    elif transport in ("roce", "efa"):
        why = f"{'RoCE' if transport == 'roce' else 'EFA'} ports: {names or 'none active'}"
        label = "" if said.fabric else "; nothing on the machine names their network: write fabric.name into its file"
        found.append(Evidence("rdma", said.fabric, f"{why}{label}"))
    found.append(Evidence("ethernet", "ethernet", "the network that the agent reaches its coordinator over"))
    return tuple(found)


def _infiniband(training: Sequence[Port], groups: Sequence[SubnetGroup], said: Overrides) -> tuple[str | None, str]:
    if said.fabric:
        return said.fabric, "named by the operator"
    prefixes = sorted({group.prefix for group in groups if {port.name for port in training} & set(group.ports)})
    if not prefixes:
        return None, "no active port shows a subnet"
    if DEFAULT_PREFIX in prefixes:
        return None, (
            f"the subnet prefix is the default one ({DEFAULT_PREFIX}), which unrelated fabrics share: write "
            "fabric.name into the machine's file"
        )
    return "ib:" + "+".join(prefix.replace(":", "") for prefix in prefixes), "subnet prefix"
