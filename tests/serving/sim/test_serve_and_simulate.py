"""`serve` and `simulate` with the same flags: the grid and the drawn commands of benchmarks/serve_and_simulate.py."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from flopwise import serve, simulate
from flopwise.serving.sim.finite import TYPICAL

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

from serve_and_simulate import (
    BUSY,
    DEPLOYMENTS,
    USERS,
    Difference,
    closed,
    compared,
    drawn_commands,
    opened,
)


def agrees(found: Iterable[Difference], *case: object) -> None:
    """Figures of both are within a tenth, or as near as chance allows."""
    for one in found:
        assert one.near, (*case, one.deployment, one.load, one.figure, one.serve, one.simulate, one.error_frac)


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_random_arrivals_see_the_same_in_both(name: str) -> None:
    """Means and percentiles of 600,000 requests, the first and the last quarter left out, at four loads."""
    agrees(one for busy in BUSY for one in opened(name, DEPLOYMENTS[name], busy))


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_users_see_the_same_in_both(name: str) -> None:
    """Percentiles and throughput of ten rounds, begun by all at once."""
    agrees(one for users in USERS for one in closed(name, DEPLOYMENTS[name], users))


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("lengths", [("1024", "256"), ("8000", "1"), ("500", "16")])
def test_the_share_of_time_in_which_steps_run_is_that_of_simulated_replicas(
    lengths: tuple[str, str], rate: float
) -> None:
    """What the draw of power rests on: prompts alone, answers alone, and both."""
    asked: dict[str, Any] = {"gpu": "l4", "rate": rate, "input_tokens": lengths[0], "output_tokens": lengths[1]}
    here = serve("Llama-3.1-8B", **asked).estimate.running_frac
    there = simulate("Llama-3.1-8B", requests=3000, **asked).summary.utilisation_frac
    assert here == pytest.approx(there, rel=0.05)


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_the_closed_form_of_users_is_near_the_means(name: str) -> None:
    """What searches and `--closed-form` use; of these 99 figures the furthest is 12.6 % off, of times a token 5.5 %."""
    for users in USERS:
        for found in closed(name, DEPLOYMENTS[name], users, closed_form=True):
            most = 0.06 if found.figure == "TPOT mean" else 1 / 7
            assert found.serve == pytest.approx(found.simulate, rel=most), f"{found.load}, {found.figure}"


DRAWN = [*drawn_commands(60)]
AT_ONCE = 6
KNEE = "Llama-3.3-70B h200 8 sglang 47:145 9:9"


@pytest.mark.parametrize("first", range(0, len(DRAWN), AT_ONCE))
def test_drawn_commands_say_the_same(first: int) -> None:
    """The plain two commands with the same flags: models, devices, tp, loads and lengths, fixed or drawn."""
    counted = 0
    for name, case, load in DRAWN[first : first + AT_ONCE]:
        if name == KNEE:
            continue
        found = compared(name, case, load, arrivals=1_200_000)
        counted += len(found)
        agrees(found, case, load)
    assert counted >= 14, "few of these fit and keep up"


def test_waves_of_thousands_of_short_answers_are_forgotten() -> None:
    """At 90 % of what 4,096 sequences at once sustain they begin and end together at first: of 300,000 requests p95 of
    TTFT is twice that of those after the first 600,000."""
    (drawn,) = (one for one in DRAWN if one[0] == KNEE)
    agrees(compared(*drawn, arrivals=2_400_000), *drawn[1:])


MORE: dict[str, dict[str, Any]] = {
    **{name: case for name, case in DEPLOYMENTS.items() if "," in name and case["input"] != 8000},
    "8B fp8, L40S": {"model": "Llama-3.1-8B", "gpu": "l40s", "weights": "fp8"},
    "7B, A100": {"model": "Qwen2.5-7B", "gpu": "a100"},
    "30B mixture, H100": {"model": "Qwen3-30B-A3B", "gpu": "h100"},
    "DeepSeek-V3, 8 x H200, SGLang": {"model": "DeepSeek-V3", "gpu": "h200", "tp": 8, "engine": "sglang"},
}  # fmt: skip
LONG: dict[str, dict[str, Any]] = {
    "8B, H100": {"model": "Llama-3.1-8B", "gpu": "h100"},
    "70B, 8 x A100, TensorRT-LLM": {"model": "Llama-3.3-70B", "gpu": "a100", "tp": 8, "engine": "tensorrt-llm"},
    "gpt-oss-120b, 2 x H100, SGLang": {"model": "gpt-oss-120b", "gpu": "h100", "tp": 2, "engine": "sglang"},
    "DeepSeek-V3, 8 x H200, SGLang": {"model": "DeepSeek-V3", "gpu": "h200", "tp": 8, "engine": "sglang"},
}  # fmt: skip


@pytest.mark.parametrize("name", LONG)
def test_users_with_long_prompts_wait_as_long_in_both(name: str) -> None:
    """Prompts fill the steps, and who comes when decides."""
    for tokens in (8_000, 64_000):
        agrees(one for users in (8, 64) for one in closed(name, {**LONG[name], "input": tokens, "output": 256}, users))


@pytest.mark.parametrize("name", LONG)
def test_long_prompts_at_random_see_the_same_in_both(name: str) -> None:
    """Means and percentiles of TTFT and TPOT at low loads, where the closed form's TPOT was up to 90 % too long.

    Where one answer in twenty is interrupted by a prompt, as at 15 %, p95 of TPOT is at a step that chance decides.
    """
    case = {**LONG[name], "input": 32_000, "output": 256}
    agrees(one for busy in (0.1, 0.3) for one in opened(name, case, busy))


AT_RANDOM = [(64, 512, 0.05), (512, 128, 0.8), (1024, 1024, 0.3), (2048, 256, 0.9)]
"""Prompts, answers and loads of which the closed form had percentiles up to 79 % off, in one deployment or another."""


SETTLED = {name for name, case in MORE.items() if case["model"] != "DeepSeek-V3"}


@pytest.mark.parametrize("name", MORE)
def test_prompts_of_any_length_at_random_see_the_same_in_both(name: str) -> None:
    seed = {} if name in SETTLED else {"seed": TYPICAL}  # the same draw where one in a hundred bursts fills the cache
    for tokens, answer, busy in AT_RANDOM:
        agrees(opened(name, MORE[name] | {"input": tokens, "output": answer}, busy, **seed), tokens, answer)


@pytest.mark.parametrize("name", ["8B, H100", "70B, 8 x A100, TensorRT-LLM", "gpt-oss-120b, 2 x H100, SGLang"])
def test_answers_of_one_token_see_the_same_in_both(name: str) -> None:
    """Scores and labels: the closed form had p95 and p99 up to twice, and p50 three quarters, of what is simulated."""
    for tokens, busy in ((24, 0.2), (188, 0.75), (7_550, 0.4)):
        agrees(opened(name, LONG[name] | {"input": tokens, "output": 1}, busy), tokens)


RARE: dict[str, Any] = {"model": "Llama-3.1-8B", "gpu": "rtx4090", "weights": "fp8", "input": 47, "output": 380}
BURSTS: list[tuple[dict[str, Any], float]] = [
    (RARE, 0.9),
    (RARE, 0.92),
    ({"model": "Qwen2.5-32B", "gpu": "h200", "engine": "tensorrt-llm", "input": 1276, "output": 558}, 0.92),
    ({"model": "Llama-3.3-70B", "gpu": "h100", "tp": 4, "weights": "fp8", "input": 3911, "output": 18}, 0.92),
]
"""Deployments and loads of which p99 of 150,000 requests vary by 10 to 28 % from run to run."""


@pytest.mark.parametrize(("case", "busy"), BURSTS)
def test_runs_are_as_long_as_their_percentiles_need(case: dict[str, Any], busy: float) -> None:
    agrees(opened("bursts", case, busy, seed=100, count=3))


def test_percentiles_that_chance_decides_are_said_to_be_so() -> None:
    """One request in twenty meets a full cache, or just does not: p95 is one or the other."""
    given: dict[str, Any] = {"gpu": "rtx4090", "weights": "fp8", "input_tokens": 153, "output_tokens": 1736}
    most = serve("Llama-3.1-8B", **given).estimate.requests_per_s
    busy, calm = (serve("Llama-3.1-8B", rate=share * most, **given).assumptions for share in (0.85, 0.4))
    assert any("bursts that are seldom" in note and "600,000 simulated requests" in note for note in busy)
    assert not any("bursts that are seldom" in note for note in calm)


def test_replicas_that_fall_behind_are_too_slow() -> None:
    """The closed form says 92 %: prompts of their own stop answers, so that 21.5 requests/s are answered of 23."""
    given: dict[str, Any] = {"gpu": "h100", "tp": 2, "engine": "sglang", "input_tokens": 512, "output_tokens": 128}
    most = serve("gpt-oss-120b", **given).estimate.requests_per_s
    found = serve("gpt-oss-120b", rate=0.95 * most, **given)
    assert found.under_load is not None
    assert not found.keeps_up
    assert found.verdict.startswith("Too slow")
    assert found.under_load.replicas_needed == 2
    run = simulate("gpt-oss-120b", rate=0.95 * most, requests=60_000, **given)
    answered = run.summary.requests_per_s
    assert found.under_load.utilisation_frac == pytest.approx(0.95 * most / answered, rel=0.05)
    assert serve("gpt-oss-120b", rate=0.5 * most, **given).keeps_up


def test_a_request_a_day_is_answered() -> None:
    lengths: dict[str, Any] = {"input_tokens": "1024:1024", "output_tokens": "256:256"}
    found = serve("Llama-3.1-8B", gpu="h100", rate=1 / 86400, **lengths).under_load
    assert found is not None
    alone = serve("Llama-3.1-8B", gpu="h100", concurrency=1).estimate
    assert found.ttft_s["p99"] == pytest.approx(alone.ttft_s.value, rel=0.05)


OTHERS: dict[str, dict[str, Any]] = {
    "7B that sees, H100": {"model": "Qwen2.5-VL-7B", "gpu": "h100", "input": 2000, "output": 128},
    "8B, H100, an adapter each": {"model": "Llama-3.1-8B", "gpu": "h100", "adapters": 8, "input": 1000, "output": 128},
    "8B, 2 + 1 L40S for prompts": {
        "model": "Llama-3.1-8B", "gpu": "l40s", "weights": "fp8", "prefill_gpus": 2, "input": 1000, "output": 700,
    },
    "70B, 8 + 24 x A100 for prompts": {
        "model": "Llama-3.3-70B", "gpu": "a100", "tp": 8, "engine": "tensorrt-llm", "prefill_gpus": 24, "input": 2000,
        "output": 256,
    },
    "gpt-oss-120b, 2 + 6 x H100 for prompts": {
        "model": "gpt-oss-120b", "gpu": "h100", "tp": 2, "engine": "sglang", "prefill_gpus": 6, "input": 1000,
        "output": 64,
    },
}  # fmt: skip
"""Deployments that closed forms had 15 to 40 % off: models with an image tower, and prompts on devices of their own."""


@pytest.mark.parametrize("name", OTHERS)
def test_pools_and_models_that_see_are_the_same_in_both(name: str) -> None:
    """Pools read prompts one by one: few requests wait for a second more, and a p99 among them takes many runs."""
    agrees(one for users in (4, 128) for one in closed(name, OTHERS[name], users))
    agrees(one for busy in (0.4, 0.7) for one in opened(name, OTHERS[name], busy, count=4))


@pytest.mark.parametrize(
    "given",
    [
        {"model": "DeepSeek-V3", "gpu": "h200", "tp": 8, "engine": "sglang", "prefill_gpus": 8},
        {"model": "Llama-3.1-8B", "gpu": "h100", "draft": "Llama-3.2-1B", "acceptance": 0.7},
        {"model": "Llama-3.1-8B", "gpu": "l40s", "weights": "fp8"},
    ],
)
def test_a_user_alone_has_the_first_token_as_soon_in_both(given: dict[str, Any]) -> None:
    """SGLang launches the prompts of a pool one by one; no draft runs beside a lone prompt; pieces of 2,048 tokens."""
    case = given | {"input": 3500, "output": 64}
    agrees(closed("alone", case, 1))
    if "draft" not in given:
        agrees(closed("alone", case, 1, closed_form=True))
