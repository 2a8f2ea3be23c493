"""Work on one rank: shards make up the whole, arrays equal scalars, masks count what they let through."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwise.facts.architecture import Attend, Convolution, Experts, Item, Layer, Linear, Norm, Pointwise, Recurrence
from flopwise.facts.models.config import model_from_config
from flopwise.ops.backward import adapter_items, backward_works
from flopwise.ops.shapes import Shape, Split, Work
from flopwise.ops.work import attended_pairs, item_work, seen_tokens, touched_experts

BASE: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 1000,
    "head_dim": 64,
}
DENSE = model_from_config({"model_type": "qwen3", **BASE}, name="dense").stacks[0].kinds[0]
SPARSE = (
    model_from_config(
        {"model_type": "mixtral", **BASE, "num_local_experts": 8, "num_experts_per_tok": 2}, name="sparse"
    )
    .stacks[0]
    .kinds[0]
)
WHOLE = Split(sequence_parallel=False)


def work(item: Item, shape: Shape, split: Split = WHOLE) -> Work:
    made = item_work(item, shape, split)
    assert made is not None
    return made


def visible(item: Attend, query: int, context: int) -> int:
    """The pairs counted one by one."""
    total = 0
    for position in range(context - query, context):
        for key in range(position + 1):
            inside_window = item.window is None or position - key < item.window
            inside_chunk = item.chunk is None or position // item.chunk == key // item.chunk
            total += inside_window and inside_chunk
    return total


@given(
    context=st.integers(1, 60),
    query=st.integers(1, 60),
    window=st.none() | st.integers(1, 70),
    chunk=st.none() | st.integers(1, 70),
)
def test_pairs_are_those_of_the_mask(context: int, query: int, window: int | None, chunk: int | None) -> None:
    if window is not None and chunk is not None:
        chunk = None
    query = min(query, context)
    item = Attend(name="a", heads=1, kv_heads=1, qk_dim=1, v_dim=1, window=window, chunk=chunk)
    assert attended_pairs(item, query, context) == visible(item, query, context)
    assert attended_pairs(item, np.array([query]), np.array([context]))[0] == visible(item, query, context)  # type: ignore[index]


def compressed(item: Attend, position: int) -> int:
    """Keys that the query at `position` sees: its window, and groups that ended, as many as are selected."""
    groups = (position + 1) // item.compress
    chosen = groups if item.select is None else min(groups, item.select)
    return chosen + (0 if item.window is None else min(position + 1, item.window))


@given(
    context=st.integers(1, 80),
    query=st.integers(1, 80),
    window=st.none() | st.integers(1, 70),
    compress=st.integers(1, 12),
    select=st.none() | st.integers(1, 9),
)
def test_pairs_and_keys_with_compression(
    context: int, query: int, window: int | None, compress: int, select: int | None
) -> None:
    query = min(query, context)
    item = Attend(
        name="a", heads=1, kv_heads=1, qk_dim=4, v_dim=4, window=window, compress=compress, select=select,
        key_is_value=True,
    )  # fmt: skip
    expected = sum(compressed(item, p) for p in range(context - query, context))
    assert attended_pairs(item, query, context) == expected
    assert attended_pairs(item, np.array([query]), np.array([context]))[0] == expected  # type: ignore[index]
    assert seen_tokens(item, context) == compressed(item, context - 1)
    made = work(item, Shape(batch=1, query=query, context=context))
    keys = context // compress + (0 if window is None else context)
    assert made.flops == 2.0 * query * keys * 8
    assert made.kv_elems == 4 * seen_tokens(item, context, query)  # keys serve as values
    assert made.latent_dim == 4  # decoding reads one tensor for both, as with a latent


def test_a_thinned_stem_runs_before_its_stride() -> None:
    first = Convolution(name="conv1", channels=80, kernel=3, outputs=512, rows_per_token=2)
    made = work(first, Shape(batch=1, query=1500, context=1500))
    assert (made.flops, made.in_elems, made.out_elems) == (2.0 * 3000 * 512 * 80 * 3, 3000 * 80, 3000 * 512)


def test_weighted_sums_of_streams_are_products() -> None:
    spread = Pointwise(name="spread", dim=4 * 32, kind="residual", mixes=4)
    assert work(spread, Shape(batch=1, query=10, context=10)).flops == 10 * 2 * 4 * 4 * 32


def test_causal_training_attention_is_half_of_the_full_one() -> None:
    attend = next(i for i in DENSE.items if isinstance(i, Attend))
    made = work(attend, Shape(batch=2, query=4096, context=4096))
    assert made.causal_flops / made.flops == pytest.approx(0.5, abs=2e-4)


def layer_works(layer: Layer, shape: Shape, split: Split) -> list[Work]:
    """The works of a layer's items in the order in which they run, forward."""
    return [work for item in layer.items if (work := item_work(item, shape, split)) is not None]


