"""Requests a second of the serving simulator on one core, beside the plain-Python reference; compile times; a week.

Runs are timed by the processor time that they take, so that others on the machine do not count; compiling by the clock.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flopwise.cost.cluster import cluster
from flopwise.facts.catalog import load_facts
from flopwise.serving.job import ServeJob
from flopwise.serving.sim.autoscale import AutoscaledRun, Autoscaling, elastic
from flopwise.serving.sim.engine import Replica, replica
from flopwise.serving.sim.fleet import FastFleet
from flopwise.serving.sim.policies import POLICIES
from flopwise.serving.sim.simulate import Engine, simulate
from flopwise.serving.sim.trace import PS, Column, RequestTrace, read_trace_columns, trace

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "serving" / "sim"))
from reference import REFERENCE

REQUESTS, REFERENCE_REQUESTS = 1_000_000, 2_000
WEEK_S, DAY_S, TICK_S, LOADING_S = 7 * 86400, 86400, 15, 60
WEEK_REQUESTS, DAY_REQUESTS, MOST_REPLICAS, EACH = 3_000_000, 465_000, 8, 6
"""Requests of a day: 24 hours of 19,366, as many as the conversations of Azure's trace of 2023 have in an hour."""
COMPILE = "from flopwise.serving.sim.machine_code import core; core(shared=%s)"


class Speed(NamedTuple):
    """One measurement; `requests` 0: a time, not a rate."""

    what: str
    requests: int
    seconds: float
    target_s: float  # least rate or longest time, as seconds
    reference_s: float  # of the plain reference for as many requests, from a shorter run; NaN: not run


CASES: dict[str, tuple[float, dict[str, object]]] = {
    "Poisson, 10 requests/s": (10, {}),
    "Poisson, 30 requests/s": (30, {}),
    "overloaded, 100 requests/s": (100, {}),
    "all at once": (np.inf, {}),
    "4 replicas, round-robin, 80 requests/s": (80, {"replicas": 4}),
    "4 replicas, least loaded, 80 requests/s": (80, {"replicas": 4, "balancer": "least-loaded"}),
    "closed loop of 64 users": (np.inf, {"users": 64}),
    "one replica for prefill, one for decode, 20 requests/s": (20, {"prefill_replicas": 1}),
    "one replica for prefill, one for decode, the shortest first": (20, {"prefill_replicas": 1, "policy": "shortest"}),
    "all at once, the shortest first": (np.inf, {"policy": "shortest"}),
}
"""Arrivals a second, and how they are served."""


TRAFFIC: dict[str, tuple[float, dict[str, object]]] = {
    "arrivals, 20 requests/s": (20, {}),
    "all at once": (np.inf, {}),
    "4 replicas, all at once": (np.inf, {"replicas": 4}),
    "8 replicas, least loaded, 100 requests/s": (100, {"replicas": 8, "balancer": "least-loaded"}),
    "closed loop of 64 users": (np.inf, {"users": 64}),
    "closed loop of 10,000 users": (np.inf, {"users": 10_000}),
    "closed loop of 64 users, 4 replicas": (np.inf, {"users": 64, "replicas": 4}),
    "pools of 1 + 1, 20 requests/s": (20, {"prefill_replicas": 1}),
    "pools of 1 + 1, all at once": (np.inf, {"prefill_replicas": 1}),
    "pools of 2 + 4, 100 requests/s": (100, {"prefill_replicas": 2, "replicas": 4}),
    "pools of 2 + 4, all at once": (np.inf, {"prefill_replicas": 2, "replicas": 4}),
    "pools of 2 + 4, least loaded, 20 requests/s": (
        20, {"prefill_replicas": 2, "replicas": 4, "balancer": "least-loaded"},
    ),
    "pools of 1 + 1, closed loop of 64 users": (np.inf, {"users": 64, "prefill_replicas": 1}),
    "pools of 2 + 4, closed loop of 256 users": (np.inf, {"users": 256, "prefill_replicas": 2, "replicas": 4}),
}  # fmt: skip
"""Each of them is run with every policy."""


def deployment() -> Replica:
    """Llama-3.1-8B on an H100, as vLLM runs it."""
    facts = load_facts()
    machine, engine = cluster(facts.accelerator("H100-SXM-80"), gpus_per_node=8), facts.engine("vllm")
    model = facts.model("Llama-3.1-8B")
    job = ServeJob(model=model, cluster=machine, engine=engine, input_tokens=500, output_tokens=200)
    return replica(job)


def lengths(count: int, rng: np.random.Generator) -> tuple[Column, Column]:
    """Prompts of some 500 tokens and answers of some 190, log-normal."""
    prompt = np.clip(rng.lognormal(np.log(400), 0.7, count), 1, 6000).astype(np.int64)
    return prompt, np.clip(rng.lognormal(np.log(150), 0.7, count), 1, 2000).astype(np.int64)


def requests(count: int, rate: float) -> RequestTrace:
    """Arrivals at a rate, of five priorities, each with a deadline."""
    rng = np.random.default_rng(0)
    arrival = np.zeros(count) if np.isinf(rate) else np.cumsum(rng.exponential(1 / rate, count))
    prompt, output = lengths(count, rng)
    deadline = arrival + rng.exponential(20, count)
    return trace(arrival, prompt, output, priority=rng.integers(0, 5, count), deadline_s=deadline)


