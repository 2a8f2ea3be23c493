"""Models of several towers: the encoder runs once a prompt, cross-attention reads what it made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flopwise.cost.cluster import cluster
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.ops.flops import causal_forward_flops, encoder_tokens
from flopwise.serving.estimate import estimate
from flopwise.serving.iteration import StepLoad, prompt, whole_prompts
from flopwise.serving.memory import ServingLayout
from flopwise.serving.steady import least_prompt_s
from flopwise.serving.techniques import runner
from named import serve_job_with

FACTS = load_facts()
T4, H100 = (cluster(FACTS.accelerator(name), gpus_per_node=1) for name in ("T4", "H100-SXM-80"))
WHISPER, T5 = load_model("whisper-large-v3"), load_model("t5-3b")
ONE = ServingLayout()


def test_a_prompt_of_whisper_is_its_window_of_sound_and_one_of_t5_its_text() -> None:
    assert prompt(WHISPER, 4) == (4, 1500)
    assert prompt(T5, 300) == (1, 300)
    assert prompt(load_model("ViT-L/16"), 999) == (197, 0)
    assert prompt(load_model("Llama-3.1-8B"), 300) == (300, 0)


def test_the_first_word_of_whisper_takes_at_least_the_encoder_at_peak() -> None:
    """32 layers over 1,500 frames: 12 x 1280^2 weights a layer and attention in full; 2 x 1280^2 of cross-attention."""
    encoder = 32 * 1500 * (2 * 12 * 1280**2 + 4 * 1500 * 1280 + 2 * 2 * 1280**2)
    bound_s = encoder / 65e12
    found = estimate(
        serve_job_with(model=WHISPER, cluster=T4, weights="fp16", input_tokens=4, output_tokens=100, concurrency=1)
    )
    assert bound_s < found.ttft_s.value < 8 * bound_s
    machine = runner(found.job)
    assert float(least_prompt_s(machine, ONE, 4)) == pytest.approx(bound_s, rel=0.15)


@pytest.mark.parametrize("name", ["whisper-large-v3", "t5-3b", "CLIP ViT-L/14", "ViT-L/16", "bert-base-uncased"])
def test_a_pass_over_whole_prompts_counts_all_towers(name: str) -> None:
    model = load_model(name)
    machine = runner(serve_job_with(model=model, cluster=H100))
    step = machine.step(whole_prompts(model, 8.0, 256), ONE)
    one = prompt(model, 256)
    counted = float(causal_forward_flops(model, 8, one.own, encoder=one.encoder or encoder_tokens(model, one.own)))
    head = 2.0 * 8 * (one.own - 1) * model.vocab * model.stacks[0].width if model.kind == "encoder-decoder" else 0.0
    assert float(step.flops) == pytest.approx(counted - head, rel=0.01)  # a decoder makes one token of a prompt
    assert float(step.seconds) > float(step.flops) / H100.accelerator.peak_flops_per_s("bf16")


def test_decoding_reads_the_encoders_keys_and_values_and_runs_no_encoder() -> None:
    machine = runner(serve_job_with(model=WHISPER, cluster=H100))
    near, far = (
        machine.step(StepLoad(decode_batch=64, decode_context=20, encoder=tokens), ONE) for tokens in (100, 1500)
    )
    keys = 64 * 1400 * 32 * 2 * 1280 * 2.0  # sequences x tokens x layers x K and V x width x bytes
    assert float(far.floor_s - near.floor_s) == pytest.approx(keys / H100.accelerator.hbm_bytes_per_s, rel=0.05)
    text = estimate(serve_job_with(model=T5, cluster=H100, input_tokens=500, output_tokens=2, concurrency=1))
    short = estimate(replace(text.job, input_tokens=8))
    assert text.ttft_s.value > short.ttft_s.value
