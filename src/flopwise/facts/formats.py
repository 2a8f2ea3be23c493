"""Formats in which weights and key-value caches are stored: the bytes of each tensor, scales included.

Two families: `weights` (checkpoints: a role decides whether a tensor is quantised) and `gguf` (llama.cpp picks a block
type for each tensor from its role, its layer and the model's shape). Nothing here knows a model; `flopwise.ops.weights`
walks one.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar, Literal

from flopwise import units
from flopwise.facts.architecture import Embedding, Experts, Item, Linear, Norm
from flopwise.facts.tables import Count, Day, FactTable, SourcedRow, number, words
from flopwise.values import dataclass

Role = Literal[
    "embedding", "head", "attention_q", "attention_k", "attention_v", "attention_o", "attention_other",
    "gate", "up", "down", "linear_other", "router", "norm", "other",
]  # fmt: skip
"""What a tensor is for, as far as quantisers tell tensors apart."""

_TAILS: dict[str, Role] = {
    "q_proj": "attention_q", "k_proj": "attention_k", "v_proj": "attention_v", "qkv_proj": "attention_v",
    "kv_b_proj": "attention_v", "q_a_proj": "attention_other", "q_b_proj": "attention_other", "o_proj": "attention_o",
    "kv_a_proj": "attention_other", "gate_proj": "gate", "gate_up_proj": "gate", "up_proj": "up", "down_proj": "down",
    "lm_head": "head", "router": "router", "gate": "router",
}  # fmt: skip
_ATTENTION = ("attention_q", "attention_k", "attention_v", "attention_o", "attention_other")
_FEED = ("gate", "up", "down")
_FEED_PREFIXES = ("mlp", "experts", "shared", "residual_mlp", "dense")


MXFP4 = "mxfp4"
"""Name of the format of checkpoints whose experts are MXFP4."""
_EIGHT_BITS = (
    *(f"attention/{name}_proj" for name in ("q_a", "q_b", "kv", "o_a", "o_b")),
    *(f"shared/{name}_proj" for name in ("gate", "up", "down")), "indexer/q_proj",
)  # fmt: skip
"""What DeepSeek V4 has in 8 bits beside them, a scale for 128 x 128. Source: verl pull request 7895, by tensor."""
_LEFT_IN_16_BITS = ("altup/", "laurel/", "per_layer_projection")
"""What llama.cpp's quantiser leaves as it is, being small. Source: `tensor_allows_quantization`, llama-quant.cpp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlace:
    """The position of a tensor, as far as the choice of its type depends on it."""

    layer: int = 0
    layers: int = 1
    gqa: int = 1  # query heads a key-value head
    experts: int = 0
    falcon: bool = False
    mxfp4: bool = False  # the model is published with experts in MXFP4
    fp8_linear: bool = False  # and with its other linear weights in 8 bits


def tensor_role(item: Item) -> Role:
    """The role of `item` in a model, by its kind and the last part of its path."""
    prefix, _, tail = item.name.rpartition("/")
    match item:
        case Norm():
            return "norm"
        case Embedding():
            return "embedding" if tail == "embed_tokens" else "other"
        case Experts():
            return _TAILS.get(tail, "up")
        case Linear():
            role = _TAILS.get(tail, "linear_other")
            feed = prefix.rpartition("/")[2] in _FEED_PREFIXES
            apart = role in _FEED or tail == "gate"  # these names mean a feed-forward block's
            return "linear_other" if apart and not feed else role
        case _:
            return "other"