@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    cp=st.sampled_from([1, 2, 4]),
    ep=st.sampled_from([1, 2, 4, 8]),
    tokens=st.tuples(st.integers(1, 64), st.integers(1, 1024).map(lambda n: 8 * n), st.integers(0, 4096)),
    parallel=st.booleans(),
)
def test_grid_equals_scalar(tp: int, cp: int, ep: int, tokens: tuple[int, int, int], parallel: bool) -> None:
    batch, query, cached = tokens
    column = np.array
    for layer in (DENSE, SPARSE):
        grid = layer_works(
            layer,
            Shape(batch=column([batch, 1]), query=column([query, 8]), context=column([query + cached, 8])),
            Split(tp=column([tp, 1]), cp=column([cp, 1]), ep=column([ep, 1]), sequence_parallel=parallel),
        )
        single = layer_works(
            layer,
            Shape(batch=batch, query=query, context=query + cached),
            Split(tp=tp, cp=cp, ep=ep, sequence_parallel=parallel),
        )
        for many, one in zip([*grid, *backward_works(grid)], [*single, *backward_works(single)], strict=True):
            for f in fields(Work):
                a, b = getattr(many, f.name), getattr(one, f.name)
                if isinstance(a, np.ndarray):
                    assert a[0] == pytest.approx(b), (many.name, f.name)
                else:
                    assert a == b, (many.name, f.name)


@given(tp=st.sampled_from([1, 2, 4, 8]), cp=st.sampled_from([1, 2, 4]), seq=st.integers(1, 200).map(lambda n: 4 * n))
def test_shards_sum_to_the_whole(tp: int, cp: int, seq: int) -> None:
    shape = Shape(batch=3, query=seq, context=seq)
    for item in DENSE.items:
        whole, part = item_work(item, shape, WHOLE), item_work(item, shape, Split(tp=tp, cp=cp))
        if whole is None or part is None:
            continue
        if isinstance(item, Linear) and item.heads:
            copies = max(1, tp / item.heads)  # replicated key-value heads
            assert part.flops * tp * cp == pytest.approx(whole.flops * copies)
        else:
            assert part.flops * tp * cp == pytest.approx(whole.flops)
            assert part.causal_flops * tp * cp == pytest.approx(whole.causal_flops)
        if isinstance(item, Norm):
            assert part.in_elems * tp * cp == pytest.approx(
                whole.in_elems * max(1, tp / (item.groups if item.shard else tp))
            )


@given(ep=st.sampled_from([1, 2, 4, 8]), tokens=st.integers(1, 500), own=st.booleans())
def test_experts_share_the_routed_rows(ep: int, tokens: int, own: bool) -> None:
    item = next(i for i in SPARSE.items if isinstance(i, Experts))
    shape = Shape(batch=tokens, query=1, context=1)
    made = work(item, shape, Split(ep=ep, ep_own_tokens=own))
    assert made.groups == 8 / ep
    assert made.m == pytest.approx(tokens * 2 if own else tokens * 2 / ep)
    assert 0 < made.touched <= made.groups


def test_expected_experts_touched() -> None:
    assert touched_experts(8, 2, 1.0, 8) == 2
    rng = np.random.default_rng(7)
    drawn = [len({e for _ in range(5) for e in rng.choice(16, 3, replace=False)}) for _ in range(4000)]
    assert touched_experts(16, 3, 5.0, 16) == pytest.approx(np.mean(drawn), rel=0.01)


def test_decoding_reads_the_cache_of_its_rank() -> None:
    attend = next(i for i in DENSE.items if isinstance(i, Attend))
    for tp, kv_heads in ((1, 4), (2, 2), (4, 1), (8, 1)):
        made = work(attend, Shape(batch=16, query=1, context=1000), Split(tp=tp))
        assert made.kv_elems == 16 * 1000 * kv_heads * 2 * 64
        assert made.causal_flops == made.flops  # one query sees everything


