"""Memory of past tokens while generating, in bytes: keys and values, latents, the fixed state of recurrent layers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flopwise.errors import MissingFactError, SpecError
from flopwise.facts.architecture import Attend, Item, Model, Recurrence
from flopwise.ops.flops import encoder_tokens
from flopwise.ops.types import Floats, Ints, ceil_div, least
from flopwise.ops.work import cached_elems_per_token


def _caching_items(model: Model) -> Iterator[tuple[int, Item]]:
    """(layers of this kind, item) of everything that the generating stack keeps between steps."""
    if not model.stacks:
        raise MissingFactError(
            f"{model.name} is known by published figures only: its cache cannot be counted; add its configuration"
        )
    stack = model.stacks[0]
    for index, layer in enumerate(stack.kinds):
        layers = stack.order.count(index)
        for item in layer.items:
            if isinstance(item, Recurrence) or (isinstance(item, Attend) and item.cached and not item.kv_shared):
                yield layers, item


def kv_bytes_per_token(model: Model, elem_bytes: Floats, *, tp: Ints = 1) -> Floats:
    """Bytes that each further token of a sequence adds on one rank, once every window is full.

    The sum over layers with unbounded attention of K (H_qk + H_v), or of the latent; of compressed keys their share of
    a token.

    Source: Ainslie et al. 2023 (arXiv 2305.13245) for grouped heads; DeepSeek-V2 (arXiv 2405.04434) table 1 for MLA.
    Assumes: layers with windows, chunks, cross-attention or state keep a fixed amount and add nothing.
    Raises: MissingFactError: the model is known by published figures only.
    """
    total: Floats = 0.0
    for layers, item in _caching_items(model):
        if isinstance(item, Attend) and item.compress:
            total = total + layers * cached_elems_per_token(item, tp) / item.compress * elem_bytes
        elif isinstance(item, Attend) and not item.cross and item.window is None and item.chunk is None:
            total = total + layers * cached_elems_per_token(item, tp) * elem_bytes
    return total


def _kept_keys(item: Attend, context: Ints, *, full_windows: bool) -> Ints:
    """Keys that a layer keeps of one sequence of `context` tokens."""
    caps = [c for c in (item.window, item.chunk) if c is not None and not full_windows]
    tokens = least(context, min(caps)) if caps and not item.cross else context
    if not item.compress:
        return tokens
    groups = context // item.compress
    return groups if item.window is None else tokens + groups


STATE_BYTES = 2.0
"""Bytes of an element of a recurrent state, unless an engine keeps scans in 32 bits: formats of caches don't apply."""


def state_bytes(model: Model, elem_bytes: Floats, *, tp: Ints = 1, scan_bytes: Floats = STATE_BYTES) -> list[Floats]:
    """Bytes of a sequence's recurrent state on one rank, in each of the layers that have one.

    `elem_bytes`: of the cache. `scan_bytes`: of an element of the scan; the convolution's window has 16 bits, or 32
    with a cache of 32.

    Source: Gu and Dao 2023 (arXiv 2312.00752); vLLM 0.32, MambaStateDtypeCalculator and MambaStateShapeCalculator;
    SGLang 0.5.23, mamba2_state_dtype.
    Assumes: ranks that a state's heads do not divide hold a whole one more.
    """
    narrow, found = np.maximum(elem_bytes, STATE_BYTES), list[Floats]()
    for layers, item in _caching_items(model):
        if isinstance(item, Recurrence):
            share = ceil_div(item.heads, tp) / item.heads if item.shard else 1.0
            scan = min(item.state, item.heads * item.key_dim * item.value_dim)
            size = share * (scan * np.maximum(scan_bytes, narrow) + (item.state - scan) * narrow)
            found += [size] * layers
    return found


def kv_cache_bytes(
    model: Model, context: Ints, batch: Ints, elem_bytes: Floats, *, tp: Ints = 1, full_windows: bool = False,
    scan_bytes: Floats = STATE_BYTES,
) -> Floats:  # fmt: skip
    """Bytes that one rank of a tensor-parallel group caches for `batch` sequences of `context` tokens; broadcasts.

    Windows and chunks hold at most their size, compression a key for each finished group of tokens besides; the MLA
    latent stands whole on every rank; key-value heads are replicated when tp exceeds them; recurrent layers keep their
    state, whatever the context; cross-attention keeps what the encoder makes of one sample, or `context` tokens.
    `full_windows` is for engines that do not exploit windows and keep the whole context; `scan_bytes` as `state_bytes`.

    Source: as `kv_bytes_per_token`; Gu and Dao 2023 (arXiv 2312.00752) for the state.
    Assumes: no padding to blocks: engines add that; tokens of a group not yet compressed (projections of at most
    `compress` tokens a sequence) are left out.
    Raises: SpecError: the model keeps nothing between steps (an encoder); MissingFactError: it is known by published
    figures only.
    """
    items = list(_caching_items(model))
    if not items:
        raise SpecError(f"{model.name} keeps no cache: it has no layer that generates from past tokens")
    encoder = encoder_tokens(model, context)
    total: Floats = 0.0
    for layers, item in items:
        if isinstance(item, Attend):
            keys = _kept_keys(item, encoder if item.cross else context, full_windows=full_windows)
            total = total + layers * batch * keys * cached_elems_per_token(item, tp) * (elem_bytes * 1.0)
    for size in state_bytes(model, elem_bytes, tp=tp, scan_bytes=scan_bytes):
        total = total + batch * size
    return total
