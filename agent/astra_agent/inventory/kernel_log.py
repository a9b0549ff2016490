"""
What the kernel log says of GPUs: faults with a number (Xid), and a GPU that fell off the bus without one.

The log comes line by line, as `/dev/kmsg` gives it, with anybody else's lines in between. A program's own mistakes have
numbers too, and say nothing against the GPU.

What the log has said holds until the driver says otherwise: a reset, a rescan of the bus or a new driver brings a GPU
back, and the log has no line for that. The driver alone can't be believed at once, since it answers for a moment for a
GPU that is going.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from astra_agent.inventory.library import SUCCESS, TIMEOUT, GpuReading, LibraryReading
from astra_agent.inventory.pci import normal_address

OFF_BUS = 79
_HARDWARE = {
    48: "an error in its memory that could not be corrected",
    62: "its internal micro-controller halted",
    64: "a row of its memory could not be remapped",
    74: "an NVLink error",
    79: "it has fallen off the bus",
    95: "an error in its memory that was not contained",
    119: "its system processor does not answer",
    120: "its system processor failed",
    140: "an error in its memory that could not be corrected",
    143: "it could not be initialised",
}
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?\): ([0-9]{1,4})")
_GPU = re.compile(r"NVRM: The NVIDIA GPU ([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])")
_FALLEN = re.compile(r"NVRM: fallen off the bus and is not responding")


@dataclass(frozen=True, slots=True)
class Heard:
    """
    What the log has said since the machine booted, of GPUs that are not back since.

    Attributes:
        off_bus: Addresses of GPUs that are gone.
        faults: Address and number of faults of the hardware, each once, in order.
        speaking_of: The GPU that the last first line of three named.
        confirmed: Of those that it spoke of, the ones that the driver did not answer for either, or called sick.
        called_well: And the ones that it called well in so many words when it was asked last.
    """

    off_bus: frozenset[str] = frozenset()
    faults: tuple[tuple[str, int], ...] = ()
    speaking_of: str | None = None
    confirmed: frozenset[str] = frozenset()
    called_well: frozenset[str] = frozenset()


def hear(heard: Heard, line: str) -> Heard:
    """The log with one more line."""
    message = line.partition(";")[2] or line
    if match := _XID.search(message):
        address, number = normal_address(f"{match[1]}.0"), int(match[2])
        if address is None or number not in _HARDWARE or (address, number) in heard.faults:
            return heard
        gone = heard.off_bus | {address} if number == OFF_BUS else heard.off_bus
        return replace(heard, off_bus=gone, faults=(*heard.faults, (address, number)))
    if match := _GPU.search(message):
        return replace(heard, speaking_of=normal_address(match[1]))
    if _FALLEN.search(message) and heard.speaking_of is not None:
        return replace(heard, off_bus=heard.off_bus | {heard.speaking_of}, speaking_of=None)
    return heard


def after(heard: Heard, reading: LibraryReading) -> Heard:
    """
    The log once the driver has been asked again. A GPU is back that answers in full after it did not, or was called
    sick; and one of which a driver that knows says twice that nothing has to be done (what the log holds of before this
    agent started is read again, whatever was repaired since).
    """
    spoken_of = heard.off_bus | {address for address, _ in heard.faults}
    if not spoken_of or reading.error == TIMEOUT:
        return heard
    answers = {normal_address(gpu.pci or ""): gpu for gpu in reading.gpus} if reading.error == SUCCESS else {}
    good = {address for address in spoken_of if (gpu := answers.get(address)) is not None and _is_good(gpu)}
    called_well = frozenset(address for address in good if answers[address].recovery == 0)
    back = good & heard.confirmed | called_well & heard.called_well
    return replace(
        heard,
        off_bus=heard.off_bus - back,
        faults=tuple((address, number) for address, number in heard.faults if address not in back),
        confirmed=(heard.confirmed | (spoken_of - good)) - back,
        called_well=called_well - back,
    )


def _is_good(gpu: GpuReading) -> bool:
    return gpu.error == SUCCESS and gpu.uuid is not None and not gpu.recovery and not gpu.failed_rows


def fault(number: int) -> str:
    """An Xid in words."""
    return f"{_HARDWARE.get(number, 'a fault')} (Xid {number} in the kernel log)"
