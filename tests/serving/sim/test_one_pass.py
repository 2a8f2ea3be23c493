"""Encoders, rerankers and classifiers in the simulator: batches of what waits, against counting and a plain queue."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flopwise
from flopwise import cli
from flopwise.ops.types import Array
from flopwise.serving.iteration import whole_prompts
from flopwise.serving.sim.trace import PS
from flopwise.serving.techniques import runner

CASES: dict[str, dict[str, Any]] = {
    "BGE-M3, A10G, TEI": {"model": "bge-m3", "gpu": "a10g", "engine": "tei", "input_tokens": 256},
    "BERT, T4, TEI": {"model": "bert-base", "gpu": "t4", "engine": "tei", "input_tokens": 128},
    "BGE-M3, L4, vLLM": {"model": "bge-m3", "gpu": "l4", "engine": "vllm", "input_tokens": 512},
    "ModernBERT, L4, TEI": {"model": "ModernBERT-base", "gpu": "l4", "engine": "tei", "input_tokens": 1024},
    "RoBERTa, Graviton4, ONNX": {
        "model": "roberta-base", "gpu": "graviton4", "engine": "onnxruntime", "input_tokens": 128,
    },
}  # fmt: skip
REQUESTS, SEED = 150_000, 5  # others than those that `serve` draws


def capacity(case: dict[str, Any]) -> float:
    """Inputs a second of full batches, in closed form."""
    return float(flopwise.serve(**case, concurrency=256).estimate.requests_per_s)


def latencies(case: dict[str, Any], rate: float) -> Array:
    """Of the middle of a run, in seconds."""
    run = flopwise.simulate(**case, rate=rate, requests=REQUESTS, seed=SEED).simulated
    return np.asarray(run.e2e_s)[REQUESTS // 4 : -REQUESTS // 4]


@pytest.mark.parametrize("name", CASES)
def test_full_batches_take_as_long_in_both(name: str) -> None:
    run = flopwise.simulate(**CASES[name], users=400, requests=8_000).summary
    assert run.requests_per_s == pytest.approx(capacity(CASES[name]), rel=0.04)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
@pytest.mark.parametrize("name", CASES)
def test_serve_and_simulate_agree_on_encoders(name: str, load: float) -> None:
    """Serve said up to seven times the p99: batches of a fixed size that fill, where engines take what waits."""
    case = CASES[name]
    rate = load * capacity(case)
    waits = flopwise.serve(**case, rate=rate).under_load
    assert waits is not None
    assert waits.utilisation_frac == pytest.approx(load, rel=0.04)
    seen = latencies(case, rate)
    for p in ("p50", "p95", "p99"):
        assert waits.ttft_s[p] == pytest.approx(np.percentile(seen, float(p[1:])), rel=0.1)


@pytest.mark.parametrize("users", [1, 8, 64, 200])
@pytest.mark.parametrize("name", ["BGE-M3, A10G, TEI", "BERT, T4, TEI", "RoBERTa, Graviton4, ONNX"])
def test_users_of_an_encoder_wait_as_long_in_both(name: str, users: int) -> None:
    """`serve --concurrency` is `simulate --users`; the closed form is what all but the first round wait."""
    case = CASES[name]
    found = flopwise.serve(**case, concurrency=users)
    run = flopwise.simulate(**case, users=users)
    assert found.closed_loop is not None
    for p in ("p50", "p95", "p99"):
        assert found.closed_loop.ttft_s[p] == pytest.approx(getattr(run.summary.e2e_s, p), rel=1e-6)
    assert found.estimate.requests_per_s == pytest.approx(run.summary.requests_per_s, rel=1e-6)
    longer = flopwise.simulate(**case, users=users, requests=20 * users).simulated
    whole_s = float(np.mean(np.asarray(longer.e2e_s)[2 * users : -users]))
    closed = flopwise.serve(**case, concurrency=users, closed_form=True)
    assert closed.closed_loop is None
    assert closed.estimate.ttft_s.value == pytest.approx(whole_s, rel=0.06)


def test_users_of_an_encoder_send_inputs_as_they_are_drawn() -> None:
    case = CASES["BGE-M3, A10G, TEI"] | {"concurrency": 32, "simulate": True}
    same, drawn = (
        flopwise.serve(**(case | {"input_tokens": tokens})).estimate.ttft_s.value for tokens in (256, "1:511")
    )
    assert drawn == pytest.approx(same, rel=0.15)
    assert drawn != same


def batch_queue(arrivals: Array, seconds: Array) -> Array:
    """Latencies where a batch takes all that wait, up to len(seconds) - 1, and so many take `seconds`; one by one."""
    done, now, first = np.empty(len(arrivals)), 0.0, 0
    while first < len(arrivals):
        now = max(now, arrivals[first])
        last = min(int(np.searchsorted(arrivals, now, side="right")), first + len(seconds) - 1)
        now += seconds[last - first]
        done[first:last] = now
        first = last
    return done - arrivals


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
@pytest.mark.parametrize("name", ["BGE-M3, A10G, TEI", "BERT, T4, TEI"])
def test_batches_of_what_waits_by_counting(name: str, load: float) -> None:
    """A queue of its own in plain Python, whose passes are those of the closed form."""
    case = CASES[name]
    rate = load * capacity(case)
    job = flopwise.serve(**case, rate=rate).estimate.job
    most = int(job.engine.most_inputs(job.input_tokens))
    passes = runner(job).step(whole_prompts(job.model, np.arange(1.0, most + 1), job.input_tokens), job.layout)
    seconds = np.r_[0.0, np.broadcast_to(np.asarray(passes.seconds), most)]
    run = flopwise.simulate(**case, rate=rate, requests=20_000).simulated
    expected = batch_queue(run.trace.arrival_ps / PS, seconds) + job.engine.request_s
    for share in (50, 95, 99):
        assert np.percentile(run.e2e_s, share) == pytest.approx(np.percentile(expected, share), rel=0.03), share


def test_a_batch_has_so_many_tokens_and_inputs_at_most() -> None:
    """text-embeddings-inference: 16,384 tokens, so 64 of 256; and as many inputs as --max-batch says."""
    full = flopwise.simulate(**CASES["BGE-M3, A10G, TEI"], users=500, requests=3_000)
    few = flopwise.simulate(**CASES["BGE-M3, A10G, TEI"], users=500, requests=3_000, max_batch=4)
    assert full.summary.mean_running == pytest.approx(64, rel=0.1)
    assert few.summary.mean_running == pytest.approx(4, rel=0.05)
    assert few.summary.requests_per_s < full.summary.requests_per_s


def test_longer_inputs_take_longer_and_drawn_ones_are_between() -> None:
    case: dict[str, Any] = {"model": "bge-m3", "gpu": "a10g", "engine": "tei", "users": 300, "requests": 4_000}
    short, drawn, long = (
        flopwise.simulate(**case, input_tokens=tokens).summary.requests_per_s for tokens in (128, "128:896", 896)
    )
    assert long < drawn < short
    assert drawn == pytest.approx(flopwise.simulate(**case, input_tokens=512).summary.requests_per_s, rel=0.1)


def test_the_text_speaks_of_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["simulate", "bge-m3", "--gpu", "a10g", "--engine", "tei", "--rate", "50", "--requests", "500"]
    assert cli.main(line) == 0
    text = capsys.readouterr().out
    assert "latency" in text
    assert "wait for a batch" in text
    assert not any(word in text for word in ("TPOT", "TTFT p", "output tokens", "KV cache"))


def test_an_image_of_a_model_with_a_text_tower_takes_its_own_pass() -> None:
    """CLIP's text tower has 77 positions, an image 257 tokens: 3.3 inputs of its context's length, simulated so."""
    model: dict[str, Any] = {"model": "clip-vit-large-patch14", "gpu": "l4"}
    step_s = sum(seconds for _, seconds in flopwise.serve(**model, concurrency=1).estimate.breakdown)
    seen = np.asarray(flopwise.simulate(**model, rate=0.01, requests=10).simulated.e2e_s)
    assert seen == pytest.approx([step_s] * 10, rel=1e-3)
