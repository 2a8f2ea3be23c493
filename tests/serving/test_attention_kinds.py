"""Kinds of attention and experts in a serving step: each costs what its own rule says, not what a plain one would."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flopwise.cost.cluster import cluster
from flopwise.facts.architecture import Attend, Layer, Model, Recurrence
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.serving.iteration import StepLoad
from flopwise.serving.job import Techniques
from flopwise.serving.memory import ServingLayout
from flopwise.serving.techniques import runner
from named import serve_job_with

H200 = cluster(load_facts().accelerator("H200"), gpus_per_node=8)
CONTEXTS = (1_000, 4_000, 16_000, 64_000)


def attention_s(model: Model, context: int, batch: int = 32, tp: int = 8) -> float:
    """Seconds that attention and recurrences of all layers take in a decoding step."""
    machine = runner(serve_job_with(model=model, cluster=H200, layout=ServingLayout(tp=tp)))
    load = StepLoad(decode_batch=batch, decode_context=context)
    stack = model.stacks[0]
    counts = np.bincount(np.asarray(stack.order), minlength=len(stack.kinds)).tolist()
    total = 0.0
    for kind, count in zip(stack.kinds, counts, strict=True):
        items = [i for i in kind.items if isinstance(i, Attend | Recurrence)]
        kernels = machine.kernels_of(items, load, ServingLayout(tp=tp), inside=True)
        total += count * sum(float(np.asarray(k.timing.seconds)) for k in kernels)
    return total


def with_attention(model: Model, **changes: Any) -> Model:
    stack = model.stacks[0]
    kinds = tuple(
        Layer(name=k.name, items=tuple(replace(i, **changes) if isinstance(i, Attend) else i for i in k.items))
        for k in stack.kinds
    )
    return replace(model, stacks=(replace(stack, kinds=kinds), *model.stacks[1:]))


def test_full_attention_grows_with_the_context_and_windows_stop_it() -> None:
    full = load_model("Llama-3.1-8B")
    windowed = with_attention(full, window=4096)
    a, b = ([attention_s(m, c) for c in CONTEXTS] for m in (full, windowed))
    assert a[3] > 10 * a[0]
    assert b[:2] == pytest.approx(a[:2])
    assert b[3] == pytest.approx(b[2])


def test_alternating_windows_lie_between_none_and_all() -> None:
    """gpt-oss: every second layer sees 128 tokens, with a learned sink a head."""
    model = load_model("gpt-oss-120b")
    items = [i for k in model.stacks[0].kinds for i in k.items if isinstance(i, Attend)]
    assert {i.window for i in items} == {128, None}
    assert all(i.sinks for i in items)
    none, every = with_attention(model, window=None), with_attention(model, window=128)
    now = attention_s(model, 64_000)
    assert attention_s(every, 64_000) < now < attention_s(none, 64_000)
    assert now == pytest.approx((attention_s(every, 64_000) + attention_s(none, 64_000)) / 2, rel=0.01)
    assert attention_s(with_attention(model, sinks=False), 64_000) == pytest.approx(now)  # a logit a head is no work


def test_a_latent_is_read_once_for_all_heads_when_absorbed() -> None:
    """DeepSeek-V3 caches 576 elements a token and layer; unfolded keys and values of 128 heads would be 40,960."""
    model = load_model("DeepSeek-V3")
    context, batch = 16_000, 32
    least = batch * context * 576 * 2 * 61 / 4.8e12
    absorbed = attention_s(model, context, batch)
    unfolded = attention_s(with_attention(model, latent_dim=None, kv_heads=128), context, batch, tp=8)
    assert least < absorbed < 6 * least
    assert absorbed < 0.7 * unfolded  # of which tp cuts the heads, while each rank holds the whole latent


def test_prompts_unfold_a_latent_and_answers_do_not() -> None:
    machine = runner(serve_job_with(model=load_model("DeepSeek-V3"), cluster=H200, layout=ServingLayout(tp=8)))
    item = next(i for k in machine.model.stacks[0].kinds for i in k.items if isinstance(i, Attend))

    def flops(load: StepLoad) -> float:
        return sum(
            float(np.asarray(k.work.causal_flops))
            for k in machine.kernels_of((item,), load, ServingLayout(tp=8), inside=True)
        )

    pairs, heads = 8000 * 8001 / 2, 128 / 8
    prompt = flops(StepLoad(prefill_tokens=8000, prefill_context=8000))
    assert prompt == pytest.approx(pairs * 2 * heads * (192 + 128), rel=0.01)
    one = flops(StepLoad(decode_batch=1, decode_context=8000))
    assert one == pytest.approx(8000 * 2 * heads * (576 + 512), rel=0.1)


def test_state_space_layers_do_not_see_the_context() -> None:
    model = load_model("Jamba-v0.1")
    stack = model.stacks[0]
    kinds = tuple(Layer(name=k.name, items=tuple(i for i in k.items if not isinstance(i, Attend))) for k in stack.kinds)
    states = replace(model, stacks=(replace(stack, kinds=kinds), *model.stacks[1:]))
    assert attention_s(states, 1_000) > 0
    assert attention_s(states, 64_000) == pytest.approx(attention_s(states, 1_000))
    assert attention_s(model, 64_000) > attention_s(states, 64_000)


def test_small_batches_touch_few_experts_and_padding_costs() -> None:
    """Mixtral: 2 of 8. One token reads two experts, eight tokens 7.2; the fourth token costs less than the first."""
    even = Techniques(expert_skew=1.0)
    job = serve_job_with(model=load_model("Mixtral-8x7B"), cluster=H200, layout=ServingLayout(tp=2), techniques=even)
    machine = runner(job)
    kinds = machine.model.stacks[0].kinds[0].items

    def grouped(batch: int) -> tuple[float, float]:
        found = [
            k
            for k in machine.kernels_of(
                kinds, StepLoad(decode_batch=batch, decode_context=100), ServingLayout(tp=2), inside=True
            )
            if k.work.kind == "grouped"
        ]
        return float(np.asarray(found[0].work.touched)), sum(float(np.asarray(k.timing.seconds)) for k in found)

    assert grouped(1)[0] == pytest.approx(2.0)
    assert grouped(8)[0] == pytest.approx(8 * (1 - 0.75**8))
    assert 1.5 < grouped(8)[1] / grouped(1)[1] < 4.0
    assert grouped(64)[1] < 1.4 * grouped(16)[1]  # all experts are read by then


def test_attention_replicas_that_share_experts_send_tokens() -> None:
    job = serve_job_with(model=load_model("DeepSeek-V3"), cluster=H200, weights="fp8-block")
    load = StepLoad(decode_batch=64, decode_context=2000)
    shared = runner(job).step(load, ServingLayout(tp=1, dp=8, ep=8))
    cut = runner(job).step(load, ServingLayout(tp=8))
    assert float(np.asarray(shared.communication_s)) > 0
    each = float(np.asarray(shared.flops)) / float(np.asarray(cut.flops))
    assert 6 < each < 20  # eight times the tokens: attention whole on each rank, experts as many as before


@pytest.mark.parametrize(
    ("engine", "weights", "there_bytes"),
    [
        ("vllm", "fp8-block", 1 + 4 / 128),  # quantised, with a scale of four bytes for 128 values, then gathered
        ("vllm-2025", "fp8-block", 2.0),  # gathered, then quantised
        ("vllm-2025", "nvfp4", 0.5 + 1 / 16),
        ("sglang", "fp8-block", 2.0),
        ("sglang", "nvfp4", 0.5 + 1 / 16),
        ("tensorrt-llm", "fp8-block", 2.0),
        ("tensorrt-llm", "nvfp4", 0.5 + 1 / 16),
    ],
)
def test_tokens_are_gathered_in_16_bits_where_they_are_quantised_later(
    engine: str, weights: str, there_bytes: float
) -> None:
    """Bytes of a value there and two back, over the four of plain products; long messages take time by their bytes."""

    b200 = cluster(load_facts().accelerator("B200"), gpus_per_node=8)

    def gathered_s(weights: str) -> float:
        job = serve_job_with(model=load_model("DeepSeek-V3"), cluster=b200, weights=weights, engine=engine)
        few, many = (
            runner(job).step(
                StepLoad(prefill_tokens=n, prefill_context=n, prompts=1), ServingLayout(tp=1, dp=8, ep=8)
            ).communication_s
            for n in (8192, 16_384)
        )  # fmt: skip
        return float(many) - float(few)

    assert gathered_s(weights) / gathered_s("bf16") == pytest.approx((there_bytes + 2) / 4, rel=0.005)
