"""A deployment's constants: those of simulated requests are found again; nothing gets worse on what was given."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flopwise
from flopwise import cli
from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError
from flopwise.facts.catalog import Facts, load_facts
from flopwise.facts.spec import SourceSpec
from flopwise.fitting import deployment
from flopwise.fitting.deployment import (
    BETWEEN_LOADS,
    FIGURES,
    DeploymentFit,
    DeploymentModel,
    ServedLoad,
    deployment_constants,
    fit_deployment,
    measured_columns,
    median_figures,
    moved_job,
    parts,
    simulated_run,
    stretches,
)
from flopwise.fitting.profile import CalibrationProfile
from flopwise.fitting.robust import Values
from flopwise.observations.observation import Watched, measured_requests, observation, write_observation
from flopwise.observations.readings import Reading
from flopwise.observations.requests import MeasuredRequests
from flopwise.records.histograms import histogram
from flopwise.serving.deployment import replica_of
from flopwise.serving.iteration import HOST_TIMES
from flopwise.serving.job import ServeJob
from flopwise.serving.sim.engine import KernelTimes, replica, step_costs
from flopwise.serving.sim.result import SimulatedRun
from flopwise.serving.sim.trace import PS
from flopwise.serving.spec import ServingSpec, TechniqueRequest
from named import FACTS

TRUE = {
    "request_s": 0.03,
    "front_s": 0.002,
    "step_s": 0.004,
    "layer_s": 120e-6,
    "sequence_s": 90e-6,
    "matmul_frac.bf16": 0.3,
}


@pytest.fixture(scope="module")
def job() -> ServeJob:
    """A small model on a part of a processor."""
    source = SourceSpec()
    spec = ServingSpec(engine="vllm", max_batch=64)
    machines = MachineSpec(gpu="EPYC 9R45")
    return replica_of(source.model("Qwen3-0.6B"), spec, machines, TechniqueRequest(), source)[0]


def truth(job: ServeJob, **other: float) -> Values:
    """The true constants, but for `other` values of some."""
    return {c: {**TRUE, **other}[c.name] for c in deployment_constants(job)}


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


@pytest.mark.parametrize(("request_s", "noise"), [(0.03, 0.05), (0.012, 0.0)])
def test_known_constants_are_found_again(job: ServeJob, request_s: float, noise: float) -> None:
    """Of answers that the simulator itself gave: other loads then come out as they would with the truth."""
    true = moved_job(job, truth(job, request_s=request_s))
    load = answered_by(true, asked(480), noise=noise)
    found = fit_deployment([replace(load, job=job)], FACTS)
    assert found.kept
    assert len(found.values) <= 6
    values = {c.name: value for c, value in found.values.items()}
    assert values["request_s"] == pytest.approx(request_s, rel=0.15)
    for users, seed in ((1, 5), (6, 6)):
        other = answered_by(true, asked(80, seed), users=users)
        rows = np.arange(80)
        want = median_figures(measured_columns(other.requests), rows)
        again = answered_by(moved_job(job, found.values), asked(80, seed), users=users)
        assert median_figures(measured_columns(again.requests), rows) == pytest.approx(want, rel=0.05)


def test_kernels_are_timed_once_and_the_host_each_time(job: ServeJob) -> None:
    """Replicas that share the times of their kernels are those that time them alone; nothing is timed again."""
    kernels: KernelTimes = {}
    sizes = []
    for name in HOST_TIMES:
        moved = moved_job(job, truth(job, **{name: 2e-3}))
        alone, shared = replica(moved), replica(moved, kernels=kernels)
        assert (alone.limits, alone.schedulers) == (shared.limits, shared.schedulers)
        for column in fields(alone.cost):
            assert np.array_equal(getattr(alone.cost, column.name), getattr(shared.cost, column.name)), name
        sizes.append(len(kernels))
    assert set(sizes) == {sizes[0]} != {0}


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


def test_prompt_tokens_that_were_cached_are_not_computed_again(job: ServeJob) -> None:
    """Nine of ten tokens of each prompt were found: beside the host's time, first tokens take less than a third."""
    requests = replace(asked(40), prompt=np.full(40, 1000))
    load = ServedLoad(job=job, requests=requests, users=1)
    hits = replace(load, requests=replace(requests, cached=np.full(40, 900)))
    whole, rest = (float(np.median(simulated_run(one, job).ttft_s)) for one in (load, hits))
    assert rest - job.engine.request_s < (whole - job.engine.request_s) / 3
    none = replace(load, requests=replace(requests, cached=np.full(40, 2000)))
    assert np.all(np.isfinite(simulated_run(none, job).ttft_s)), "no more than the prompt"


