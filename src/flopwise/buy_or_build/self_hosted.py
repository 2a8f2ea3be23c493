"""Alternatives on own machines: the plans of their training and serving, what they cost, and where they meet an API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from flopwise.buy_or_build.alternatives import Alternative, ApiBreakEven, Kind, ServingOffer, TrainingRun, with_ends
from flopwise.buy_or_build.spec import ComparisonRequest
from flopwise.cost.intervals import ErrorBand
from flopwise.errors import InfeasibleError, SpecError
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.fleet.prices import EffectivePrice, effective, run_usd
from flopwise.ops.tensors import active_parameters
from flopwise.ops.types import Array
from flopwise.search import replica, run_job
from flopwise.search.answer import TARGET_NAMES, Candidate, Plan
from flopwise.search.plan import plan
from flopwise.search.service_machines import replica_machines
from flopwise.search.workload import Resolved
from flopwise.search.workload_file import workload_from
from flopwise.serving.job import serving_band
from flopwise.training.estimate import timed_step
from flopwise.training.rules import optimal_tokens, predicted_loss
from flopwise.training.unstated import open_band
from flopwise.units import HOUR_S, HOURS_PER_MONTH, format_times, format_usd
from flopwise.values import dataclass, replace

LONGEST_MONTHS = 120
"""Maximum number of months for which a break-even is searched."""
AT_SCALE = 30.0
"""Multiple of the traffic for which machines are also planned: break-even volumes depend on fully loaded machines."""
DEAREST = 1.2
"""Training machines that cost more than so many times the best even at their peak rate, which no run comes near, cannot
be the cheapest, however the time is billed."""
REASONS = 3
LOW, HIGH = 0.1, 0.9
NAMES: dict[Kind, str] = {"open": "open weights", "finetune": "fine-tune", "pretrain": "train from scratch"}


@dataclass(frozen=True, slots=True)
class RentableUnits:
    """The units for rent: USD a month, tokens a month and description of each; shape (units,).

    `bands` are the measured errors of what each carries; without them each carries exactly its estimate.
    """

    usd_per_month: Array
    tokens_per_month: Array
    candidates: tuple[Candidate, ...]
    instances: tuple[int, ...]  # of a unit
    bands: tuple[ErrorBand, ...] = ()
    prices: tuple[EffectivePrice, ...] = ()  # of a month of an instance

    def factor(self, probability: float) -> Array:
        """The capacity of a unit over its estimate, at this quantile; shape (units,).

        Source: the measured errors of the throughput. Assumes: all units err alike.
        """
        if not self.bands:
            return np.ones(len(self.usd_per_month))
        return np.array([band.quantile(probability) for band in self.bands])

    @property
    def factors(self) -> tuple[Array, Array, Array]:
        """(value, best, worst) of the throughput of each unit over its estimate; (units,) each."""
        return np.ones(len(self.usd_per_month)), self.factor(HIGH), self.factor(LOW)

    def carrying(self, factor: Array) -> RentableUnits:
        """The units with capacities of `factor` times the estimate; `factor` of shape (units,)."""
        return replace(self, tokens_per_month=self.tokens_per_month * factor)

    def cheapest(self, volume: float) -> tuple[int, int]:
        """(index, number) of the cheapest units for a volume."""
        index = int(self._usd_by_unit(np.array([volume]))[0].argmin())
        return index, int(num_units(volume, self.tokens_per_month[index]))

    def monthly_usd(self, volumes: Array, factor: Array | float = 1.0) -> Array:
        """The monthly cost of the units that are cheapest for each of `volumes` (months,), in USD; at least one unit.

        `factor` (units,): what a unit turns out to carry over what it was chosen for; more of the same are then rented.

        Source: arithmetic. Assumes: one kind of machine carries a month's traffic; they stay on all month.
        """
        index = self._usd_by_unit(volumes).argmin(axis=1)
        carried = self.tokens_per_month * factor
        usd: Array = num_units(volumes, carried[index]) * self.usd_per_month[index]
        return usd

    def _usd_by_unit(self, volumes: Array) -> Array:
        """USD a month of each kind of unit, shape (months, units)."""
        return num_units(volumes[:, None], self.tokens_per_month[None, :]) * self.usd_per_month


def num_units(volumes: Array | float, capacity: Array | float) -> Array:
    """Number of whole units that carry the volumes, at least one; a rounding error in the last digit adds none."""
    return np.maximum(np.ceil(np.round(np.divide(volumes, capacity), 9)), 1.0)


def monthly_volumes(first: float, growth_frac: float, months: int) -> Array:
    """Tokens of each month, shape (months,), the first as given and each next more by `growth_frac`.

    Source: definition.
    """
    return first * (1.0 + growth_frac) ** np.arange(months)


def cumulative_usd(upfront_usd: float, monthly_usd: Array) -> Array:
    """The cumulative cost at the end of each month, shape (months + 1,), the up-front sum first. Source: definition."""
    paid: Array = upfront_usd + np.concatenate([[0.0], np.cumsum(monthly_usd)])
    return paid


@dataclass(frozen=True, slots=True)
class UpfrontTraining:
    """The training that an alternative starts with (None: none), all its runs: USD, and the error of their time."""

    run: TrainingRun | None = None
    band: ErrorBand | None = None

    @property
    def ends(self) -> tuple[float, float, float]:
        """(value, low, high) of the cost before the first month, in USD."""
        run = self.run
        if run is None:
            return 0.0, 0.0, 0.0
        return run.cost_usd * run.runs, run.cost_usd_low * run.runs, run.cost_usd_high * run.runs


@dataclass(frozen=True, kw_only=True)
class SelfHosted:
    """A feasible alternative on own machines: the serving units, and the training paid first."""

    kind: Kind
    model: Model
    request: ComparisonRequest
    units: RentableUnits
    training: UpfrontTraining

    @property
    def name(self) -> str:
        """As answers call it."""
        return NAMES[self.kind]

    def volumes(self, months: int) -> Array:
        """Tokens of each month."""
        traffic = self.request.traffic
        return monthly_volumes(traffic.tokens_per_month, traffic.growth_frac, months)

    def monthly_usd(self, months: int, factor: Array | float = 1.0) -> Array:
        """The cost of each month, upkeep included, where units carry `factor` times their estimates; USD."""
        return self.units.monthly_usd(self.volumes(months), factor) + self.request.options.upkeep_usd_per_month

    @cached_property
    def monthly_ends(self) -> tuple[Array, Array, Array]:
        """(value, low, high) of the cost of each month, by the measured errors of the throughput, in USD."""
        value, low, high = (self.monthly_usd(self.request.options.months, factor) for factor in self.units.factors)
        return value, low, high

    def alternative(self) -> Alternative:
        """The sums of this alternative with their ends."""
        monthly, upfront = self.monthly_ends, self.training.ends
        paid = cumulative_usd(upfront[0], monthly[0])
        served, served_low, served_high = (cumulative_usd(0.0, usd) for usd in monthly)
        cumulative = (paid, *summed_ends(paid, upfront, (served, served_low, served_high)))
        total = tuple(float(usd[-1]) for usd in cumulative)
        each = 1e6 / float(self.volumes(self.request.options.months).sum())
        loss, run = None, self.training.run
        if self.kind == "pretrain" and run is not None:
            loss = float(predicted_loss(float(active_parameters(self.model)), run.tokens))
        return Alternative(
            name=self.name, kind=self.kind, model=self.model.name, feasible=True, training=run,
            serving=self._serving_offer(), loss=loss,
            **with_ends(
                upfront_usd=upfront,
                usd_per_month=tuple(float(usd[0]) for usd in monthly),
                last_usd_per_month=tuple(float(usd[-1]) for usd in monthly),
                total_usd=total,
                usd_per_million_tokens=tuple(each * usd for usd in total),
                cumulative_usd=tuple(usd.tolist() for usd in cumulative),
            ),
        )  # fmt: skip

    def break_even(self, api: str, usd_per_token: float) -> ApiBreakEven:
        """The break-even of this alternative with an API of that price a token."""
        units, upkeep, horizon = self.units, self.request.options.upkeep_usd_per_month, self.request.options.months
        other = cumulative_usd(0.0, self.volumes(LONGEST_MONTHS) * usd_per_token)
        months, volumes = [], []
        for upfront, factor in zip(self.training.ends, units.factors, strict=True):
            own = cumulative_usd(upfront, self.monthly_usd(LONGEST_MONTHS, factor))
            months.append(break_even_month(own, other))
            volumes.append(break_even_volume(upfront, upkeep, horizon, usd_per_token, units.carrying(factor)))
        why = ""
        if volumes[0] is None:
            least = 1e6 * float((units.usd_per_month / units.tokens_per_month).min())
            why = (
                f"a full machine costs {format_usd(least)} a million tokens, the API {format_usd(1e6 * usd_per_token)}"
            )
        elif months[0] is None:
            why = f"not at this traffic within {LONGEST_MONTHS} months"
        return ApiBreakEven(
            way=self.name, against=api, why=why, month=months[0], month_low=months[1], month_high=months[2],
            tokens_per_month=volumes[0], tokens_per_month_low=volumes[1], tokens_per_month_high=volumes[2],
        )  # fmt: skip

    def _serving_offer(self) -> ServingOffer:
        """The machines of the first and of the last month."""
        units, volumes = self.units, self.volumes(self.request.options.months)
        first, last = (units.cheapest(float(volumes[month])) for month in (0, -1))
        index, tokens = first[0], float(volumes[0])
        candidate, final, price = units.candidates[index], units.candidates[last[0]], units.prices[index]
        carried = [float(units.tokens_per_month[index] * factor[index]) for factor in units.factors]
        counts = [int(num_units(tokens, each)) for each in carried]
        filled = [tokens / (number * each) for number, each in zip(counts, carried, strict=True)]
        return ServingOffer(
            provider=candidate.provider, what=candidate.instance, gpu=candidate.gpu, purchase=candidate.purchase,
            price_date=candidate.price_date, usd_per_hour=price.usd_per_hour_list,
            price_notes=[note for note in (candidate.price_note, *price.notes) if note],
            last_num_instances=last[1] * units.instances[last[0]] if first != last else None,
            last_what=f"{final.provider} {final.instance}" if first != last else None,
            **with_ends(
                num_instances=tuple(number * units.instances[index] for number in counts),
                usd_per_million_tokens=tuple(1e6 * float(usd[0]) / tokens for usd in self.monthly_ends),
                filled_frac=(filled[0], min(filled), max(filled)),
            ),
        )  # fmt: skip


def summed_ends(
    value: Array | float, *parts: tuple[Array | float, Array | float, Array | float]
) -> tuple[Array, Array]:
    """(low, high) of a sum of `value` from its parts (value, low, high), in their unit; broadcasts.

    Source: variances of independent parts add up: the distances of the ends from the middle add as their squares.
    Assumes: parts err independently of each other (a training run and what it is served on).
    """
    down: list[Array] = [np.square(np.subtract(middle, low)) for middle, low, _ in parts]
    up: list[Array] = [np.square(np.subtract(high, middle)) for middle, _, high in parts]
    return value - np.sqrt(sum(down)), value + np.sqrt(sum(up))


def break_even_month(own: Array, other: Array) -> int | None:
    """The month from whose end on `own` (months + 1,) costs no more than `other`; None where it costs more at the end.

    Source: definition.
    """
    dearer = np.flatnonzero(own > other * (1 + 1e-12))
    if not dearer.size:
        return 0
    last = int(dearer[-1])
    return None if last == len(own) - 1 else last + 1


def break_even_volume(
    upfront_usd: float, upkeep_usd: float, months: int, api_usd_per_token: float, units: RentableUnits
) -> float | None:
    """The least steady tokens a month at which own machines cost no more than an API over the months; None: at none.

    Source: with n units of C USD and K tokens a month, U up front and B of upkeep over H months, an API of p a token
    costs as much at v = (U / H + B + n C) / p; it is n units that v takes if (n - 1) K < v <= n K, so the least n
    is the first at or above (U / H + B) / (p K - C), and nothing is where p K <= C; the least over all units.
    Assumes: a volume that does not change; one kind of unit at a time.
    """
    price, capacity = units.usd_per_month, units.tokens_per_month
    fixed = upfront_usd / months + upkeep_usd
    margin = api_usd_per_token * capacity - price
    pays = margin > 1e-12 * price
    if not pays.any():
        return None
    num = np.maximum(np.ceil(np.round(fixed / margin[pays], 9)), 1.0)
    volumes = np.maximum((fixed + num * price[pays]) / api_usd_per_token, (num - 1) * capacity[pays])
    return float(volumes.min())


def unit_of(
    chosen: Candidate, tokens_per_request: float, peak: float, volume: float, usd_each: float | None = None
) -> tuple[float, float, int]:
    """USD a month, tokens a month and instances of the least unit of a plan that can be rented again and again.

    A unit is an instance with as many replicas as it holds, or the instances of one replica; `usd_each` is what an
    instance costs a month (None: as planned, at its list price).

    Source: arithmetic on the plan. Assumes: replicas beside each other do not slow each other; where the plan of
    `volume` takes more machines than their rate alone needs (latency targets), every unit carries as little.
    """
    layout, instances = chosen.layout, replica_machines(chosen)
    gpus_per_replica = int(layout["tp"]) * int(layout["pp"]) * int(layout["dp"])
    gpus_per_instance = max(1, chosen.num_gpus // chosen.num_instances)
    replicas = max(1, gpus_per_instance // gpus_per_replica)
    rate = (chosen.figures["requests_per_s_capacity"] or 0.0) / int(layout["replicas"])
    capacity = rate * replicas / peak * tokens_per_request * HOURS_PER_MONTH * HOUR_S
    planned = -(-chosen.num_instances // instances)
    if capacity <= 0 or np.ceil(volume / capacity) < planned:
        capacity = volume / planned
    usd = chosen.cost_usd / chosen.num_instances if usd_each is None else usd_each
    return usd * instances, capacity, instances


class SelfHostedPlans:
    """Plans the training and the serving of each kind, each plan once; reports to `advance(done, all)`."""

    def __init__(
        self, request: ComparisonRequest, facts: Facts, advance: Callable[[int, int], None] | None = None
    ) -> None:
        self._request, self._facts, self._advance = request, facts, advance
        self.model = self._model(request.model, request.assume_family)
        own = request.options
        self.scratch = self._model(own.pretrain_model) if own.pretrain_model else self.model
        self.pretrain_tokens = own.pretrain_tokens or float(optimal_tokens(float(active_parameters(self.scratch))))
        kinds = [kind for kind in request.kinds if kind != "api"]
        self._num_plans = 2 * len({self._model_name(kind) for kind in kinds}) + sum(kind != "open" for kind in kinds)
        self._num_done = 0
        self._serving: dict[str, RentableUnits | list[str]] = {}

    def alternative(self, kind: Kind) -> SelfHosted | Alternative:
        """The alternative, or one that is not feasible, with the reasons."""
        name, model = self._model_name(kind), self.scratch if kind == "pretrain" else self.model
        if name not in self._serving:
            self._serving[name] = self._rentable_units(name, model)
        serving = self._serving[name]
        training = UpfrontTraining() if kind == "open" else self._training(kind, name, model)
        if isinstance(serving, list) or isinstance(training, list):
            reasons = [reason for part in (serving, training) if isinstance(part, list) for reason in part]
            return Alternative(name=NAMES[kind], kind=kind, model=model.name, feasible=False, reasons=reasons)
        return SelfHosted(kind=kind, model=model, request=self._request, units=serving, training=training)

    def _model(self, name: str, assume_family: str | None = None) -> Model:
        model = self._facts.model(name, assume_family=assume_family)
        if not model.stacks:
            raise SpecError(f"model: {model.name} has published figures only, no layers to plan")
        return model

    def _model_name(self, kind: Kind) -> str:
        request = self._request
        return request.options.pretrain_model or request.model if kind == "pretrain" else request.model

    def _plan(
        self, purchase: Sequence[str], *, alone: bool = False, dearest: float | None = None, **task: Any
    ) -> tuple[Resolved, Plan] | list[str]:
        """The plan of a workload, or why there is none; `alone` and `dearest` as in `plan`.

        The first plan is `alone`, so that names are checked. Where nothing near the best will do, all is searched.
        """
        limits = {**self._request.constraints, **({"purchase": list(purchase)} if purchase else {})}
        try:
            software = {"software": list(self._request.software)} if self._request.software else {}
            workload = workload_from({**task, **software, "constraints": limits}, "compare")
            ask = partial(plan, workload, self._facts, assume_family=self._request.assume_family, alone=alone)
            answer = ask(dearest=dearest)
            if dearest is not None and not answer.plans:
                answer = ask()
        except InfeasibleError as failure:
            return [str(failure), *failure.reasons[:REASONS]]
        finally:
            self._num_done += 1
            if self._advance is not None:
                self._advance(min(self._num_done, self._num_plans), self._num_plans)
        if answer.plans:
            return workload, answer
        return [f"no plan for the {task['task']} workload meets every target", *_shortfalls(answer)]

    def _training(self, kind: Kind, name: str, model: Model) -> UpfrontTraining | list[str]:
        """The training run that costs the least, as it is billed, or why there is none."""
        request = self._request
        tokens = request.options.finetune_tokens if kind == "finetune" else self.pretrain_tokens
        method = dict(request.method) if kind == "finetune" else {}
        task: dict[str, Any] = {"model": name, "task": kind, "data": {"tokens": tokens}}
        task |= {"method": method} if method else {}
        purchases = request.options.train_purchase
        reserved = any(purchase.startswith("reserved") for purchase in purchases)  # paid by the month
        planned = self._plan(purchases, dearest=None if reserved else DEAREST, **task)
        if isinstance(planned, list):
            return planned
        workload, answer = planned

        def usd(chosen: Candidate, longer: float = 1.0) -> float:
            return chosen.num_instances * self._run_price(chosen, longer)[0]

        best = min(answer.plans, key=usd)
        offer = self._facts.offers_by_key[best.offer_key]
        step = timed_step(run_job.candidate_job(workload, model, self._facts, offer, best))
        band = open_band(step.job, run_job.step_inputs(step, workload, model, self._facts))
        run = TrainingRun(
            tokens=tokens, method=str(method.get("kind", "full")) if kind == "finetune" else "from scratch",
            provider=best.provider, region=best.region, instance=best.instance,
            num_instances=best.num_instances, gpu=best.gpu, num_gpus=best.num_gpus, purchase=best.purchase,
            seconds=best.seconds, seconds_low=best.seconds / band.high, seconds_high=best.seconds / band.low,
            cost_usd=usd(best), cost_usd_low=usd(best, 1 / band.high), cost_usd_high=usd(best, 1 / band.low),
            runs=request.options.runs, price_date=best.price_date, usd_per_hour=best.usd_per_hour,
            price_notes=list(self._run_price(best, 1.0)[1].notes),
        )  # fmt: skip
        return UpfrontTraining(run, band)

    def _run_price(self, chosen: Candidate, longer: float) -> tuple[float, EffectivePrice]:
        """The price of an instance of a training plan for `longer` times the planned time."""
        hours = chosen.seconds * longer / HOUR_S
        billed = run_usd(self._facts.offers_by_key[chosen.offer_key], chosen.purchase, hours, self._facts)
        assert billed is not None, "plans are made of what is sold"
        return billed

    def _rentable_units(self, name: str, model: Model) -> RentableUnits | list[str]:
        """Machines to serve on, from plans for the traffic as it is and for much more; or the reasons for none."""
        request, traffic = self._request, self._request.traffic
        first = self._serving_plan(name, 1.0, alone=True, simulate=request.simulate)
        if isinstance(first, list):
            return first
        scale = max(AT_SCALE, (1 + traffic.growth_frac) ** request.options.months)
        scaled = self._serving_plan(name, scale, alone=False, simulate=False)
        failed = {(c.instance, c.region, c.purchase) for c in first[1].demoted}
        planned = [(first[0], c, 1.0) for c in first[1].plans]
        if not isinstance(scaled, list):
            kept = (c for c in scaled[1].plans if (c.instance, c.region, c.purchase) not in failed)
            planned += [(scaled[0], c, scale) for c in kept]
        units, prices, bands = [], [], []
        for workload, chosen, times in planned:
            offer, instances = self._facts.offers_by_key[chosen.offer_key], replica_machines(chosen)
            price = effective(offer, chosen.purchase, HOURS_PER_MONTH, self._facts, instances=instances)
            assert price is not None, "plans are made of what is sold"
            volume = times * traffic.tokens_per_month
            units.append(unit_of(chosen, traffic.tokens_per_request, traffic.peak, volume, price.usd_per_month))
            prices.append(price)
            job = replica.candidate_job(workload, model, self._facts, offer, chosen)
            bands.append(serving_band(job, "throughput"))
        usd, tokens, num_instances = zip(*units, strict=True)
        candidates = tuple(chosen for _, chosen, _ in planned)
        return RentableUnits(
            np.array(usd), np.array(tokens), candidates, num_instances, tuple(bands), tuple(prices)
        )  # fmt: skip

    def _serving_plan(
        self, name: str, times: float, *, alone: bool, simulate: bool
    ) -> tuple[Resolved, Plan] | list[str]:
        """The plan to serve `times` the traffic, or why there is none."""
        traffic, request = self._request.traffic, self._request
        rate = times * traffic.tokens_per_month / traffic.tokens_per_request / (HOURS_PER_MONTH * HOUR_S)
        flow = {
            "requests_per_s": rate, "peak": traffic.peak, "input_tokens": traffic.input_tokens,
            "output_tokens": traffic.output_tokens or None,
        }  # fmt: skip
        targets = dict(request.targets)
        task: dict[str, Any] = {"task": "serve", "traffic": flow, "simulate": simulate, "targets": targets}
        return self._plan(request.options.purchase, alone=alone, model=name, **task)


def _shortfalls(answer: Plan) -> list[str]:
    """The targets that the nearest plan misses, or else the commonest reasons of the search."""
    for miss in answer.misses[:1]:
        over = {TARGET_NAMES.get(name, name): times for name, times in miss.shortfall.items() if times > 1}
        short = [f"{name} {format_times(times)} its limit" for name, times in over.items()]
        return [f"nearest: {miss.num_instances} x {miss.provider} {miss.instance}: {', '.join(short) or 'too unsure'}"]
    return [f"{r.count:,} {r.unit}: {r.reason}" for r in answer.decisive[:REASONS]]
