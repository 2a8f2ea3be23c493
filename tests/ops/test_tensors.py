"""Parameter counts against transformers' own, shards against the whole, and the tables' own consistency."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each
from flopwise.errors import MissingFactError
from flopwise.facts.architecture import Experts, Layer, Linear, Model
from flopwise.facts.models.catalog import load_model
from flopwise.facts.models.config import model_from_config
from flopwise.facts.models.families import FAMILIES
from flopwise.ops.flops import forward_flops
from flopwise.ops.tensors import (
    active_parameters,
    item_parameters,
    parameters,
    sharded_parameters,
    tensor_groups,
)
from named import FACTS, end_bytes, layer_prefix_bytes, weight_bytes

ORACLE = Path(__file__).resolve().parents[1] / "oracle"
RECORD: dict[str, Any] = json.loads((ORACLE / "parameters.json").read_text(encoding="utf-8"))
# transformers 5 ties T5's head whatever the configuration says; the published checkpoint has a head of its own
HEAD_OF_ITS_OWN = {
    "Flan-T5 base (T5 v1.1)": 32128 * 768,
    "Flan-T5 large (T5 v1.1)": 32128 * 1024,
    "Flan-T5-XL (T5 v1.1 3B)": 32128 * 2048,
    "Flan-T5-XXL (T5 v1.1 11B)": 32128 * 4096,
    "mT5 base": 250112 * 768,
    "mT5-XXL": 250112 * 4096,
}


def layer_parameters(layer: Layer) -> int:
    """Elements of one layer's tensors."""
    return sum(item_parameters(item) for item in layer.items)


