"""What a model is made of: a table of tensors and operations, one line each, named by its path.

A `Model` is one or more `Stack`s (decoder, encoder, vision tower ...); a stack has items before its layers
(embeddings), a few distinct kinds of `Layer`, the order in which they follow one another, and items after them (final
norm, head). A layer is a flat tuple of items in the order in which they run. Nothing here computes: `flopwise.ops`
reads these tables.

Letters: L layers, D model width, F feed-forward width, H head dimension, N query heads, K key-value heads, V
vocabulary, E experts, B sequences in the batch, S tokens of a sequence.
"""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Literal

from flopwise.values import dataclass, kept_by_identity, replace

Shard = Literal["", "column", "row"]
"""How tensor parallelism cuts a weight: not at all (every rank holds it), by its outputs, or by its inputs."""

Stream = Literal["tokens", "encoder", "samples", "positions"]
"""What an item runs over: the stack's own tokens, the encoder's tokens (keys and values of cross-attention), one row a
sequence, or the rows of a table of relative positions, once whatever the batch."""

Operation = Literal[
    "residual", "rope", "silu", "gelu", "relu", "relu2", "gate", "tanh", "sigmoid", "softmax", "scale", "dropout",
    "conv",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Linear:
    """A dense matrix product: `inputs` x `outputs` weights, applied to every row of its stream."""

    name: str
    inputs: int
    outputs: int
    _: KW_ONLY
    bias: bool = False
    shard: Shard = ""
    stream: Stream = "tokens"
    tied: bool = False  # no parameters of its own: shares another's weight (the embedding's), or multiplies activations
    reads: str = ""  # the item whose output it reads, where that is not the previous one (q, k and v read one norm)
    shard_unit: int = 1  # outputs (column) or inputs (row) are cut in whole units of this size: a head
    heads: int = 0  # key-value projections: number of heads, replicated when tp exceeds them
    kv_outputs: int = 0  # of a fused qkv projection: those of its outputs that are keys and values, of `heads` each
    fixed_rows: int = 0  # runs over a table of this many rows, once whatever the batch (the stream "positions")


PREDICTED_HEAD = "mtp/lm_head"
"""The head's second run, on what a layer for multi-token prediction makes."""


@dataclass(frozen=True, slots=True)
class Experts:
    """A grouped matrix product: each token goes through `top_k` of `experts` weights of `inputs` x `outputs`."""

    name: str
    _: KW_ONLY
    experts: int
    top_k: int
    inputs: int
    outputs: int
    bias: bool = False
    shard: Shard = ""
    reads: str = ""
    groups: int = 1  # experts lie in so many groups (DeepSeek: nodes),
    top_groups: int = 1  # and a token goes to experts of at most this many of them


@dataclass(frozen=True, slots=True)
class Attend:
    """Softmax attention proper: scores, softmax, weighted sum. No parameters except the sinks."""

    name: str
    _: KW_ONLY
    heads: int
    kv_heads: int
    qk_dim: int  # per head, of queries and keys
    v_dim: int  # per head, of values
    causal: bool = True
    window: int | None = None  # a query sees at most this many latest tokens, itself included
    chunk: int | None = None  # a query sees only its own block of this many tokens (Llama 4)
    select: int | None = None  # a query sees the best this many tokens, chosen by an indexer (DeepSeek V3.2)
    cross: bool = False  # keys and values come from the encoder
    sinks: bool = False  # one learned logit a head (gpt-oss)
    latent_dim: int | None = None  # MLA: elements cached per token (compressed KV + rope key); None: K and V themselves
    cached: bool = True  # keeps keys and values between steps (False: encoders)
    position_bias: int = 0  # entries of a learned relative-position table held by this layer (T5)
    kv_shared: bool = False  # reuses the keys and values of an earlier layer: caches nothing itself
    compress: int = 0  # beyond the window, one key for this many earlier tokens (DeepSeek V4); `select` counts those
    key_is_value: bool = False  # one cached tensor serves as key and value (DeepSeek V4)
    dropout: bool = False  # attention probabilities pass through dropout in training


@dataclass(frozen=True, slots=True)
class Norm:
    """A normalisation over `dim` elements, `groups` times a token (per head), with one weight for all groups."""

    name: str
    dim: int
    _: KW_ONLY
    kind: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    bias: bool = False
    affine: bool = True
    groups: int = 1
    own_weights: bool = False  # each group has its own weight (Cohere's heads), not one for all
    shard: Shard = ""  # "column": lies inside the part that tensor parallelism cuts (per-head norms)
    reads: str = ""
    stream: Stream = "tokens"


@dataclass(frozen=True, slots=True)
class Pointwise:
    """Elementwise work on `dim` elements a token: `reads` and `writes` count elements moved per element of `dim`."""

    name: str
    dim: int
    kind: Operation
    _: KW_ONLY
    gated: bool = False  # activation(gate) * up: reads two tensors of `dim`
    shard: Shard = ""
    stream: Stream = "tokens"
    per_expert: int = 0  # runs on the top_k copies that the router makes: this many rows a token
    reads: str = ""  # a residual reads, besides the item before it, the stream that runs past the block
    clamped: bool = False  # an activation whose inputs are limited first (gpt-oss)
    mixes: int = 0  # each element is a weighted sum of this many, a product that counts (hyper-connections, AltUp)


@dataclass(frozen=True, slots=True)
class Embedding:
    """An embedding: `rows` x `dim` weights, one row read per token."""

    name: str
    rows: int
    dim: int
    _: KW_ONLY
    shard: Shard = ""
    stream: Stream = "tokens"
    position: bool = False  # indexed by position, not by token
    counted_active: bool = True


@dataclass(frozen=True, slots=True)
class Weight:
    """Parameters without an operation worth counting: a class token, A_log, a scale."""

    name: str
    numel: int
    shard: Shard = ""


@dataclass(frozen=True, slots=True)
class Convolution:
    """A depthwise causal convolution over the sequence (state-space layers) or a dense one (audio stems)."""

    name: str
    channels: int
    kernel: int
    _: KW_ONLY
    outputs: int | None = None  # None: depthwise
    bias: bool = True
    stride: int = 1
    rows_per_token: int = 1  # outputs a token of the stack, where a later stride thins them out (Whisper)
    shard: Shard = ""
    stream: Stream = "tokens"


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A linear recurrence over the sequence: state-space scan, lightning or delta-rule attention.

    `state` elements are kept per sequence (instead of a growing cache); `flops` are spent per token and layer.
    """

    name: str
    kind: Literal["mamba1", "mamba2", "lightning", "delta", "kda", "retention", "conv"]
    _: KW_ONLY
    heads: int
    key_dim: int  # per head (d_state for Mamba)
    value_dim: int  # per head
    state: int  # elements kept per sequence, convolution window included
    chunk: int = 64  # tokens per block of the parallel form
    shard: Shard = "column"


Item = Linear | Experts | Attend | Norm | Pointwise | Embedding | Weight | Convolution | Recurrence


@dataclass(frozen=True, slots=True)
class Layer:
    """One kind of block: its items in the order in which they run."""

    name: str
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A tower of layers over one stream of tokens."""

    name: str  # "decoder", "encoder", "vision", "audio" ...
    width: int
    before: tuple[Item, ...]
    kinds: tuple[Layer, ...]
    order: tuple[int, ...]  # index into `kinds`, one entry a layer
    after: tuple[Item, ...]
    shared_weights: bool = False  # layers are one and the same (ALBERT): their parameters count once,
    weight_groups: int = 1  # or once for each of these groups
    extra_tokens: int = 0  # of these, learned ones (class token, registers) that join after the stem
    tokens_per_sample: int | None = None  # tokens that one image or clip makes; None: the text length

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.order)

    @property
    def items(self) -> tuple[Item, ...]:
        """The items of one layer of each kind."""
        return tuple(item for kind in self.kinds for item in kind.items)

    @property
    def output_heads(self) -> int:
        """Times that a head runs: once, and once more for each layer of multi-token prediction that has one."""
        predicted = {i for i, kind in enumerate(self.kinds) if any(item.name == PREDICTED_HEAD for item in kind.items)}
        return 1 + sum(index in predicted for index in self.order) if predicted else 1

    @property
    @kept_by_identity(64)
    def fewest_heads(self) -> int | None:
        """The fewest attention heads of a layer, not of an indexer (ranks may copy those); None without attention."""
        return min((item.heads for item in self.items if isinstance(item, Attend) and item.v_dim), default=None)

    @property
    @kept_by_identity(64)
    def largest_experts(self) -> Experts | None:
        """The mixture with the most experts; None in a dense stack."""
        return max((i for i in self.items if isinstance(i, Experts)), key=lambda item: item.experts, default=None)

    @property
    def stored_order(self) -> tuple[int, ...]:
        """As `order`, of the layers whose weights are their own: one of each group where layers share them."""
        return self.order[: self.weight_groups] if self.shared_weights else self.order


