"""What the links of a service carry, by hand: sums over ranks, hops of a pipeline, caches of a split pool."""

from __future__ import annotations

from typing import Any

import pytest

from flopwise.api.serve import serve
from flopwise.facts.catalog import load_facts
from flopwise.search.plan import plan
from flopwise.search.serving_option import RequestLinkNeed, request_network_needs
from flopwise.search.workload_file import workload_from

SHAPE: dict[str, Any] = {"input_tokens": 1000, "output_tokens": 101}
TOKENS = 1100
"""Tokens that pass through the layers: the prompt, and all of the answer but the last."""


def needs(**how: Any) -> tuple[RequestLinkNeed, ...]:
    """Of one replica of Llama-3.1-8B (32 layers of width 4,096) at 2 requests a second, of 5 that it could answer."""
    return request_network_needs(serve("Llama-3.1-8B", **SHAPE, **how).estimate.job, 2.0, 5.0, replicas=2)


def test_a_sum_over_four_ranks_sends_three_halves_of_its_bytes() -> None:
    """Two sums a layer of 2 x 4,096 bytes a token; 2 x 3 / 4 of that from each rank. Two replicas fill a node of 8."""
    (link,) = needs(instance="p5.48xlarge", provider="aws", gpus=4, tp=4)
    each = TOKENS * 32 * 2 * 4096 * 2 * 1.5
    assert link.request_bytes == {"tensor_parallel": pytest.approx(each)}
    assert link.average_bytes_per_s == pytest.approx(2 * each)
    assert link.full_bytes_per_s == pytest.approx(5 * each)
    assert link.node_full_bytes_per_s == pytest.approx(8 * 5 * each)
    assert link.link_bytes_per_s == pytest.approx(450e9)
    assert not link.between_nodes
    assert needs(gpu="h100", gpus=1) == ()


def test_a_stage_sends_its_activations_once_and_sums_its_own_layers() -> None:
    """Half of the layers each; a rank of two sends half of 2 x 4,096 bytes a token on."""
    (link,) = needs(gpu="h100", gpus=4, tp=2, pp=2)
    assert link.request_bytes["tensor_parallel"] == pytest.approx(TOKENS * 16 * 2 * 4096 * 2)
    assert link.request_bytes["pipeline_p2p"] == pytest.approx(TOKENS * 4096 * 2 / 2)


def test_the_cache_of_a_prompt_goes_to_where_it_is_decoded() -> None:
    """8 heads of 128 keys and values in 2 bytes over 32 layers: 131,072 bytes a token, half on each of two ranks."""
    (link,) = needs(gpu="h100", gpus=4, tp=2, prefill_gpus=2)
    assert link.request_bytes["cache_transfer"] == pytest.approx(1000 * 131_072 / 2)
    assert link.average_bytes_per_s == pytest.approx(2 * sum(link.request_bytes.values()))


def test_plans_have_it_at_their_rate() -> None:
    facts = load_facts(None)
    some = facts.with_tables(offers=tuple(o for o in facts.offers if o.instance == "g5.12xlarge"))
    traffic = {"requests_per_s": 3, "input_tokens": 1000, "output_tokens": 101}
    job = {"model": "Llama-3.1-8B", "task": "serve", "traffic": traffic, "simulate": False}
    wide = {"constraints": {"weight_formats": ["bf16"]}, "targets": {"tpot": "30ms"}}
    one = plan(workload_from(job | wide), some).plans[0]
    assert one.layout["tp"] == 4
    (link,) = one.network
    each = TOKENS * 32 * 2 * 4096 * 2 * 1.5
    assert link["request_bytes"] == {"tensor_parallel": pytest.approx(each)}
    assert link["average_bytes_per_s"] == pytest.approx(3 / one.layout["replicas"] * each)
