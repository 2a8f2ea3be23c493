"""The few constants of one deployment, fitted to a load that it was observed under, and the error on the rest of it.

Requests are replayed in the simulator; figures are medians of parts of the traffic (a stretch of time, short or long
prompts), or means of stretches where the engine's metrics alone were read. Stretches are left out of the fit in turn:
the error there is what to expect, and sets the intervals.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

import flopwise
from flopwise.cost.rates import families
from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError
from flopwise.facts.catalog import Facts
from flopwise.facts.software import Software
from flopwise.facts.spec import ModelName, SourceSpec
from flopwise.fitting.profile import CalibrationProfile, FittedConstant, KindErrors, MadeProfile, profile_files
from flopwise.fitting.robust import PULL, Array, Constant, FitModel, Values, fit, loss
from flopwise.observations.observation import measured_requests
from flopwise.observations.requests import MeasuredRequests
from flopwise.serving.deployment import replica_of
from flopwise.serving.iteration import HOST_TIMES
from flopwise.serving.job import ServeJob
from flopwise.serving.sim.cost import StepCost
from flopwise.serving.sim.engine import KernelTimes, replica, step_costs
from flopwise.serving.sim.result import SimulatedRun
from flopwise.serving.sim.simulate import simulate
from flopwise.serving.sim.trace import trace
from flopwise.serving.spec import ServingSpec, TechniqueRequest
from flopwise.values import dataclass, replace

Rows = NDArray[np.intp]
FIGURES = ("ttft_s", "itl_s", "e2e_s")
ROUNDS = 8
STARTS = (0.0, 0.7, -0.7)
"""From the priors, in logarithms: a load that would overrun a slower deployment has more than one valley."""
STRETCHES = 6
"""Parts of a load by time; each is two again, by the length of prompts."""
LEAST = 8
"""Requests of a part below which its medians say little."""
LEAST_REQUESTS = 48
"""Of one load: three stretches with two parts each."""
TURNS = 3
"""Times that figures are weighed anew by what the fit before left of them."""
MEDIAN_OF_NORMAL = 0.6745
LEAST_NOISE = 0.01
"""Log error that no figure is trusted beyond."""
ROW_WEIGHT = 4.0
"""Of a figure, against the prior of one constant, at least."""
LEAST_SPREAD = 0.04
"""Log error that no prediction is more certain than: two runs of one load differ by so much."""
KEPT_POINTS = 8
"""Values of the device's rates whose kernels are remembered: a fit goes on from the latest."""
INSIDE = 0.8
LOADS = 4
"""Loads from which on those left out say how far loads lie apart: the least with which 80 % of new ones is a rank."""
BETWEEN_LOADS = {"ttft_s": 0.27, "itl_s": 0.22, "e2e_s": 0.24}
"""Log errors of medians that 80 % of other loads stay within after a fit to a single one.

Source: benchmarks/measurements, vLLM on three machines: 81 loads of three models each predicted from the rising load
(`benchmarks/measure_serving.py --alone`). Stretches of that load set factors of 1.04 to 1.43, which held 67, 32 and
54 % of TTFT, ITL and whole answers; with the quantile of the two other machines it is 89, 81 and 78 %.
Assumes: other deployments drift and differ by load as those did.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedLoad:
    """Requests that a deployment answered: at given times, or by `users` who ask again after each answer."""

    job: ServeJob
    requests: MeasuredRequests
    users: int | None = None
    name: str = ""  # loads of one name, such as the rounds of one, are left out together


def deployment_constants(job: ServeJob) -> tuple[Constant, ...]:
    """The constants that a deployment is fitted with: five of its engine and a rate of its device.

    A priori they are what is known of the engine and the device; a processor has no captured graphs, so that each
    layer costs the host tens of microseconds (25 operations of PyTorch, each dispatched in about 5), and nothing hides
    what it does for each sequence (scheduling, sampling, detokenising in Python). Of a request the front end does a
    part alone (HTTP, tokenizer, the way to the scheduler). Rates of products are measured well elsewhere, so they stray
    little; those of elementwise operations are measured as well, and a load of one model cannot tell them from the
    host's time for a token.
    """
    engine, chip = job.engine, job.cluster.accelerator
    scope = families(chip)[0]
    eager = chip.kind == "cpu"
    layer_s = 125e-6 if eager else max(engine.layer_s, 1e-7)
    sequence_s, spread = (50e-6, 1.0) if eager else (max(engine.sequence_s, 1e-6), 1.5)
    of_engine = (engine.name,)
    known = job.cluster.rates.value
    return (
        Constant("request_s", of_engine, 5e-3 if eager else engine.request_s, 1e-4, 1.0, 1.0, table="engines"),
        Constant("front_s", of_engine, max(engine.front_s, 1e-4), 1e-5, 0.2, 1.0, table="engines"),
        Constant("step_s", of_engine, max(engine.step_s, 1e-5), 1e-5, 0.1, 1.0, table="engines"),
        Constant("layer_s", of_engine, layer_s, 1e-7, 5e-3, 0.5, table="engines"),
        Constant("sequence_s", of_engine, sequence_s, 1e-7, 5e-3, spread, table="engines"),
        Constant("matmul_frac.bf16", (scope,), known["matmul_frac.bf16"], 0.01, 1.5, 0.3),
    )  # fmt: skip


def moved_job(job: ServeJob, values: Values) -> ServeJob:
    """The job with other values of its engine's and its device's constants."""
    engine = moved_records({job.engine.name: job.engine}, "engines", values)[job.engine.name]
    own = {c.name: v for c, v in values.items() if c.table == "calibration"}
    achieved = job.cluster.rates
    return replace(
        job, engine=engine, cluster=replace(job.cluster, rates=replace(achieved, value={**achieved.value, **own}))
    )


class LoadedReplica:
    """A load before one replica of its job: tokens of prompts that were cached are those of one prefix."""

    def __init__(self, load: ServedLoad, job: ServeJob) -> None:
        """Size the replica and lay out the requests, which no constant of a deployment changes.

        Raises: InfeasibleError: weights and one request do not fit; SpecError: requests that cannot be.
        """
        self.load, requests, self.users = load, load.requests, load.users
        inputs, outputs = round(float(requests.prompt.mean())), round(float(requests.output.mean()))
        longest = int((requests.prompt + requests.output).max())
        self.job = replace(job, input_tokens=max(inputs, 1), output_tokens=max(outputs, 1))
        self._lengths = inputs, outputs
        hits = requests.cached > 0
        self.trace = trace(
            requests.arrival_s, requests.prompt, requests.output, prefix=np.where(hits, 0, -1),
            prefix_tokens=np.minimum(requests.cached, requests.prompt),
        )  # fmt: skip
        built = replica(self.job, context=inputs + outputs, max_tokens=longest)
        self.limits, self.schedulers = replace(built.limits, prefix_cache=bool(np.any(hits))), built.schedulers
        self.kernels: dict[tuple[float, ...], KernelTimes] = {}

    def cost(self, values: Values) -> StepCost:
        """Times of the replica's steps with other values of its constants."""
        return step_costs(moved_job(self.job, values), self.limits, self._kernel_times(values))

    def steps_as(self, other: LoadedReplica) -> bool:
        """True if steps take as long as those of another: rounds of one load have the same lengths."""
        return self.load.job is other.load.job and (self._lengths, self.limits) == (other._lengths, other.limits)

    def run(self, cost: StepCost) -> SimulatedRun:
        """The requests through the replica whose steps take as long as `cost` says."""
        return simulate(
            self.trace, cost, self.limits, replicas=self.schedulers, users=self.users,
            samples=1,  # nobody reads the timeline, and a fit runs hundreds of loads
        )  # fmt: skip

    def _kernel_times(self, values: Values) -> KernelTimes:
        """Times of kernels, the same for all values of the host's times; those of the latest points."""
        while len(self.kernels) > KEPT_POINTS:
            del self.kernels[next(iter(self.kernels))]
        key = tuple(value for constant, value in values.items() if constant.name not in HOST_TIMES)
        return self.kernels.setdefault(key, {})


