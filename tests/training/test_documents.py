"""Padding and packing against sampled documents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from flopwise.cost.cluster import cluster
from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.ops.flops import causal_forward_flops
from flopwise.provenance import walk
from flopwise.training.documents import (
    Documents,
    Packing,
    filled_frac,
    from_file,
    histogram,
    lognormal,
)
from flopwise.training.estimate import counted_batch, estimate
from flopwise.training.explain import train_figure
from flopwise.training.job import TrainJob
from flopwise.training.layout import Inner, Layout
from flopwise.training.step import step_parts
from flopwise.training.step_table import step_table
from named import recipe_with

SEQ = 2048


def sampled(mean: float, spread: float, size: int) -> Any:
    """Whole lengths, lognormal, cut off: drawn with NumPy, which shares nothing with the code under test."""
    sigma = np.sqrt(np.log1p(spread**2))
    drawn = np.random.default_rng(11).lognormal(np.log(mean) - sigma**2 / 2, sigma, size)
    return np.clip(np.rint(drawn), 1, SEQ)


@pytest.mark.parametrize(("mean", "spread"), [(200, 1.0), (700, 0.5), (1500, 0.3), (100, 2.0)])
def test_the_longest_of_a_micro_batch_is_that_of_sampled_ones(mean: float, spread: float) -> None:
    found = lognormal(mean, spread, SEQ, "padded")
    assert found.mean == pytest.approx(sampled(mean, spread, 200_000).mean(), rel=0.02)
    for many in (1, 2, 8, 64):
        longest = sampled(mean, spread, 20_000 * many).reshape(-1, many).max(axis=1)
        first, second = found.longest_moments(many)
        assert float(first) == pytest.approx(longest.mean(), rel=0.03)
        assert float(second) == pytest.approx((longest**2).mean(), rel=0.06)


@pytest.mark.parametrize(("mean", "spread"), [(200, 1.0), (700, 0.5)])
@pytest.mark.parametrize(("replicas", "num_micro"), [(8, 1), (8, 16), (64, 4)])
def test_the_slowest_replica_is_that_of_sampled_steps(
    mean: float, spread: float, replicas: int, num_micro: int
) -> None:
    found, batch, steps = lognormal(mean, spread, SEQ, "padded"), 4, 500
    widths = sampled(mean, spread, steps * replicas * num_micro * batch)
    widths = widths.reshape(steps, replicas, num_micro, batch).max(axis=3)
    slow = widths.sum(axis=2).max(axis=1).mean() / (num_micro * widths.mean())
    assert 1 + float(found.waiting_frac(batch, replicas, num_micro, each=0)) == pytest.approx(slow, rel=0.06)
    often = widths.max(axis=1).mean() / widths.mean()
    assert 1 + float(found.waiting_frac(batch, replicas, num_micro, each=1)) == pytest.approx(often, rel=0.03)


def first_fit(lengths: Any) -> float:
    """Share filled by first-fit decreasing, document by document."""
    room: list[int] = []
    for length in sorted((int(x) for x in lengths), reverse=True):
        place = next((i for i, free in enumerate(room) if free >= length), None)
        if place is None:
            room.append(SEQ - length)
        else:
            room[place] -= length
    return float(np.sum(lengths)) / (len(room) * SEQ)


@pytest.mark.parametrize(("mean", "spread"), [(200, 1.0), (700, 0.5), (1500, 0.1), (1100, 0.05)])
def test_packed_sequences_are_as_full_as_sampled_documents_fill_them(mean: float, spread: float) -> None:
    drawn = sampled(mean, spread, int(256 * SEQ / mean))
    assert filled_frac(lognormal(mean, spread, SEQ, "packed")) == pytest.approx(first_fit(drawn), abs=0.03)


def test_packed_documents_attend_to_as_many_pairs_as_they_have() -> None:
    lengths = np.array([3.0, 500.0, 1000.0])
    found = histogram(lengths, np.array([5.0, 2.0, 1.0]), SEQ, "packed")
    tokens, attended = found.computed_lengths(1, masked=True)
    total = float(np.dot(lengths, [5, 2, 1]))
    pairs = float(np.dot(lengths * (lengths + 1) / 2, [5, 2, 1]))
    assert tokens == SEQ
    assert total / attended * (attended * (attended + 1) / 2) == pytest.approx(pairs, rel=2e-3)  # a whole length
    assert found.computed_lengths(1, masked=False) == (SEQ, SEQ)


H100 = cluster(load_facts().accelerator("H100-SXM-80"), gpus_per_node=8, network_bytes_per_s_per_gpu=50e9)


def job(documents: Documents | None, recipe: dict[str, Any] | None = None, **layout: Any) -> TrainJob:
    wanted = recipe_with(seq_len=SEQ, global_batch=64, documents=documents, **(recipe or {}))
    shape: dict[str, Any] = {"dp": 8, "zero": 3, "micro_batch": 4, **layout}
    return TrainJob(model=load_model("Llama-3.1-8B"), recipe=wanted, layout=Layout(**shape), cluster=H100, tokens=1e8)


@pytest.mark.parametrize("packing", get_args(Packing))
def test_full_documents_are_full_sequences(packing: Packing) -> None:
    plain, full = estimate(job(None)), estimate(job(lognormal(SEQ, 0.0, SEQ, packing)))
    assert full.step_s == pytest.approx(plain.step_s, rel=1e-9)
    assert full.mfu_frac == pytest.approx(plain.mfu_frac, rel=1e-9)
    assert full.useful_tokens_per_s == pytest.approx(plain.tokens_per_s)
    assert full.run is not None
    assert plain.run is not None
    assert full.run.seconds == pytest.approx(plain.run.seconds)


def test_padded_documents_of_one_length_are_shorter_sequences() -> None:
    short = job(None)
    short = replace(short, recipe=replace(short.recipe, seq_len=512))
    padded = estimate(job(lognormal(512, 0.0, SEQ, "padded")))
    assert padded.step_s == pytest.approx(estimate(short).step_s, rel=1e-9)
    assert padded.memory.total_bytes == estimate(job(None)).memory.total_bytes  # a full sequence has to fit


def test_packing_trains_on_more_documents_a_second_than_padding() -> None:
    padded, packed = (estimate(job(lognormal(300, 1.0, SEQ, p))) for p in get_args(Packing))
    assert packed.useful_tokens_per_s > 1.5 * padded.useful_tokens_per_s
    assert packed.tokens_per_s >= packed.useful_tokens_per_s
    assert padded.tokens_per_s > padded.useful_tokens_per_s
    assert packed.run is not None
    assert padded.run is not None
    assert packed.run.seconds < padded.run.seconds
    assert packed.run.steps == pytest.approx(1e8 / packed.job.recipe.useful_tokens)


def test_a_document_mask_takes_attention_alone() -> None:
    """Against the same recipe without a kernel that knows the mask: all of a sequence's pairs, or the documents'."""
    model, documents = load_model("Llama-3.1-8B"), lognormal(256, 0.0, SEQ, "packed")
    masked, whole = (job(documents, {"attention": a}) for a in ("flash", "sdpa"))
    flops = [float(causal_forward_flops(model, *counted_batch(j))) for j in (masked, whole)]
    pairs = [64 * SEQ * (length + 1) / 2 for length in (256, SEQ)]
    heads, head_dim, layers = 32, 128, 32
    assert flops[1] - flops[0] == pytest.approx((pairs[1] - pairs[0]) * 4 * heads * head_dim * layers, rel=1e-9)
    assert estimate(masked).step_s < estimate(whole).step_s


def test_breakdown_adds_up_with_replicas_that_wait() -> None:
    result = estimate(job(lognormal(300, 1.0, SEQ, "padded")))
    assert dict(result.breakdown)["waiting_for_lengths"] > 0
    assert sum(s for _, s in result.breakdown) == pytest.approx(result.step_s)
    assert result.lower_bound_s <= result.step_s <= result.upper_bound_s
    alone = estimate(job(lognormal(300, 1.0, SEQ, "padded"), dp=1, zero=0))
    assert dict(alone.breakdown)["waiting_for_lengths"] == pytest.approx(0, abs=1e-9)
    figures = {f.name: f.value for f in walk(train_figure(result))}
    assert figures["waiting for lengths"] == dict(result.breakdown)["waiting_for_lengths"]
    assert figures["document tokens per sequence"] == pytest.approx(result.job.recipe.documents.mean)  # type: ignore[union-attr]


def test_columns_of_padded_layouts_are_the_single_estimates() -> None:
    documents = lognormal(300, 1.0, SEQ, "padded")
    recipe, micro, dp = job(documents).recipe, np.array([1, 2, 8]), np.array([64, 8, 2])
    one = np.ones_like(micro)
    table = step_table(
        load_model("Llama-3.1-8B"), recipe, H100.rates, H100.fabric,
        Inner(one, one, one, micro), np.array([1]),
    )  # fmt: skip
    layout = Layout(dp=dp, zero=np.array([3, 1, 0]), micro_batch=micro)
    parts = step_parts(table, np.arange(3), np.zeros(3, dtype=np.intp), layout)
    single = [estimate(replace(job(documents), layout=layout.at(i))).step_s for i in range(3)]
    assert sum(np.broadcast_to(v, 3) for v in parts.values()) == pytest.approx(single)


def test_another_sequence_length_holds_the_same_documents() -> None:
    recipe = job(histogram(np.array([100.0, 1500.0]), np.array([1.0, 1.0]), SEQ, "packed")).recipe
    assert recipe.documents is not None
    shorter = replace(recipe, seq_len=1000, documents=recipe.documents.within(1000))
    assert shorter.documents is not None
    assert shorter.documents.lengths == (100.0, 1000.0)
    assert shorter.useful_tokens <= 64 * 1000
    longer = replace(recipe, seq_len=2 * SEQ, documents=recipe.documents.within(2 * SEQ))
    assert longer.useful_tokens > recipe.useful_tokens


def test_lengths_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text("length,count\n100,3\n200,1\n9000,1\n\n", encoding="utf-8")
    found = from_file(file, SEQ, "padded")
    assert found.lengths == (100.0, 200.0, float(SEQ))
    assert found.mean == pytest.approx((300 + 200 + SEQ) / 5)
    file.write_text("7\n7\n9\n", encoding="utf-8")
    assert from_file(file, SEQ, "packed").shares == pytest.approx((2 / 3, 1 / 3))


@pytest.mark.parametrize(("text", "said"), [
    ("", "contains no length"), ("5\nfive\n", ":2"), ("5,0\n", "above 0"), ("0\n", "1 or more"),
    ("1,2,3\n", "1 or more"), ("nan,1\n", "contains no length"), ("5\n-3\n", ":2"),
])  # fmt: skip
def test_files_that_hold_no_lengths_are_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError, match=said):
        from_file(file, SEQ, "packed")
    with pytest.raises(SpecError, match="cannot be read"):
        from_file(tmp_path / "none", SEQ, "packed")


@pytest.mark.parametrize(("mean", "spread"), [(0.5, 1.0), (4096, 1.0), (float("nan"), 1.0), (100, -1.0), (100, 1e9)])
def test_lengths_that_cannot_be_are_refused(mean: float, spread: float) -> None:
    with pytest.raises(SpecError, match="length"):
        lognormal(mean, spread, SEQ, "padded")
