"""How near `serve` and `simulate` are: eight deployments at four loads, in closed and open loops.

Both know the same steps. `serve` adds up a steady state; `simulate` plays every step of its engine. Differences of
TTFT, TPOT and throughput are the simulator's figures over those of the closed form, less one.

python benchmarks/serve_and_simulate.py    a table of all cases, and how many are within a tenth
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

import flopwise

DEPLOYMENTS: dict[str, dict[str, Any]] = {
    "8B, H100, chat": {"model": "Llama-3.1-8B", "gpu": "h100", "input": 1024, "output": 256},
    "8B, H100, long prompts": {"model": "Llama-3.1-8B", "gpu": "h100", "input": 8000, "output": 64},
    "8B, H100, long answers": {"model": "Llama-3.1-8B", "gpu": "h100", "input": 128, "output": 1024},
    "8B fp8, RTX 4090": {"model": "Llama-3.1-8B", "gpu": "rtx4090", "weights": "fp8", "input": 512, "output": 128},
    "70B fp8, 4 x H100": {
        "model": "Llama-3.3-70B", "gpu": "h100", "tp": 4, "weights": "fp8", "input": 2000, "output": 300,
    },
    "70B, 8 x A100, TensorRT-LLM": {
        "model": "Llama-3.3-70B", "gpu": "a100", "tp": 8, "engine": "tensorrt-llm", "input": 1024, "output": 512,
    },
    "gpt-oss-120b, 2 x H100, SGLang": {
        "model": "gpt-oss-120b", "gpu": "h100", "tp": 2, "engine": "sglang", "input": 1024, "output": 512,
    },
    "Nemotron-H-8B, H100": {"model": "Nemotron-H-8B", "gpu": "h100", "input": 1024, "output": 256},
}  # fmt: skip
"""A model each, on a machine, with lengths."""
USERS = (1, 8, 32, 128)
BUSY = (0.3, 0.5, 0.7, 0.9)
"""Arrivals over what the deployment sustains."""
WARM = 0.25
"""Share at the beginning and at the end of an open loop that is left out, as no steady state is there."""
ROUNDS, LEAST_REQUESTS, LEAST = 10, 30, 8 / 9
"""Requests of each user of a closed loop, as many as published benchmarks send (InferenceMAX: ten times the
concurrency), but so many in all; and where their lengths begin, over the mean (0.8 to 1 of the nominal ones)."""
ARRIVALS, SEED = 600_000, 5
"""Requests of an open loop: others than those that `serve` draws, so many that their p99 at 95 % load is settled."""
LONGEST_S = 2e6
NEAR = 0.10


class Difference(NamedTuple):
    """One figure of one case."""

    deployment: str
    load: str
    figure: str
    serve: float
    simulate: float

    @property
    def ratio(self) -> float:
        """Closed form over simulator."""
        return self.serve / self.simulate


def _options(case: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in case.items() if name not in ("model", "input", "output")}


def _middle(values: np.ndarray, share: float = WARM) -> np.ndarray:
    cut = int(share * len(values))
    return values[cut : len(values) - cut]


def closed(name: str, case: dict[str, Any], users: int) -> list[Difference]:
    """Means of a closed loop of `users`: a run of as many rounds as load generators make, begun by all at once.

    What a user alone waits has steps (the last prompt that graphs hold), so that its mean is that over the lengths.
    """
    lengths = {"input_tokens": case["input"], "output_tokens": case["output"]}
    shares = np.linspace(LEAST, 2 - LEAST, 9) if users == 1 else np.ones(1)
    asked = [{what: round(share * n) for what, n in lengths.items()} for share in shares]
    steady = [flopwise.serve(case["model"], concurrency=users, **each, **_options(case)).estimate for each in asked]
    drawn: dict[str, Any] = {what: f"{round(LEAST * n)}:{round((2 - LEAST) * n)}" for what, n in lengths.items()}
    run = flopwise.simulate(
        case["model"], users=users, requests=max(ROUNDS * users, LEAST_REQUESTS), together=True, **drawn,
        **_options(case),
    ).simulated  # fmt: skip
    ttft, tpot = np.asarray(run.ttft_s), np.asarray(run.tpot_s)
    rate = users / float(np.mean(run.e2e_s))  # Little's law; the end of the run, when few are left, is no steady state
    load = f"{users} users"
    figures = {
        "TTFT mean": (np.mean([one.ttft_s.value for one in steady if one.ttft_s]), ttft.mean()),
        "TPOT mean": (np.mean([one.tpot_s.value for one in steady if one.tpot_s]), tpot.mean()),
        "requests/s": (1 / np.mean([1 / one.requests_per_s for one in steady]), rate),
    }
    return [Difference(name, load, figure, float(a), float(b)) for figure, (a, b) in figures.items()]


def opened(name: str, case: dict[str, Any], busy: float, *, seed: int = SEED, runs: int = 1) -> list[Difference]:
    """Percentiles under Poisson arrivals at a share of what the deployment sustains, of so many `runs` together."""
    lengths = {"input_tokens": case["input"], "output_tokens": case["output"]}
    most = flopwise.serve(case["model"], **lengths, **_options(case)).estimate.requests_per_s
    arrivals = min(ARRIVALS, int(LONGEST_S * busy * most))
    steady = flopwise.serve(case["model"], rate=busy * most, **lengths, **_options(case))
    made = [
        flopwise.simulate(
            case["model"], rate=busy * most, requests=arrivals, seed=seed + run, **lengths, **_options(case)
        ).simulated
        for run in range(runs)
    ]
    waits, estimate = steady.under_load, steady.estimate
    assert waits is not None
    assert estimate.ttft_s is not None
    assert estimate.tpot_s is not None
    ttft = np.concatenate([_middle(np.asarray(run.ttft_s)) for run in made])
    tpot = np.concatenate([_middle(np.asarray(run.tpot_s)) for run in made])
    load = f"{busy:.0%} busy"
    found = [
        Difference(name, load, "TTFT mean", estimate.ttft_s.value, float(ttft.mean())),
        Difference(name, load, "TPOT mean", estimate.tpot_s.value, float(tpot.mean())),
    ]
    for p in ("p50", "p95", "p99"):
        share = float(p[1:])
        found.append(Difference(name, load, f"TTFT {p}", waits.ttft_s[p], float(np.percentile(ttft, share))))
        found.append(Difference(name, load, f"TPOT {p}", waits.tpot_s[p], float(np.percentile(tpot, share))))
    return found


def main() -> None:
    """Run all cases, and print what differs."""
    rows: list[Difference] = []
    for name, case in DEPLOYMENTS.items():
        for users in USERS:
            rows += closed(name, case, users)
        for busy in BUSY:
            rows += opened(name, case, busy)
    for row in rows:
        mark = " " if abs(row.ratio - 1) <= NEAR else "*"
        figures = f"{row.serve:10.4g} {row.simulate:10.4g} {row.ratio - 1:+7.1%}"
        sys.stdout.write(f"{mark} {row.deployment:32} {row.load:10} {row.figure:11} {figures}\n")
    near = sum(abs(r.ratio - 1) <= NEAR for r in rows)
    sys.stdout.write(f"{near} of {len(rows)} within {NEAR:.0%}\n")


if __name__ == "__main__":
    main()