def watched_by_counters(run: SimulatedRun) -> Watched:
    """What an engine that served the run counts, read once a second."""
    seen = Watched("vllm", "http://engine")
    length, start_s = run.trace.output, run.trace.arrival_ps / PS
    first, last = start_s + run.ttft_s, start_s + run.e2e_s
    for now in np.arange(-1.0, float(last.max()) + 2):
        told, done = first <= now, last <= now
        gaps = (length - 1)[done].sum()
        sizes = {
            "ttft": (told.sum(), run.ttft_s[told].sum()), "itl": (gaps, (run.tpot_s * (length - 1))[done].sum()),
            "prompt_lengths": (done.sum(), run.trace.prompt[done].sum()),
            "output_lengths": (done.sum(), length[done].sum()), "latency": (done.sum(), run.e2e_s[done].sum()),
        }  # fmt: skip
        held = {name: histogram([], float(total), float(count)) for name, (count, total) in sizes.items()}
        flying = float(np.sum((start_s <= now) & ~done))
        seen.add(Reading(now, {"running": flying, "requests": float(done.sum())}, held), frozenset({"requests"}))
    return seen


def test_an_engines_counters_alone_say_what_it_is(job: ServeJob, tmp_path: Path) -> None:
    """No load generator: means of stretches of time, of requests that are drawn."""
    true = moved_job(job, truth(job))
    run = simulated_run(ServedLoad(job=true, requests=asked(240)), true)
    found, trace = observation(watched_by_counters(run), None)
    write_observation(tmp_path, found, trace)
    requests = measured_requests(tmp_path / "observation.json")
    assert requests.drawn
    assert float(np.nanmean(requests.ttft_s)) == pytest.approx(float(run.ttft_s.mean()), rel=0.05)
    fitted = fit_deployment([ServedLoad(job=job, requests=requests)], FACTS)
    assert fitted.figures == 6
    assert max(fitted.left_out.values()) < 0.5 * min(fitted.before.values())
    for users, seed in ((1, 5), (6, 6)):
        other = answered_by(true, asked(80, seed), users=users)
        want = median_figures(measured_columns(other.requests), np.arange(80))
        again = answered_by(moved_job(job, fitted.values), asked(80, seed), users=users)
        assert median_figures(measured_columns(again.requests), np.arange(80)) == pytest.approx(want, rel=0.2)


def test_a_drawn_request_takes_its_first_token_and_an_interval_for_each_further_one() -> None:
    """Ten answers of 21 tokens at the mean, 0.5 s to the first and 0.02 s between any two."""
    seen = Watched("vllm", "http://engine")
    for now, done in ((0.0, 0.0), (1.0, 10.0)):
        sizes = {"ttft": (1, 0.5), "itl": (20, 0.4), "prompt_lengths": (1, 300.0), "output_lengths": (1, 21.0)}
        held = {name: histogram([], done * total, done * count) for name, (count, total) in sizes.items()}
        seen.add(Reading(now, {"running": 0.0, "requests": done}, held), frozenset({"requests"}))
    _, trace = observation(seen, None)
    assert trace is not None
    assert len(trace.ttft_s) == 10
    assert trace.ttft_s == pytest.approx(0.5)
    assert set(trace.output) > {int(trace.output[0])}, "lengths are drawn"
    assert trace.e2e_s == pytest.approx(0.5 + (trace.output - 1) * 0.02)