ModelKind = Literal[
    "decoder", "encoder", "encoder-decoder", "vision", "vision-text", "diffusion", "scientific", "convolutional"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Figures of a network that is not described by tables here: convolutional, diffusion and scientific models."""

    parameters: int | None
    forward_flops_per_sample: float | None
    training_flops_per_sample: float | None
    sample_bytes: float | None
    sample: str  # what one sample is


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """An architecture. `stacks[0]` is the one that generates, or the only one."""

    kind: ModelKind
    stacks: tuple[Stack, ...]
    name: str = ""
    model_type: str = ""
    vocab: int = 0
    max_position: int | None = None
    published: Published | None = None
    source: str = ""
    date: str = ""
    confidence: str = ""
    hf_id: str | None = None
    checkpoint_format: str | None = None  # of the published weights, a row of data/weight_formats.csv; None: 16 bits
    fp8_linear: bool = False  # where experts are in mxfp4, its other linear weights are in 8 bits (DeepSeek V4)
    sees: bool = False  # its checkpoint has a vision tower, too, of which no stack tells: engines load it as such
    tower_parameters: int = 0  # of all towers left out, projectors included, stored in 16 bits; 0: not known
    notes: tuple[str, ...] = ()  # what was assumed of it alone
    num_predictors: int = 0  # layers for multi-token prediction that its configuration names,
    predictors: tuple[Layer, ...] = ()  # and what they are made of, in no stack until `with_predictors`

    def __hash__(self) -> int:
        """A hash of the name and the sizes alone: hashing every layer would slow down look-ups by model."""
        sizes = tuple((stack.width, stack.num_layers) for stack in self.stacks)
        return hash((self.name, self.model_type, self.vocab, sizes))

    @property
    def has_experts(self) -> bool:
        """True if any layer is a mixture of experts."""
        return any(stack.largest_experts is not None for stack in self.stacks)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Sentences shown with every answer: `notes`, and whether layers for multi-token prediction count."""
        if not self.num_predictors:
            return self.notes
        layers, them = ("1 layer", "it") if self.num_predictors == 1 else (f"{self.num_predictors} layers", "them")
        predicted = f"{layers} for multi-token prediction"
        if not self.predictors:
            return (*self.notes, f"{predicted} counted")
        return (*self.notes, f"{predicted} left out, as in transformers; 'flopwise_mtp': true counts {them}")

    def with_predictors(self) -> Model:
        """The same model with its layers for multi-token prediction as the last of its first stack."""
        if not self.predictors:
            return self
        first, *others = self.stacks
        kinds = (*first.kinds, *dict.fromkeys(self.predictors))
        order = (*first.order, *(kinds.index(layer, len(first.kinds)) for layer in self.predictors))
        return replace(self, stacks=(replace(first, kinds=kinds, order=order), *others), predictors=())

    def stack(self, name: str) -> Stack | None:
        """The stack of that name, or None."""
        return next((s for s in self.stacks if s.name == name), None)
