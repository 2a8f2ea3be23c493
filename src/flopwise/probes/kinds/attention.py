"""Attention over whole sequences (prefill), also with the backward pass (training), and for one new token (decode)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from flopwise.probes.backend import ELEMENT_BYTES, AttentionPass, AttentionShape, Bench
from flopwise.probes.timing import Task

BACKWARD = 2.5
"""FLOP of flash attention's backward pass over those of its forward pass: five products against two."""
SHORT = AttentionShape(2, 8, 8, 512, 64)
LONG = AttentionShape(1, 16, 16, 2048, 128)
CARD = AttentionShape(4, 32, 32, 4096, 128)
CACHED = (AttentionShape(8, 8, 8, 1024, 128), AttentionShape(8, 32, 8, 1024, 128))
CARD_CACHED = (AttentionShape(32, 32, 32, 4096, 128), AttentionShape(64, 32, 8, 4096, 128))
"""Sequences with a filled cache: with a KV head per head, and with one per four heads."""


@contextmanager
def tasks(bench: Bench) -> Iterator[list[Task]]:
    """Each pass over each of its shapes, in fp32 and in the model's usual dtype."""
    backend = bench.backend
    card = backend.device.kind != "cpu"
    dtypes = [dtype for dtype in (("bf16", "fp16") if card else ("fp32", "bf16")) if dtype in backend.dtypes]
    whole = [SHORT] if bench.quick else [SHORT, LONG, *[CARD] * card]
    cached = (CARD_CACHED if card else CACHED)[: 1 if bench.quick else None]
    passes: dict[AttentionPass, list[AttentionShape]] = {"prefill": whole, "decode": list(cached)}
    if backend.trains:
        passes["training"] = whole
    yield [_task(bench, shape, what, dtype) for dtype in dtypes for what, shapes in passes.items() for shape in shapes]


def _task(bench: Bench, shape: AttentionShape, what: AttentionPass, dtype: str) -> Task:
    """FLOP of causal attention: 2 products of 2 FLOP per unmasked pair; for decoding, bytes of keys and values."""
    b, h, kv, s, d = shape.batch, shape.heads, shape.kv_heads, shape.seq, shape.dim
    size = ELEMENT_BYTES[dtype]
    flops = 4.0 * b * h * d * (s * (s + 1) / 2)
    work = {"prefill": flops, "training": (1 + BACKWARD) * flops, "decode": 2.0 * b * kv * s * d * size}[what]
    eager = bench.backend.library == "numpy"
    return Task(
        name=f"attention_{what}", unit="B/s" if what == "decode" else "FLOP/s", work=work, dtype=dtype,
        shape={"batch": b, "heads": h, "kv_heads": kv, "seq": s, "dim": d},
        needs_bytes=b * d * s * (4.0 + size) * (3 * h + 5 * h * (what == "training")) + 8.0 * eager * b * h * s * s,
        prepare=partial(bench.backend.attention, shape, what, dtype),
        note="unfused operations, which compute masked pairs as well" if eager and what == "prefill" else "",
    )  # fmt: skip
