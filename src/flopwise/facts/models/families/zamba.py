"""Zamba and Zamba 2: Mamba layers, and one or a few transformer blocks that all hybrid layers share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from flopwise.facts.architecture import Attend, Item, Linear, Model, Norm, Pointwise
from flopwise.facts.models.attend import Attention
from flopwise.facts.models.blocks import RMS, Items, activation, residual
from flopwise.facts.models.families.llama import Traits, language_model
from flopwise.facts.models.fields import Fields
from flopwise.facts.models.recurrent import mamba1, mamba2

_ATTEND, _FEED = "attention", "mlp"


def _kinds(c: Fields, layers: int) -> list[str]:
    """The kind of each layer: "mamba", or "hybrid" with a shared block before it."""
    given = c.sequence("layers_block_type") or c.sequence("layer_types")
    if given is None and c.model_type == "zamba":
        period, offset = c.size("attn_layer_period", 6), c.size("attn_layer_offset", 4)
        given = ["mamba", "mamba", "hybrid"]
        given += ["hybrid" if i % period == offset else "mamba" for i in range(max(0, layers - 3))]
    if given is None:
        listed = c.sequence("hybrid_layer_ids")
        if listed is None:
            raise c.wrong("layers_block_type", None, "a list with the kind of each layer is needed")
        given = ["hybrid" if i in listed else "mamba" for i in range(layers)]
    kinds = ["hybrid" if kind == "hybrid" else "mamba" for kind in given[:layers]]
    if len(kinds) < layers or not set(given) <= {"hybrid", "mamba", "linear_attention"}:
        raise c.wrong("layers_block_type", given[:3], f"{layers} of mamba, linear_attention, hybrid are needed")
    return kinds


def _adapted(item: Linear, rank: int) -> Items:
    """`item` and, with a `rank`, the low-rank adapter beside it that each layer has of its own."""
    if not rank:
        return (item,)
    return (
        item,
        Linear(name=f"{item.name}_adapter_a", inputs=item.inputs, outputs=rank, reads=item.reads),
        replace(item, name=f"{item.name}_adapter_b", inputs=rank, bias=False, tied=False, reads=""),
        residual(f"{item.name}_add", item.outputs, item.name),
    )


def _attention(c: Fields, width: int, *, owns: bool, rank: int, rope: bool) -> Items:
    """The shared attention over the layer's input beside the embeddings, twice as wide as the model."""
    wide, heads = 2 * width, c.size("num_attention_heads")
    if wide % heads:
        raise c.wrong("num_attention_heads", heads, f"it must divide 2 x hidden_size = {wide}")
    dim, kv_heads = wide // heads, c.size("num_key_value_heads", heads)
    if heads % kv_heads:
        raise c.wrong("num_key_value_heads", kv_heads, f"it must divide num_attention_heads = {heads}")
    source = f"{_ATTEND}/input_norm"

    def column(name: str, count: int) -> Linear:
        return Linear(
            name=f"{_ATTEND}/{name}", inputs=wide, outputs=count * dim, shard="column", shard_unit=dim,
            heads=count if name != "q_proj" else 0, tied=not owns, reads=source,
        )  # fmt: skip

    turned: Items = (
        Pointwise(name=f"{_ATTEND}/rope", dim=(heads + kv_heads) * dim, kind="rope", shard="column"),
    ) if rope else ()  # fmt: skip
    return (
        Norm(name=source, dim=wide, affine=owns, reads="input"),
        *_adapted(column("q_proj", heads), rank),
        *_adapted(column("k_proj", kv_heads), rank),
        *_adapted(column("v_proj", kv_heads), rank),
        *turned,
        Attend(name=f"{_ATTEND}/attend", heads=heads, kv_heads=kv_heads, qk_dim=dim, v_dim=dim),
        Linear(name=f"{_ATTEND}/o_proj", inputs=heads * dim, outputs=width, shard="row", shard_unit=dim, tied=not owns),
    )


