"""The hyperparameters of a decoder as trainers name them, derived from its table of tensors."""

from __future__ import annotations

from typing import Any, Self

from flopwise.facts.architecture import Attend, Experts, Item, Layer, Linear, Model, Norm
from flopwise.values import dataclass

KNOWN = {
    "input_norm", "post_norm", "router",
    *(f"attention/{part}" for part in (
        "q_proj", "k_proj", "v_proj", "qkv_proj", "q_norm", "k_norm", "rope", "attend", "o_proj", "dropout",
        "residual", "q_a_proj", "q_a_norm", "q_b_proj", "kv_a_proj", "kv_a_norm", "kv_b_proj",
    )),
    *(f"mlp/{part}" for part in ("gate_proj", "up_proj", "act", "down_proj", "dropout", "residual")),
    *(f"experts/{part}" for part in ("gate_up_proj", "up_proj", "act", "down_proj", "combine")),
    *(f"shared/{part}" for part in ("gate_proj", "up_proj", "act", "down_proj", "add")),
    *(f"router/{part}" for part in ("softmax", "sigmoid")),
}  # fmt: skip
"""Parts of a layer: pre-norm attention, then a feed-forward block or experts, optionally with shared experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Ranks and head dimensions of attention over compressed keys and values (MLA)."""

    query_rank: int | None
    key_value_rank: int
    rope_dim: int
    plain_dim: int  # of queries and keys without rotary embedding
    value_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShape:
    """The experts of a layer."""

    experts: int
    top_k: int
    hidden: int
    shared_hidden: int  # 0: none shared
    groups: int
    top_groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """A decoder of pre-norm layers that differ only in whether they have experts."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int  # of the dense feed-forward block, else of an expert
    gated: bool
    activation: str
    norm: str
    qkv_bias: bool
    other_bias: bool  # of attention's output and of the feed-forward block
    query_key_norm: bool
    dropout: bool
    rotary_frac: float  # of the head; 0: learned positions
    tied: bool
    vocab: int
    positions: int | None
    mixture: ExpertShape | None
    expert_layers: tuple[bool, ...]
    latent: LatentAttention | None

    @staticmethod
    def reasons(model: Model, seq_len: int) -> list[str]:
        """Reasons why a model is not such a decoder; empty if it is."""
        if model.kind != "decoder" or len(model.stacks) != 1 or not model.vocab:
            return [f"{model.name} is not a text decoder"]
        stack, reasons = model.stacks[0], list[str]()
        if unknown := sorted({item.name for item in stack.items} - KNOWN):
            reasons.append(f"{model.name} has unsupported parts: {', '.join(unknown[:4])}")
        if any(item.name.startswith("mlp/") and getattr(item, "reads", "") == "input_norm" for item in stack.items):
            reasons.append(f"the attention and feed-forward blocks of {model.name} run in parallel")
        for item in stack.items:
            if isinstance(item, Attend) and (
                item.sinks or item.chunk or item.select or item.kv_shared or not item.causal
            ):
                reasons.append(f"{model.name} has an unsupported kind of attention")
            if isinstance(item, Attend) and item.window is not None and item.window < seq_len:
                reasons.append(
                    f"layers of {model.name} attend to {item.window:,} tokens only, fewer than a sequence has"
                )
        return list(dict.fromkeys(reasons))

    @classmethod
    def of(cls, model: Model) -> Self:
        """The hyperparameters of a model without `reasons`."""
        stack = model.stacks[0]
        kinds = [_by_name(layer) for layer in stack.kinds]
        first = kinds[0]
        attend = next(item for item in stack.items if isinstance(item, Attend))
        queries = first.get("attention/q_proj") or first.get("attention/qkv_proj") or first.get("attention/q_b_proj")
        feed = next((kind for kind in kinds if "mlp/down_proj" in kind), None)
        mixed = next((kind for kind in kinds if "experts/down_proj" in kind), None)
        mixture = None if mixed is None else _expert_shape(mixed)
        act: Any = (feed or {}).get("mlp/act") or (mixed or {})["experts/act"]
        rope: Any = first.get("attention/rope")
        rotated = 0.0
        if rope is not None:
            rotated = rope.dim / ((attend.heads + attend.kv_heads) * attend.qk_dim)
        assert isinstance(queries, Linear)
        out, norm = first["attention/o_proj"], first["input_norm"]
        assert isinstance(out, Linear)
        assert isinstance(norm, Norm)
        down: Any = feed["mlp/down_proj"] if feed is not None else None
        head = next((item for item in stack.after if isinstance(item, Linear)), None)
        return cls(
            layers=stack.num_layers, width=stack.width, heads=attend.heads, kv_heads=attend.kv_heads,
            head_dim=attend.v_dim if attend.latent_dim else attend.qk_dim,
            hidden=down.inputs if down is not None else mixture.hidden if mixture is not None else 0,
            gated=bool(act.gated), activation=act.kind, norm=norm.kind, qkv_bias=queries.bias,
            other_bias=out.bias or bool(down is not None and down.bias), query_key_norm="attention/q_norm" in first,
            dropout="attention/dropout" in first,
            rotary_frac=rotated, tied=head is None or head.tied, vocab=model.vocab, positions=model.max_position,
            mixture=mixture, expert_layers=tuple("experts/down_proj" in kinds[kind] for kind in stack.order),
            latent=_latent(first, attend) if attend.latent_dim else None,
        )  # fmt: skip


def _by_name(layer: Layer) -> dict[str, Item]:
    return {item.name: item for item in layer.items}


def _expert_shape(items: dict[str, Item]) -> ExpertShape:
    down, shared = items["experts/down_proj"], items.get("shared/down_proj")
    assert isinstance(down, Experts)
    widest = items.get("experts/gate_up_proj", down)
    assert isinstance(widest, Experts)
    return ExpertShape(
        experts=down.experts, top_k=down.top_k, hidden=down.inputs,
        shared_hidden=shared.inputs if isinstance(shared, Linear) else 0, groups=widest.groups,
        top_groups=widest.top_groups,
    )  # fmt: skip


def _latent(items: dict[str, Item], attend: Attend) -> LatentAttention:
    query, norm = items.get("attention/q_a_proj"), items["attention/kv_a_norm"]
    assert isinstance(norm, Norm)
    assert attend.latent_dim is not None
    rope = attend.latent_dim - norm.dim
    return LatentAttention(
        query_rank=query.outputs if isinstance(query, Linear) else None, key_value_rank=norm.dim, rope_dim=rope,
        plain_dim=attend.qk_dim - rope, value_dim=attend.v_dim,
    )  # fmt: skip
