"""The machine's CDI files: which there are, which of two counts, and whether they were made for this driver."""

from __future__ import annotations

from dataclasses import replace

from astra_agent.inventory.cdi_spec import CdiEdits, CdiError, CdiSpec, driver_versions, edits_of, parse
from astra_agent.inventory.model import Driver
from astra_agent.inventory.tree import AbsentError, Reader, UnreadableError

FOLDERS = ("/etc/cdi", "/var/run/cdi")
"""The later one wins where both have a device."""
GPU_KIND = "nvidia.com/gpu"

_REMAKE = "nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml"


def read_specs(reader: Reader) -> tuple[CdiSpec, ...]:
    """In order of rising priority. A file that is wrong is left out, with a finding."""
    specs: list[CdiSpec] = []
    for folder in FOLDERS:
        for name in reader.root.names(folder):
            path = f"{folder}/{name}"
            if name.endswith((".yaml", ".yml", ".json")) and (spec := _read(reader, path)) is not None:
                specs.append(spec)
    return tuple(specs)


def _read(reader: Reader, path: str) -> CdiSpec | None:
    try:
        spec = parse(path, reader.root.read(path).decode())
    except (AbsentError, UnreadableError, UnicodeDecodeError) as error:
        reader.found("fault", path, f"this CDI file can't be read ({error}): its devices are not known", _REMAKE)
        return None
    except CdiError as error:
        reader.found("fault", path, f"this CDI file is not used: {error}", _REMAKE)
        return None
    spec = replace(
        spec,
        devices=tuple((name, _with_numbers(reader, edits)) for name, edits in spec.devices),
        common=_with_numbers(reader, spec.common),
    )
    return replace(spec, drivers=driver_versions(spec), lacking=_lacking(reader, spec))


def _with_numbers(reader: Reader, edits: CdiEdits) -> CdiEdits:
    """Nodes that the file gives no numbers for have those of the machine's."""
    nodes = []
    for node in edits.nodes:
        there = reader.root.device(node.host_path) if node.major is None or node.minor is None else None
        nodes.append(node if there is None else replace(node, kind="c", major=there.major, minor=there.minor))
    return replace(edits, nodes=tuple(nodes))


def _lacking(reader: Reader, spec: CdiSpec) -> tuple[str, ...]:
    mounted = [mount.host_path for edits in edits_of(spec) for mount in edits.mounts]
    nodes = [
        node.host_path for edits in edits_of(spec) for node in edits.nodes if node.major is None or node.minor is None
    ]
    return tuple(dict.fromkeys(path for path in (*mounted, *nodes) if not reader.root.exists(path)))


def stale(specs: tuple[CdiSpec, ...], driver: Driver) -> str | None:
    """Why no GPU worker can start here by its CDI file; None when the file fits, or there is none."""
    for spec in specs:
        if spec.kind != GPU_KIND or driver.loaded is None or not spec.drivers:
            continue
        if driver.loaded not in spec.drivers:
            made = ", ".join(spec.drivers)
            return f"its CDI file {spec.file} was made for driver {made}, the driver is {driver.loaded}; {_AGAIN}"
    return None


_AGAIN = "make it again with nvidia-ctk"


def report(reader: Reader, specs: tuple[CdiSpec, ...], driver: Driver) -> None:
    """Findings of what the files name and the machine lacks, and of devices that two files of one folder claim."""
    sentence = stale(specs, driver)
    if sentence is not None:
        reader.found("fault", "CDI", sentence, _REMAKE)
        return
    for spec in specs:
        for path in spec.lacking:
            reader.found("warning", spec.file, f"it names {path}, which is not there: workers go without it", _REMAKE)
    for name, files in _claimed_twice(specs):
        reader.found("fault", name, f"it is in {files[0]} and in {files[1]}: neither counts", "remove one of the files")


def _claimed_twice(specs: tuple[CdiSpec, ...]) -> list[tuple[str, tuple[str, str]]]:
    first: dict[tuple[str, str], str] = {}
    twice: list[tuple[str, tuple[str, str]]] = []
    for spec in specs:
        folder = spec.file.rpartition("/")[0]
        for name, _ in spec.devices:
            qualified = f"{spec.kind}={name}"
            other = first.setdefault((folder, qualified), spec.file)
            if other != spec.file:
                twice.append((qualified, (other, spec.file)))
    return twice


def find(specs: tuple[CdiSpec, ...], name: str) -> tuple[CdiSpec, int] | None:
    """
    The file of highest priority that has the GPU *name*, and the device's place in it. None where no file has it, and
    where two of one folder claim it.
    """
    claimed = {qualified for qualified, _ in _claimed_twice(specs)}
    if f"{GPU_KIND}={name}" in claimed:
        return None
    for spec in reversed(specs):
        for place, (device, _) in enumerate(spec.devices):
            if spec.kind == GPU_KIND and device == name:
                return spec, place
    return None