def timed(deployed: Replica, count: int, rate: float, engine: Engine, how: dict[str, object]) -> float:
    """Processor seconds from a trace to the result; the best of three where it is quick."""
    asked, best = requests(count, rate), np.inf
    for _ in range(1 if engine is REFERENCE else 3):
        start = time.process_time()
        simulate(asked, deployed.cost, deployed.limits, engine=engine, **how)  # type: ignore[arg-type]  # mixed types
        best = min(best, time.process_time() - start)
    return float(best)


def daily_trace(seconds: float, requests: int) -> RequestTrace:
    """Traffic by the time of day."""
    rng = np.random.default_rng(1)
    grid = np.linspace(0, seconds, 20_001)
    level = np.cumsum(1 + 0.8 * np.sin(2 * np.pi * grid / DAY_S))
    arrival = np.interp(np.sort(rng.random(requests)), level / level[-1], grid)
    return trace(arrival, *lengths(requests, rng))


def day(deployed: Replica) -> tuple[float, float]:
    """Processor seconds to read a day's trace from a file, and to run it with autoscaling."""
    asked = daily_trace(DAY_S, DAY_REQUESTS)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "day.csv"
        rows = zip((asked.arrival_ps / PS).tolist(), asked.prompt.tolist(), asked.output.tolist(), strict=True)
        path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{s:.3f},{p},{o}\n" for s, p, o in rows))
        start = time.process_time()
        columns = read_trace_columns(path)
        read = trace(*columns.values())
        between = time.process_time()
    assert len(autoscaled(deployed, read).simulated.trace) == DAY_REQUESTS
    return between - start, time.process_time() - between


def autoscaled(deployed: Replica, asked: RequestTrace) -> AutoscaledRun:
    """The requests on one to eight replicas, scaled every 15 seconds by requests in flight."""
    rule = Autoscaling(measure="concurrency", target=EACH, most=MOST_REPLICAS, tick_s=TICK_S, cold_start_s=LOADING_S)
    return elastic(asked, deployed.cost, deployed.limits, rule)


def compile_s(*, shared: bool) -> tuple[float, float]:
    """Seconds of a process that compiles the core, and of the next, which loads it without the compiler."""
    with tempfile.TemporaryDirectory() as folder:
        took = []
        for _ in range(2):
            start, env = time.perf_counter(), {**os.environ, "NUMBA_CACHE_DIR": folder}
            subprocess.run([sys.executable, "-c", COMPILE % shared], check=True, env=env)
            took.append(time.perf_counter() - start)
    return took[0], took[1]


def speeds() -> list[Speed]:
    """All measurements."""
    nan = float("nan")
    found = []
    for what, shared in {"": False, ", with shared prefixes": True}.items():
        cold, warm = compile_s(shared=shared)
        found.append(Speed(f"first use: compile{what}", 0, cold, 6.0, nan))
        found.append(Speed(f"later uses: load{what}", 0, warm, 1.0, nan))
    deployed = deployment()
    timed(deployed, 1000, 10.0, FastFleet, {})
    for what, (rate, how) in CASES.items():
        slow = timed(deployed, REFERENCE_REQUESTS, rate, REFERENCE, how) * REQUESTS / REFERENCE_REQUESTS
        seconds = timed(deployed, REQUESTS, rate, FastFleet, how)
        found.append(Speed(what, REQUESTS, seconds, REQUESTS / 3e6, slow))
    read_s, run_s = day(deployed)
    found.append(Speed("a day by the time of day, read from a file", DAY_REQUESTS, read_s, 0.2, nan))
    found.append(Speed("the same day, autoscaled", DAY_REQUESTS, run_s, 0.8, nan))
    start = time.process_time()
    week = autoscaled(deployed, daily_trace(WEEK_S, WEEK_REQUESTS))
    assert len(week.simulated.trace) == WEEK_REQUESTS
    found.append(Speed("a week by the time of day, autoscaled", WEEK_REQUESTS, time.process_time() - start, 5.0, nan))
    return found


def policies() -> list[str]:
    """Requests a second of all kinds of traffic with all policies, as lines of Markdown."""
    deployed = deployment()
    lines = ["", f"Million requests/s, of {REQUESTS:,}, by policy:", "", f"| traffic | {' | '.join(POLICIES)} |"]
    lines.append("|---|" + "---:|" * len(POLICIES))
    for what, (rate, how) in TRAFFIC.items():
        seconds = [timed(deployed, REQUESTS, rate, FastFleet, {**how, "policy": policy}) for policy in POLICIES]
        lines.append(f"| {what} | " + " | ".join(f"{REQUESTS / s / 1e6:.2f}" for s in seconds) + " |")
    return lines


def table() -> list[str]:
    """The measurements as lines of Markdown."""
    lines = ["| simulation | requests | time | requests/s | time / target | the plain reference takes |"]
    lines.append("|---|---:|---:|---:|---:|---:|")
    for s in speeds():
        rate = f"{s.requests / s.seconds / 1e6:.2f} M" if s.requests else ""
        share = "" if np.isnan(s.target_s) else f"{s.seconds / s.target_s:.2f}"
        slower = "" if np.isnan(s.reference_s) else f"{s.reference_s / s.seconds:,.0f} times as long"
        count = f"{s.requests:,}" if s.requests else ""
        lines.append(f"| {s.what} | {count} | {s.seconds:.2f} s | {rate} | {share} | {slower} |")
    return lines + policies()


if __name__ == "__main__":
    print("\n".join(table()))
