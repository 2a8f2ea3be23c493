"""Shape advice: its gains are those of the estimate with the dimension changed, its directions those of the papers."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

import flopwise
from flopwise.api.shapes import advise
from flopwise.errors import SpecError
from flopwise.facts.architecture import Model
from flopwise.facts.models.catalog import load_model
from flopwise.facts.models.config import model_from_config
from flopwise.shapes.answer import ShapeAnswer
from flopwise.shapes.rules import WORTH, Advice
from named import FACTS

GPT2 = {
    "model_type": "gpt2", "vocab_size": 50257, "n_embd": 2560, "n_layer": 8, "n_head": 32, "n_positions": 2048,
    "architectures": ["GPT2LMHeadModel"],
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 8, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 11008, "max_position_embeddings": 8192,
    "architectures": ["LlamaForCausalLM"],
}  # fmt: skip


def built(base: dict[str, Any], **changed: Any) -> Model:
    return model_from_config(base | changed, name="probe")


def micro_batch_s(model: Model, batch: int, seq: int, **how: Any) -> float:
    """Seconds of one micro-batch by the estimate itself: accumulation makes the optimizer's share vanish."""
    some, more = (
        flopwise.train(model, gpu="a100-80gb", seq=seq, global_batch=n * batch, micro_batch=batch, dp=1, **how)
        for n in (16, 48)
    )
    return float(more.estimate.step_s - some.estimate.step_s) / 32


def the(answer: ShapeAnswer, what: str) -> Advice:
    return next(a for a in answer.advice if a.what == what)


@pytest.mark.parametrize(
    ("base", "what", "better", "changed"),
    [
        (GPT2, "lm_head", "50,304", {"vocab_size": 50304}),
        (GPT2, "attention/attend", "20 heads of 128", {"n_head": 20}),
        (LLAMA | {"intermediate_size": 11001}, "mlp/gate_proj", "11,008", {"intermediate_size": 11008}),
        (LLAMA | {"vocab_size": 32003}, "lm_head", "32,064", {"vocab_size": 32064}),
    ],
    ids=["vocabulary", "heads", "feed-forward", "vocabulary of a fine-tune"],
)
def test_the_gain_is_what_the_changed_configuration_saves(
    base: dict[str, Any], what: str, better: str, changed: dict[str, Any]
) -> None:
    found = the(advise(built(base), gpu="a100-80gb", batch=4, seq=2048), what)
    assert found.better == better
    now, then = (micro_batch_s(m, 4, 2048) for m in (built(base), built(base, **changed)))
    assert found.gain_s == pytest.approx(now - then, rel=0.05)
    assert found.gain_frac == pytest.approx(1 - then / now, rel=0.05)


def test_the_gain_of_sequence_and_batch_is_for_the_same_tokens() -> None:
    model = built(LLAMA)
    answer = advise(model, gpu="a100-80gb", batch=1, seq=1000)
    now = micro_batch_s(model, 1, 1000)
    longer, more = the(answer, "sequence"), the(answer, "micro-batch")
    assert answer.pass_s == pytest.approx(now, rel=1e-6)
    assert longer.better == "1,024"
    assert longer.gain_s == pytest.approx(now - micro_batch_s(model, 1, 1024) / 1.024, rel=0.05)
    batch = int(more.better)
    assert more.gain_s == pytest.approx(now - micro_batch_s(model, batch, 1000) / batch, rel=0.05)


def test_operations_add_up_to_the_step() -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("Llama-3.1-8B", {}), ("Qwen3-30B-A3B", {"stack": "hf"}), ("gpt2", {"attention": "eager"}),
    ]  # fmt: skip
    for name, how in cases:
        answer = advise(name, gpu="h100", batch=2, **how)
        whole = flopwise.train(name, gpu="h100", seq=answer.clock.seq, global_batch=2, micro_batch=2, dp=1, **how)
        lines = dict(whole.estimate.breakdown)
        assert answer.kernels_s == pytest.approx(lines["forward"] + lines["backward"], rel=1e-6)
        assert sum(o.share_frac for o in answer.operations) <= 1 + 1e-9
        assert all(0 <= o.achieved_frac <= 1.01 for o in answer.operations), name


def test_gpt3_2_7b_is_faster_with_other_heads() -> None:
    """Anthony et al. 2024 (arXiv:2401.14489), section 1 and table 3: heads of 64 or 128 train faster than 32 of 80."""
    now, forty, twenty = (micro_batch_s(built(GPT2, n_head=heads), 4, 2048) for heads in (32, 40, 20))
    assert forty < now
    assert twenty < now
    assert the(advise("GPT-3 2.7B", gpu="a100-80gb", batch=4), "attention/attend").why.endswith("of 80 as 96")


