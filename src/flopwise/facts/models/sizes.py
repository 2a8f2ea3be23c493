"""A typical architecture for a bare size such as `7B`: a Llama-like decoder of about that many parameters."""

from __future__ import annotations

import math
import re
from itertools import pairwise

from flopwise.errors import SpecError

VOCAB, CONTEXT = 32_000, 4096
SMALLEST, LARGEST = 1e6, 1e14
GROUPED_FROM = 30e9  # from this size on, eight key-value heads and a wider feed-forward block, as Llama-2-70B
TIED_BELOW = 1e9
ROUNDED = 0.05  # by which names round sizes: LLaMA's 7B has 6.74, its 33B 32.5, its 65B 65.2 (Touvron et al. 2023)
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmbt])(?:\s*(?:params?|parameters))?\s*$", re.IGNORECASE)
_SCALE = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
# parameters and layers of GPT-3's models (Brown et al. 2020, table 2.1), LLaMA (Touvron et al. 2023, table 2),
# and Megatron's 530B and 1T (Narayanan et al. 2021, table 1)
_DEPTHS = (
    (1.25e8, 12), (3.5e8, 24), (1.3e9, 24), (7e9, 32), (1.3e10, 40), (3.25e10, 60), (7e10, 80), (1.75e11, 96),
    (5.3e11, 105), (1e12, 128),
)  # fmt: skip


def size_of(spec: str) -> float | None:
    """The number of parameters that a text such as `7B` or `130M` means, or None."""
    match = _SIZE.match(spec)
    return None if match is None else float(match[1]) * _SCALE[match[2].lower()]


def _usual_depth(size: float) -> float:
    """The number of layers usual at that size, interpolated between published models."""
    points = [(math.log(n), math.log(depth)) for n, depth in _DEPTHS]
    x = math.log(size)
    (x0, y0), (x1, y1) = next((pair for pair in pairwise(points) if x <= pair[1][0]), (points[-2], points[-1]))
    return math.exp(y0 + (x - x0) * (y1 - y0) / (x1 - x0))


def _shape(size: float, width: int) -> tuple[int, int, int]:
    """Heads, key-value heads and feed-forward width that go with a width."""
    head_dim = 128 if width >= 2048 else 64
    heads = width // head_dim
    grouped = size >= GROUPED_FROM and heads % 8 == 0
    hidden = 3.5 * width if grouped else 8 * width / 3
    return heads, 8 if grouped else heads, math.ceil(hidden / 256) * 256


def typical_config(size: float) -> dict[str, int | str | bool]:
    """The configuration of a Llama-like decoder of about `size` parameters.

    Raises: SpecError: smaller or larger than any language model.
    """
    if not SMALLEST <= size <= LARGEST:
        raise SpecError(f"a model of {size:g} parameters: sizes from 1M to 100T are understood")
    tied, usual = size < TIED_BELOW, _usual_depth(size)
    best: tuple[float, float, int, int] | None = None
    for width in range(64, 65_536 + 1, 64):
        if width % (1024 if size >= GROUPED_FROM else 512 if width >= 2048 else 64):
            continue
        heads, kv_heads, hidden = _shape(size, width)
        a_layer = 2 * width * width * (1 + kv_heads / heads) + 3 * width * hidden + 2 * width
        rest = VOCAB * width * (1 if tied else 2) + width
        for layers in {max(1, round((size - rest) / a_layer)), max(1, round(usual))}:
            off = abs(math.log((layers * a_layer + rest) / size))
            miss = max(off - ROUNDED, 0.0), off + abs(math.log(layers / usual))
            if best is None or miss < best[:2]:
                best = (*miss, width, layers)
    assert best is not None
    *_, width, layers = best
    heads, kv_heads, hidden = _shape(size, width)
    return {
        "model_type": "llama", "hidden_size": width, "intermediate_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": VOCAB,
        "max_position_embeddings": CONTEXT, "tie_word_embeddings": tied,
    }  # fmt: skip
