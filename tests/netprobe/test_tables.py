"""Tables in nccl-tests' form: written, read back, and read as launchers leave them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_netprobe import tables
from astra_netprobe.readings import Sized

MIB = 1 << 20
HEAD = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: (factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1
# Using devices
#  Rank  0 Group  0 Pid   5100 on      gpu-1 device  0 [0x18] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   5108 on      gpu-2 device  0 [0x18] NVIDIA H100 80GB HBM3
#
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
SMALL = """\
           8            2     float     sum      -1     31.0    0.00    0.00      0     31.1    0.00    0.00      0
"""
ROWS = """\
    16777216      4194304     float     sum      -1    251.0   66.84  125.33      0    251.5   66.71  125.08      0
  2147483648    536870912     float     sum      -1   9020.0  238.08  446.40      0   9038.0  237.61  445.51      0
  8589934592   2147483648     float     sum      -1  35400.0  242.65  454.98      0  35470.8  242.17  454.07      0
"""
FOOT = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 176.4877\n#\n"
CUT = """\
   268435456     67108864     float     sum      -1   13[1,8]<stderr>:gpu-2:5108 NCCL INFO comm 0x55d0 - Init COMPLETE
[1,0]<stdout>:90.0  193.12  362.10      0   1392.8  192.73  361.38      0
"""


@pytest.mark.parametrize("prefix", ["", "[1,0]<stdout>:", "[0]:", "0: ", "nccl-0 | "])
def test_the_plateau_decides_and_not_the_average_whatever_the_prefix(prefix: str) -> None:
    text = "".join(prefix + line + "\n" for line in (HEAD + SMALL + ROWS + FOOT).splitlines())
    reading = tables.read(text)
    assert reading.plateau is not None
    assert (reading.plateau.size_bytes, reading.plateau.bus_bytes_per_s) == (8 << 30, 454.98e9)
    assert (reading.ranks, reading.machines, reading.wrong) == (2, 2, 0)
    assert reading.devices == ("NVIDIA H100 80GB HBM3",)


def test_a_line_that_another_process_cut_in_two_is_left_out_and_counted() -> None:
    text = "".join(f"[1,0]<stdout>:{line}\n" for line in (HEAD + SMALL + ROWS).splitlines()) + f"[1,0]<stdout>:{CUT}"
    reading = tables.read(text)
    assert reading.broken_lines == 1
    assert [row.size_bytes for row in reading.rows] == [8, 16 * MIB, 2 << 30, 8 << 30]


def test_small_sizes_alone_give_no_plateau_rather_than_nothing_or_zero() -> None:
    assert tables.read(HEAD + SMALL + FOOT).plateau is None


def test_wrong_elements_are_counted() -> None:
    assert tables.read(HEAD + ROWS.replace("454.98      0", "454.98      7")).wrong == 7


def test_what_the_example_program_prints_is_read() -> None:
    reading = tables.read("[0]:bus bandwidth: 12.5 GB/s over 16 GPUs\n")
    assert (reading.ranks, reading.rows[0].size_bytes, reading.rows[0].bus_bytes_per_s) == (16, 256 * MIB, 12.5e9)


def test_a_table_is_read_back_as_it_was_written() -> None:
    sizes = (
        Sized(8, 4, "doubling", (31e-6, 32e-6, 30e-6)),
        Sized(4 * MIB, 4, "ring", (0.05, 0.051, 0.052)),
        Sized(64 * MIB, 4, "ring", (0.8, 0.81, 0.79)),
    )
    text = tables.render(sizes)
    reading = tables.read(text)
    assert [row.size_bytes for row in reading.rows] == [8, 4 * MIB, 64 * MIB]
    assert reading.rows[2].bus_bytes_per_s == pytest.approx(1.5 * 64 * MIB / 0.8, rel=0.01)
    assert "# Bus bandwidth 0.126 GB/s on the plateau, at 64 MiB" in text
    assert "Avg" not in text
    found = [second for row in reading.rows for second in (row.min_s, row.p99_s)]
    assert found == pytest.approx([3e-5, 32e-6, 0.05, 0.052, 0.79, 0.81], rel=0.01)


@pytest.mark.parametrize(
    ("size", "seconds"), [(8, 2e-6), (8, 9.994e-4), (1 << 20, 1.5e-5), (1 << 30, 0.02), (1 << 30, 9.9)]
)
def test_the_table_fits_into_a_hundred_columns_and_its_columns_stand_below_their_names(
    size: int, seconds: float
) -> None:
    sized = Sized(size, 4096, "ring", (seconds, 0.9 * seconds, 1.01 * seconds), wrong=1)
    head, units, row, *_ = tables.render((sized,)).splitlines()
    assert len(head) == len(units) == len(row) <= 100
    for name in ("time", "algbw", "busbw", "#wrong", "min", "p99"):
        end = head.index(name) + len(name)
        assert row[end - 1] != " " and row[end : end + 1] in ("", " ")


def test_what_another_tool_measured_stands_below_and_decides_nothing() -> None:
    sizes = (Sized(8, 2, "doubling", (31e-6,)),)
    other = tables.read("bus bandwidth: 0.115 GB/s over 4 ranks, 67108864 bytes\n").rows
    text = tables.render(sizes, {"PyTorch with Gloo": other})
    assert text.startswith(tables.render(sizes)) and "# PyTorch with Gloo:\n" in text
    assert tables.read(text).rows[1].bus_bytes_per_s == 0.115e9
    assert "No plateau" in text


def test_a_table_of_small_sizes_says_that_they_are_too_small() -> None:
    text = tables.render((Sized(8, 2, "doubling", (31e-6,)), Sized(4096, 2, "doubling", (35e-6,))))
    assert "# No plateau: sizes too small to judge (the largest is 4 KiB)" in text


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    tables.read(text)