def test_nanogpt_pads_the_vocabulary_with_profit() -> None:
    """Karpathy 2023 (nanoGPT): 50,257 to 50,304 speeds training up although there is more to compute."""
    found = the(advise("gpt2", gpu="a100", batch=12, seq=1024), "lm_head")
    assert (found.now, found.better) == ("50,257", "50,304")
    assert found.gain_frac > 0.02
    padded = replace(
        load_model("gpt2"), stacks=built(GPT2, n_embd=768, n_head=12, vocab_size=50304).stacks, vocab=50304
    )
    assert not [a for a in advise(padded, gpu="a100", batch=12, seq=1024).advice if a.what == "lm_head"]


def test_the_width_that_brown_et_al_print_for_gpt3_13b() -> None:
    """Brown et al. 2020, table 2.1: a width of 5,140 with 40 heads of 128, a misprint of 5,120."""
    printed = built(GPT2, n_embd=5140, n_layer=40, n_head=40, head_dim=128, n_inner=4 * 5140, model_type="gpt3")
    found = advise(printed, gpu="a100-80gb").advice[0]
    assert (found.now, found.better) == ("5,140", "5,144")
    assert found.gain_frac > 0.1


def test_ranks_that_cannot_share_the_heads_come_first() -> None:
    first = advise("gpt2-xl", gpu="h100", tp=2).advice[0]
    assert (first.what, first.needed, first.better) == ("tensor parallelism", True, "tp 1, or 24 or 26 heads")
    assert "25 heads" in first.why
    shared = advise("Llama-3.1-70B", gpu="h100", tp=16, task="serve")
    found = the(shared, "tensor parallelism")
    assert (found.better, "2 times" in found.why, found.needed) == ("tp 8", True, False)


def test_fp8_wants_multiples_of_16() -> None:
    odd = built(LLAMA, intermediate_size=11016)  # 8 x 1377
    assert not [a for a in advise(odd, gpu="h100", batch=4).advice if a.what.startswith("mlp")]
    found = the(advise(odd, gpu="h100", batch=4, precision="fp8"), "mlp/gate_proj")
    assert "not a multiple of 16 (fp8)" in found.why


def test_what_is_split_over_ranks_must_be_aligned_there() -> None:
    model = built(LLAMA, intermediate_size=11024)  # 16 x 689: aligned whole, not in 4 parts
    assert not [a for a in advise(model, gpu="h100", batch=4).advice if a.what.startswith("mlp")]
    found = the(advise(model, gpu="h100", batch=4, tp=4), "mlp/gate_proj")
    assert found.why.startswith("2,756 on a rank")
    assert int(found.better.replace(",", "")) % 32 == 0


def test_links_and_software_are_judged() -> None:
    plain = advise("Llama-3.1-8B", gpu="l40s", tp=4, stack="fsdp-eager")
    assert "PCIe" in the(plain, "tensor parallelism").why
    fused = the(plain, "software")
    assert fused.better in {"fsdp-compile", "megatron-te"}
    times = {s.name: s.pass_s for s in plain.stacks}
    assert fused.gain_s == pytest.approx(plain.pass_s - times[fused.better])
    fast = advise("Llama-3.1-8B", gpu="h100", tp=4)
    assert next(f for f in fast.fine if f.what == "links").why.count("times as long") == 1


def test_thin_experts_and_eager_attention_are_seen() -> None:
    answer = advise("Qwen3-30B-A3B", gpu="h100", tp=4, batch=4)
    assert the(answer, "experts").now == "192 columns a rank"
    eager = the(advise("gpt2", gpu="h100", batch=8, attention="eager"), "attention")
    then = advise("gpt2", gpu="h100", batch=8).pass_s
    assert eager.gain_s == pytest.approx(advise("gpt2", gpu="h100", batch=8, attention="eager").pass_s - then)


def test_decoding_waits_for_weights_until_the_batch_is_large() -> None:
    few, many = (advise("Llama-3.1-8B", gpu="h100", task="serve", batch=b, seq=256) for b in (1, 512))
    gains = [max((a.gain_frac for a in found.advice), default=0.0) for found in (few, many)]
    assert gains[0] > 0.7 > gains[1]
    assert few.memory_bound_frac > 0.7 > many.memory_bound_frac
    heads = [o for o in few.operations if o.kind == "matmul"]
    assert all(o.intensity_flops_per_byte < 1.1 < few.ridge_flops_per_byte for o in heads)


