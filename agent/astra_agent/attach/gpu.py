"""GPUs: by the machine's CDI files, or from its inventory where no file has them."""

from __future__ import annotations

from collections.abc import Sequence

from astra_agent.attach.edits import Device, Edits, Hook, Mount, Rule, merge
from astra_agent.errors import HostFault, InvalidRequest
from astra_agent.inventory import cdi
from astra_agent.inventory.cdi_spec import CdiEdits, CdiSpec
from astra_agent.inventory.model import CharDevice, Gpu, Inventory

_VISIBLE = ("NVIDIA_VISIBLE_DEVICES", "void")
"""So that no second mechanism, such as a prestart hook for images that say `all`, adds devices behind the runtime."""
_NEEDED = ("/dev/nvidiactl", "/dev/nvidia-uvm")
_READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")


def chosen(inventory: Inventory, indexes: Sequence[int]) -> tuple[Gpu, ...]:
    """
    The GPUs of a worker, in the order that it named them.

    Raises:
        InvalidRequest: One is not on this machine, or is given twice.
        HostFault: One is there and can't be used, or none can.
    """
    known = {gpu.index: gpu for gpu in inventory.gpus}
    for index in indexes:
        if indexes.count(index) > 1:
            raise InvalidRequest(f"gpus names GPU {index} of {inventory.machine} twice", "gpus")
        if index not in known:
            raise _not_there(inventory, index)
        if known[index].mig:
            raise HostFault(f"GPU {index} of {inventory.machine} is cut into MIG devices; gpus are whole GPUs")
    if indexes and inventory.out_of_use is not None:
        raise HostFault(f"{inventory.machine} takes no work with GPUs: {inventory.out_of_use}")
    return tuple(known[index] for index in indexes)


def gpu(inventory: Inventory, gpus: Sequence[Gpu]) -> Edits:
    """Raises: HostFault naming a node that the machine lacks."""
    if not gpus:
        return Edits()
    return merge(Edits(env=(_VISIBLE,)), *(_attached(inventory, one) for one in gpus))


def _not_there(inventory: Inventory, index: int) -> InvalidRequest | HostFault:
    has = ", ".join(str(gpu.index) for gpu in inventory.gpus) or "none"
    for lost in inventory.lost:
        if lost.reason.startswith(f"GPU {index}:"):
            return HostFault(f"GPU {index} of {inventory.machine} ({lost.address}) can't be used: {lost.reason}")
    return InvalidRequest(f"GPU {index} is not on {inventory.machine}; it has: {has}", "gpus")


def _attached(inventory: Inventory, one: Gpu) -> Edits:
    found = cdi.find(inventory.cdi, one.uuid) or cdi.find(inventory.cdi, str(one.index))
    if found is None:
        return _from_inventory(inventory, one)
    spec, place = found
    own = spec.devices[place][1]
    for node in own.nodes:
        if node.host_path in spec.lacking:
            raise HostFault(
                f"{spec.file} names {node.host_path} for GPU {one.index} of {inventory.machine}: it is not there"
            )
    return merge(_from_cdi(spec, spec.common), _from_cdi(spec, own))


def _from_cdi(spec: CdiSpec, edits: CdiEdits) -> Edits:
    """What the machine lacks is left out: the inventory has warned of it, and the runtime would fail without a word."""
    nodes = [node for node in edits.nodes if node.major is not None and node.minor is not None]
    return merge(
        Edits(
            env=tuple(pair for pair in edits.env if pair[0] != _VISIBLE[0]),
            mounts=tuple(
                Mount(mount.container_path, mount.host_path, mount.kind, mount.options)
                for mount in edits.mounts
                if mount.host_path not in spec.lacking
            ),
            hooks=tuple(Hook(hook.stage, hook.path, hook.args, hook.env, hook.timeout_s) for hook in edits.hooks),
            groups=edits.groups,
        ),
        *(
            Edits(
                devices=(
                    Device(
                        node.path,
                        node.kind or "c",
                        node.major or 0,
                        node.minor or 0,
                        node.mode or 0o666,
                        node.uid,
                        node.gid,
                    ),
                ),
                rules=(Rule(node.kind or "c", node.major or 0, node.minor or 0, node.permissions),)
                if node.permissions != "none"
                else (),
            )
            for node in nodes
        ),
    )


def _from_inventory(inventory: Inventory, one: Gpu) -> Edits:
    if one.node is None:
        raise HostFault(f"GPU {one.index} of {inventory.machine} has no device node")
    control = {node.path: node for node in inventory.gpu_nodes}
    for path in _NEEDED:
        if path not in control:
            raise HostFault(f"{path} is not on {inventory.machine}: no program can use a GPU without it")
    nodes = (one.node, *control.values())
    mounts = tuple(Mount(path, path, "bind", _READ_ONLY) for path in inventory.driver.files)
    return merge(Edits(mounts=mounts), *(device(node) for node in nodes))


def device(node: CharDevice) -> Edits:
    """A node that every user may open, and the rule that lets it: without the rule, opening it is not permitted."""
    return Edits(
        devices=(Device(node.path, "c", node.major, node.minor),), rules=(Rule("c", node.major, node.minor, "rw"),)
    )
