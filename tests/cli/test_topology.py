from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from astra_agent.errors import InvalidRequest
from astra_agent.wire import MachineFacts
from astra_cli.dev.topology import MachinePlan, Port, parse, uniform
from astra_cli.reading import read

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("topology-*.yaml"))


def test_machines_that_are_all_alike_need_no_file() -> None:
    machines = uniform(3, 8)
    assert [m.name for m in machines] == ["m-1", "m-2", "m-3"]
    assert [m.gpus for m in machines] == [8, 8, 8]
    assert {m.domains["ethernet"] for m in machines} == {"dev"}


def test_a_count_makes_machines_of_one_kind_with_numbers() -> None:
    machines = parse(yaml.safe_load("machines: [{name: a, count: 2, gpus: 8}, {}, {name: b}]"))
    assert [(m.name, m.number, m.gpus) for m in machines] == [("a-1", 1, 8), ("a-2", 2, 8), ("m-3", 3, 0), ("b", 4, 0)]


def test_everything_that_a_machine_may_have() -> None:
    text = """
    machines:
      - name: gpu-1
        cpu: 192
        memory: 2Ti
        gpus: {count: 8, memory: 80Gi}
        ports: [{name: mlx5_0, tier: infiniband, gbps: 400}, {name: mlx5_1, tier: infiniband, gbps: 400, up: false}]
        domains: {infiniband: fabric-1}
    """
    assert parse(yaml.safe_load(text)) == (
        MachinePlan(
            "gpu-1", 1, 192.0, 2 << 40, 8, 80 << 30,
            (Port("mlx5_0", "infiniband", 400.0), Port("mlx5_1", "infiniband", 400.0, up=False)),
            {"infiniband": "fabric-1"},
        ),
    )  # fmt: skip


def test_what_is_left_out_is_this_machines_own() -> None:
    facts = parse({"machines": [{}]})[0].facts()
    assert "cpu_cores" not in facts
    assert "memory_bytes" not in facts


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_are_topologies_that_an_agent_understands(path: Path) -> None:
    for machine in parse(read(path)):
        MachineFacts.model_validate(
            {"name": machine.name, "address": "10.83.1.1", "cpu_cores": 1, "memory_bytes": 1, **machine.facts()}
        )


def test_there_are_two_examples() -> None:
    assert len(EXAMPLES) == 2


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[]", "must have `machines`"),
        ("{machines: []}", "must have `machines`"),
        ("{machines: [{}], racks: 2}", "no field racks"),
        ("{machines: [3]}", "machines[0] must be a mapping, not 3"),
        ("{machines: [{gpu: 8}]}", "no field machines[0].gpu; here it may have name, count, cpu, memory, gpus"),
        ("{machines: [{name: GPU_1}]}", "machines[0].name must be a DNS label"),
        ("{machines: [{name: a}, {name: a}]}", "two machines of the topology are called a"),
        ("{machines: [{count: 0}]}", "machines[0].count must be from 1 to 200, not 0"),
        ("{machines: [{count: 200}, {}]}", "at most 200 machines, not 201"),
        ("{machines: [{cpu: 0}]}", "machines[0].cpu must be a number above 0, not 0"),
        ("{machines: [{memory: 8GB}]}", "machines[0].memory must be a size"),
        ("{machines: [{memory: true}]}", "machines[0].memory must be a size"),
        ("{machines: [{gpus: many}]}", "machines[0].gpus must be a whole number from 0 to 64, not 'many'"),
        ("{machines: [{gpus: {memory: 1Gi}}]}", "machines[0].gpus.count must be a whole number"),
        ("{machines: [{ports: [{name: a, tier: nvlink, gbps: 1}]}]}", "ports[0].tier must be one of infiniband, rdma,"),
        ("{machines: [{ports: [{tier: rdma, gbps: 1}]}]}", "ports[0].name must be a port's name"),
        ("{machines: [{ports: [{name: a, tier: rdma}]}]}", "ports[0].gbps must be a number above 0, not None"),
        ("{machines: [{ports: [{name: a, tier: rdma, gbps: 1, up: 1}]}]}", "ports[0].up must be true or false, not 1"),
        ("{machines: [{domains: {rack: a}}]}", "has no tier 'rack'"),
        ("{machines: [{domains: {rdma: 3}}]}", "domains.rdma must be the domain's name"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_what_would_be_right(text: str, part: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(yaml.safe_load(text))
    assert part in str(caught.value)


@pytest.mark.parametrize(("machines", "gpus"), [(0, 0), (201, 0), (4, -1), (4, 65)])
def test_numbers_out_of_range_are_refused(machines: int, gpus: int) -> None:
    with pytest.raises(InvalidRequest, match="must be from"):
        uniform(machines, gpus)
