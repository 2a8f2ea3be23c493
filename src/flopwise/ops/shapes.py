"""What is asked of a layer (`Shape`), how ranks share it (`Split`), what is then left for one of them (`Work`)."""

from __future__ import annotations

from typing import Literal

from flopwise.facts.architecture import Stream
from flopwise.ops.types import Floats, Ints, ceil_div, most
from flopwise.values import dataclass

WorkKind = Literal["matmul", "grouped", "attention", "norm", "pointwise", "gather", "conv", "recurrence"]
Trainable = Literal["all", "none"] | frozenset[str]
"""Items whose weights have gradients: all, none, or only adapters on the named items (LoRA)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """`batch` sequences with `query` new tokens each, of which each may see `context` tokens (cached and new)."""

    batch: Ints
    query: Ints
    context: Ints
    encoder: Ints = 0  # tokens of the encoder that cross-attention sees


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The split of one layer over ranks: `Shape` is the part of a data-parallel rank, `Work` that of one rank."""

    tp: Ints = 1  # heads, hidden columns, vocabulary
    ep: Ints = 1  # experts
    cp: Ints = 1  # tokens of a sequence
    sequence_parallel: bool = True  # norms and residuals divide tokens by tp
    expert_tp: Ints | None = None  # tp inside an expert; None: as tp
    expert_load: Floats = 1.0  # tokens of the fullest ep rank over the mean of all
    touched_load: Floats = 1.0  # experts of the fullest ep rank that have a token, over the mean of even ones
    ep_own_tokens: bool = True  # each ep rank brings its own tokens (False: all see one batch, ep out of tp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One operation of one layer on one rank; every number may be an array of candidates.

    m, n, k: an (m x k) by (k x n) product, summed over the `groups` of a grouped one; None where there is no product.
    Elements are counted, not bytes: the caller knows the formats.
    """

    name: str
    kind: WorkKind
    flops: Floats = 0.0
    causal_flops: Floats = 0.0
    m: Ints | None = None
    n: Ints | None = None
    k: Ints | None = None
    groups: Ints = 1  # experts this rank holds
    touched: Floats = 1.0  # distinct experts that any token chose, expected
    weight_elems: Floats = 0.0  # weight elements read
    in_elems: Floats = 0.0
    out_elems: Floats = 0.0
    kv_elems: Floats = 0.0  # cached elements read (attention), state elements read and written (recurrence)
    heads: Ints = 0
    kv_heads: Ints = 0
    qk_dim: int = 0
    v_dim: int = 0
    latent_dim: int | None = None  # MLA, or one tensor as key and value: what is cached, shared by all heads
    batch: Ints = 0
    query: Ints = 0
    context: Ints = 0
    window: int | None = None
    causal: bool = False
    pairs: Floats = 0.0  # (query, key) pairs that the mask lets through, one sequence, one head

    @property
    def dims(self) -> tuple[Ints, Ints, Ints]:
        """(m, n, k) of a product.

        Source: definition. Assumes: the work is a product.
        """
        assert self.m is not None
        assert self.n is not None
        assert self.k is not None
        return self.m, self.n, self.k


def local_units(whole: Ints, parts: Ints, unit: Ints = 1) -> Ints:
    """The part of `whole` on the fullest of `parts` ranks, cut in multiples of `unit`.

    Source: Megatron-LM, which cuts whole units. Assumes: ranks are filled evenly, the last may hold less.
    """
    return ceil_div(ceil_div(whole, unit), parts) * unit


def local_heads(heads: Ints, tp: Ints) -> Ints:
    """Heads on one rank; at least one: key-value heads are replicated when tp exceeds them.

    Source: Megatron-LM and vLLM, grouped-query attention under tensor parallelism.
    Assumes: heads that tp does not divide are rounded up: the fullest rank is described.
    """
    return most(ceil_div(heads, tp), 1)


def rows(stream: Stream, shape: Shape, split: Split) -> Floats:
    """Rows of a stream on one rank: tokens are divided by cp, encoder tokens and samples as well as far as they go.

    Source: Megatron-LM, context parallelism. Assumes: sequences are cut evenly, however causal the mask is.
    """
    if stream == "tokens":
        return shape.batch * (shape.query / split.cp)
    if stream == "encoder":
        return shape.batch * (shape.encoder / split.cp)
    return shape.batch * 1.0
