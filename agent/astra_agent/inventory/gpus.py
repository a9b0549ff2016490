"""
The machine's GPUs: what the driver answers for, held against what is on the PCI bus.

A smaller count is never passed off as the whole: whatever is in the machine and does not answer is a `LostGpu`, with
the address where it is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from astra_agent.inventory import kernel_log, numa, pci
from astra_agent.inventory.kernel_log import Heard
from astra_agent.inventory.library import LOST, SUCCESS, UNKNOWN, GpuReading, LibraryReading, meaning
from astra_agent.inventory.model import CharDevice, Gpu, LostGpu, NumaNode, PciFunction
from astra_agent.inventory.order import natural
from astra_agent.inventory.tree import Reader

CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_NEEDED_NODES = ("nvidiactl", "nvidia-uvm")
_GIVEN_AWAY = ("vfio-pci", "pci-stub")
"""Drivers that hold a device for a virtual machine."""
_NO_ADDRESS = ""


@dataclass(frozen=True, slots=True)
class Found:
    gpus: tuple[Gpu, ...]
    lost: tuple[LostGpu, ...]


@dataclass(frozen=True, slots=True)
class Around:
    """
    What GPUs are read together with.

    Attributes:
        online: All processors of the machine.
        had: The most GPUs that the machine ever had; 0: nobody counted.
    """

    functions: Mapping[str, PciFunction]
    nodes: tuple[NumaNode, ...]
    online: frozenset[int]
    log: Heard
    had: int


def read_gpus(reader: Reader, reading: LibraryReading, around: Around) -> Found:
    present = _present(reader, around.functions)
    if reading.error != SUCCESS:
        reason = f"the driver does not answer: {reading.detail or meaning(reading.error)}"
        return Found((), tuple(LostGpu(address, reason) for address in present))
    gpus: list[Gpu] = []
    failed: list[GpuReading] = []
    for answer in reading.gpus:
        if pci.normal_address(answer.pci or "") in around.log.off_bus:
            failed.append(replace(answer, error=answer.error or LOST))
        elif answer.error != SUCCESS or answer.uuid is None or answer.recovery in _UNFIT:
            failed.append(answer)
        else:
            gpus.append(_gpu(reader, answer, around))
    failed += [GpuReading(index, error=UNKNOWN) for index in range(len(reading.gpus), reading.count)]
    lost = _lost(reader, present, gpus, failed)
    if len(gpus) + len(lost) < around.had:
        reader.found(
            "fault", "GPUs", f"{len(gpus)} can be used, fewer than the {around.had} that this machine had: one is gone"
        )
    return Found(tuple(gpus), lost)


def control_nodes(reader: Reader, gpus: tuple[Gpu, ...]) -> tuple[CharDevice, ...]:
    """The nodes that every GPU worker needs besides its GPUs' own."""
    found = {name: reader.root.device(f"/dev/{name}") for name in CONTROL_NODES}
    for name in _NEEDED_NODES:
        if gpus and found[name] is None:
            fix = "nvidia-modprobe -u -c 0" if name == "nvidia-uvm" else "nvidia-modprobe"
            reader.found("fault", f"/dev/{name}", f"/dev/{name} is not there: no program can use a GPU without it", fix)
    return tuple(node for node in found.values() if node is not None)


def _present(reader: Reader, functions: Mapping[str, PciFunction]) -> tuple[str, ...]:
    """Addresses of the GPUs on the bus that are this machine's to use."""
    found = []
    for address in sorted(functions, key=natural):
        function = functions[address]
        if not pci.is_gpu(function):
            continue
        if function.driver in _GIVEN_AWAY:
            reader.found("note", f"GPU {address}", f"it is held by {function.driver}, for a virtual machine")
        else:
            found.append(address)
    return tuple(found)


