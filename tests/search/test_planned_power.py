"""What the replicas of a plan draw and sustain: by hand from their steps, and as `serve` says of each alone.

`serve`'s own figures are worked out by hand in tests/serving/test_golden_bill.py and test_golden_techniques.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flopwise.facts.catalog import load_facts
from flopwise.search.answer import RejectionLog
from flopwise.search.deployments import (
    Deployments,
    ReplicaQuestion,
    SizedReplicas,
    deployments_together,
    sized_replicas,
)
from flopwise.search.nodes import node_kinds
from flopwise.search.plan_serving import nodes_with_engine
from flopwise.search.replica import DEGREES, with_facts
from flopwise.search.workload_file import workload_from
from flopwise.serving.answer import percentiles
from flopwise.serving.estimate import estimate
from flopwise.serving.job import ServeJob
from flopwise.serving.memory import ServingLayout

FACTS = load_facts()
LENGTHS = {"input_tokens": 700, "output_tokens": 150}
IDLE = 0.10
"""Of a device's limit, while it waits; 0.95 computing, 0.65 reading memory, 0.40 sending (Latif et al. 2024,
arXiv:2412.08602; Patel et al. 2023, arXiv:2308.12908)."""
Question = tuple[ReplicaQuestion, SizedReplicas, Deployments]


def question(model: str, traffic: dict[str, Any], **how: Any) -> Question:
    """Replicas of a workload on machines of eight devices."""
    gpu, weights, kv_dtype = how.pop("gpu", "h100"), how.pop("weights", "fp8"), how.pop("kv_dtype", "bf16")
    asked = {"model": model, "task": how.pop("task", "serve"), "constraints": {"gpus": [gpu], "max_gpus": 16}}
    workload = with_facts(workload_from({**asked, "techniques": how, "traffic": traffic}), FACTS)
    log, known = RejectionLog(), FACTS.model(model)
    nodes = nodes_with_engine(node_kinds(workload, FACTS, log), workload, known, log)
    node = next(one for one in nodes if one.count == 8)
    forms = FACTS.weight_format(weights), FACTS.cache_format(kv_dtype)
    asked_of = ReplicaQuestion.of(known, workload, node, *forms)
    sized = sized_replicas(asked_of)
    assert isinstance(sized, SizedReplicas)
    (rows,) = deployments_together([(asked_of, sized)])
    assert rows is not None
    return asked_of, sized, rows


def each_alone(asked: Question, *, most: float) -> Iterator[tuple[int, ServeJob]]:
    """The rows of up to `most` sequences on each of several attention replicas, and the job of each."""
    of, sized, rows = asked
    for row in np.flatnonzero((rows.dp > 1) & (rows.batch <= most)).tolist():
        layout = ServingLayout(**{name: int(getattr(rows, name)[row]) for name in DEGREES})
        if layout.tp * layout.pp > 8 or rows.requests_per_s[row] <= 0:
            continue
        job = replace(sized.job, layout=layout, concurrency=int(rows.batch[row]) * int(layout.dp))
        rate, users = of.workload.requests_per_s, of.workload.concurrency
        if rate is not None:
            job = replace(job, arrivals_per_s=rate / rows.replicas[row])
        elif users is not None:
            job = replace(job, users=users / rows.replicas[row])
        yield row, job


def drawn(compute: Any, reading: Any, sending: Any) -> Any:
    """Of a device's limit, for shares of its time."""
    return 0.95 * compute + 0.65 * reading + 0.40 * sending + IDLE * (1 - compute - reading - sending)


@pytest.mark.parametrize(
    ("model", "gpu", "kv_dtype"), [("Mixtral-8x7B", "h100", "bf16"), ("Qwen3-8B", "A100-SXM-80", "fp8")]
)
def test_full_replicas_draw_what_their_steps_are_made_of(model: str, gpu: str, kv_dtype: str) -> None:
    """A100s have no units for 8-bit caches, whose conversion to 16 bits counts as computing."""
    _, sized, rows = question(model, {"concurrency": 512, **LENGTHS}, gpu=gpu, kv_dtype=kv_dtype)
    assert sized.steady is not None
    step = sized.steady.decode
    computing = np.asarray(step.compute_s) + step.conversion_s
    assert bool(np.any(np.asarray(step.conversion_s) > 0)) == (kv_dtype == "fp8")
    shares = (computing / step.seconds, step.memory_s / step.seconds, step.communication_s / step.seconds)
    assert rows.watts_frac == pytest.approx(np.broadcast_to(drawn(*shares), rows.batch.shape), rel=1e-9)


def test_users_of_pools_and_what_those_draw() -> None:
    """Attention replicas sustain their rates together, and those that decode keep all of them busy."""
    asked = question("Mixtral-8x7B", {"concurrency": 64, **LENGTHS}, prefill_gpus=8)
    _, _, rows = asked
    seen = 0
    for row, job in each_alone(asked, most=4):
        alone = estimate(job)
        assert rows.requests_per_s[row] == pytest.approx(alone.requests_per_s, rel=1e-5)
        assert alone.watts is not None
        assert rows.watts_frac[row] == pytest.approx(alone.watts / 700.0, rel=0.01)
        seen += 1
    assert seen >= 8