def test_errors_left_out_are_of_stretches_that_the_constants_have_not_seen(job: ServeJob) -> None:
    """One stretch of six is twice as slow: it is what no fit to the others can say, and most of the rest is."""
    load = answered_by(moved_job(job, truth(job)), asked(480))
    slow = np.where(np.arange(480) // 80 == 2, 2.0, 1.0)
    requests = replace(load.requests, ttft_s=load.requests.ttft_s * slow, e2e_s=load.requests.e2e_s * slow)
    found = fit_deployment([replace(load, job=job, requests=requests)], FACTS)
    for name in FIGURES:
        assert found.p90_left_out[name] > 0.4
        assert found.left_out[name] < 0.4 * found.p90_left_out[name]
        assert 0.5 < found.inside[name] < 1.0


def test_the_share_inside_is_of_stretches_that_did_not_set_the_spread() -> None:
    """The two of the first lie beyond what the eight others span, and these within what the two do: 8 of 10."""
    unseen = np.array([0.5] * 2 + [0.01] * 8)
    of = np.array([0] * 2 + [1] * 8)
    assert deployment._share_inside(unseen, of, 0.02) == pytest.approx(0.8)


def test_one_load_says_little_of_others_so_that_its_interval_is_that_between_loads(job: ServeJob) -> None:
    """Exact answers leave nothing out of place: the interval is what loads of other deployments differ by."""
    load = answered_by(moved_job(job, truth(job)), asked(240))
    found = fit_deployment([replace(load, job=job)], FACTS)
    assert max(found.p90_left_out.values()) < 0.05
    assert found.spread == pytest.approx({name: np.exp(log) for name, log in BETWEEN_LOADS.items()})
    short = answered_by(moved_job(job, truth(job)), asked(60))
    four = [replace(short, job=job, name=name) for name in "abcd"]
    known = fit_deployment(four, FACTS)
    assert all(known.spread[name] < found.spread[name] - 0.1 for name in FIGURES)


def test_steps_of_rounds_with_the_same_lengths_are_timed_once(job: ServeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds of one load and another load: two tables of steps, and the errors of each load as if it were alone."""
    one, other = (answered_by(moved_job(job, truth(job)), asked(30, seed)) for seed in (0, 1))
    loads = [replace(one, job=job), replace(one, job=job, name="again"), replace(other, job=job)]
    constants = deployment_constants(job)
    point = np.array([np.log(c.prior) + 0.1 for c in constants])
    timed: list[float] = []

    def counted(moved: ServeJob, *given: Any) -> Any:
        timed.append(moved.input_tokens)
        return step_costs(moved, *given)

    monkeypatch.setattr(deployment, "step_costs", counted)
    together = DeploymentModel(loads, constants).errors(point)
    assert timed == [round(load.requests.prompt.mean()) for load in (one, other)]
    alone = [DeploymentModel([load], constants).errors(point) for load in loads]
    assert together.tolist() == np.concatenate(alone).tolist()


def test_of_several_loads_whole_ones_are_left_out(job: ServeJob) -> None:
    """One of two came when the machine was half as fast: the fit lies between, but each alone says nothing of it."""
    load = answered_by(moved_job(job, truth(job)), asked(96))
    slow = replace(load.requests, ttft_s=load.requests.ttft_s * 2, e2e_s=load.requests.e2e_s * 2)
    found = fit_deployment([replace(load, job=job), replace(load, job=job, requests=slow)], FACTS)
    assert found.unit == "load"
    named = [replace(load, job=job, name=name) for name in ("a", "b", "a")]
    numbers = DeploymentModel(named, deployment_constants(job)).stretches()
    assert len({*numbers}) == 2, "rounds of one load are left out together"
    each = len(numbers) // 3
    assert numbers == [0] * each + [1] * each + [0] * each
    alone = DeploymentModel(named[:1], deployment_constants(job)).stretches()
    assert len({*alone}) == len(stretches(named[0])) > 2, "of one load its stretches are"
    for name in FIGURES:
        assert found.left_out[name] > 1.3 * found.fitted[name]
        assert found.spread[name] > 1.6


HOW: dict[str, Any] = {"gpu": "EPYC 9R45", "engine": "vllm", "max_batch": 64}
Fitted = tuple[Path, Path, CalibrationProfile]


@pytest.fixture(scope="module")
def fitted(job: ServeJob, tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    """An observation of the true deployment, the folder of profiles with a fit to it, `here`, and that profile."""
    folder = tmp_path_factory.mktemp("deployment")
    load = answered_by(moved_job(job, truth(job)), asked(96)).requests
    write_observation(folder / "seen", *observation(None, load))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLOPWISE_CALIBRATIONS", str(folder / "profiles"))
        made = flopwise.calibrate(folder / "seen", model="Qwen3-0.6B", name="here", **HOW)
    return folder / "seen", folder / "profiles", made


@pytest.fixture
def seen(fitted: Fitted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the observation and of the profiles, for one test."""
    monkeypatch.setenv("FLOPWISE_CALIBRATIONS", str(tmp_path / "profiles"))
    for folder in fitted[:2]:
        shutil.copytree(folder, tmp_path / folder.name)
    return tmp_path / "seen"


def test_a_closed_loop_is_known_from_the_load_generators_file(
    job: ServeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without `users`, from the file and from an observation of it: the same constants; else other ones."""
    monkeypatch.setenv("FLOPWISE_CALIBRATIONS", str(tmp_path / "profiles"))
    load = answered_by(moved_job(job, truth(job)), asked(60), users=4).requests
    times = [[float(gap)] * (n - 1) for gap, n in zip(load.itl_s, load.output.tolist(), strict=True)]
    document = {
        "start_times": load.arrival_s.tolist(), "ttfts": load.ttft_s.tolist(), "itls": times,
        "input_lens": load.prompt.tolist(), "output_lens": load.output.tolist(),
    }  # fmt: skip
    plain, told = tmp_path / "plain.json", tmp_path / "told.json"
    plain.write_text(json.dumps(document))
    told.write_text(json.dumps(document | {"request_rate": "inf", "max_concurrency": 4}))
    write_observation(tmp_path / "seen", *observation(None, measured_requests(told)))
    loads, fits = list[ServedLoad](), dict[int | None, DeploymentFit]()

    def fitted_once(served: list[ServedLoad], facts: Facts) -> DeploymentFit:
        """The fit of a load, which is made once: that the requests are the same is checked below."""
        (load,) = served
        loads.append(load)
        if load.users not in fits:
            fits[load.users] = fit_deployment(served, facts)
        return fits[load.users]

    monkeypatch.setattr(deployment, "fit_deployment", fitted_once)

    def values(path: Path, **more: Any) -> list[float]:
        made = flopwise.calibrate(path, model="Qwen3-0.6B", name="svc", dry_run=True, **HOW, **more)
        return [one.after for one in made.constants]

    assert values(told) == values(plain, users=4) == values(tmp_path / "seen") != values(plain)
    assert [one.users for one in loads] == [4, 4, 4, None]
    for one in loads[1:]:
        for name in ("arrival_s", "prompt", "output", "cached", "ttft_s", "e2e_s"):
            expected = getattr(loads[0].requests, name)
            assert getattr(one.requests, name) == pytest.approx(expected, rel=0, abs=1e-6), name  # a file rounds


def test_a_profile_lays_the_constants_over_the_shipped_ones(seen: Path, fitted: Fitted) -> None:
    made = fitted[2]
    values = {c.name: c.after for c in made.constants}
    facts = load_facts(None, "here")
    assert facts.engines["vllm"].request_s == pytest.approx(values["request_s"], rel=1e-3)
    profiles: tuple[dict[str, Any], ...] = ({}, {"calibration": "here"})
    before, after = (
        flopwise.simulate("Qwen3-0.6B", rate=3.0, requests=60, input_tokens=200, output_tokens=50, **HOW, **more)
        for more in profiles
    )
    assert after.job.engine.step_s == pytest.approx(values["step_s"], rel=1e-3)
    low, high = after.intervals["tpot_s"]["p50"]
    (spread,) = (one.interval for one in made.errors if one.kind == "serving.tpot")
    assert spread is not None
    assert high / low == pytest.approx(spread**2, rel=0.01)
    assert before.summary.tpot_s.p50 != after.summary.tpot_s.p50
    with pytest.raises(SpecError, match="there already"):
        flopwise.calibrate(seen, model="Qwen3-0.6B", name="here", **HOW)


def test_a_profile_stays_below_the_one_that_is_made_on_it(seen: Path) -> None:
    made = flopwise.calibrate(
        seen, model="Qwen3-0.6B", name="second", calibration="here", **{**HOW, "engine": "sglang"}
    )
    assert made.based_on == "here"
    facts, first = load_facts(None, "second"), load_facts(None, "here")
    assert facts.engines["vllm"].request_s == first.engines["vllm"].request_s != load_facts().engines["vllm"].request_s
    assert facts.engines["sglang"].request_s != first.engines["sglang"].request_s


def test_the_command_fits_shows_and_removes_a_deployment(seen: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["calibrate", str(seen), "--model", "Qwen3-0.6B", "--gpu", "EPYC 9R45", "--max-batch", "64"]
    assert cli.main([*base, "--name", "svc", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "left out" in shown
    assert "serving.ttft" in shown
    assert cli.main(["calibrate", "--list", "--json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == ["here"]
    assert cli.main([*base, "--name", "svc", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    errors = {one["kind"]: one for one in told["errors"]}
    assert errors["serving.ttft"]["median_after"] < 0.1 < errors["serving.ttft"]["median_before"]
    assert {one["left_out"] for one in errors.values()} == {"stretch"}
    assert cli.main(["calibrate", "--show", "svc", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["constants"] == told["constants"]
    ask = [
        "--gpu",
        "EPYC 9R45",
        "--max-batch",
        "64",
        "--json",
        "--concurrency",
        "1",
        "--input",
        "200",
        "--output",
        "50",
    ]
    served = []
    for more in ([], ["--calibration", "svc"]):
        assert cli.main(["serve", "Qwen3-0.6B", *ask, *more]) == 0
        served.append(json.loads(capsys.readouterr().out)["ttft_s"])
    assert served[0] != served[1]
    assert cli.main(["calibrate", "--remove", "svc"]) == 0
    capsys.readouterr()
    assert cli.main(["serve", "Qwen3-0.6B", *ask, "--calibration", "svc"]) == 2


@pytest.mark.usefixtures("seen")
def test_a_plan_uses_the_calibrated_deployment() -> None:
    wanted = {
        "name": "chat", "model": "Qwen3-0.6B", "task": "serve",
        "traffic": {"requests_per_s": 0.5, "input_tokens": 200, "output_tokens": 50},
        "constraints": {"gpus": ["EPYC 9R45"], "engine": "vllm"},
    }  # fmt: skip
    before, after = (flopwise.plan(wanted, calibration=name) for name in (None, "here"))
    assert before.plans[0].seconds != after.plans[0].seconds


def test_what_says_too_little_of_a_deployment_is_refused(seen: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SpecError, match=r"an observation of a service: give its model \(--model\)"):
        flopwise.calibrate(seen)
    with pytest.raises(SpecError, match="need the model"):
        flopwise.calibrate(seen, gpu="l40s")
    with pytest.raises(SpecError, match="no accelerator is given"):
        flopwise.calibrate(seen, model="Qwen3-0.6B")
    assert cli.main(["calibrate", "x.csv", "--gpu", "l40s", "--users", "3"]) == 2
    assert "--gpu, --users: needs --model" in capsys.readouterr().err
    (seen / "trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,10\n")
    with pytest.raises(SpecError, match="ttft_s"):
        flopwise.calibrate(seen, model="Qwen3-0.6B", **HOW)
    (seen / "trace.csv").write_text("arrival_s,prompt_tokens,output_tokens,ttft_s,e2e_s\n0,10,10,soon,2\n")
    with pytest.raises(SpecError, match="observe the service again"):
        flopwise.calibrate(seen, model="Qwen3-0.6B", **HOW)
    (seen / "trace.csv").unlink()
    with pytest.raises(SpecError, match="no trace, since the engine does not count requests"):
        flopwise.calibrate(seen, model="Qwen3-0.6B", **HOW)