@cache
def oracle_module(name: str) -> Any:
    """A script of tests/oracle, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ORACLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


CONFIGURATIONS: dict[str, dict[str, Any]] = oracle_module("configurations").CONFIGURATIONS


@each("name", CONFIGURATIONS)
def test_small_configurations_count_as_transformers_does(name: str) -> None:
    model = model_from_config(CONFIGURATIONS[name], name=name)
    assert parameters(model) == RECORD["small"][name]


@each("name", RECORD["catalog"])
def test_catalog_models_count_as_transformers_does(name: str) -> None:
    assert parameters(load_model(name)) == RECORD["catalog"][name] + HEAD_OF_ITS_OWN.get(name, 0)


def test_every_family_that_transformers_has_is_counted() -> None:
    counted = {c["model_type"] for c in CONFIGURATIONS.values()}
    counted |= {c.get("text_config", {}).get("model_type") for c in CONFIGURATIONS.values()}
    counted |= {load_model(name).model_type for name in RECORD["catalog"]}
    drawn = json.loads((ORACLE / "random.json").read_text(encoding="utf-8"))["rows"]
    counted |= {row["config"]["model_type"] for row in drawn} | {"dbrx"}  # of which transformers cannot build one
    record = oracle_module("record_parameters")
    same_class = {"camembert", "deit", "dinov2_with_registers", "RefinedWeb", "RefinedWebModel", "gemma3n", "dots1"}
    same_class |= {"arcee", "helium", "ministral", "minimax_text_01", "qwen3_5_moe"}
    assert set(FAMILIES) - counted - same_class - record.OURS - set(record.SAME) == set()


@pytest.mark.oracle
def test_transformers_still_counts_what_was_recorded() -> None:
    here = importlib.util.find_spec("torch") is not None and importlib.util.find_spec("transformers") is not None
    if os.environ.get("CI") == "true":
        assert here, "CI installs torch and transformers: their absence is a failure"
    elif not here or os.environ.get("FLOPWISE_ORACLE") != "1":
        pytest.skip("derived afresh with CI=true or FLOPWISE_ORACLE=1, where torch and transformers are installed")
    count: Callable[[dict[str, Any]], int] = oracle_module("record_parameters").count
    fresh = {name: count(config) for name, config in CONFIGURATIONS.items()}
    assert fresh == RECORD["small"]


@pytest.mark.parametrize(
    ("name", "published"),
    [
        # sizes in the checkpoints' own index files or model cards
        ("Llama-3.1-8B", 8_030_261_248),
        ("Llama-3.1-405B", 405_853_388_800),
        ("Mixtral-8x7B", 46_702_792_704),
        ("GPT-2 small", 124_439_808),
        ("BERT base (uncased)", 109_482_240),
        ("gpt-oss-120b", 116_829_156_672),
        ("Falcon-7B", 6_921_720_704),
        ("Flan-T5-XXL (T5 v1.1 11B)", 11_135_332_352),
        ("XLM-RoBERTa base", 278_043_648),
        ("LFM2.5-1.2B", 1_170_340_608),
    ],
)
def test_counts_equal_published_checkpoints(name: str, published: int) -> None:
    assert parameters(load_model(name)) == published


def test_deepseek_v3_is_its_checkpoint_without_router_buffers() -> None:
    buffers = 58 * 256  # one correction value an expert in each of the 58 mixture layers
    assert parameters(load_model("DeepSeek-V3")) == 671_026_419_200 - buffers


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        # what the model cards call active, rounded as they do
        ("Qwen3-30B-A3B", 3.3),
        ("Qwen3-235B-A22B", 22),
        ("DeepSeek-V3", 37),
        ("Mixtral-8x7B", 12.9),
        ("Kimi-K2", 32),
    ],
)
def test_active_counts_round_to_the_model_cards(name: str, billions: float) -> None:
    assert active_parameters(load_model(name)) / 1e9 == pytest.approx(billions, rel=0.03)


def test_dense_models_are_active_throughout() -> None:
    for name in ("Llama-2-7B", "GPT-2 XL", "BERT base (uncased)"):
        model = load_model(name)
        assert active_parameters(model) == parameters(model)


@each("name", FACTS.models.names)
def test_catalog_lines_state_their_own_counts(name: str) -> None:
    model = load_model(name)
    if not model.stacks:
        return
    groups = tensor_groups(model)
    assert sum(g.numel * g.layers for g in groups) == parameters(model)
    assert active_parameters(model) <= parameters(model)
    for stack in model.stacks:
        inside = sum(layer_parameters(stack.kinds[k]) for k in ([0] if stack.shared_weights else stack.order))
        ends = sum(item_parameters(i) for i in (*stack.before, *stack.after))
        assert inside + ends == sum(g.numel * g.layers for g in groups if g.stack == stack.name)


def test_names_and_reads_are_sound_in_every_layer() -> None:
    outside = {"", "input", "encoder", "streams", "positions"}
    for name in FACTS.models.names:
        for stack in load_model(name).stacks:
            for layer in stack.kinds:
                seen: set[str] = set()
                for item in layer.items:
                    assert item.name not in seen, f"{name}: {layer.name}: {item.name} twice"
                    reads = getattr(item, "reads", "")
                    assert reads in outside or reads in seen, (
                        f"{name}: {item.name} reads {reads!r}, which is not before it"
                    )
                    seen.add(item.name)


def whole(model: Model) -> float:
    return sum(float(g.numel) for g in tensor_groups(model) if g.name.startswith("decoder/block"))


@given(tp=st.sampled_from([1, 2, 4, 8]))
def test_shards_of_llama_sum_to_the_whole_but_for_the_norms(tp: int) -> None:
    layer = load_model("Llama-3.1-8B").stacks[0].kinds[0]
    norms = 2 * 4096
    total = layer_parameters(layer)
    assert float(sharded_parameters(layer.items, tp, 1)) * tp == pytest.approx(total + (tp - 1) * norms)


def test_key_value_heads_are_replicated_beyond_their_number() -> None:
    layer = load_model("Llama-3.1-8B").stacks[0].kinds[0]
    kv = sum(item_parameters(i) for i in layer.items if isinstance(i, Linear) and i.heads)
    rest = layer_parameters(layer) - kv - 2 * 4096
    assert float(sharded_parameters(layer.items, 32, 1)) == pytest.approx(kv / 8 + rest / 32 + 2 * 4096)


def test_experts_spread_over_ep_and_are_cut_by_their_own_tp() -> None:
    layer = load_model("Mixtral-8x7B").stacks[0].kinds[0]
    experts = sum(item_parameters(i) for i in layer.items if isinstance(i, Experts))
    rest = layer_parameters(layer) - experts
    assert float(sharded_parameters(layer.items, 1, 8)) == pytest.approx(rest + experts / 8)
    uncut = float(sharded_parameters(layer.items, 2, 4, expert_tp=1))
    cut = float(sharded_parameters(layer.items, 2, 4))
    assert uncut - cut == pytest.approx(experts / 4 - experts / 8)


@given(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=4), st.sampled_from([1, 2, 4]))
def test_a_column_of_layouts_equals_one_call_each(tps: list[int], ep: int) -> None:
    items = load_model("gpt-oss-20b").stacks[0].kinds[0].items
    column = sharded_parameters(items, np.array(tps), ep)
    assert np.shape(column) == (len(tps),)
    assert np.allclose(column, [float(sharded_parameters(items, tp, ep)) for tp in tps], rtol=1e-12)


@given(st.sampled_from(sorted(RECORD["catalog"])), st.sampled_from([1, 2, 4, 8, 16]))
def test_more_ranks_never_hold_more(name: str, tp: int) -> None:
    items = load_model(name).stacks[0].kinds[0].items
    assert float(sharded_parameters(items, 2 * tp, 1)) <= float(sharded_parameters(items, tp, 1))


def test_a_row_parallel_bias_stays_whole() -> None:
    item = Linear(name="o", inputs=64, outputs=10, bias=True, shard="row")
    assert float(sharded_parameters([item], 8, 1)) == 64 * 10 / 8 + 10


def test_predicted_tokens_are_counted_only_when_asked() -> None:
    config = CONFIGURATIONS["deepseek_v3"] | {"num_nextn_predict_layers": 1}
    without = model_from_config(config, name="without")
    with_them = model_from_config(config | {"flopwise_mtp": True}, name="with")
    width = config["hidden_size"]
    layer = layer_parameters(without.stacks[0].kinds[without.stacks[0].order[-1]])
    assert parameters(without.with_predictors()) == parameters(with_them)
    assert with_them.with_predictors() is with_them
    counted = ("1 layer for multi-token prediction counted",)
    assert without.with_predictors().assumptions == with_them.assumptions == counted
    assert parameters(with_them) - parameters(without) == layer + 2 * width * width + 2 * width
    assert any("multi-token" in note for note in without.assumptions)


def test_unknown_sizes_stay_unknown() -> None:
    with pytest.raises(MissingFactError, match=r"CosmoFlow.*parameters"):
        parameters(load_model("CosmoFlow (Mathuriya 2018)"))


def test_shared_layers_are_stored_once() -> None:
    config = {"model_type": "albert", "vocab_size": 30000, "embedding_size": 128, "num_attention_heads": 12}
    albert = model_from_config(
        {**config, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12}, name="albert-base-v2"
    )
    assert parameters(albert) == 11_683_584  # AlbertModel of albert-base-v2
    assert weight_bytes(albert, "fp16") == 2 * parameters(albert)
    tp, ep = np.array([1, 2]), np.array([1, 1])
    prefix = layer_prefix_bytes(albert, "bf16", tp, ep)
    ends = sum((np.asarray(part) for part in end_bytes(albert, "bf16", tp, ep)), start=np.zeros(2))
    assert prefix[-1, 0] + ends[0] == 2 * parameters(albert)
    assert np.all(prefix[1:] == prefix[1])
    assert forward_flops(albert, 1, 128) > 12 * 2 * 128 * (4 * 768**2 + 2 * 768 * 3072)  # all layers run