def test_an_instance_that_reads_prompts_holds_all_experts_that_its_ranks_share() -> None:
    """Mixtral's 46.7 B parameters in 16 bits are 87 GiB: an H100 decodes with half of the experts, as two attention
    replicas share them, but reads no prompts with them; in 8 bits, 44 GiB, it does both."""
    for weights, reads in (("bf16", False), ("fp8", True)):
        _, _, rows = question("Mixtral-8x7B", {"concurrency": 64, **LENGTHS}, weights=weights, prefill_gpus=8)
        assert bool(np.any((rows.tp == 1) & (rows.dp == 2))) == reads
        assert np.any((rows.tp == 2) & (rows.dp == 2))
    _, _, together = question("Mixtral-8x7B", {"concurrency": 64, **LENGTHS}, weights="bf16")
    assert np.any((together.tp == 1) & (together.dp == 2))


def test_arrivals_at_pools_and_what_those_draw() -> None:
    """Each attention replica has its share of the arrivals: its queue, its steps, and the power of both pools."""
    asked = question("Mixtral-8x7B", {"requests_per_s": 7.0, **LENGTHS}, prefill_gpus=8)
    _, _, rows = asked
    seen = 0
    for row, job in each_alone(asked, most=4):
        assert job.arrivals_per_s is not None
        ranks = int(job.layout.dp)
        sustained, at = percentiles(job, float(rows.batch[row]), job.arrivals_per_s / ranks, ("p95",))
        assert rows.requests_per_s[row] == pytest.approx(ranks * sustained, rel=1e-6)
        assert rows.ttft_s[row] == pytest.approx(float(at["p95"].ttft_s), rel=0.01)
        assert rows.busy_frac[row] == pytest.approx(job.arrivals_per_s / ranks / sustained, rel=1e-6)
        watts = estimate(job).watts
        assert watts is not None
        assert rows.watts_frac[row] == pytest.approx(watts / 700.0, rel=0.03)
        seen += 1
    assert seen >= 8


@pytest.mark.parametrize("techniques", [{}, {"prefill_gpus": 8}])
def test_replicas_for_a_peak_draw_what_its_mean_takes(techniques: dict[str, Any]) -> None:
    """Sized for twice the rate, and busy with the rate: as the same number of replicas without a peak."""
    _, _, peak = question("Mixtral-8x7B", {"requests_per_s": 20.0, "peak": 2.0, **LENGTHS}, **techniques)
    _, _, calm = question("Mixtral-8x7B", {"requests_per_s": 20.0, **LENGTHS}, **techniques)
    _, _, flat = question("Mixtral-8x7B", {"requests_per_s": 40.0, **LENGTHS}, **techniques)
    assert (peak.replicas == flat.replicas).all()
    alike = peak.replicas == calm.replicas
    assert alike.sum() > 20
    assert peak.watts_frac[alike] == pytest.approx(calm.watts_frac[alike], rel=1e-6)
    assert (peak.watts_frac < flat.watts_frac - 1e-4).sum() > 20


def test_attention_replicas_step_together_under_arrivals() -> None:
    """All of a replica's devices run as soon as one of them has a request: 1 - (1 - p) ** ranks of the time."""
    asked = question("Mixtral-8x7B", {"requests_per_s": 7.0, **LENGTHS})
    _, _, rows = asked
    seen = 0
    for row, job in each_alone(asked, most=4):
        watts = estimate(job).watts
        assert watts is not None
        assert rows.watts_frac[row] == pytest.approx(watts / 700.0, rel=0.06)
        seen += 1
    assert seen >= 8


def test_a_lone_input_keeps_a_replica_busy_for_its_own_pass() -> None:
    """Inputs that come one by one are read one by one: r s(1) of the time, though batches of 64 are allowed."""
    rate = 0.5
    _, _, rows = question(
        "bge-large-en-v1.5", {"requests_per_s": rate, "input_tokens": 512}, task="encode", weights="fp16"
    )
    _, _, full = question(
        "bge-large-en-v1.5", {"concurrency": 10**6, "input_tokens": 512}, task="encode", weights="fp16"
    )
    assert (rows.batch == full.batch).all()
    ones = {tuple(getattr(rows, n)[row] for n in DEGREES): row for row in np.flatnonzero(rows.batch == 1).tolist()}
    for row in np.flatnonzero(rows.batch >= 8).tolist():
        one = ones[tuple(getattr(rows, n)[row] for n in DEGREES)]
        alone_s = 1 / rows.requests_per_s[one]  # a pass over one input
        running = (rows.watts_frac[row] - IDLE) / (full.watts_frac[row] - IDLE)
        assert running == pytest.approx(rate / rows.replicas[row] * alone_s, rel=0.05)
