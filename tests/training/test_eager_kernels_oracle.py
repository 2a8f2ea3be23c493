"""Bytes that eager PyTorch moves in norms, rope and activations, against its own count."""

from __future__ import annotations

from typing import Any

import pytest

from flopwise.facts.architecture import Norm, Pointwise
from flopwise.ops.backward import backward_works
from flopwise.ops.shapes import Shape, Split
from flopwise.ops.work import item_work
from flopwise.training.blocks import EAGER_BYTES, RMSNORM_WEIGHT_BYTES, eager_passes
from moved_bytes import meta_tensor, moved_bytes

torch = pytest.importorskip("torch", reason="PyTorch counts the bytes: `make oracle` installs it")
TOKENS, WIDTH, HEAD = 2048, 512, 64


def rmsnorm(x: Any, weight: Any) -> Any:
    wide = x.to(torch.float32)
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * normed.to(torch.bfloat16)


def layernorm(x: Any, weight: Any, bias: Any) -> Any:
    return torch.nn.functional.layer_norm(x, (WIDTH,), weight, bias)


def rope(x: Any) -> Any:
    cos = torch.empty(TOKENS, 1, HEAD, dtype=torch.bfloat16, device="meta")
    first, second = x[..., : HEAD // 2], x[..., HEAD // 2 :]
    return x * cos + torch.cat((-second, first), dim=-1) * cos


def gated(gate: Any, up: Any) -> Any:
    return torch.nn.functional.silu(gate) * up


@pytest.mark.parametrize(("kind", "run", "inputs"), [
    ("rmsnorm", rmsnorm, ((TOKENS, WIDTH), (WIDTH,))),
    ("rope", rope, ((TOKENS, WIDTH // HEAD, HEAD),)),
    ("gated", gated, ((TOKENS, WIDTH), (TOKENS, WIDTH))),
    ("layernorm", layernorm, ((TOKENS, WIDTH), (WIDTH,), (WIDTH,))),
])  # fmt: skip
def test_bytes_are_those_that_pytorch_moves(kind: str, run: Any, inputs: tuple[tuple[int, ...], ...]) -> None:
    moved = moved_bytes(run, *(meta_tensor(*shape) for shape in inputs))
    expected = EAGER_BYTES.get(kind, ((4.0, 6.0), ()))[0]
    assert [total / (TOKENS * WIDTH) for total in moved] == pytest.approx(expected, rel=0.02)


def test_a_frozen_rmsnorm_moves_no_gradient_of_its_weight() -> None:
    """A product that reads 2 + 2 bytes an element and writes 2, and a sum that reads 2, are left out backward."""
    weight = meta_tensor(WIDTH).detach()
    moved = moved_bytes(lambda x: rmsnorm(x, weight), meta_tensor(TOKENS, WIDTH))
    forward, backward = EAGER_BYTES["rmsnorm"][0]
    expected = (forward, backward - RMSNORM_WEIGHT_BYTES)
    assert [total / (TOKENS * WIDTH) for total in moved] == pytest.approx(expected, rel=0.002)
    norm = Norm("norm", WIDTH)
    assert eager_passes(norm, trained=False) == pytest.approx((36 / 4, 88 / 6))
    assert eager_passes(norm, trained=True) == pytest.approx((36 / 4, 96 / 6))


def test_passes_are_over_what_one_kernel_is_counted_to_move() -> None:
    items: dict[str, Norm | Pointwise] = {
        "rmsnorm": Norm("norm", WIDTH), "rope": Pointwise("rope", WIDTH, "rope"),
        "gated": Pointwise("act", WIDTH, "silu", gated=True),
    }  # fmt: skip
    shape, split = Shape(batch=1, query=TOKENS, context=TOKENS), Split()
    for kind, item in items.items():
        forward = item_work(item, shape, split)
        assert forward is not None
        works = (forward, *backward_works([forward]))
        counted = [2.0 * (work.in_elems + work.out_elems) / (TOKENS * WIDTH) for work in works]
        eager = [passes * nbytes for passes, nbytes in zip(eager_passes(item, trained=True), counted, strict=True)]
        assert eager == pytest.approx(EAGER_BYTES[kind][0])
    assert eager_passes(Norm("norm", WIDTH, kind="layernorm"), trained=False) == (1.0, 1.0)
    assert eager_passes(Pointwise("act", WIDTH, "gelu"), trained=True) == (1.0, 1.0)
