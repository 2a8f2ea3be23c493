"""DeepSeek V4: one shared key-value head, windows beside compressed keys, four residual streams."""

from __future__ import annotations

from flopwise.facts.architecture import Attend, Item, Linear, Model, Norm, Pointwise, Weight
from flopwise.facts.models.blocks import RMS, Items, moe, one_of_each
from flopwise.facts.models.families.llama import language_model
from flopwise.facts.models.families.moe import FINE_GRAINED, mixture
from flopwise.facts.models.fields import Fields
from flopwise.values import replace

SPARSE, HEAVY, SLIDING = "compressed_sparse_attention", "heavily_compressed_attention", "sliding_attention"
_BY_RATIO = {0: SLIDING, 4: SPARSE, 128: HEAVY}


def _kinds(c: Fields, layers: int) -> list[str]:
    """The attention of each layer, from `layer_types`, the older `compress_ratios`, or the class's default."""
    if c.has("layer_types"):
        kinds = c.per_layer("layer_types", layers, SPARSE)
    elif c.has("compress_ratios"):
        ratios = c.sequence("compress_ratios") or []
        kinds = [_BY_RATIO.get(r, "") if isinstance(r, int) else "" for r in ratios[:layers]]
    else:
        kinds = [HEAVY] * min(layers, 2) + [SPARSE if i % 2 else HEAVY for i in range(max(0, layers - 2))]
    if len(kinds) < layers or not set(kinds) <= {SPARSE, HEAVY, SLIDING}:
        raise c.wrong("layer_types", kinds[:3], f"{layers} of {SPARSE}, {HEAVY}, {SLIDING} are needed")
    return kinds


def _compressor(name: str, width: int, dim: int, rate: int, parts: int) -> Items:
    """Gated pooling of `rate` tokens into one key; overlapping windows (`parts` = 2) read two sets of projections."""
    return (
        Linear(f"{name}/kv_proj", width, parts * dim, reads="input_norm"),
        Linear(f"{name}/gate_proj", width, parts * dim, reads="input_norm"),
        Weight(f"{name}/positions", rate * parts * dim),
        Pointwise(f"{name}/pool", parts * dim, "gate"),
        RMS(f"{name}/norm", dim),
    )


def _attention(c: Fields, width: int, kind: str) -> Items:
    heads, dim, q_rank = c.size("num_attention_heads"), c.size("head_dim"), c.size("q_lora_rank")
    groups, o_rank = c.size("o_groups"), c.size("o_lora_rank")
    if heads * dim % groups:
        raise c.wrong("o_groups", groups, f"it must divide num_attention_heads x head_dim = {heads * dim}")
    rates = c.value("compress_rates")
    rate = {SPARSE: 4, HEAVY: 128}.get(kind, 0)
    if isinstance(rates, dict) and isinstance(rates.get(kind), int) and rates[kind] > 0:
        rate = rates[kind]
    rope = int(dim * (c.number("partial_rotary_factor") or 0.125))
    p = "attention"
    items: list[Item] = [
        Linear(f"{p}/q_a_proj", width, q_rank, reads="input_norm"),
        RMS(f"{p}/q_a_norm", q_rank),
        Linear(f"{p}/q_b_proj", q_rank, heads * dim, shard="column", shard_unit=dim),
        Norm(f"{p}/q_norm", dim, groups=heads, affine=False, shard="column"),
        Linear(f"{p}/kv_proj", width, dim, reads="input_norm"),
        RMS(f"{p}/kv_norm", dim),
        Pointwise(f"{p}/rope", (heads + 1) * rope, "rope", shard="column"),
    ]
    if rate:
        items += _compressor("compressor", width, dim, rate, 2 if kind == SPARSE else 1)
    if kind == SPARSE:
        index_heads, index_dim = c.size("index_n_heads"), c.size("index_head_dim")
        items += [
            *_compressor("indexer", width, index_dim, rate, 2),
            Linear("indexer/q_proj", q_rank, index_heads * index_dim, reads=f"{p}/q_a_norm"),
            Linear("indexer/weights_proj", width, index_heads, reads="input_norm"),
            Attend("indexer/scores", heads=index_heads, kv_heads=1, qk_dim=index_dim, v_dim=0, compress=rate),
        ]
    attend = Attend(
        f"{p}/attend", heads=heads, kv_heads=1, qk_dim=dim, v_dim=dim, window=c.maybe("sliding_window"), sinks=True,
        key_is_value=True, compress=rate, select=c.size("index_topk") if kind == SPARSE else None,
    )  # fmt: skip
    items += [
        attend,
        Pointwise(f"{p}/rope_back", heads * rope, "rope", shard="column"),
        # a block-diagonal matrix: each of o_groups blocks reads its own share of the heads
        Linear(f"{p}/o_a_proj", heads * dim // groups, groups * o_rank, shard="column", shard_unit=o_rank),
        Linear(f"{p}/o_b_proj", groups * o_rank, width, shard="row", shard_unit=o_rank),
    ]
    return tuple(items)


def _streams(part: str, width: int, count: int) -> tuple[Items, Items]:
    """A hyper-connection: what gathers the residual streams before a block, and what spreads its output over them."""
    mixes = (2 + count) * count
    before = (
        Norm(f"{part}/streams_norm", count * width, affine=False, reads="streams"),
        Linear(f"{part}/streams_mix", count * width, mixes),
        Weight(f"{part}/streams_base", mixes + 3),
        Pointwise(f"{part}/gather", count * width, "scale"),
    )
    return before, (Pointwise(f"{part}/spread", count * width, "residual", reads="streams", mixes=count),)


def deepseek4(c: Fields) -> Model:
    """DeepSeek V4: attention and experts, each between a gathering and a spreading of the residual streams."""
    width, layers, count = c.size("hidden_size"), c.layers(), c.size("hc_mult", 4)
    # one shared expert whatever `n_shared_experts` says, the only part with biases (DeepseekV4MLP of transformers 5)
    shared = replace(FINE_GRAINED, shared_count="", shared="moe_intermediate_size", shared_bias="mlp_bias")
    experts = mixture(c, shared, width)
    gather_a, spread_a = _streams("attention", width, count)
    gather_m, spread_m = _streams("mlp", width, count)

    def layer(kind: str) -> Items:
        attend = (*gather_a, RMS("input_norm", width), *_attention(c, width, kind), *spread_a)
        return (*attend, *gather_m, RMS("post_norm", width), *moe(experts, "post_norm"), *spread_m)

    kinds = _kinds(c, layers)
    model = language_model(c, one_of_each(kinds, layer), kinds)
    stack = model.stacks[0]
    head = (
        Norm("streams/norm", count * width, affine=False),
        Linear("streams/head", count * width, count),
        Weight("streams/base", count + 1),
    )
    return replace(model, stacks=(replace(stack, after=(*head, *stack.after)),))
