"""Formats in which weights are stored: the bytes of each tensor, scales included, and what stays in 16 bits.

The rows live in `data/formats.json`. Two families: `weights` (checkpoints: a role decides whether a tensor is
quantised) and `gguf` (llama.cpp picks a block type for each tensor from its role, its layer and the model's shape).
Types of the key-value cache stand there too. Nothing here knows a model; `flopwise.ops.weights` walks one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from flopwise.data import DATA
from flopwise.errors import SpecError, UnknownNameError, fold
from flopwise.facts.architecture import Experts, Item, Linear, Norm, Table

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a tensor stands, as far as the choice of its type depends on it."""

    layer: int = 0
    layers: int = 1
    gqa: int = 1  # query heads a key-value head
    experts: int = 0
    falcon: bool = False


def tensor_role(item: Item) -> Role:
    """What `item` is for, told by its kind and the last part of its path."""
    prefix, _, tail = item.name.rpartition("/")
    match item:
        case Norm():
            return "norm"
        case Table():
            return "embedding" if tail == "embed_tokens" else "other"
        case Experts():
            return _TAILS.get(tail, "up")
        case Linear():
            role = _TAILS.get(tail, "linear_other")
            feed = prefix.rpartition("/")[2] in _FEED_PREFIXES
            return "linear_other" if role in _FEED and not feed else role
        case _:
            return "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One weight format: a row of `data/formats.json`."""

    name: str
    kind: Literal["weights", "gguf"]
    row: Mapping[str, Any]
    meaning: str = ""
    source: str = ""

    def tensor_bytes(self, item: Item, role: Role, place: Place, shape: tuple[int, int, int]) -> float:
        """Bytes of one matrix of `shape` (copies, outputs, inputs), scales and zeros included; biases not."""
        return (
            self._gguf_bytes(item, role, place, shape) if self.kind == "gguf" else self._bytes(role, place, shape, item)
        )

    def vector_bytes(self) -> float:
        """Bytes per element of what is never quantised: norms, biases, routers."""
        return 4.0 if self.kind == "gguf" else self.row["rest_bits"] / 8

    def quantises(self, item: Item, role: Role, place: Place) -> bool:
        """Whether a checkpoint in this format stores the tensor in its low-bit form."""
        scope = self.row["roles"]
        if scope == "all" or (not self.row["first_last"] and place.layer in (0, place.layers - 1)):
            return bool(scope == "all")
        if scope == "mlp":
            return role in _FEED
        if scope == "experts_or_mlp":
            return isinstance(item, Experts) if place.experts else role in _FEED
        return role in _ATTENTION or role in _FEED or role == "linear_other"

    def _bytes(self, role: Role, place: Place, shape: tuple[int, int, int], item: Item) -> float:
        copies, outputs, inputs = shape
        numel = copies * outputs * inputs
        if not self.quantises(item, role, place):
            return float(numel * self.row["rest_bits"] / 8)
        total = numel * (self.row["bits"] + self.row["extra_bits"]) / 8
        if self.row["block"] is not None:
            rows, columns = self.row["block"]
            blocks = -(-outputs // (rows or outputs)) * -(-inputs // (columns or inputs))
            total += copies * blocks * (self.row["scale_bytes"] + self.row["zero_bits"] / 8)
        return float(total + copies * inputs * self.row["index_bytes"])

    def _gguf_bytes(self, item: Item, role: Role, place: Place, shape: tuple[int, int, int]) -> float:
        copies, outputs, inputs = shape
        numel = copies * outputs * inputs
        if role in ("router", "norm", "other"):
            return numel * 4.0
        types = _data()["types"]
        kind = self._gguf_type(item, role, place)
        if inputs % types[kind]["block"]:
            kind = "Q8_0" if role == "head" else _data()["fallback"].get(kind, "F16")
        if inputs % types[kind]["block"]:
            kind = "F16"
        return float(numel * types[kind]["bytes"] / types[kind]["block"])

    def _gguf_type(self, item: Item, role: Role, place: Place) -> str:
        """The block type that llama.cpp's quantiser gives this tensor."""
        base = str(self.row["base"])
        if base in ("F32", "F16", "BF16"):
            return base
        if role == "head":
            return "Q8_0" if place.falcon else str(self.row["output"])
        if role == "embedding":
            return str(self.row["embedding"])
        rules = self.row["rules"]
        picked = base
        for condition, kind in rules.get("experts" if isinstance(item, Experts) and "experts" in rules else role, ()):
            if all(_holds(term, place, imatrix=self.row["imatrix"]) for term in condition.split(" and ")):
                picked = kind
                break
        if role == "attention_v" and not self.row.get("keep_v", False):
            if place.layers == 80 and place.gqa > 1 and picked in ("Q3_K", "Q4_K"):  # what llama.cpp calls a 70B
                picked = "Q5_K"
            if place.experts == 8:
                picked = "Q8_0"
        if role == "attention_k" and place.experts == 8 and not self.row.get("keep_v", False):
            picked = "Q8_0"
        return str(picked)


def _holds(term: str, place: Place, *, imatrix: bool) -> bool:
    """Whether one term of a rule's condition holds: `a or b`, `not a`, or a name."""
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


@cache
def _data() -> dict[str, Any]:
    text = (DATA / "formats.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


@cache
def _index() -> dict[str, tuple[Literal["weights", "gguf"], str]]:
    """Every folded spelling -> (family, name)."""
    index: dict[str, tuple[Literal["weights", "gguf"], str]] = {}
    for name, row in _data()["weights"].items():
        for spelling in (name, *row["aliases"]):
            index[fold(spelling)] = ("weights", name)
    for name in _data()["gguf"]:
        index.setdefault(fold(name), ("gguf", name))
        index[fold("gguf " + name)] = ("gguf", name)
    return index


def format_names() -> list[str]:
    """Names of all weight formats: checkpoint formats, then GGUF types."""
    return [*_data()["weights"], *_data()["gguf"]]


@cache
def weight_format(name: str) -> Format:
    """The format that `name` means; spelling and punctuation are forgiving (`GGUF Q4_K_M`, `q4_k_m`, `AWQ-INT4`).

    Raises:
        UnknownNameError: no such format; names the nearest.
    """
    found = _index().get(fold(name))
    if found is None:
        raise UnknownNameError("weight format", name, format_names())
    kind, key = found
    row = _data()[kind][key]
    source = row.get("source") or _data()["source"]
    return Format(name=key, kind=kind, row=row, meaning=row.get("meaning", ""), source=source)


def cache_elem_bytes(dtype: str) -> float:
    """Bytes of one element of a key-value cache kept in `dtype`, its share of the scales included.

    Raises:
        SpecError: no such type; lists those known.
    """
    known: dict[str, float] = _data()["kv_bytes"]
    value = known.get(dtype.lower().replace("float", "fp").replace("fp8_e4m3", "fp8").replace("fp8_e5m2", "fp8"))
    if value is None:
        raise SpecError(f"unknown KV cache type {dtype[:40]!r}; allowed: {', '.join(known)}")
    return value
