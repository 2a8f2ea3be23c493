"""A deployment's constants: those of simulated requests are found again; nothing gets worse on what was given."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import flopwise
from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.facts.spec import SourceSpec
from flopwise.fitting.constants import Values
from flopwise.fitting.deployment import (
    FIGURES,
    ServedLoad,
    deployment_constants,
    fit_deployment,
    measured_columns,
    median_figures,
    moved_job,
    parts,
    simulated_run,
)
from flopwise.observations.requests import MeasuredRequests
from flopwise.serving.deployment import replica_of
from flopwise.serving.job import ServeJob
from flopwise.serving.spec import ServingSpec, TechniqueRequest
from named import FACTS

TRUE = {
    "request_s": 0.012,
    "step_s": 0.004,
    "layer_s": 120e-6,
    "sequence_s": 90e-6,
    "matmul_frac.bf16": 0.3,
    "pointwise_frac": 0.2,
}


@pytest.fixture(scope="module")
def job() -> ServeJob:
    """A small model on a part of a processor."""
    source = SourceSpec()
    spec = ServingSpec(engine="vllm", max_batch=64)
    machines = MachineSpec(gpu="EPYC 9R45")
    return replica_of(source.model("Qwen3-0.6B"), spec, machines, TechniqueRequest(), source)[0]


def truth(job: ServeJob) -> Values:
    """The true constants."""
    return {c: TRUE[c.name] for c in deployment_constants(job)}


def asked(count: int, seed: int = 0) -> MeasuredRequests:
    """Requests whose rate rises from one to twelve a second; nobody has answered them."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1.0, count) / np.linspace(1.0, 12.0, count)
    empty = np.full(count, np.nan)
    return MeasuredRequests(
        arrival_s=np.cumsum(gaps), prompt=rng.integers(30, 400, count), output=rng.integers(10, 90, count),
        cached=np.zeros(count, dtype=np.int64), ttft_s=empty, e2e_s=empty, began_at_s=0.0,
    )  # fmt: skip


def answered_by(job: ServeJob, requests: MeasuredRequests, noise: float = 0.0, users: int | None = None) -> ServedLoad:
    """The requests as a deployment answers them, each latency off by some noise."""
    run = simulated_run(ServedLoad(job=job, requests=requests, users=users), job)
    factor = np.exp(np.random.default_rng(1).normal(0.0, noise, len(requests)))
    return ServedLoad(
        job=job, requests=replace(requests, ttft_s=run.ttft_s * factor, e2e_s=run.e2e_s * factor), users=users
    )  # fmt: skip


def test_parts_hold_each_request_once(job: ServeJob) -> None:
    for count in (3, 20, 48, 200):
        rows = np.concatenate(parts(ServedLoad(job=job, requests=asked(count))))
        assert sorted(rows.tolist()) == list(range(count))


def test_medians_by_hand() -> None:
    columns = {"ttft_s": np.array([1.0, 2.0, 9.0]), "itl_s": np.array([np.nan, 3.0, 5.0]), "e2e_s": np.arange(3.0)}
    assert median_figures(columns, np.array([0, 1, 2])).tolist() == [2.0, 4.0, 1.0]


def test_moving_constants_moves_the_engine_and_its_device_alone(job: ServeJob) -> None:
    moved = moved_job(job, truth(job))
    assert (moved.engine.step_s, moved.cluster.rates.value["matmul_frac.bf16"]) == (0.004, 0.3)
    assert replace(moved.engine, **{n: getattr(job.engine, n) for n in TRUE if n.endswith("_s")}) == job.engine


def test_known_constants_are_found_again(job: ServeJob) -> None:
    """Of answers that the simulator itself gave, with noise: other loads then come out as they would with the truth."""
    true = moved_job(job, truth(job))
    load = answered_by(true, asked(240), noise=0.05)
    found = fit_deployment([replace(load, job=job)], FACTS)
    assert found.kept
    assert len(found.values) <= 6
    values = {c.name: value for c, value in found.values.items()}
    assert values["request_s"] == pytest.approx(TRUE["request_s"], rel=0.15)
    for users, seed in ((1, 5), (6, 6)):
        other = answered_by(true, asked(80, seed), users=users)
        rows = np.arange(80)
        want = median_figures(measured_columns(other.requests), rows)
        again = answered_by(moved_job(job, found.values), asked(80, seed), users=users)
        assert median_figures(measured_columns(again.requests), rows) == pytest.approx(want, rel=0.05)


def test_it_is_never_worse_than_before_on_what_it_was_given(job: ServeJob) -> None:
    """Requests of a deployment that is exactly as the shipped facts have it: there is nothing to learn."""
    found = fit_deployment([answered_by(job, asked(120))], FACTS)
    for name in FIGURES:
        assert found.fitted[name] <= found.before[name] + 0.01
    low, high = found.interval("itl_s", 0.02)
    assert low < 0.02 < high


def test_too_few_requests_are_refused(job: ServeJob) -> None:
    with pytest.raises(SpecError, match="too few requests"):
        fit_deployment([answered_by(job, asked(20))], FACTS)
    with pytest.raises(SpecError, match="too few requests"):
        fit_deployment([], FACTS)


def test_a_profile_lays_the_constants_over_the_shipped_ones(
    job: ServeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOPWISE_CALIBRATIONS", str(tmp_path / "profiles"))
    load = answered_by(moved_job(job, truth(job)), asked(120)).requests
    document = {
        "start_times": load.arrival_s.tolist(), "ttfts": load.ttft_s.tolist(), "input_lens": load.prompt.tolist(),
        "itls": [[gap] * (n - 1) for gap, n in zip(load.itl_s.tolist(), load.output.tolist(), strict=True)],
        "output_lens": load.output.tolist(),
    }  # fmt: skip
    file = tmp_path / "load.json"
    file.write_text(json.dumps(document))
    how = {"gpu": "EPYC 9R45", "engine": "vllm", "max_batch": 64}
    found = flopwise.calibrate_deployment("Qwen3-0.6B", file, name="here", **how)
    values = {c.name: v for c, v in found.values.items()}
    facts = load_facts(None, "here")
    assert facts.engines["vllm"].request_s == pytest.approx(values["request_s"], rel=1e-3)
    before, after = (
        flopwise.simulate("Qwen3-0.6B", rate=3.0, requests=60, input_tokens=200, output_tokens=50, **how, **more)
        for more in ({}, {"calibration": "here"})
    )
    assert after.job.engine.step_s == pytest.approx(values["step_s"], rel=1e-3)
    low, high = after.intervals["tpot_s"]
    assert high / low == pytest.approx(found.spread["itl_s"] ** 2, rel=0.01)
    assert before.summary.tpot_s.p50 != after.summary.tpot_s.p50
    with pytest.raises(SpecError, match="there already"):
        flopwise.calibrate_deployment("Qwen3-0.6B", file, name="here", **how)