def test_latent_attention_decodes_on_the_latent() -> None:
    item = Attend(name="a", heads=128, kv_heads=128, qk_dim=192, v_dim=128, latent_dim=576)
    decode = work(item, Shape(batch=1, query=1, context=8192))
    assert decode.kv_elems == 8192 * 576
    assert decode.causal_flops == 8192 * 128 * 4 * 576
    prefill = work(item, Shape(batch=1, query=8192, context=8192))
    assert prefill.causal_flops == 8192 * 8193 / 2 * 128 * 2 * (192 + 128)


def test_windows_and_chunks_bound_what_a_query_reads() -> None:
    windowed = Attend(name="a", heads=1, kv_heads=1, qk_dim=1, v_dim=1, window=128)
    assert seen_tokens(windowed, 100) == 100
    assert list(seen_tokens(windowed, np.array([100, 1000]))) == [100, 128]  # type: ignore[arg-type]
    assert seen_tokens(windowed, 1000, 500) == 627
    assert seen_tokens(windowed, 1000, 1000) == 1000


def test_backward_is_twice_forward_and_flash_a_half_more() -> None:
    works = layer_works(DENSE, Shape(batch=2, query=256, context=256), WHOLE)
    backward = backward_works(works)
    assert sum(w.flops for w in backward) == 2 * sum(w.flops for w in works)
    attention = sum(w.causal_flops for w in works if w.kind == "attention")
    products = sum(w.causal_flops for w in works if w.kind == "matmul")
    assert sum(w.causal_flops for w in backward) == pytest.approx(2 * products + 2.5 * attention)
    frozen = backward_works(works, trainable=frozenset({"q_proj"}))
    assert sum(w.flops for w in frozen if w.kind == "matmul") == products


def test_a_scan_backward_is_ten_products_for_four() -> None:
    """States and scores of blocks again, then two products for each of: scores, values by scores, states, their read.

    Source: mamba_ssm, `_mamba_chunk_scan_combined_bwd`. PyTorch's counter sees twice the reference code.
    """
    item = Recurrence(name="scan", kind="mamba2", heads=64, key_dim=128, value_dim=64, state=64 * 128 * 64, chunk=128)
    forward = work(item, Shape(batch=1, query=4096, context=4096))
    [backward] = backward_works([forward])
    assert backward.causal_flops == pytest.approx(10 / 4 * forward.causal_flops)
    assert backward.flops == 2 * forward.flops


def test_gradient_products_have_the_dimensions_of_their_formulas() -> None:
    works = layer_works(DENSE, Shape(batch=2, query=256, context=256), WHOLE)
    for made in backward_works(works):
        if made.kind == "matmul":
            assert made.m is not None
            assert made.n is not None
            assert made.k is not None
            assert made.flops == 2 * made.m * made.n * made.k


def test_an_adapter_is_cut_as_its_item() -> None:
    q = next(i for i in DENSE.items if isinstance(i, Linear) and i.name.endswith("q_proj"))
    o = next(i for i in DENSE.items if isinstance(i, Linear) and i.name.endswith("o_proj"))
    shape, split = Shape(batch=1, query=10, context=10), Split(tp=4)
    down, up = (work(item, shape, split) for item in adapter_items(q, 16))
    assert (down.k, down.n, up.k, up.n) == (512, 16, 16, 128)
    down, up = (work(item, shape, split) for item in adapter_items(o, 16))
    assert (down.k, down.n, up.k, up.n) == (128, 16, 16, 512)


def test_a_recurrence_decodes_one_step_at_a_time() -> None:
    item = Recurrence(name="scan", kind="mamba2", heads=8, key_dim=128, value_dim=64, state=8 * 128 * 64, chunk=256)
    decode = work(item, Shape(batch=4, query=1, context=9000))
    assert decode.flops == decode.causal_flops == 4 * 8 * 2 * 2 * 128 * 64
    assert decode.kv_elems == 2 * 4 * 8 * 128 * 64  # read and written
    column = work(item, Shape(batch=4, query=np.array([1, 512, 0]), context=9000))
    assert column.flops[0] == decode.flops  # type: ignore[index]
    assert column.flops[1] > column.causal_flops[1] > 512 * decode.flops  # type: ignore[index]
    assert column.flops[2] == column.causal_flops[2] == 0  # type: ignore[index]  # a step that reads no prompt