def simulated_run(load: ServedLoad, job: ServeJob) -> SimulatedRun:
    """The load's requests through one replica of `job`.

    Raises: InfeasibleError: weights and one request do not fit; SpecError: requests that cannot be.
    """
    loaded = LoadedReplica(load, job)
    return loaded.run(loaded.cost({}))


def stretches(load: ServedLoad) -> list[list[Rows]]:
    """Rows of each stretch of time: its short and its long prompts; few requests make fewer stretches, or whole ones.

    Of drawn requests it is not known which of them waited for what, so that their stretches are whole.
    """
    count = len(load.requests)
    spans = []
    for rows in np.array_split(np.arange(count), int(np.clip(count // (2 * LEAST), 1, STRETCHES))):
        order = rows[np.argsort(load.requests.prompt[rows], kind="stable")]
        whole = load.requests.drawn or len(order) < 2 * LEAST
        halves = (order,) if whole else (order[: len(order) // 2], order[len(order) // 2 :])
        spans.append([np.sort(half) for half in halves])
    return spans


def parts(load: ServedLoad) -> list[Rows]:
    """Rows of all parts of all stretches."""
    return [rows for stretch in stretches(load) for rows in stretch]


def median_figures(columns: Mapping[str, Array], rows: Rows, *, drawn: bool = False) -> Array:
    """Medians of some requests' first token, time between tokens and whole answer, in seconds; of `drawn` ones means.

    An engine's histograms know their mean exactly and a median to a bucket only.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a stretch of which nothing is known
        return np.array([(np.nanmean if drawn else np.nanmedian)(columns[name][rows]) for name in FIGURES])


def measured_columns(requests: MeasuredRequests) -> dict[str, Array]:
    """The columns of `FIGURES`, as measured."""
    return {name: getattr(requests, name) for name in FIGURES}


def simulated_columns(run: SimulatedRun) -> dict[str, Array]:
    """The columns of `FIGURES`, as simulated."""
    return {"ttft_s": run.ttft_s, "itl_s": run.tpot_s, "e2e_s": run.e2e_s}


def middle_figures(columns: Mapping[str, Array], rows: Rows, *, drawn: bool = False) -> Array:
    """As `median_figures`, but geometric means of the middle half: medians leap where constants move a little."""
    if drawn:
        return median_figures(columns, rows, drawn=True)
    sorted_columns = [np.sort(column[np.isfinite(column)]) for column in (columns[name][rows] for name in FIGURES)]
    halves = [column[len(column) // 4 : len(column) - len(column) // 4] for column in sorted_columns]
    return np.array([np.exp(np.log(half).mean()) if len(half) else np.nan for half in halves])


class DeploymentModel(FitModel):
    """Log errors of the figures of all parts of some loads, as a function of the constants' logarithms."""

    step = 0.1
    reaches = (1.0, 0.5, 0.25, 0.12, 0.06, 0.03)

    def __init__(self, served: Sequence[ServedLoad], constants: Sequence[Constant]) -> None:
        """Predict nothing yet; all figures count."""
        self.served, self.constants = served, tuple(constants)
        self.measured = np.concatenate([
            middle_figures(measured_columns(load.requests), rows, drawn=load.requests.drawn)
            for load in served for rows in parts(load)
        ])  # fmt: skip
        self.count(np.flatnonzero(np.isfinite(self.measured) & (self.measured > 0)))
        self.replicas = [LoadedReplica(load, load.job) for load in served]
        self._stepping = [next(n for n, one in enumerate(self.replicas) if own.steps_as(one)) for own in self.replicas]
        self._predicted: dict[bytes, Array] = {}

    def count(self, members: Rows) -> None:
        """Let these figures count, alike."""
        self.members, self.weights = members, np.full(len(members), ROW_WEIGHT / len(FIGURES))

    def errors(self, point: Array) -> Array:
        """log(predicted / measured) of every figure."""
        key = np.round(point, 9).tobytes()
        if key not in self._predicted:
            values = self.values(point)
            costs = {n: self.replicas[n].cost(values) for n in dict.fromkeys(self._stepping)}
            runs = [loaded.run(costs[n]) for loaded, n in zip(self.replicas, self._stepping, strict=True)]
            self._predicted[key] = np.concatenate([
                middle_figures(simulated_columns(run), rows, drawn=load.requests.drawn)
                for load, run in zip(self.served, runs, strict=True) for rows in parts(load)
            ])  # fmt: skip
        errors: Array = np.log(self._predicted[key][self.members] / self.measured[self.members])
        return errors

    def only(self, members: Sequence[int]) -> DeploymentModel:
        """The same for some of the figures, with what is predicted already."""
        model = copy(self)
        model.count(self.members[list(members)])
        return model

    def trust(self, errors: Array) -> None:
        """Weigh figures against priors by the residuals of a fit: exact figures outweigh the priors.

        Of several loads each figure counts the less the more its load has, as all of these came in the same minute.

        Source: maximum a posteriori with normal errors, their spread estimated by the median absolute deviation.
        """
        noise = max(float(np.median(np.abs(errors))) / MEDIAN_OF_NORMAL, LEAST_NOISE)
        even = even_weights([str(one) for one in self.stretches()]) * math.sqrt(len(FIGURES))
        each = even if len(self.served) > 1 else np.ones(len(self.members))
        self.weights = each * max(PULL / noise**2, ROW_WEIGHT) / len(FIGURES)

    def stretches(self) -> list[int]:
        """The group of each figure, left out together: a load where there are several, else a stretch of time.

        A machine drifts between loads more than within one, so that stretches of a load know too much of each other.
        """
        places = {name: place for place, name in enumerate(dict.fromkeys(self.load_names))}
        every = [(places[name], part) for name, load in zip(self.load_names, self.served, strict=True)
                 for part in stretches(load)]  # fmt: skip
        one = len(places) == 1
        numbers = [number if one else place for number, (place, stretch) in enumerate(every) for _ in stretch]
        return [numbers[member // len(FIGURES)] for member in self.members]

    @property
    def load_names(self) -> list[str]:
        """The name of each load; one without a name is unlike all others."""
        return [load.name or f"load {place}" for place, load in enumerate(self.served)]

    def figure_names(self) -> list[str]:
        """The name in `FIGURES` of each figure."""
        return [FIGURES[member % len(FIGURES)] for member in self.members]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentFit:
    """The constants of a deployment, and their errors on traffic that they were not fitted to.

    Errors are medians of |predicted / measured - 1| by figure. Those `left_out` are of stretches of the traffic, or of
    whole loads where there are several, under constants that were fitted to the others.
    """

    values: Values
    before: dict[str, float]  # with what was known beforehand
    left_out: dict[str, float]
    fitted: dict[str, float]
    spread: dict[str, float]  # a factor either way that holds 8 of 10 of the figures left out, and of other loads
    kept: bool  # False: no better than what was known beforehand, which then stays
    p90_before: dict[str, float]  # 90th percentiles beside the medians
    p90_fitted: dict[str, float]
    p90_left_out: dict[str, float]
    inside: dict[str, float]  # share of the figures of a stretch that the spread of all other stretches holds
    figures: int  # of each kind, that were fitted to
    unit: str  # of what was left out in turn

    def interval(self, figure: str, seconds: float) -> tuple[float, float]:
        """The 80 % interval of a figure that is estimated as `seconds`."""
        return seconds / self.spread[figure], seconds * self.spread[figure]


def fit_deployment(served: Sequence[ServedLoad], facts: Facts) -> DeploymentFit:
    """Fit a deployment's constants to loads that it was observed under; never worse on these than before.

    Raises: SpecError: too few requests to leave some out.
    """
    if not served or max(len(load.requests) for load in served) < LEAST_REQUESTS:
        raise SpecError(f"too few requests to fit a deployment to: of one load at least {LEAST_REQUESTS} are needed")
    constants = deployment_constants(served[0].job)
    model = DeploymentModel(served, constants)
    known = np.log([c.present_value(facts) if c.table == "engines" else c.prior for c in constants])
    priors = np.log([c.prior for c in constants])
    bounds = [np.log([getattr(c, end) for c in constants]) for end in ("low", "high")]
    starts = [np.clip(priors + shift, *bounds) for shift in STARTS]
    fits = [fit(model, start, ROUNDS) for start in (*starts, known)]
    done = min(fits, key=lambda one: loss(constants, one.errors, model.weights, one.point, model.shared_errors()))
    for _ in range(TURNS):
        model.trust(done.errors)
        done = fit(model, done.point, ROUNDS)
    before = model.errors(known)
    stretches = np.array(model.stretches())
    unseen = done.left_out(stretches.astype(str).tolist())
    kept = bool(np.median(np.abs(done.errors)) <= np.median(np.abs(before)))
    point, errors, unseen = (done.point, done.errors, unseen) if kept else (known, before, before)
    of = np.array(model.figure_names())
    loads = len({*model.load_names})
    least = {n: LEAST_SPREAD if loads >= LOADS else BETWEEN_LOADS[n] for n in FIGURES if np.any(of == n)}
    return DeploymentFit(
        values=model.values(point), before=_quantiles(of, before), left_out=_quantiles(of, unseen), kept=kept,
        fitted=_quantiles(of, errors), figures=len(of) // len(FIGURES), p90_before=_quantiles(of, before, 0.9),
        unit="load" if loads > 1 else "stretch",
        p90_fitted=_quantiles(of, errors, 0.9), p90_left_out=_quantiles(of, unseen, 0.9),
        spread={n: float(np.exp(_log_spread(unseen[of == n], floor))) for n, floor in least.items()},
        inside={n: _share_inside(unseen[of == n], stretches[of == n], floor) for n, floor in least.items()},
    )  # fmt: skip


def _log_spread(unseen: Array, least: float) -> float:
    """The half-width that contains 8 of 10 of the log errors left out, at least `least`."""
    return max(float(np.quantile(np.abs(unseen), INSIDE)), least)


def _share_inside(unseen: Array, stretches: NDArray[np.intp], least: float) -> float:
    """Share of figures within the spread of those of all other stretches: of figures that it has not seen.

    Source: Barber et al. 2021 (arXiv:1905.02928), the jackknife+. Assumes: stretches are drawn alike.
    """
    within = [
        np.abs(unseen[stretches == one]) <= _log_spread(unseen[stretches != one], least)
        for one in dict.fromkeys(stretches.tolist()) if np.any(stretches != one)
    ]  # fmt: skip
    return float(np.mean(np.concatenate(within))) if within else float("nan")


def _quantiles(of: NDArray[np.str_], errors: Array, share: float = 0.5) -> dict[str, float]:
    """A quantile of the absolute relative errors of each figure."""
    sizes = np.abs(np.expm1(errors))
    return {name: float(np.quantile(sizes[of == name], share)) for name in FIGURES if np.any(of == name)}


BANDS = {"ttft_s": "serving.ttft", "itl_s": "serving.tpot"}
"""Classes of errors by figure; those of whole answers are composed of both."""
SOURCE = "flopwise: fitted to an observed load"


def observed_profile(
    model: ModelName, served: ServingSpec, machines: MachineSpec, source: SourceSpec, paths: Sequence[Path],
    name: str, date: str, users: int | None,
) -> MadeProfile:  # fmt: skip
    """The profile of a deployment of `model` whose observations, or results of a load generator, are in files.

    `users`: clients of a closed loop, where a file does not say how many.

    Raises: SpecError: a file is broken, or requests are too few.
    """
    job, _ = replica_of(source.model_with_layers(model), served, machines, TechniqueRequest(), source)
    read = [measured_requests(path) for path in paths]
    loads = [ServedLoad(job=job, requests=requests, users=users or requests.users) for requests in read]
    return deployment_profile(loads, source.catalog, name, [str(path) for path in paths], date)


def deployment_profile(
    served: Sequence[ServedLoad], facts: Facts, name: str, files: Sequence[str], date: str
) -> MadeProfile:
    """A deployment's constants, fitted to its loads, as a profile: of its engine, of its device, and their errors.

    What the profile in the facts has, if any, stays below it. Raises SpecError as `fit_deployment`.
    """
    result, job = fit_deployment(served, facts), served[0].job
    columns = {**type(job.engine).fitted_columns(), "front_s": "Front end's time for one request: one after another."}
    chip = job.cluster.accelerator
    family = families(chip)[0]
    digits = {constant: float(f"{value:.4g}") for constant, value in result.values.items()}
    engine = {c.name: v for c, v in digits.items() if c.table == "engines"}
    rows = {
        c.name: min((p for p in facts.calibration.parameters if p.name == c.name), key=lambda p: p.scope != family)
        for c in digits
        if c.name not in engine
    }
    fitted_on = f"{result.figures} figures of an observed load"
    parameters = [
        replace(rows[c.name], scope=family, value=v, fitted_on=fitted_on, source=SOURCE, date=date, profile="")
        for c, v in digits.items() if c.name in rows
    ]  # fmt: skip
    constants = tuple(
        FittedConstant(
            name=c.name, scope=c.scopes[0], unit=rows[c.name].unit if c.name in rows else "s",
            meaning=rows[c.name].meaning if c.name in rows else columns[c.name],
            before=c.present_value(facts) if c.table == "engines" else c.prior, after=v, rows=result.figures,
            source=SOURCE,
        )
        for c, v in digits.items()
    )  # fmt: skip
    errors = tuple(
        KindErrors(
            kind=BANDS.get(figure, "serving.e2e"), family=family, rows=result.figures,
            median_before=result.before[figure],
            p90_before=result.p90_before[figure], median_after=result.fitted[figure],
            p90_after=result.p90_fitted[figure],
            left_out=result.unit, median_left_out=result.left_out[figure], p90_left_out=result.p90_left_out[figure],
            interval=result.spread[figure], coverage_left_out=result.inside[figure],
        )
        for figure in result.fitted
    )  # fmt: skip
    bands = {
        f"{BANDS[figure]}@{family}": {"low": 1 / factor, "median": 1.0, "high": factor, "rows": result.figures}
        for figure, factor in result.spread.items() if figure in BANDS
    }  # fmt: skip
    notes = () if result.kept else ("the load says nothing better than what was known: the constants stay",)
    profile = CalibrationProfile(
        name=name, date=date, flopwise=flopwise.__version__, files=tuple(files), constants=constants, errors=errors,
        based_on=None if facts.profile is None else facts.profile.name, notes=notes,
    )  # fmt: skip
    files_of = profile_files(
        profile, facts, parameters, {}, {"source": SOURCE, "date": date, "bands": bands},
        {job.engine.name: {"source": SOURCE, "date": date, **engine}},
    )  # fmt: skip
    return MadeProfile(profile=profile, files=files_of)


def even_weights(groups: Sequence[str]) -> Array:
    """One over the square root of the rows of each row's group."""
    counts = Counter(groups)
    return np.array([1 / math.sqrt(counts[g]) for g in groups])


Record = TypeVar("Record", bound=Software)


def moved_records(records: Mapping[str, Record], table: str, values: Values) -> dict[str, Record]:
    """The records of `table` with the values of its constants."""
    moved = {}
    for name, record in records.items():
        own: dict[str, Any] = {c.name: v for c, v in values.items() if c.table == table and name in c.scopes}
        moved[name] = replace(record, **own) if own else record
    return moved
