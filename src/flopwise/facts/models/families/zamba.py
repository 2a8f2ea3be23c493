"""Zamba and Zamba 2: Mamba layers, and one or a few transformer blocks that all hybrid layers share."""

from __future__ import annotations

from functools import partial

from flopwise.facts.architecture import Attend, Item, Linear, Model, Norm, Pointwise
from flopwise.facts.models.blocks import Block, Items, activation, residual
from flopwise.facts.models.families.hybrid import Mamba2Scan, alone, mamba1_block, mamba2, step_rank
from flopwise.facts.models.families.llama import language_model
from flopwise.facts.models.fields import Fields
from flopwise.values import replace

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


def _with_adapter(item: Linear, rank: int) -> Items:
    """`item` and, with a `rank`, the low-rank adapter beside it that each layer has of its own."""
    if not rank:
        return (item,)
    return (
        item,
        Linear(f"{item.name}_adapter_a", item.inputs, rank, reads=item.reads),
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
            f"{_ATTEND}/{name}", wide, count * dim, shard="column", shard_unit=dim,
            heads=count if name != "q_proj" else 0, tied=not owns, reads=source,
        )  # fmt: skip

    rotation: Items = (
        Pointwise(f"{_ATTEND}/rope", (heads + kv_heads) * dim, "rope", shard="column"),
    ) if rope else ()  # fmt: skip
    return (
        Norm(source, wide, affine=owns, reads="input"),
        *_with_adapter(column("q_proj", heads), rank),
        *_with_adapter(column("k_proj", kv_heads), rank),
        *_with_adapter(column("v_proj", kv_heads), rank),
        *rotation,
        Attend(f"{_ATTEND}/attend", heads=heads, kv_heads=kv_heads, qk_dim=dim, v_dim=dim),
        Linear(f"{_ATTEND}/o_proj", heads * dim, width, shard="row", shard_unit=dim, tied=not owns),
    )


def _feed_forward(c: Fields, width: int, *, owns: bool, rank: int) -> Items:
    """The shared gated block, and the layer's own projection of what the shared part makes."""
    hidden, bias = c.size("intermediate_size", 4 * width), owns and c.flag("add_bias_linear")
    reads = f"{_FEED}/norm"
    gate_up = Linear(f"{_FEED}/gate_up_proj", width, 2 * hidden, bias=bias, shard="column", tied=not owns, reads=reads)
    return (
        Norm(reads, width, affine=owns),
        *_with_adapter(gate_up, rank),
        Pointwise(f"{_FEED}/act", hidden, activation(c.text("hidden_act", "gelu")), gated=True, shard="column"),
        Linear(f"{_FEED}/down_proj", hidden, width, bias=bias, shard="row", tied=not owns),
        Linear("shared/linear", width, width),
        residual("shared/add", width, "input"),
    )


def _hybrid(c: Fields, scan: Block, blocks: int, *, rank: int, attention_rank: int) -> Model:
    """A decoder of Mamba layers, some with one of `blocks` shared transformer blocks before them."""
    width = c.size("hidden_size")
    plain, rope = alone(width, scan("norm")), c.flag("use_mem_rope")
    rows = {"mamba": plain}
    for label, owns in (("hybrid", True), ("hybrid_again", False)):
        shared = _attention(c, width, owns=owns, rank=attention_rank, rope=rope)
        rows[label] = (*shared, *_feed_forward(c, width, owns=owns, rank=rank), *plain)
    labels: list[str] = []
    for kind in _kinds(c, c.layers()):  # later hybrid layers run an earlier one's weights
        again = kind == "hybrid" and labels.count("hybrid") >= blocks
        labels.append("hybrid_again" if again else kind)
    return language_model(c, [rows[label] for label in labels], labels)


def _inner(c: Fields, heads: int) -> int:
    """Mamba's inner width, which the heads divide."""
    inner = c.size("mamba_expand", 2) * c.size("hidden_size")
    if inner % heads:
        raise c.wrong("n_mamba_heads", heads, f"it must divide the inner width {inner}")
    return inner


def zamba(c: Fields) -> Model:
    """Zamba: Mamba 1 whose channels are split into heads, and one shared block."""
    heads, state = c.size("n_mamba_heads", 2), c.size("mamba_d_state", 16)
    rank = step_rank(c, "mamba_dt_rank", c.size("hidden_size"))
    inner, whole = _inner(c, heads), mamba1_block(c)

    def per_head(item: Item) -> Item:
        """The head's own projection of its own channels."""
        if isinstance(item, Linear) and item.name == "mamba/x_proj":
            return replace(item, inputs=inner // heads, outputs=heads * (rank + 2 * state))
        return item

    return _hybrid(c, lambda source: tuple(per_head(item) for item in whole(source)), 1, rank=0, attention_rank=0)


def zamba2(c: Fields) -> Model:
    """Zamba 2: Mamba 2, one or two shared blocks in turn, and low-rank adapters that tell their uses apart."""
    heads = c.size("n_mamba_heads", 8)
    scan = Mamba2Scan(
        heads=heads, head_dim=_inner(c, heads) // heads, state=c.size("mamba_d_state", 64),
        groups=c.size("mamba_ngroups", 1), kernel=c.size("mamba_d_conv", 4), chunk=c.size("chunk_size", 256),
    )  # fmt: skip
    block = partial(mamba2, c.size("hidden_size"), scan=scan, bias=c.flag("add_bias_linear"))
    rank = c.size("adapter_rank", 128)
    attention_rank = rank if c.flag("use_shared_attention_adapter") else 0
    return _hybrid(c, block, c.size("num_mem_blocks", 1), rank=rank, attention_rank=attention_rank)