def _gpu(
    reader: Reader,
    answer: GpuReading,
    around: Around,
) -> Gpu:
    subject = f"GPU {answer.index}"
    address = pci.normal_address(answer.pci or "") or _NO_ADDRESS
    function = around.functions.get(address)
    if function is None:
        reader.found(
            "fault", subject, f"its place is not known: /sys/bus/pci/devices has no {answer.pci or 'address of it'}"
        )
    node = reader.root.device(f"/dev/nvidia{answer.minor}") if answer.minor is not None else None
    if node is None:
        path = f"/dev/nvidia{answer.minor if answer.minor is not None else '<minor>'}"
        reader.found("fault", subject, f"{path} is not there: no worker can open it", "nvidia-modprobe -c <minor>")
    numa_node, cpus = numa.next_to(answer, function, around.nodes, around.online)
    if numa_node is None:
        reader.found("warning", subject, "nothing says which processors are near it: workers get all of the machine's")
    _health(reader, subject, answer)
    for number in [number for where, number in around.log.faults if where == address]:
        reader.found("fault", subject, kernel_log.fault(number))
    return Gpu(
        index=answer.index,
        uuid=answer.uuid or "",
        name=answer.name or "",
        node=node,
        memory_bytes=answer.memory_bytes,
        pci=address,
        path=function.path if function else "",
        numa_node=numa_node,
        cpus=cpus,
        memory_node=answer.memory_node,
        mig=bool(answer.mig),
        mig_devices=answer.mig_devices,
        fabric=answer.fabric,
    )


_RECOVERIES = {1: "a reset", 2: "a reboot", 3: "its peers to be drained", 4: "to be drained and reset"}
_UNFIT = (1, 2, 4)
"""What runs on such a GPU may go on; nothing new would."""


def _health(reader: Reader, subject: str, answer: GpuReading) -> None:
    if answer.failed_rows:
        reader.found("fault", subject, "memory rows could not be remapped: its memory is worn out", "have it replaced")
    if answer.recovery:
        reader.found("fault", subject, f"the driver asks for {_RECOVERIES.get(answer.recovery, 'an action')}")
    if answer.links and answer.links[1] < answer.links[0]:
        reader.found("warning", subject, f"{answer.links[1]} of {answer.links[0]} NVLinks are up")
    if answer.mig:
        cut = (
            f"cut into {len(answer.mig_devices)} MIG devices" if answer.mig_devices else "in MIG mode, without a device"
        )
        reader.found(
            "warning", subject, f"it is {cut}: no worker gets it, since workers get whole GPUs", "nvidia-smi -mig 0"
        )


def _why(answer: GpuReading) -> str:
    if answer.error == SUCCESS and answer.recovery in _UNFIT:
        return f"the driver asks for {_RECOVERIES[answer.recovery]}"
    return meaning(answer.error)


def _lost(reader: Reader, present: tuple[str, ...], gpus: list[Gpu], failed: list[GpuReading]) -> tuple[LostGpu, ...]:
    """
    GPUs on the bus that did not answer. One that fails often can't even say its address: then it is the one that no
    other answer claims, if only one is left.
    """
    unclaimed = [address for address in present if address not in {gpu.pci for gpu in gpus}]
    lost: list[LostGpu] = []
    for answer in failed:
        address = pci.normal_address(answer.pci or "") or (unclaimed[0] if len(unclaimed) == 1 else _NO_ADDRESS)
        if address in unclaimed:
            unclaimed.remove(address)
        lost.append(LostGpu(address, f"GPU {answer.index}: {_why(answer)}", gone=answer.error == LOST))
    nameless = sum(not gpu.address for gpu in lost)
    if nameless and len(unclaimed) == nameless:
        addresses = iter(unclaimed)
        lost = [replace(gpu, address=gpu.address or next(addresses)) for gpu in lost]
        unclaimed = []
    lost += [LostGpu(address, "on the PCI bus, but the driver does not have it", gone=True) for address in unclaimed]
    for gpu in lost:
        where = gpu.address or "at an address that is not known"
        reader.found("fault", f"GPU {where}", f"it can't be used: {gpu.reason}", "see the kernel log for Xid errors")
    return tuple(lost)
