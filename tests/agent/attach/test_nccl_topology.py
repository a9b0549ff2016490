"""NCCL's topology file: given where the machine's kind has one, and never another kind's."""

from __future__ import annotations

import pytest

from astra_agent.attach import Edits, Placement, Request, attach
from astra_agent.attach.nccl import TOPOLOGY
from astra_agent.inventory import Inventory, read
from astra_agent.inventory.anonymity import anonymous
from astra_agent.inventory.nccl_topology import USUAL
from tests.fakes.machine import Machine

GPUS = ("0001:00:00.0", "0002:00:00.0")
OPERATORS = "/opt/nccl/topology.xml"
OPERATORS_FILE = "/etc/astraeus/machine.toml"


def xml(*addresses: str) -> str:
    """As a cloud's file for its size: bridges of its own making, with the machine's devices below them."""
    gpus = "".join(f'<pci busid="{address.upper()}" class="0x030200" link_width="16"/>' for address in addresses)
    return f'<system version="1"><cpu numaid="0"><pci busid="ffff:ff:01.0" class="0x060400">{gpus}</pci></cpu></system>'


def machine(files: dict[str, str], *, operator: str = "", efa: bool = False) -> Inventory:
    made = Machine("vm-1", {0: "0-15"}, route="eth0")
    for address in GPUS:
        made.gpu(f"/VMBUS:01/{address.partition(':')[0]}/{address}")
    for path, text in files.items():
        made.file(path, text)
    if operator:
        made.file(OPERATORS_FILE, operator)
    if efa:
        made.rdma("rdmap0s6", "0003:00:00.0", driver="efa", vendor=0x1D0F)
    return read(*made.capture())


def attached(found: Inventory, *gpus: int, **env: str) -> Edits:
    return attach(found, Placement("machine"), Request(gpus=gpus, env=env))


def given(edits: Edits) -> tuple[str | None, str | None]:
    files = {file.path: file.text for file in edits.files}
    return dict(edits.env).get("NCCL_TOPO_FILE"), files.get(TOPOLOGY)


SAID = f'[nccl]\ntopology = "{OPERATORS}"'


def test_where_nccl_would_look_for_it() -> None:
    found = machine({USUAL: xml(*GPUS)})
    assert given(attached(found, 0, 1)) == (TOPOLOGY, xml(*GPUS) + "\n")
    assert given(attached(found)) == (None, None), "a worker without GPUs"


def test_where_the_operator_says_that_it_is() -> None:
    found = machine({USUAL: xml(GPUS[0]), OPERATORS: xml(*GPUS)}, operator=SAID)
    assert given(attached(found, 0)) == (TOPOLOGY, xml(*GPUS) + "\n")


def test_the_users_and_the_operators_own_variables_stay() -> None:
    found = machine({USUAL: xml(*GPUS)})
    assert given(attached(found, 0, NCCL_TOPO_FILE="/mine.xml"))[0] is None
    found = machine({USUAL: xml(*GPUS)}, operator='[env]\nNCCL_TOPO_FILE = "/theirs.xml"')
    assert given(attached(found, 0))[0] is None


def test_a_plain_machine_gets_none_and_no_complaint() -> None:
    found = machine({})
    assert given(attached(found, 0)) == (None, None)
    assert not [finding for finding in found.findings if "topology" in finding.sentence]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            xml(GPUS[0], "0005:00:00.0"),
            "NCCL's topology file is another kind of machine's: it has no GPU at 0002:00:00.0, as GPU 1 of this one; "
            "it is not used",
        ),
        ("<graphs/>", "NCCL's topology file is not used: it is a <graphs>, where NCCL reads a <system>"),
        ("not XML", "NCCL's topology file is not used: syntax error: line 1, column 0"),
        (
            "<system>" + " " * (1 << 20) + "</system>",
            "NCCL's topology file is not used: it is larger than 1048576 bytes",
        ),
    ],
    ids=["another size's", "another file", "no XML", "too large"],
)
def test_a_file_that_is_not_this_machines_is_a_finding_and_is_not_given(text: str, sentence: str) -> None:
    found = machine({USUAL: text})
    assert [finding.sentence for finding in found.findings if finding.subject == USUAL] == [sentence]
    assert given(attached(found, 0, 1)) == (None, None)


def test_one_that_the_operator_names_and_that_is_not_there_is_a_finding() -> None:
    found = machine({}, operator=SAID)
    assert [finding.sentence for finding in found.findings if finding.subject == OPERATORS] == [
        "the operator's file names it as NCCL's topology, and it is not there"
    ]


def test_a_relative_path_is_refused_by_name() -> None:
    found = machine({}, operator='[nccl]\ntopology = "topology.xml"')
    assert any("nccl.topology is 'topology.xml'; it should be a path" in one.sentence for one in found.findings)


def test_efas_plugin_brings_its_own() -> None:
    assert given(attached(machine({USUAL: xml(*GPUS)}, efa=True), 0)) == (None, None)


def test_in_a_capture_it_does_not_say_whose_cards_they_are() -> None:
    text = '<system><nic><net name="mlx5_0" guid="0x1a2b3c0003fe80a0"/></nic></system>\n'
    found = anonymous({"files": {USUAL: text}})
    assert found["files"][USUAL] == text.replace("0x1a2b3c0003fe80a0", "0x0")
