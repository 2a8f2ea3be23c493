"""Length distributions have the mean and the spread that they are asked for."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flopwise
from flopwise.errors import SpecError
from flopwise.serving.sim.lengths import Lengths, lognormal
from flopwise.serving.sim.traffic import empirical


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


@given(st.integers(50, 5000), st.floats(0.1, 2.0))
def test_lognormal_lengths_have_their_mean_and_spread(mean: int, cv: float) -> None:
    drawn = lognormal(mean, 200_000, np.random.default_rng(5), cv=cv)
    assert drawn.mean() == pytest.approx(mean, rel=0.04)
    assert drawn.std() / drawn.mean() == pytest.approx(cv, rel=0.2)
    assert drawn.min() >= 1


@given(st.integers(200, 5000), st.floats(1.05, 3.5))
def test_a_lognormal_may_be_given_by_its_95th_percentile(mean: int, ratio: float) -> None:
    drawn = lognormal(mean, 200_000, np.random.default_rng(5), p95=mean * ratio)
    assert np.quantile(drawn, 0.95) == pytest.approx(mean * ratio, rel=0.05)


def test_empirical_pairs_stay_together() -> None:
    prompts, outputs = np.arange(1, 50), np.arange(1, 50) * 7
    drawn = empirical(prompts, outputs, 1000, rng())
    assert (drawn[1] == drawn[0] * 7).all()
    assert np.unique(drawn[0]).size > 40


@pytest.mark.parametrize(
    ("text", "mean", "low", "high"),
    [
        ("512", 512, 512, 512),
        ("200:800", 500, 200, 800),
        ("lognormal:512:cv=0.5", 512, 1, 10_000),
        ("sharegpt-prompts:220", 220, 4, 1000),
        ("sharegpt-answers:200", 200, 1, 800),
    ],
)
def test_lengths_as_users_write_them(text: str, mean: float, low: int, high: int) -> None:
    drawn = Lengths.parse(text).draw(50_000, rng())
    assert drawn.mean() == pytest.approx(mean, rel=0.02)
    assert drawn.min() >= low
    assert drawn.max() <= high


@pytest.mark.parametrize(
    "text",
    [
        "", "0", "-5", "nan", "800:200", "lognormal:x", "lognormal:512:p95=100", "lognormal:512:q=2", "1:2:3",
        "sharegpt-prompts:0", "sharegpt-answers:many", "sharegpt:220",
    ],
)  # fmt: skip
def test_lengths_that_cannot_be_are_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(SpecError, match=r"allowed|below"):
        Lengths.parse(text)


@pytest.mark.parametrize(
    ("shape", "short", "long", "spread"),
    [("sharegpt-prompts", 77 / 320, 60 / 320, 1.13), ("sharegpt-answers", 61 / 303, 46 / 303, 0.90)],
)
def test_chats_are_short_and_long_as_often_as_in_the_published_runs(
    shape: str, short: float, long: float, spread: float
) -> None:
    """Below a tenth of the mean and above twice the mean: 77 and 60 of 320 prompts, 61 and 46 of 303 answers.

    Source: LambdaLabsML/vllm-benchmark, results/prompt_320, Meta-Llama-3-8B-Instruct on one A100: counted in its
    `input_lens` and `output_lens`, and their standard deviation over their mean.
    """
    drawn = Lengths.parse(f"{shape}:1000").draw(100_000, rng())
    assert (drawn < 100).mean() == pytest.approx(short, abs=0.03)
    assert (drawn > 2000).mean() == pytest.approx(long, abs=0.03)
    assert drawn.std() / drawn.mean() == pytest.approx(spread, rel=0.04)


def test_an_empirical_distribution_needs_pairs() -> None:
    with pytest.raises(SpecError, match="pairs"):
        empirical(np.array([1]), np.array([1, 2]), 5, rng())


def test_default_lengths_fit_a_short_context_and_say_so() -> None:
    """GPT-2 is made for 1,024 tokens: 1,024 - 256 of a prompt beside an answer of 256; 200 shared ones come off it."""
    load: dict[str, Any] = {"gpu": "t4", "rate": 5.0, "requests": 20, "seed": 1}
    plain = flopwise.simulate("gpt2", **load)
    assert (plain.summary.completed, plain.summary.dropped) == (20, 0)
    assert set(plain.simulated.trace.prompt) == {768}
    assert set(plain.simulated.trace.output) == {256}
    assert (
        "requests of 768 tokens in and 256 out, because the context of GPT-2 small is 1,024 tokens" in plain.assumptions
    )
    shared = flopwise.simulate("gpt2", prefixes=2, prefix_tokens=200, **load)
    assert set(shared.simulated.trace.prompt) == {768}
    assert any("568 tokens in behind the 200 that are shared" in text for text in shared.assumptions)
    answers = flopwise.simulate("gpt2", output_tokens=100, **load)
    assert (set(answers.simulated.trace.prompt), set(answers.simulated.trace.output)) == ({924}, {100})
    queue = flopwise.batch("gpt2", 100, gpu="t4", provider="aws", trials=20, weights="fp16")
    assert (queue.job.input_tokens, queue.job.output_tokens) == (768, 256)
    long = flopwise.simulate("Llama-3.1-8B", gpu="h100", rate=2.0, requests=5_000, seed=1)
    assert (long.simulated.trace.prompt.min(), long.simulated.trace.prompt.max()) == (910, 1138)  # within a ninth
    assert long.simulated.trace.prompt.mean() == pytest.approx(1024, rel=0.01)
    assert not any("made for" in text for text in long.assumptions)


def test_a_run_without_answers_says_why() -> None:
    found = flopwise.simulate("gpt2", gpu="t4", rate=5.0, requests=20, input_tokens=2000, output_tokens=50)
    assert found.verdict == (
        "No request was answered: 20 were longer than the context window (GPT-2 small is made for 1,024 tokens), with "
        "2,000 tokens in and 50 out on average; give shorter ones (--input, --output)."
    )


def test_requests_beyond_what_a_model_is_made_for_are_simulated_as_they_are_served() -> None:
    """SmolLM3 is made for 65,536 tokens, and its positions can be stretched: serve's users get their answers."""
    how: dict[str, Any] = {"gpu": "l40s", "input": "70k", "output": 2}
    run = flopwise.simulate("SmolLM3-3B", users=2, requests=20, **how)
    assert run.summary.completed == 20
    assert any("made for" in text for text in run.assumptions)
    users = flopwise.serve("SmolLM3-3B", concurrency=2, **how).estimate
    assert users.requests_per_s == pytest.approx(run.summary.requests_per_s, rel=0.1)


def test_a_prompt_beyond_the_context_keeps_its_answer() -> None:
    """It is stretched or refused as it is, not answered with one token."""
    served = flopwise.serve("MiniMax-M2", gpu="8xh200", input_tokens=500_000, concurrency=2)
    assert served.estimate.job.output_tokens == 256
    assert any("500,256 tokens is longer than the 196,608" in note for note in served.estimate.assumptions)
    with pytest.raises(flopwise.SpecError, match="a request of 2,256 tokens exceeds the context"):
        flopwise.serve("gpt2", gpu="h100", input_tokens=2_000)
