"""Collectives: zero for one, monotonic, never faster than the link, level by level, near NCCL's published rates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwise.cost.cluster import cluster
from flopwise.cost.collectives import (
    COLLECTIVES,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    grouped_gather_s,
    groups_reached,
    level_groups,
    p2p_s,
)
from flopwise.cost.fabric import Fabric, fabric, group_fabric
from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts

FACTS = load_facts()
FABRICS = {
    "hgx": fabric(FACTS.accelerator("H100-SXM-80"), gpus_per_node=8, network_bytes_per_s_per_gpu=50e9),
    "nvl72": fabric(FACTS.accelerator("GB200"), gpus_per_node=4, network_bytes_per_s_per_gpu=50e9),
    "pcie": fabric(FACTS.accelerator("L40S"), gpus_per_node=8, network_bytes_per_s_per_gpu=12.5e9, intra_node="pcie"),
    "bridge": fabric(FACTS.accelerator("RTX 3090"), gpus_per_node=8, intra_node="link"),
    "host": fabric(FACTS.accelerator("RTX 4090"), gpus_per_node=8),
    "xgmi": fabric(FACTS.accelerator("MI300X"), gpus_per_node=8),
    "torus": fabric(FACTS.accelerator("TPU v5p")),
}
SLACK = 1 + 1e-9
where = st.sampled_from(sorted(FABRICS))
sizes = st.floats(1.0, 1e11)
groups = st.sampled_from((1, 2, 4, 8, 16, 64, 512))
strides = st.sampled_from((1, 2, 4, 8, 16))
ops = st.sampled_from(sorted(COLLECTIVES))


@given(where, ops, sizes, strides)
def test_a_group_of_one_takes_no_time(name: str, op: str, nbytes: float, stride: int) -> None:
    assert float(COLLECTIVES[op](FABRICS[name], nbytes, 1, stride)) == 0.0


@settings(max_examples=200)
@given(where, ops, sizes, groups, strides, st.floats(1.0, 10.0))
def test_more_bytes_never_take_less_time(name: str, op: str, nbytes: float, n: int, stride: int, factor: float) -> None:
    links, seconds = FABRICS[name], COLLECTIVES[op]
    assert float(seconds(links, nbytes * factor, n, stride)) * SLACK >= float(seconds(links, nbytes, n, stride))
    assert float(p2p_s(links, nbytes * factor, stride)) * SLACK >= float(p2p_s(links, nbytes, stride))


@settings(max_examples=200)
@given(where, sizes, groups, strides, st.booleans())
def test_no_all_reduce_beats_the_fastest_link(name: str, nbytes: float, n: int, stride: int, direct: bool) -> None:
    links = FABRICS[name]
    fastest = max(level.bytes_per_s for level in links.levels)
    least = nbytes * (n - 1) / n / fastest  # a switch that adds up needs one pass, a ring two
    assert float(all_reduce_s(links, nbytes, n, stride, direct=direct)) * SLACK >= least
    assert float(all_gather_s(links, nbytes, n, stride)) * SLACK >= least


def test_unequal_shares_take_a_step_of_the_ring_more() -> None:
    """RCCL on 8 MI355X: 131,072 tokens of 7,168 x 2 bytes take 5.248 ms by broadcasts, 4.513 ms by an all-gather."""
    links, nbytes = FABRICS["xgmi"], 131_072 * 7_168 * 2.0
    grouped, plain = (float(seconds(links, nbytes, 8)) for seconds in (grouped_gather_s, all_gather_s))
    assert grouped / plain == pytest.approx(5.248 / 4.513, rel=0.03)
    assert float(grouped_gather_s(links, nbytes, 1)) == 0.0


def test_groups_above_a_links_limit_have_no_custom_kernel() -> None:
    """vLLM (issue 56128): of its own over PCIe for two devices, the library's for four; columns decide by row."""
    pcie = FABRICS["pcie"]
    limited = replace(pcie, levels=(replace(pcie.levels[0], direct_devices=2), *pcie.levels[1:]))
    n = np.array([2, 4, 8])
    library, custom, own = (
        np.asarray(all_reduce_s(links, 16_384.0, n, direct=direct))
        for links, direct in ((pcie, False), (pcie, True), (limited, True))
    )
    assert (custom < library).all()
    assert own.tolist() == [custom[0], library[1], library[2]]


@given(where, st.lists(st.tuples(sizes, groups, strides), min_size=1, max_size=20), ops)
def test_a_column_gives_the_same_numbers_as_each_row_alone(
    name: str, rows: list[tuple[float, int, int]], op: str
) -> None:
    links, seconds = FABRICS[name], COLLECTIVES[op]
    nbytes, n, stride = (np.array(column) for column in zip(*rows, strict=True))
    assert seconds(links, nbytes, n, stride) == pytest.approx([float(seconds(links, *row)) for row in rows])