def test_host_transfers_of_an_offloaded_optimizer_hide_behind_accumulation() -> None:
    plain = advise("Llama-3.1-8B", gpu="h100")
    answer = advise("Llama-3.1-8B", gpu="h100", offload="optimizer")
    assert answer.pass_s == plain.pass_s
    pinned = the(answer, "host transfers")
    told = next(f.why for f in answer.fine if f.what == "host transfers, pinned")
    # 8.03e9 parameters: gradients of 4 bytes down, weights of 2 bytes up, at 64 GB/s of PCIe 5
    at_least = 8.03e9 * 6 / 64e9
    assert pinned.gain_s > at_least
    assert "48.2 GB a step over PCIe 5" in told
    assert 0 < pinned.gain_frac < 1
    grace = advise("Llama-3.1-8B", gpu="GH200-96", offload="optimizer")  # 450 GB/s to its host's chip
    assert "48.2 GB a step over the link to the host's chip" in next(
        f.why for f in grace.fine if f.what == "host transfers, pinned"
    )
    assert the(grace, "host transfers").gain_s == pytest.approx(pinned.gain_s * 64 / 450, rel=0.05)
    with pytest.raises(SpecError, match="offload"):
        advise("gpt2", gpu="h100", task="serve", offload="optimizer")
    with pytest.raises(SpecError, match="offload: a review of shapes has the optimizer alone, not activations"):
        advise("gpt2", gpu="h100", offload=["optimizer", "activations"])


def _of_each_kind() -> list[str]:
    """The first and the last model of each kind: what it reads and writes, and what its layers are made of."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    for model in map(load_model, FACTS.models.names):
        parts = {type(item).__name__ for stack in model.stacks for layer in stack.kinds for item in layer.items}
        if parts:
            kinds.setdefault((model.kind, *sorted(parts)), []).append(model.name)
    return sorted({name for names in kinds.values() for name in (names[0], names[-1])})


@pytest.mark.parametrize("name", [*_of_each_kind(), "DeepSeek-V3", "T5-base", "CLIP ViT-B/32"])
def test_every_kind_of_model_gets_its_table_and_only_worthy_advice(name: str) -> None:
    model = load_model(name)
    tasks: list[dict[str, Any]] = [{"tp": 1}, {"tp": 2, "batch": 3, "seq": min(1000, model.max_position or 1000)}]
    if model.kind == "decoder":
        tasks.append({"tp": 4, "task": "serve"})
    for asked in tasks:
        answer = advise(model, gpu="a100-80gb", **asked)
        assert answer.operations
        assert answer.pass_s >= answer.kernels_s * (1 - 1e-9) > 0
        gains = [a.gain_s for a in answer.advice if not a.needed]
        assert gains == sorted(gains, reverse=True)
        assert all(a.needed or a.gain_frac >= WORTH for a in answer.advice)
        assert all(a.gain_s < answer.pass_s for a in answer.advice)
        assert not {a.what for a in answer.advice} & {f.what for f in answer.fine}


def test_an_encoder_is_reviewed_over_whole_prompts() -> None:
    """BERT-large (arXiv 1810.04805), by hand: 24 layers of width 1024, each token sees all others of its sequence."""
    answer = advise("bert-large-uncased", gpu="l4", task="serve", batch=4, seq=256)
    products = {o.name: (o.m, o.layers, o.flops) for o in answer.operations if o.kind == "matmul" and o.layers == 24}
    assert sum(times * flops for _, times, flops in products.values()) == 24 * 2 * 1024 * (4 * 1024**2 + 8 * 1024**2)
    assert {rows for rows, _, _ in products.values()} == {4 * 256}
    (attend,) = (o for o in answer.operations if o.kind == "attention")
    assert attend.flops == 4 * (2 * 2 * 256 * 256 * 1024)
    assert ("pass", "forward over 4 x 256 tokens on one rank") in answer.settings
    assert "cache" not in dict(answer.settings)["serving"]


@pytest.mark.parametrize(("name", "tokens"), [("ViT-L/16", 197), ("CLIP ViT-L/14", 257)])
def test_a_pass_of_a_vision_model_takes_what_a_request_takes(name: str, tokens: int) -> None:
    """An engine without time of its own for a request: all of it is the pass; a second tower is part of it."""
    answer = advise(name, gpu="l4", task="serve", batch=4)
    served = flopwise.serve(name, gpu="l4", max_batch=4)
    assert dict(answer.settings)["pass"].startswith(f"forward over 4 x {tokens} tokens")
    assert answer.pass_s == pytest.approx(served.estimate.ttft_s.value, rel=1e-9)
    around = 2e-3  # the estimate has one block of what stands before and after the layers
    assert answer.kernels_s == pytest.approx(answer.pass_s, rel=around)
    assert any(o.name.startswith("text/") for o in answer.operations) == name.startswith("CLIP")


def test_software_that_saves_elsewhere_is_not_praised_for_its_memory_bound_operations() -> None:
    found = advise("Llama-3.1-8B", gpu="h100", batch=2, seq=4096)
    [why] = [one.why for one in found.advice if one.what == "software"]
    assert "instead of" not in why
    assert re.match(
        r"faster attention kernel, launches and overlap; memory-bound operations take [\d.]+ ms longer$", why
    )