TERMS = (
    "always", "imatrix", "gqa_4", "experts_4", "experts_8", "first_2", "first_4", "first_eighth", "first_sixteenth",
    "middle", "more_bits",
)  # fmt: skip
"""What llama.cpp's quantiser looks at when it picks the block type of a tensor."""
Rules = Mapping[str, tuple[tuple[str, str], ...]]
"""By role: conditions (TERMS joined by `and`, `or`, `not`) and the block type of the first that holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat(ABC):
    """A format in which weights are stored; `kind` is the family: a checkpoint's, or llama.cpp's."""

    kind: ClassVar[Literal["weights", "gguf"]]
    name: str
    source: str
    date: Day
    meaning: str = ""
    aliases: tuple[str, ...] = ()
    computes: str = ""  # precision of products, a key of `cost.precisions.PRECISIONS`; none: unpacked to 16 bits
    newer: bool = False  # its kernels, weight-only ones among them, need devices with bf16 units
    size_error: float = 0.0  # by which share files may differ from this rule, where it is not the published one
    assumption: str = ""  # what is assumed of it, then

    @property
    @abstractmethod
    def weight_bits(self) -> float:
        """Bits of one quantised weight, with its share of scales and zeros."""

    @property
    @abstractmethod
    def is_quantised(self) -> bool:
        """True if any tensor is stored in fewer bits than others, or in blocks."""

    @property
    @abstractmethod
    def has_zeros(self) -> bool:
        """True if groups of integers have zero points, which the kernels of products subtract as they unpack them."""

    @property
    @abstractmethod
    def vector_bytes(self) -> float:
        """Bytes per element of tensors that are never quantised: norms, biases, routers."""

    @property
    @abstractmethod
    def differs_by_layer(self) -> bool:
        """True if the type of a tensor depends on its layer."""

    @abstractmethod
    def tensor_bytes(self, item: Item, role: Role, place: LayerPlace, shape: tuple[int, int, int]) -> float:
        """Bytes of one matrix of `shape` (copies, outputs, inputs), scales and zeros included; biases not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFormat(WeightFormat):
    """A checkpoint's format: the role of a tensor decides whether it is quantised. A row of data/weight_formats.csv."""

    kind: ClassVar[Literal["weights", "gguf"]] = "weights"
    bits: float  # of a quantised weight
    roles: Literal["all", "matrices", "linear", "mlp", "mlp_and_output", "experts_or_mlp"]  # tensors that are quantised
    block_rows: int | None = None  # of a block with a scale of its own; 0: all rows; None: there are no scales
    block_columns: int | None = None
    scale_bytes: float  # of one block
    zero_bits: float  # of one block
    index_bytes: float  # of one input
    extra_bits: float  # of one weight: scales of scales
    rest_bits: float  # of the weights that are not quantised
    first_last: bool  # the first and the last layer are quantised, too

    @property
    def weight_bits(self) -> float:
        """Bits of a weight with its share of a block's scale and zero; scales of whole rows or columns are left out."""
        block = (self.block_rows or 0) * (self.block_columns or 0)
        return self.bits + self.extra_bits + ((8 * self.scale_bytes + self.zero_bits) / block if block else 0.0)

    @property
    def is_quantised(self) -> bool:
        """True if only some tensors are in this many bits."""
        return self.roles != "all"

    @property
    def has_zeros(self) -> bool:
        """True if a block stores bits of them."""
        return self.zero_bits > 0

    @property
    def vector_bytes(self) -> float:
        """As the other unquantised weights."""
        return self.rest_bits / 8

    @property
    def differs_by_layer(self) -> bool:
        """True if the type of a tensor depends on its layer."""
        return self.is_quantised and not self.first_last

    def quantises(self, item: Item, role: Role, place: LayerPlace) -> bool:
        """True if a checkpoint in this format stores the tensor in its low-bit form."""
        if self.roles == "all" or (not self.first_last and place.layer in (0, place.layers - 1)):
            return self.roles == "all"
        if self.roles in ("mlp", "mlp_and_output"):
            return role in _FEED or (role == "attention_o" and self.roles == "mlp_and_output")
        if self.roles == "matrices":
            return role not in ("router", "norm", "other")
        if self.roles == "experts_or_mlp":
            return isinstance(item, Experts) if place.experts else role in _FEED
        return role in _ATTENTION or role in _FEED or role == "linear_other"

    def tensor_bytes(self, item: Item, role: Role, place: LayerPlace, shape: tuple[int, int, int]) -> float:
        """Bytes of one matrix of `shape` (copies, outputs, inputs), scales and zeros included; biases not."""
        copies, outputs, inputs = shape
        numel = copies * outputs * inputs
        if not self.quantises(item, role, place):
            eight = place.fp8_linear and self.name == MXFP4 and item.name in _EIGHT_BITS
            return float(numel * (8.0 if eight else self.rest_bits) / 8)
        total = numel * (self.bits + self.extra_bits) / 8
        if self.block_rows is not None:
            blocks = -(-outputs // (self.block_rows or outputs)) * -(-inputs // (self.block_columns or inputs))
            total += copies * blocks * (self.scale_bytes + self.zero_bits / 8)
        return float(total + copies * inputs * self.index_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufBlock:
    """One of llama.cpp's block types; `fallback`: the type of rows that its blocks do not divide, F16 where empty."""

    name: str
    block_bytes: Count
    block_elements: Count
    source: str
    date: Day
    fallback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFormat(WeightFormat):
    """One of llama.cpp's mixtures: a tensor's block type follows from its role, its layer and the model's shape."""

    kind: ClassVar[Literal["weights", "gguf"]] = "gguf"
    base: str
    output: str  # of the head
    embedding: str
    imatrix: bool
    keep_v: bool  # values and keys of models that llama.cpp calls a 70B or 8 experts keep their type
    rules: Rules = field(default_factory=dict, hash=False)
    blocks: Mapping[str, GgufBlock] = field(default_factory=dict, repr=False, compare=False, metadata={"inner": True})

    @property
    def weight_bits(self) -> float:
        """Of the base type, scales included."""
        return 8 * self.blocks[self.base].block_bytes / self.blocks[self.base].block_elements

    @property
    def is_quantised(self) -> bool:
        """Always: vectors are kept in 32 bits."""
        return True

    @property
    def differs_by_layer(self) -> bool:
        """Always: rules name layers."""
        return True

    @property
    def has_zeros(self) -> bool:
        """Always, or minima instead: so are llama.cpp's kernels written."""
        return True

    @property
    def vector_bytes(self) -> float:
        """32 bits."""
        return 4.0

    def tensor_bytes(self, item: Item, role: Role, place: LayerPlace, shape: tuple[int, int, int]) -> float:
        """Bytes of one matrix of `shape` (copies, outputs, inputs), scales included; biases not."""
        copies, outputs, inputs = shape
        numel = copies * outputs * inputs
        if item.name.startswith(_LEFT_IN_16_BITS):
            return numel * (4.0 if self.base == "F32" else 2.0)
        if item.name == "embed_tokens_per_layer":  # Gemma 3n's, as the table of tokens
            role = "embedding"
        if role in ("router", "norm", "other"):
            return numel * 4.0
        if place.mxfp4 and isinstance(item, Experts):
            return numel * self.blocks["MXFP4"].block_bytes / self.blocks["MXFP4"].block_elements
        block = self.blocks[self._block_type(item, role, place)]
        if inputs % block.block_elements:
            block = self.blocks["Q8_0" if role == "head" else block.fallback or "F16"]
        if inputs % block.block_elements:
            block = self.blocks["F16"]
        return float(numel * block.block_bytes / block.block_elements)

    def _block_type(self, item: Item, role: Role, place: LayerPlace) -> str:
        """The block type that llama.cpp's quantiser gives this tensor."""
        if self.base in ("F32", "F16", "BF16"):
            return self.base
        if role == "head":
            return "Q8_0" if place.falcon else self.output
        if role == "embedding":
            return self.embedding
        picked, rules = self.base, self.rules
        for condition, kind in rules.get("experts" if isinstance(item, Experts) and "experts" in rules else role, ()):
            if all(_holds(term, place, imatrix=self.imatrix) for term in condition.split(" and ")):
                picked = kind
                break
        if role == "attention_v" and not self.keep_v:
            if place.layers == 80 and place.gqa > 1 and picked in ("Q3_K", "Q4_K"):  # what llama.cpp calls a 70B
                picked = "Q5_K"
            if place.experts == 8:
                picked = "Q8_0"
        if role == "attention_k" and place.experts == 8 and not self.keep_v:
            picked = "Q8_0"
        return picked


def _holds(term: str, place: LayerPlace, *, imatrix: bool) -> bool:
    """True if one term of a rule's condition holds: `a or b`, `not a`, or a name."""
    if " or " in term:
        return any(_holds(t, place, imatrix=imatrix) for t in term.split(" or "))
    if term.startswith("not "):
        return not _holds(term[4:], place, imatrix=imatrix)
    i, n = place.layer, place.layers
    facts = {
        "always": True,
        "imatrix": imatrix,
        "gqa_4": place.gqa >= 4,
        "experts_4": place.experts >= 4,
        "experts_8": place.experts == 8,
        "first_2": i < 2,
        "first_4": i < 4,
        "first_eighth": i < n // 8,
        "first_sixteenth": i < n // 16,
        "middle": n // 8 <= i < 7 * n // 8,
        "more_bits": i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2,
    }
    return facts[term]


def _rules(cell: str) -> Rules:
    """`attention_v: gqa_4 -> Q4_K, always -> Q3_K; down: always -> Q3_K`.

    Raises: ValueError: not of that form, or of roles and terms that are not known.
    """
    rules = dict[str, tuple[tuple[str, str], ...]]()
    for part in words(cell):
        role, _, choices = part.partition(": ")
        pairs = tuple((c.strip(), t.strip()) for c, _, t in (rule.partition(" -> ") for rule in choices.split(",")))
        terms = {term for condition, _ in pairs for term in re.split(r" and | or |\bnot ", condition) if term}
        if role not in (*_ATTENTION, *_FEED, "experts") or not terms <= set(TERMS) or not all(t for _, t in pairs):
            raise ValueError(
                f"allowed: ROLE: CONDITION -> TYPE, CONDITION -> TYPE; ROLE: ... with conditions of {', '.join(TERMS)}"
            )
        rules[role] = pairs
    return rules


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFormat:
    """A format of key-value caches; `elem_bytes` of one element, its share of the scales included."""

    name: str
    elem_bytes: float
    source: str
    date: Day


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityRecord(SourcedRow):
    """A public evaluation of a model in a weight format, relative to the same model in 16 bits.

    `kept`: its score over that of 16 bits, or `perplexity_ratio`: its perplexity over that. `trained`: with the
    quantisation in the loop (QAT, distillation), not after training.
    """

    format: str
    model: str
    measure: str
    kept: float | None = None
    perplexity_ratio: float | None = None
    trained: bool = False

    @property
    def score(self) -> float:
        """The share that is kept; of a perplexity its inverse."""
        return self.kept if self.kept is not None else 1.0 / (self.perplexity_ratio or 1.0)

    def __str__(self) -> str:
        """`98.9 % kept by Llama-3.1-8B-Instruct, average recovery of OpenLLM v1`."""
        if self.kept is not None:
            return f"{100 * self.kept:.1f} % kept by {self.model}, {self.measure}"
        return f"{100 * ((self.perplexity_ratio or 1.0) - 1):+.2g} % for {self.model}, {self.measure}"


BF16 = CheckpointFormat(
    name="bf16", aliases=("bfloat16", "16bit"), bits=16, roles="all", scale_bytes=0, zero_bits=0, index_bytes=0,
    extra_bits=0, rest_bits=16, first_last=True, meaning="every tensor in 16 bits", source="safetensors",
    date="2026-11-21", computes="bf16",
)  # fmt: skip
"""What towers beside a quantised model, and frozen weights, are stored in where nothing else is said."""
BF16_CACHE = CacheFormat(name="bf16", elem_bytes=2, source="bfloat16", date="2026-11-21")
_bits = number(units.parse_count, "bits above 0, up to 64", high=64)
CHECKPOINT_FORMATS = FactTable(
    file="weight_formats.csv", meaning="a format of checkpoints", row=CheckpointFormat, key=("name",),
    readers={"bits": _bits, "rest_bits": _bits},
)  # fmt: skip
GGUF_FORMATS = FactTable(
    file="gguf_formats.csv", meaning="a mixture of llama.cpp's block types", row=GgufFormat, key=("name",),
    readers={"rules": _rules, "size_error": number(units.parse_count, "a share of 0 to 1", low=0, high=1)},
)  # fmt: skip
GGUF_BLOCKS = FactTable(
    file="gguf_blocks.csv", meaning="a block type of llama.cpp", row=GgufBlock, key=("name",),
)  # fmt: skip
CACHE_FORMATS = FactTable(
    file="cache_formats.csv", meaning="a format of key-value caches", row=CacheFormat, key=("name",),
    readers={"elem_bytes": number(units.parse_count, "bytes above 0, up to 8", high=8)},
)  # fmt: skip
QUALITY = FactTable(
    file="quality.csv", meaning="a public evaluation of a weight format against 16 bits",
    row=QualityRecord, key=("format", "model", "measure"),
)  # fmt: skip
