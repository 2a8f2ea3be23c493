"""Llama with another attention: DiffLlama's difference of two, Doge's learned mask and its tiny experts."""

from __future__ import annotations

import math
from functools import partial

from flopwise.facts.architecture import Attend, Experts, Item, Linear, Model, Norm, Pointwise, Weight
from flopwise.facts.models.attend import attention
from flopwise.facts.models.blocks import RMS, Block, Items, layer_of
from flopwise.facts.models.families.llama import Traits, language_model, plain_feed, standard_attention
from flopwise.facts.models.fields import Fields
from flopwise.values import replace


def diffllama(c: Fields) -> Model:
    """DiffLlama: queries and keys meet twice, once for each half of the values, and one result is subtracted.

    Source: arXiv:2410.05258 section 2.1; DiffLlamaAttention of transformers 5, which has a softmax for each half.
    """
    base = replace(standard_attention(c, Traits()), dropout=False)
    if base.kv_heads % 2:
        raise c.wrong("num_key_value_heads", base.kv_heads, "an even number is needed: values are taken in halves")
    pairs, dim = base.heads // 2, 2 * base.head_dim

    def attend(source: str) -> Items:
        *into, first, out = attention(base, source)
        assert isinstance(first, Attend)
        return (
            *into,
            first,
            replace(first, name="attention/attend_again", kv_shared=True),
            Weight("attention/lambdas", 4 * base.head_dim),
            Pointwise("attention/difference", pairs * dim, "gate", shard="column"),
            Norm("attention/group_norm", dim, affine=False, groups=pairs, shard="column"),
            out,
        )

    layer = layer_of("pre", base.width, RMS, attend, plain_feed(c, Traits(), c.size("intermediate_size")))
    return language_model(c, [layer] * c.layers())


def doge(c: Fields) -> Model:
    """Doge: values decide which keys are masked, residuals have a learned weight, experts are single neurons.

    Source: DogeModel of transformers 5; the experts: arXiv:2407.04153 section 2 (product keys).
    """
    traits = Traits(qk_norm="head")
    base, width = standard_attention(c, traits), c.size("hidden_size")
    base = replace(base, window=None)
    kept = c.maybe("keep_window_size", 2048)

    def attend(source: str) -> Items:
        *into, last, out = attention(base, source)
        assert isinstance(last, Attend)
        values = base.kv_heads * base.head_dim
        step = Linear("attention/dt_proj", values, base.kv_heads, bias=base.bias, reads="attention/v_proj")
        return (
            *into, step, Weight("attention/A", base.kv_heads), replace(last, select=kept), out,
            Weight("attention/residual_weight", width),
        )  # fmt: skip

    layer = layer_of("pre", width, RMS, attend, _neurons(c, traits) if c.flag("is_moe") else _dense_block(c, traits))
    return language_model(c, [layer] * c.layers())


def _dense_block(c: Fields, traits: Traits) -> Block:
    """The dense block, whose residual has a weight for each channel."""
    feed = plain_feed(c, traits, c.size("intermediate_size"))
    return lambda source: (*feed(source), Weight("mlp/residual_weight", c.size("hidden_size")))


def _neurons(c: Fields, traits: Traits) -> Block:
    """The dense block with `top_k` of many experts of one neuron each beside it, chosen by two halves of a key."""
    width, experts, top_k = c.size("hidden_size"), c.size("num_experts"), c.size("num_experts_per_tok")
    keys = math.isqrt(experts)
    if top_k > keys * keys:
        raise c.wrong("num_experts_per_tok", top_k, f"it must not exceed num_experts = {experts}")
    dense = _dense_block(c, traits)
    expert = partial(Experts, experts=experts, top_k=top_k)

    def feed(source: str) -> Items:
        items: list[Item] = [
            Linear("router", width, 2 * keys, reads=source),
            Pointwise("router/softmax", top_k, "softmax"),
            expert("experts/up_proj", inputs=width, outputs=1, shard="column", reads=source),
            Pointwise("experts/act", 1, "silu", per_expert=top_k),
            expert("experts/down_proj", inputs=1, outputs=width, shard="row"),
        ]
        return *items, *dense(source), Pointwise("experts/add", width, "residual", reads="experts/down_proj")

    return feed