@given(where, groups, strides)
def test_levels_share_out_the_group(name: str, n: int, stride: int) -> None:
    parts = [float(joined) for _, joined in level_groups(FABRICS[name], n, stride)]
    assert np.prod(parts) == pytest.approx(n)
    assert all(part >= 1 for part in parts)


def test_levels_of_known_machines() -> None:
    assert [(level.kind, level.size) for level in FABRICS["hgx"].levels[:1]] == [("nvlink4", 8)]
    assert FABRICS["nvl72"].domain == 72
    assert [level.kind for level in FABRICS["pcie"].levels] == ["pcie", "network"]
    assert [level.kind for level in FABRICS["bridge"].levels] == ["nvlink3-bridge", "pcie", "network"]


def test_superchips_of_grace_and_hopper_are_four_to_a_node() -> None:
    """Alps, Isambard-AI and JUPITER: NVLink joins four, the next one is on the network (no NVL32 was published)."""
    for name in ("GH200-96", "GH200-144"):
        joined = cluster(FACTS.accelerator(name), network_bytes_per_s_per_gpu=25e9)
        assert joined.gpus_per_node == joined.fabric.domain == 4
        assert [level.kind for level in joined.fabric.levels] == ["nvlink4", "network"]
        assert joined.fabric.levels[1].bytes_per_s == 25e9


def test_tensor_parallel_groups_stay_inside_and_data_parallel_groups_cross() -> None:
    links = FABRICS["hgx"]
    assert [float(joined) for _, joined in level_groups(links, 8, 1)] == [8, 1]
    assert [float(joined) for _, joined in level_groups(links, 16, 8)] == [1, 16]
    assert [float(joined) for _, joined in level_groups(links, 16, 2)] == [4, 4]
    assert float(p2p_s(links, 1e8, 1)) < float(p2p_s(links, 1e8, 8))


@pytest.mark.parametrize(
    ("name", "n", "bus_bytes_per_s"),
    [
        ("A100-SXM-80", 4, 209e9),
        ("A100-SXM-80", 8, 215e9),
        ("H100-SXM-80", 2, 305e9),
        ("H100-SXM-80", 4, 341e9),
        ("H100-SXM-80", 8, 430e9),
        ("B200", 2, 515e9),
        ("B200", 4, 611e9),
        ("B200", 8, 653e9),
    ],
)
def test_large_all_reduces_reach_nccls_bus_bandwidth(name: str, n: int, bus_bytes_per_s: float) -> None:
    """Published NCCL all-reduce bus bandwidths at large sizes, within a fifth."""
    links = fabric(FACTS.accelerator(name), gpus_per_node=8)
    bus = 2 * (n - 1) / n * 4e9 / float(all_reduce_s(links, 4e9, n))
    assert bus == pytest.approx(bus_bytes_per_s, rel=0.2)


def test_small_messages_cost_microseconds_and_custom_kernels_fewer() -> None:
    links = FABRICS["hgx"]
    library, custom = (float(all_reduce_s(links, 16_384.0, 8, direct=direct)) for direct in (False, True))
    assert 6e-6 < library < 26e-6
    assert 3e-6 < custom < 8e-6


def test_between_nodes_the_network_decides() -> None:
    fast, slow = (
        fabric(FACTS.accelerator("H100-SXM-80"), gpus_per_node=8, network_bytes_per_s_per_gpu=b) for b in (50e9, 12.5e9)
    )
    assert float(all_to_all_s(slow, 1e9, 64)) > 3 * float(all_to_all_s(fast, 1e9, 64))
    ratio = float(all_reduce_s(slow, 1e9, 64)) / float(all_reduce_s(fast, 1e9, 64))
    assert 2 < ratio < 4  # the part inside the node stays


def test_what_is_assumed_is_said() -> None:
    links: Fabric = FABRICS["xgmi"]
    assert any("xgmi" in sentence for sentence in links.assumptions)
    assert any("network" in sentence for sentence in links.assumptions)


def test_without_peer_access_messages_pass_through_the_host() -> None:
    """Eight RTX 4090 in two sockets, nccl-tests: 14.5 GB/s of 31.5 on the bus; 4 in a worse host of L40S: 5.1.

    Every rank sends 2 x 3/4 or 2 x 7/8 of the tensor over its own link, all at once. 16 kB take 43 us on eight cards,
    17 on two RTX 2080 Ti.
    """
    card, slower = FACTS.accelerator("RTX 4090"), FACTS.accelerator("RTX 2080 Ti")
    for n in (4, 8):
        links = fabric(card, gpus_per_node=n)
        seconds = [float(all_reduce_s(links, nbytes, n)) for nbytes in (1e9, 2e9)]
        assert 5.1 < 2 * (n - 1) / n / (seconds[1] - seconds[0]) < 14.5
    links = fabric(card, gpus_per_node=4)
    pairs = [float(all_reduce_s(links, nbytes, 2, stride=2)) for nbytes in (1e9, 2e9)]  # both pairs send at once
    assert pairs[1] - pairs[0] == pytest.approx(1e9 / (31.5e9 / 4), rel=1e-3)
    small = float(all_reduce_s(links, 16_384.0, 4, direct=True))
    assert small == float(all_reduce_s(links, 16_384.0, 4))  # no kernel reads its peers' memory
    eight, two = (float(all_reduce_s(fabric(c, gpus_per_node=n), 16_384.0, n)) for c, n in ((card, 8), (slower, 2)))
    assert eight == pytest.approx(43e-6, rel=0.1)
    assert two == pytest.approx(17e-6, rel=0.5)


