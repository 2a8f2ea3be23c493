"""A load test with the plan's own traffic: a scenario for guidellm, and a Locust file that holds the plan's targets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flopwise.errors import SpecError
from flopwise.exports.deployment import Deployment
from flopwise.exports.emit import comment_text, json_text, script_text
from flopwise.exports.exported import Files
from flopwise.exports.server import program_text
from flopwise.serving.sim.lengths import Lengths

SECONDS = 300
"""How long the load lasts: some time longer than requests wait in line, and 100 of them at one in three seconds."""
GUIDELLM, LOCUST = "0.8.1", "2.47.0"
SAMPLE = 1000
"""Requests whose lengths are drawn, or read from a trace; they are sent in turn."""
SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "mean": None}
"""Shares of requests that hold a target; None: the mean does."""


def refusals(deployment: Deployment) -> Iterator[str]:
    """Why there is no load to make."""
    if deployment.workload.requests_per_s is None and deployment.workload.concurrency is None:
        yield "the plan has neither a rate of requests nor requests in flight: give traffic.requests_per_s"
    if deployment.workload.sessions is not None:
        yield "turns of sessions wait for the answers before them, and these programs send independent requests"
    try:
        _lengths(deployment)
    except SpecError as error:
        yield f"the lengths of requests cannot be read: {error}"


def export(deployment: Deployment) -> Files:
    """`guidellm.json` and `locustfile.py` with `load.json`, each with the script that starts it."""
    load = _load(deployment)
    address = 'target="${1:?address of the server or of its gateway, such as http://127.0.0.1:8000}"'
    about = comment_text(f"Sends the traffic that the plan of {deployment.title} is sized for.")
    guidellm = 'exec guidellm run --config guidellm.json --backend "$backend,target=$target" "${@:2}"'
    backend = f'backend="kind=openai_http,request_format=/v1/{load["api"]}"'
    locust = 'exec locust --headless --locustfile locustfile.py --host "$target" --users 1 "${@:2}"'
    return Files(
        files={
            "load-guidellm.sh": script_text(about, address, backend, guidellm),
            "guidellm.json": json_text(_scenario(load)),
            "load-locust.sh": script_text(f"{about}\n# Exits with 1 if a target is missed.", address, locust),
            "locustfile.py": program_text("locustfile.py"),
            "load.json": json_text(load),
        },
        apply=(
            f"pip install guidellm=={GUIDELLM} && bash load-guidellm.sh ADDRESS",
            f"pip install locust=={LOCUST} && bash load-locust.sh ADDRESS",
        ),
        assumptions=tuple(_assumptions(deployment)),
    )  # fmt: skip


def _load(deployment: Deployment) -> dict[str, Any]:
    """The traffic, and the targets with the share of requests that has to hold them; times in seconds."""
    workload, encodes = deployment.workload, deployment.task == "encode"
    targets = {"ttft": workload.ttft, "tpot": workload.tpot, "latency": workload.latency}
    if encodes:  # the first token of what answers in one pass is the whole answer
        targets = {"latency": workload.latency or workload.ttft}
    return {
        "api": "embeddings" if encodes else "completions",
        "requests_per_s": workload.requests_per_s, "concurrency": workload.concurrency, "seconds": SECONDS,
        "arrivals": workload.arrivals, "burstiness": workload.burstiness,
        "shared_prefix_tokens": deployment.serve_job.techniques.shared_tokens,
        "targets": {
            name: {"share": SHARES[target.percentile], "seconds": target.seconds}
            for name, target in targets.items() if target is not None
        },
        "lengths": _lengths(deployment),
    }  # fmt: skip


def _lengths(deployment: Deployment) -> list[list[int]]:
    """Tokens of prompts and answers: one pair where all are alike, else `SAMPLE`.

    Raises: SpecError: the trace cannot be read.
    """
    workload = deployment.workload
    if workload.trace is not None:
        from flopwise.serving.sim.trace import read_trace_columns  # noqa: PLC0415 - few workloads have one

        columns = read_trace_columns(Path(workload.trace))
        pairs = np.stack([columns["prompt_tokens"], columns["output_tokens"]], axis=1)[:SAMPLE]
        return [[int(prompt), int(answer)] for prompt, answer in pairs]
    if workload.inputs is None and workload.outputs is None:
        return [[workload.input_tokens, workload.output_tokens]]
    rng = np.random.default_rng(0)
    prompts, answers = (
        Lengths.parse(text or str(mean)).draw(SAMPLE, rng)
        for text, mean in ((workload.inputs, workload.input_tokens), (workload.outputs, workload.output_tokens))
    )
    return [[int(prompt), int(answer)] for prompt, answer in zip(prompts, answers, strict=True)]


def _scenario(load: dict[str, Any]) -> dict[str, Any]:
    """The scenario of guidellm: lengths by mean, spread and ends; targets in milliseconds."""
    rate, shared = load["requests_per_s"], load["shared_prefix_tokens"]
    even = load["arrivals"] == "uniform"
    profile = (
        {"kind": "concurrent", "streams": load["concurrency"]}
        if rate is None
        else {"kind": "constant" if even else "poisson", "rate": rate}
    )
    prompts, answers = np.asarray(load["lengths"], dtype=float).T
    data: dict[str, Any] = {"kind": "synthetic_text", **_spread("prompt_tokens", np.maximum(prompts - shared, 1))}
    data |= {} if load["api"] == "embeddings" else _spread("output_tokens", answers)
    data |= {"prefix_tokens": shared, "prefix_count": 1} if shared else {}
    names = {"ttft": "ttft_ms", "tpot": "tpot_ms", "latency": "e2el_ms"}
    goals = {names[name]: 1000 * target["seconds"] for name, target in load["targets"].items()}
    return {
        "spec": {
            "profile": profile,
            "constraints": [{"kind": "max_duration", "seconds": load["seconds"]}],
            "data": [data],
            "metrics": {"kind": "generative", "sample_size": 0, **({"slo": goals} if goals else {})},
            "outputs": [{"kind": "json", "path": "guidellm-report.json"}, {"kind": "console"}],
        }
    }


def _spread(name: str, tokens: Any) -> dict[str, int]:
    """A length's mean, and its standard deviation and ends where it has any."""
    mean, stdev = round(float(tokens.mean())), round(float(tokens.std()))
    ends = {f"{name}_stdev": stdev, f"{name}_min": int(tokens.min()), f"{name}_max": int(tokens.max())}
    return {name: mean} | (ends if stdev else {})


def _assumptions(deployment: Deployment) -> Iterator[str]:
    """Differences between the load and the plan's traffic, and remarks on its results."""
    workload = deployment.workload
    yield f"the load lasts {SECONDS} s: set `seconds` in load.json, and of max_duration in guidellm.json, for longer"
    if deployment.replicas > 1:
        yield f"the rate is that of all {deployment.replicas:,} replicas: send it to their load balancer"
    if workload.arrivals == "gamma":
        yield "guidellm sends Poisson arrivals, not the plan's gamma arrivals; Locust sends those"
    shares = {target.percentile for target in (workload.ttft, workload.tpot, workload.latency) if target is not None}
    if shares:
        yield (
            "guidellm reports the share of requests that meet all targets together (SLO attainment); the plan's "
            f"targets hold at {', '.join(sorted(shares))}, each separately, as Locust checks them"
        )
    if deployment.serving is not None and deployment.serving.techniques.hit_frac:
        yield "prompts share only a common prefix: the plan's share of cached tokens is not reproduced"