def _feed(c: Fields, width: int, *, owns: bool, rank: int) -> Items:
    """The shared gated block, and the layer's own projection of what the shared part makes."""
    hidden, bias = c.size("intermediate_size", 4 * width), owns and c.flag("add_bias_linear")
    gate_up = Linear(
        name=f"{_FEED}/gate_up_proj", inputs=width, outputs=2 * hidden, bias=bias, shard="column", tied=not owns,
        reads=f"{_FEED}/norm",
    )  # fmt: skip
    return (
        Norm(name=f"{_FEED}/norm", dim=width, affine=owns),
        *_adapted(gate_up, rank),
        Pointwise(
            name=f"{_FEED}/act", dim=hidden, kind=activation(c.text("hidden_act", "gelu")), gated=True, shard="column"
        ),
        Linear(name=f"{_FEED}/down_proj", inputs=hidden, outputs=width, bias=bias, shard="row", tied=not owns),
        Linear(name="shared/linear", inputs=width, outputs=width),
        residual("shared/add", width, "input"),
    )


def _hybrid(c: Fields, scan: Callable[[str], Items], blocks: int, *, rank: int, attention_rank: int) -> Model:
    """A decoder of Mamba layers, some with one of `blocks` shared transformer blocks before them."""
    width, layers = c.size("hidden_size"), c.layers()
    plain = (RMS("norm", width), *scan("norm"), residual("residual", width, "input"))
    rope = c.flag("use_mem_rope")
    built: dict[bool, Items] = {}
    rows: list[Items] = []
    names = _kinds(c, layers)
    seen = 0
    for kind in names:
        if kind == "mamba":
            rows.append(plain)
            continue
        owns = seen < blocks  # later hybrid layers run an earlier one's weights
        seen += 1
        if owns not in built:
            shared = _attention(c, width, owns=owns, rank=attention_rank, rope=rope)
            built[owns] = (*shared, *_feed(c, width, owns=owns, rank=rank), *plain)
        rows.append(built[owns])
    base = Attention(width=width, heads=1, kv_heads=1, head_dim=width)  # only its width is read
    labels = [
        k if k == "mamba" or row is built.get(True) else "hybrid_again" for k, row in zip(names, rows, strict=True)
    ]
    return language_model(c, Traits(mlp_bias=False), base, rows, labels)


def zamba(c: Fields) -> Model:
    """Zamba: Mamba 1 whose channels are split into heads, and one shared block."""
    width, heads, state = c.size("hidden_size"), c.size("n_mamba_heads", 2), c.size("mamba_d_state", 16)
    inner = c.size("mamba_expand", 2) * width
    if inner % heads:
        raise c.wrong("n_mamba_heads", heads, f"it must divide the inner width {inner}")
    auto = c.value("mamba_dt_rank", "auto") in ("auto", None)
    rank = math.ceil(width / 16) if auto else c.size("mamba_dt_rank")

    def scan(source: str) -> Items:
        whole = mamba1(
            width, source, inner=inner, state=state, rank=rank, kernel=c.size("mamba_d_conv", 4),
            bias=c.flag("mamba_proj_bias"), conv_bias=c.flag("mamba_conv_bias", default=True),
        )  # fmt: skip

        def split(item: Item) -> Item:
            """The head's own projection of its own channels."""
            if isinstance(item, Linear) and item.name == "mamba/x_proj":
                return replace(item, inputs=inner // heads, outputs=heads * (rank + 2 * state))
            return item

        return tuple(split(item) for item in whole)

    return _hybrid(c, scan, 1, rank=0, attention_rank=0)


def zamba2(c: Fields) -> Model:
    """Zamba 2: Mamba 2, one or two shared blocks in turn, and low-rank adapters that tell their uses apart."""
    width, heads = c.size("hidden_size"), c.size("n_mamba_heads", 8)
    inner = c.size("mamba_expand", 2) * width
    if inner % heads:
        raise c.wrong("n_mamba_heads", heads, f"it must divide the inner width {inner}")
    bias = c.flag("add_bias_linear")

    def scan(source: str) -> Items:
        return mamba2(
            width, source, heads=heads, head_dim=inner // heads, state=c.size("mamba_d_state", 64),
            groups=c.size("mamba_ngroups", 1), kernel=c.size("mamba_d_conv", 4), bias=bias,
            chunk=c.size("chunk_size", 256),
        )  # fmt: skip

    rank = c.size("adapter_rank", 128)
    attention_rank = rank if c.flag("use_shared_attention_adapter") else 0
    return _hybrid(c, scan, c.size("num_mem_blocks", 1), rank=rank, attention_rank=attention_rank)
