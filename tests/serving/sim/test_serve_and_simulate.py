"""The closed form and the simulator of the same deployment, side by side: a part of benchmarks/serve_and_simulate.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flopwise import serve, simulate

CHAT: dict[str, Any] = {"model": "Llama-3.1-8B", "gpu": "h100", "input_tokens": 1024, "output_tokens": 256}
LARGE: dict[str, Any] = {
    "model": "Llama-3.3-70B", "gpu": "h100", "tp": 4, "weights": "fp8", "input_tokens": 2000, "output_tokens": 300,
}  # fmt: skip
PROMPTS: dict[str, Any] = {"model": "Llama-3.1-8B", "gpu": "h100", "input_tokens": 8000, "output_tokens": 64}
NEAR = 0.10


@pytest.mark.parametrize(("case", "busy"), [(CHAT, 0.3), (CHAT, 0.5), (LARGE, 0.3), (LARGE, 0.5), (PROMPTS, 0.5)])
def test_random_arrivals_see_the_same_in_both(case: dict[str, Any], busy: float) -> None:
    """Means and percentiles of 6,000 requests, the first and the last quarter left out."""
    rate = busy * serve(**case).estimate.requests_per_s
    steady = serve(**case, rate=rate)
    run = simulate(**case, rate=rate, requests=6_000).simulated
    ttft, tpot = (np.asarray(values)[1_500:4_500] for values in (run.ttft_s, run.tpot_s))
    waits, estimate = steady.under_load, steady.estimate
    assert waits is not None
    assert estimate.tpot_s is not None
    assert estimate.ttft_s.value == pytest.approx(ttft.mean(), rel=NEAR)
    assert estimate.tpot_s.value == pytest.approx(tpot.mean(), rel=NEAR)
    if case is PROMPTS:  # one prompt a step: answers of 64 tokens meet few, whose number the moments know but roughly
        return
    for name in ("p95", "p99"):
        assert waits.tpot_s[name] == pytest.approx(np.percentile(tpot, int(name[1:])), rel=NEAR)
    assert waits.ttft_s["p95"] == pytest.approx(np.percentile(ttft, 95), rel=NEAR)


@pytest.mark.parametrize("users", [8, 32])
@pytest.mark.parametrize("case", [CHAT, LARGE])
def test_users_get_as_much_done_in_both(case: dict[str, Any], users: int) -> None:
    """Ten rounds, begun by all at once, of lengths that vary by a tenth, as load generators send them."""
    steady = serve(**case, concurrency=users).estimate
    lengths = {name: f"{round(8 / 9 * case[name])}:{round(10 / 9 * case[name])}" for name in CHAT if "tokens" in name}
    run = simulate(**case | lengths, users=users, requests=10 * users, together=True).simulated
    assert steady.tpot_s is not None
    assert steady.tpot_s.value == pytest.approx(np.mean(run.tpot_s), rel=NEAR)
    assert steady.requests_per_s == pytest.approx(users / np.mean(run.e2e_s), rel=NEAR)
    assert steady.ttft_s.value == pytest.approx(np.mean(run.ttft_s), rel=0.2)
