"""NCCL's log: the way that it took, from what carried the bytes; lines in the forms that its versions write."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from astra_netprobe import nccl

INFINIBAND = """\
gpu-1:5100:5100 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
gpu-1:5100:5100 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation
NCCL version 2.21.5+cuda12.4
gpu-1:5100:5120 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>
gpu-1:5100:5120 [0] NCCL INFO Using non-device net plugin version 0
gpu-1:5100:5120 [0] NCCL INFO Using network IB
gpu-1:5100:5130 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
gpu-1:5100:5130 [0] NCCL INFO Channel 01/0 : 1[0] -> 0[0] [receive] via NET/IB/1/GDRDMA
gpu-1:5100:5130 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA
gpu-1:5100:5130 [0] NCCL INFO Connected all rings
bus bandwidth: 380.1 GB/s over 16 GPUs
"""
SOCKETS = """\
gpu-2:77:77 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.2<0>
gpu-2:77:91 [0] NCCL INFO NET/IB : No device found.
gpu-2:77:91 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.2<0> [1]eth1:10.1.0.2<0>
gpu-2:77:91 [0] NCCL INFO Using network Socket
gpu-2:77:95 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
"""


def test_infiniband_with_its_devices_and_channels() -> None:
    log = nccl.read(INFINIBAND)
    assert (log.version, log.network, log.reason) == ("2.21.5+cuda12.4", "IB", "")
    assert log.devices == ("mlx5_0:1/IB", "mlx5_1:1/IB")
    assert log.channels == {"NET/IB/GDRDMA": 3}


def test_sockets_with_the_reason_that_nccl_gives() -> None:
    log = nccl.read(SOCKETS)
    assert (log.network, log.reason) == ("Socket", "No device found")
    assert log.devices == ("eth0:10.0.0.2<0>", "eth1:10.1.0.2<0>")


def test_infiniband_that_was_switched_off_says_by_what() -> None:
    log = nccl.read("g:1:2 [3] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\n" + SOCKETS)
    assert log.reason == "NCCL_IB_DISABLE set by environment to 1"


def test_what_carried_the_bytes_counts_more_than_what_was_found_first() -> None:
    found = "g:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>\n"
    assert nccl.read(found).network == "IB"
    assert nccl.read(found + "g:1:2 [0] NCCL INFO Using network Socket\n").network == "Socket"
    channels = "".join(f"g:1:2 [0] NCCL INFO Channel 0{i}/0 : 0[0] -> 1[0] [send] via NET/IB/0\n" for i in range(3))
    assert nccl.read("g:1:2 [0] NCCL INFO Using network Socket\n" + channels).network == "IB"


def test_one_channel_over_sockets_makes_all_of_it_sockets() -> None:
    log = nccl.read(INFINIBAND + "g:1:2 [0] NCCL INFO Channel 02/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n")
    assert log.network == "Socket" and log.channels["NET/IB/GDRDMA"] == 3


def test_a_plugin_is_called_by_its_name() -> None:
    log = nccl.read("g:1:2 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/AWS Libfabric/0/GDRDMA\n")
    assert (log.network, log.channels) == ("AWS Libfabric", {"NET/AWS Libfabric/GDRDMA": 1})


def test_within_a_machine_there_is_no_network() -> None:
    log = nccl.read("g:1:2 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via P2P/CUMEM\n")
    assert (log.network, log.channels) == ("", {"P2P/CUMEM": 1})


def test_prefixes_of_launchers_and_times_do_not_matter() -> None:
    for prefix in ("[0]:", "[1,0]<stdout>: ", "llama-0 | ", "[2026-01-02 03:04:05] ", "[rank0]: "):
        text = "".join(f"{prefix}{line}\n" for line in INFINIBAND.splitlines())
        assert nccl.read(text) == nccl.read(INFINIBAND), prefix


def test_a_log_without_nccl_says_nothing() -> None:
    assert nccl.read("bus bandwidth: 0.1 GB/s over 4 ranks, 67108864 bytes\n") == nccl.NcclLog("", "", {}, (), "")


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    nccl.read(text)
    nccl.read("NCCL INFO " + text)