def test_a_machine_may_be_joined_otherwise_than_usual() -> None:
    card = FACTS.accelerator("RTX A6000")
    usual, bridged, through = (fabric(card, gpus_per_node=4, intra_node=how) for how in (None, "link", "host"))
    assert [links.levels[0].kind for links in (usual, bridged, through)] == ["pcie", "nvlink3-bridge", "pcie-host"]
    times = [float(all_reduce_s(links, 1e9, 2)) for links in (bridged, usual, through)]
    assert times == sorted(times)
    assert any("--intra-node host" in sentence for sentence in usual.assumptions)
    assert not any("--intra-node" in sentence for sentence in through.assumptions)
    with pytest.raises(SpecError, match="L4 has no fast link; allowed between devices of a node: pcie, host"):
        fabric(FACTS.accelerator("L4"), intra_node="link")


def test_a_message_between_two_has_no_pipeline_to_fill() -> None:
    links = FABRICS["hgx"]
    small, large = (float(p2p_s(links, n)) for n in (1e6, 1e9))
    rate = links.levels[0].bytes_per_s * links.levels[0].frac
    assert large - small == pytest.approx((1e9 - 1e6) / rate)
    assert small == pytest.approx(links.levels[0].launch_s + 1e6 / rate)


def test_exchanges_of_a_pair_reach_less_than_those_of_a_group() -> None:
    links = FABRICS["hgx"]
    rates = {n: 1e9 * (n - 1) / n / float(all_to_all_s(links, 1e9, n)) for n in (2, 4)}
    assert rates[2] < rates[4]


@pytest.mark.parametrize(("ranks", "dispatch_us", "combine_us"), [
    (16, 118, 195), (32, 155, 273), (64, 173, 314), (128, 192, 369), (256, 194, 360),
])  # fmt: skip
def test_tokens_reach_their_experts_as_fast_as_deepep_sends_them(
    ranks: int, dispatch_us: float, combine_us: float
) -> None:
    """DeepEP, docs/legacy.md, low-latency kernels: 128 tokens of 7,168, top 8, fp8 there and 16 bits back, CX7."""
    nbytes = 128 * 8 * 7168.0
    assert float(all_to_all_s(FABRICS["hgx"], nbytes, ranks, direct=True)) * 1e6 == pytest.approx(dispatch_us, rel=0.1)
    assert float(all_to_all_s(FABRICS["hgx"], 2 * nbytes, ranks, direct=True)) * 1e6 == pytest.approx(
        combine_us, rel=0.1
    )


def test_a_token_crosses_the_network_once_for_each_node_that_wants_it() -> None:
    """DeepEP, docs/legacy.md, normal kernels at 32 and 64 ranks: 58 and 51 GB/s of what each token's nodes get."""
    nbytes = 4096 * 8 * 7168.0
    for ranks, rate in ((32, 58e9), (64, 51e9)):
        nodes = float(groups_reached(np.asarray(ranks / 8), 8, 8, 4))
        seconds = float(all_to_all_s(FABRICS["hgx"], nbytes, ranks, copies=8, pools=8, top_pools=4, direct=True))
        assert nodes * nbytes / 8 / seconds == pytest.approx(rate, rel=0.15)


def test_tensor_groups_of_a_torus_have_one_axis_and_the_others_the_rest() -> None:
    """TPU v5p: 600 GB/s over three axes, 200 GB/s each; v5e: 200 GB/s over two."""
    for name, axes, whole in (("TPU v5p", 3, 600e9), ("TPU v5e", 2, 200e9)):
        links = fabric(FACTS.accelerator(name))
        assert links.levels[0].axes == axes
        tp = np.array([1, 4])
        assert group_fabric(links, inner=True, tp=tp).link_bytes_per_s == pytest.approx(whole / axes)
        assert group_fabric(links, inner=False, tp=tp).link_bytes_per_s == pytest.approx(
            [whole, whole * (axes - 1) / axes]
        )
    assert group_fabric(FABRICS["hgx"], inner=True, tp=8) is FABRICS["hgx"]
