"""How near `serve` and `simulate` are: the plain two commands with the same flags, in closed and open loops.

Both mean the same traffic: users who begin together and send ten requests each, or arrivals at random, of lengths that
vary a little (`flopwise.serving.closed_loop`). `serve` draws other requests than these here. Differences of TTFT, TPOT
and throughput are the figures of `serve` over those of `simulate`, less one; each has the standard error of the runs.

python benchmarks/serve_and_simulate.py          a table of all cases, and how many are within a tenth
python benchmarks/serve_and_simulate.py 100      so many drawn commands instead
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

import flopwise
from flopwise.api.simulate import SIMULATED
from flopwise.keywords import takes
from flopwise.serving.answer import ServeAnswer
from flopwise.serving.sim.finite import ENOUGH_OF_LOOPS, num_draws
from flopwise.serving.sim.request import request_of, simulation_request
from flopwise.serving.sim.result import RunSummary, SimulatedRun

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
SEEDS = range(100, 116)
"""Seeds of the runs of a closed loop."""
WARM, SPANS = 0.25, 10
"""Share at the beginning and at the end of an open loop that is left out, as no steady state is there; and the spans of
the rest whose percentiles give their standard error (batch means: Law, Simulation modeling and analysis, 9.5.3)."""
ARRIVALS, SEED = 600_000, 5
"""Requests of an open loop: others than those that `serve` draws, so many that their p99 at 95 % load is settled."""
FEWER_ARRIVALS, BUSY_ENOUGH = 150_000, 0.8
"""Up to this load fewer settle it: a queue forgets how it began after some 1 / (1 - rho)^2 services (Cohen 1982, The
single server queue, III.7.3), of which there are as many in a quarter of the requests as at 90 % in all."""
LONGEST_S = 2e6
NEAR = 0.10
ERRORS = 3.0
"""Standard errors of the runs by which figures may be further apart."""
SHARES = ("p50", "p95", "p99")

MODELS = {
    "Llama-3.1-8B": (1, 2), "Qwen2.5-7B": (1, 2), "gemma-2-9b": (1, 2), "Qwen3-30B-A3B": (2, 4), "gpt-oss-20b": (1, 2),
    "Nemotron-H-8B": (1, 2), "Llama-3.3-70B": (4, 8), "gpt-oss-120b": (2, 4), "Qwen3-235B-A22B": (8,),
    "DeepSeek-V3": (8,),
}  # fmt: skip
DEVICES = {1: ("l40s", "a100", "h100", "rtx4090", "mi300x"), 2: ("a100", "h100", "mi300x"), 4: ("h100", "h200"),
           8: ("h200", "b200", "mi355x")}  # fmt: skip
ENGINES = (None, None, "sglang", "vllm")
"""What drawn commands are made of: models with tensor-parallel degrees, devices by degree, and engines."""


class Difference(NamedTuple):
    """One figure of one case; `error_frac`: the standard error of the runs, over the figure."""

    deployment: str
    load: str
    figure: str
    serve: float
    simulate: float
    error_frac: float = 0.0

    @property
    def ratio(self) -> float:
        """Of `serve` over `simulate`."""
        return self.serve / self.simulate

    @property
    def near(self) -> bool:
        """True if both agree within a tenth, or as far as chance allows."""
        return abs(self.ratio - 1) <= max(NEAR, ERRORS * self.error_frac)


def _options(case: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in case.items() if name != "model"}


def runs(case: dict[str, Any], seeds: Iterable[int], **traffic: Any) -> list[SimulatedRun]:
    """What `simulate` runs for each of the consecutive seeds, with the step costs of all of them."""
    first, *others = seeds
    asked = takes(*SIMULATED)(simulation_request)(case["model"], seed=first, **traffic, **_options(case))
    return request_of(asked.job, asked.traffic, asked.scheduling, asked.facts, (), draws=1 + len(others)).run_draws(1)


@lru_cache(maxsize=32)
def _closed_runs(users: int, **case: Any) -> tuple[list[SimulatedRun], list[RunSummary]]:
    """The runs of `users` in a closed loop, one a seed; kept, as a closed form is held against the same."""
    made = runs(case, SEEDS, users=users)
    return made, [run.summary() for run in made]


def closed(name: str, case: dict[str, Any], users: int, *, closed_form: bool = False) -> list[Difference]:
    """Percentiles and throughput of `users` in a closed loop; of the closed form its means."""
    asked = flopwise.serve(case["model"], concurrency=users, closed_form=closed_form, **_options(case))
    made, summaries = _closed_runs(users, **case)
    rates = [summary.requests_per_s for summary in summaries]
    figures = {"requests/s": (asked.estimate.requests_per_s, rates)}
    if asked.closed_loop is None:
        pairs = ((asked.estimate.ttft_s, "ttft_s"), (asked.estimate.tpot_s, "tpot_s"))
        for mean, column in pairs:
            drawn = [float(np.nanmean(getattr(run, column))) for run in made]
            if mean is not None and drawn[0] > 0:
                figures[f"{column[:4].upper()} mean"] = (mean.value, drawn)
    else:
        for column in ("ttft_s", "tpot_s"):
            for p in SHARES:
                drawn = [getattr(getattr(summary, column), p) for summary in summaries]
                if drawn[0] == drawn[0]:  # none of answers of one token
                    figures[f"{column[:4].upper()} {p}"] = (getattr(asked.closed_loop, column)[p], drawn)
    load, drawn_by_serve = f"{users} users", num_draws(len(made[0].trace), ENOUGH_OF_LOOPS)
    return [
        Difference(name, load, figure, float(value), float(np.mean(drawn)), _error_frac(drawn, drawn_by_serve))
        for figure, (value, drawn) in figures.items()
    ]


def _error_frac(drawn: Sequence[float], others: int | None = None) -> float:
    """The standard error of the difference of two means, over the mean: of those `drawn`, and of so many `others`."""
    count = len(drawn)
    return float(np.std(drawn, ddof=1) * np.sqrt(1 / count + 1 / (others or count)) / np.mean(drawn))


def opened(name: str, case: dict[str, Any], busy: float, *, seed: int = SEED, count: int = 1) -> list[Difference]:
    """Percentiles under Poisson arrivals at a share of what the deployment sustains, of so many runs together."""
    return _against_runs(name, case, busy, *answer_at(case, busy), seed=seed, count=count)


def _against_runs(
    name: str, case: dict[str, Any], busy: float, rate: float, steady: ServeAnswer, *, seed: int = SEED, count: int = 1,
    arrivals: int = ARRIVALS,
) -> list[Difference]:  # fmt: skip
    """The differences of `steady`, what `serve` says at `rate`, from runs of as many `arrivals`."""
    arrivals = min(arrivals if busy > BUSY_ENOUGH else FEWER_ARRIVALS, int(LONGEST_S * rate))
    made = runs(case, range(seed, seed + count), rate=rate, requests=arrivals)
    waits = steady.under_load
    assert waits is not None
    found, load = list[Difference](), f"{busy:.0%} busy"
    for column in ("ttft_s", "tpot_s"):
        seconds = [_middle(np.asarray(getattr(run, column))) for run in made]
        seconds = [one[~np.isnan(one)] for one in seconds]  # of what is refused, and of answers of one token, none
        mean = getattr(steady.estimate, column)
        if not seconds[0].size:
            continue
        spans = [span for one in seconds for span in np.array_split(one, SPANS)]
        figures: dict[str, tuple[float, Callable[..., Any]]] = {"mean": (mean.value, np.mean)}
        for p in SHARES:
            figures[p] = getattr(waits, column)[p], partial(np.percentile, q=float(p[1:]))
        for figure, (value, of) in figures.items():
            error_frac = max(_error_frac([float(of(span)) for span in spans]), _stated_error(steady))
            seen = float(of(np.concatenate(seconds)))
            found.append(Difference(name, load, f"{column[:4].upper()} {figure}", value, seen, error_frac))
    return found


@lru_cache(maxsize=64)
def _without_load(**case: Any) -> ServeAnswer:
    """What `serve` says of a deployment; kept, as loads are shares of what it sustains."""
    return flopwise.serve(case["model"], **_options(case))


def answer_at(case: dict[str, Any], busy: float) -> tuple[float, ServeAnswer]:
    """(requests/s at a share of what the deployment sustains, what `serve` says of it)."""
    rate = busy * _without_load(**case).estimate.requests_per_s
    return rate, flopwise.serve(case["model"], rate=rate, **_options(case))


def _stated_error(answer: ServeAnswer) -> float:
    """The standard error that an answer states of its own percentiles."""
    words = next((note for note in answer.assumptions if note.startswith("bursts that are seldom")), "")
    return float(words.partition(" is known to ")[2].partition("%")[0]) / 100 if words else 0.0


def _middle(values: np.ndarray, share: float = WARM) -> np.ndarray:
    cut = int(share * len(values))
    return values[cut : len(values) - cut]


def drawn_commands(count: int, seed: int = 0) -> Iterator[tuple[str, dict[str, Any], int | float]]:
    """(words, command, users or share of capacity): models x devices x tp x load x lengths, fixed or drawn."""
    chance = np.random.default_rng(seed)

    def one(choices: Sequence[Any]) -> Any:
        return choices[int(chance.integers(len(choices)))]

    for number in range(count):
        model = one([*MODELS])
        tp = one(MODELS[model])
        case: dict[str, Any] = {"model": model, "gpu": one(DEVICES[tp]), "tp": tp}
        engine = one(ENGINES)
        case |= {} if engine is None else {"engine": engine}
        for what, least, most in (("input", 32, 8_000), ("output", 8, 1_000)):
            tokens = round(float(np.exp(chance.uniform(np.log(least), np.log(most)))))
            spread = one((None, None, 0.0, float(chance.uniform(0.2, 0.8))))
            case[what] = (
                tokens if spread is None
                else f"{max(1, round(tokens * (1 - spread)))}:{max(1, round(tokens * (1 + spread)))}"
            )  # fmt: skip
        load = one(BUSY) if number % 2 else round(float(np.exp(chance.uniform(0.0, np.log(256)))))
        yield " ".join(f"{value}" for value in case.values()), case, load


def compared(name: str, case: dict[str, Any], load: float, *, arrivals: int = ARRIVALS) -> list[Difference]:
    """The differences of a drawn command; none where the model does not fit, or the replica cannot keep up."""
    if not _without_load(**case).fits:
        return []
    if isinstance(load, int):
        return closed(name, case, load)
    rate, steady = answer_at(case, load)
    return _against_runs(name, case, load, rate, steady, arrivals=arrivals) if steady.keeps_up else []


def main() -> None:
    """Run all cases, and print what differs."""
    rows: list[Difference] = []
    if len(sys.argv) > 1:
        for command in drawn_commands(int(sys.argv[1])):
            rows += compared(*command)
    else:
        for name, case in DEPLOYMENTS.items():
            for users in USERS:
                rows += closed(name, case, users)
            for busy in BUSY:
                rows += opened(name, case, busy)
    for row in rows:
        mark = " " if row.near else "*"
        figures = f"{row.serve:10.4g} {row.simulate:10.4g} {row.ratio - 1:+7.1%}"
        sys.stdout.write(f"{mark} {row.deployment:32} {row.load:10} {row.figure:11} {figures}\n")
    near = sum(abs(row.ratio - 1) <= NEAR for row in rows)
    sys.stdout.write(f"{near} of {len(rows)} within {NEAR:.0%}\n")


if __name__ == "__main__":
    main()
