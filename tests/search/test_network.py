"""The network between instances: what a file says of an instance, and what `--network` says of an accelerator."""

from __future__ import annotations

import pytest

from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.search.answer import RejectionLog
from flopwise.search.nodes import node_kinds
from flopwise.search.workload_file import workload_from

P5_BYTES_PER_S, P5_GPUS = 3200e9 / 8, 8
"""p5.48xlarge: 3,200 Gbit/s EFA for eight H100 (aws.amazon.com/ec2/instance-types/p5)."""


def network_per_gpu(**constraints: str) -> float:
    """Bytes/s of one accelerator of a p5.48xlarge to other instances, under constraints."""
    limits = {"instances": ["p5.48xlarge"], "providers": ["aws"], **constraints}
    workload = workload_from({"model": "7B", "task": "pretrain", "data": {"tokens": "1G"}, "constraints": limits})
    (kind,) = node_kinds(workload, load_facts(), RejectionLog())
    return kind.cluster.fabric.levels[-1].bytes_per_s


def test_a_file_says_the_network_of_an_instance_which_its_accelerators_share() -> None:
    assert network_per_gpu() == P5_BYTES_PER_S / P5_GPUS
    assert network_per_gpu(inter_node_bandwidth="400GB/s") == network_per_gpu()
    assert network_per_gpu(inter_node_bandwidth="100GB/s") == 100e9 / P5_GPUS


def test_network_is_of_one_accelerator_as_the_option_says() -> None:
    assert network_per_gpu(network="50GB/s") == network_per_gpu()
    assert network_per_gpu(network="100Gbps") == 12.5e9


def test_the_two_are_not_given_together() -> None:
    with pytest.raises(SpecError, match="give one of them"):
        network_per_gpu(network="50GB/s", inter_node_bandwidth="400GB/s")


def test_constraints_say_how_accelerators_of_an_instance_reach_each_other() -> None:
    """g6.12xlarge has four L4, which have no fast link; g6.xlarge has one, which needs none."""
    asked = {"model": "7B", "task": "serve", "traffic": {"requests_per_s": 1}}
    found, ruled_out = {}, RejectionLog()
    for how in ("pcie", "host", "link"):
        limits = {"instances": ["g6.12xlarge", "g6.xlarge"], "providers": ["aws"], "intra_node": how}
        kinds = node_kinds(workload_from(asked | {"constraints": limits}), load_facts(), ruled_out)
        found[how] = {kind.count: kind.cluster.fabric.levels[0].kind for kind in kinds}
    assert found == {"pcie": {4: "pcie", 1: "pcie"}, "host": {4: "pcie-host", 1: "pcie-host"}, "link": {1: "pcie"}}
    assert any("L4 has no fast link" in row.example for row in ruled_out.rows())
