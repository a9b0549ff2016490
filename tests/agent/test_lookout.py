"""The lookout: what it says when the machine does not answer, and what a broken driver means for placement."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astra_agent.config import AgentConfig
from astra_agent.description import describe
from astra_agent.inventory import Besides, Inventory, LibraryReading, read
from astra_agent.lookout import HadGpus, Lookout, first_look
from astra_agent.wire import MachineFacts
from tests.agent.inventory.captured import captured, document
from tests.agent.inventory.test_cases import CASES, NEW, OLD, machine_of, with_cdi
from tests.agent.machine import until

FACTS = MachineFacts(name="gpu-2", address="10.0.0.1", cpu_cores=1, memory_bytes=1)


class Scripted:
    """A machine that changes, and hangs, when a test says so."""

    is_played = True

    def __init__(self, name: str) -> None:
        self.tree, self.reading = captured(name)
        self.stamp = 0
        self.answers = threading.Event()
        self.answers.set()

    def library(self) -> LibraryReading:
        self.answers.wait(10)
        return self.reading

    def read(self, library: LibraryReading, besides: Besides) -> Inventory:
        return read(self.tree, library, besides)

    def glance(self, inventory: Inventory) -> object:
        return self.stamp


async def looking(source: Scripted, folder: Path, work: Callable[[Lookout], Any], library_s: float = 0.1) -> None:
    lookout = Lookout(
        source, source.read(source.reading, Besides()), HadGpus(folder / "gpus"), glance_s=0.02, library_s=library_s
    )
    running = asyncio.create_task(lookout.run())
    try:
        await work(lookout)
    finally:
        source.answers.set()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_driver_that_hangs_takes_the_gpus_out_of_use_until_it_answers(tmp_path: Path) -> None:
    source = Scripted("dgx-h100-ndr")

    async def work(lookout: Lookout) -> None:
        source.answers.clear()
        source.stamp += 1
        await until(lambda: lookout.inventory.out_of_use is not None)
        assert "the driver does not answer: NVML does not answer within 0.1 s" in str(lookout.inventory.out_of_use)
        assert len(lookout.inventory.lost) == 8, "a GPU that does not answer is not a GPU that is not there"
        assert not any(lost.gone for lost in lookout.inventory.lost), "what runs on them is left alone"
        source.answers.set()
        await until(lambda: read_again(source, lookout).out_of_use is None)

    await looking(source, tmp_path, work)


def read_again(source: Scripted, lookout: Lookout) -> Inventory:
    source.stamp += 1
    return lookout.inventory


async def test_a_change_is_told_once_with_what_was_before(tmp_path: Path) -> None:
    source = Scripted("dgx-h100-ndr")
    told: list[tuple[int, int]] = []

    async def work(lookout: Lookout) -> None:
        lookout.changed = lambda before, after: told.append((len(before.gpus), len(after.gpus)))
        first = source.reading.gpus[5]
        gpus = tuple(gpu if gpu != first else replace(gpu, error=15) for gpu in source.reading.gpus)
        source.reading = replace(source.reading, gpus=gpus)
        source.stamp += 1
        await until(lambda: told)
        source.stamp += 1
        await asyncio.sleep(0.1)
        assert told == [(8, 7)]

    await looking(source, tmp_path, work)


async def test_a_change_while_the_machine_is_read_is_seen_by_the_next_glance(tmp_path: Path) -> None:
    source = Scripted("dgx-h100-ndr")
    whole, read_whole = source.reading, source.read
    first, *others = whole.gpus

    def change_and_read(library: LibraryReading, besides: Besides) -> Inventory:
        if source.reading is whole:
            source.reading = replace(whole, gpus=(replace(first, error=15), *others))
            source.stamp += 1
        return read_whole(library, besides)

    async def work(lookout: Lookout) -> None:
        source.read = change_and_read  # type: ignore[method-assign]
        source.stamp += 1
        await until(lambda: len(lookout.inventory.gpus) == 7)

    await looking(source, tmp_path, work)


async def test_whoever_looks_while_a_change_is_being_read_waits_for_it(tmp_path: Path) -> None:
    source = Scripted("dgx-h100-ndr")
    first, *others = source.reading.gpus
    reading, ask = threading.Event(), source.library

    def slowly() -> LibraryReading:
        reading.set()
        return ask()

    async def work(lookout: Lookout) -> None:
        await lookout.look()
        source.answers.clear()
        source.library = slowly  # type: ignore[method-assign]
        source.reading = replace(source.reading, gpus=(replace(first, error=15), *others))
        source.stamp += 1
        await until(reading.is_set)
        looked = asyncio.create_task(lookout.look())
        await asyncio.wait((looked,), timeout=0.1)
        source.answers.set()
        assert len((await looked).gpus) == 7

    await looking(source, tmp_path, work, library_s=20)


def test_the_most_gpus_that_a_machine_had_are_remembered(tmp_path: Path) -> None:
    HadGpus(tmp_path / "gpus").note(8)
    again = HadGpus(tmp_path / "gpus")
    again.note(7)
    assert (again.most, HadGpus(tmp_path / "gpus").most) == (8, 8)


async def test_the_first_look_reads_the_machine_that_the_configuration_names(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(json.dumps(document("gb200-nvl72-tray")))
    config = AgentConfig(name="tray-1", state_dir=tmp_path, address="10.0.0.1", machine_file=tmp_path / "m.json")
    lookout = await first_look(config)
    assert (lookout.inventory.machine, len(lookout.inventory.gpus)) == ("tray-1", 4)


# What placement hears of it (H03, H18) ----------------------------------------------------------------------------


@pytest.mark.parametrize("loaded", [OLD])
def test_a_driver_that_was_upgraded_under_a_machine_takes_it_out_of_placement(loaded: str) -> None:
    facts = describe(FACTS, read(*machine_of(8, loaded=loaded, library=NEW).capture()))
    assert facts.out_of_use == f"driver {loaded} is loaded, the library is {NEW}; reload the driver or reboot"
    assert describe(FACTS, read(*machine_of(8, loaded=NEW, library=NEW).capture())).out_of_use is None


def test_a_stale_cdi_file_takes_a_machine_out_of_placement_and_one_missing_file_does_not() -> None:
    text = (CASES / "H18-cdi-stale.yaml").read_text()
    stale = describe(FACTS, read(*with_cdi(text).capture()))
    assert str(stale.out_of_use).startswith("its CDI file /etc/cdi/nvidia.yaml was made for driver 570.158.01")
    machine = with_cdi(text.replace(OLD, NEW))
    del machine.files["/run/nvidia-persistenced/socket"]
    facts = describe(FACTS, read(*machine.capture()))
    assert (facts.out_of_use, len(facts.gpus)) == (None, 1)
    assert any("/run/nvidia-persistenced/socket" in found.sentence for found in facts.findings)


def test_a_gpu_that_no_worker_could_be_given_is_not_offered() -> None:
    tree, reading = captured("dgx-h100-ndr")
    cut = tuple(replace(gpu, mig=gpu.index == 3) for gpu in reading.gpus)
    facts = describe(FACTS, read(tree, replace(reading, gpus=cut)))
    assert [gpu.index for gpu in facts.gpus] == [0, 1, 2, 4, 5, 6, 7]


def test_an_nvlink_domain_whose_service_is_not_ready_is_not_offered() -> None:
    tree, reading = captured("gb200-nvl72-tray")
    assert "nvlink" in describe(FACTS, read(tree, reading, Besides(imex_service="READY"))).domains
    assert "nvlink" not in describe(FACTS, read(tree, reading, Besides(imex_service="INITIALIZING"))).domains
