"""The ways of `compare` that run on machines of one's own: their plans, what they cost, and where they meet an API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flopwise.errors import InfeasibleError
from flopwise.fleet import ways
from flopwise.fleet.prices import EffectivePrice, effective, run_usd
from flopwise.fleet.ways import Crossing, Kind, Machines, Serving, TrainingRun, Way
from flopwise.units import HOUR_S, HOURS_PER_MONTH

if TYPE_CHECKING:
    from flopwise.api.compare_ways import Goal
    from flopwise.cost.intervals import ErrorBand
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.facts.offers import Offer
    from flopwise.ops.types import Array
    from flopwise.search.answer import Candidate, Plan
    from flopwise.search.workload import Resolved

AT_SCALE = 30.0
"""Machines are also planned for so many times the traffic: what a full one carries is what break-even volumes need."""
REASONS = 3
LOW, HIGH = 0.1, 0.9
NAMES: dict[Kind, str] = {"open": "open weights", "finetune": "fine-tune", "pretrain": "train from scratch"}


@dataclass(frozen=True, slots=True)
class Menu:
    """What can be rented to serve, and the price of a month of an instance of each unit."""

    machines: Machines
    prices: tuple[EffectivePrice, ...]


@dataclass(frozen=True, slots=True)
class Begun:
    """The training that a way starts with (None: none), all its runs: USD, its ends, and the error of their time."""

    run: TrainingRun | None = None
    band: ErrorBand | None = None

    @property
    def usd(self) -> float:
        """What is paid before the first month."""
        return 0.0 if self.run is None else self.run.cost_usd * self.run.runs

    @property
    def ends(self) -> tuple[float, float, float]:
        """(value, low, high) of `usd`."""
        if self.run is None:
            return 0.0, 0.0, 0.0
        return self.usd, self.run.cost_usd_low * self.run.runs, self.run.cost_usd_high * self.run.runs


class OwnWays:
    """Plans what each way needs, each plan once; `advance(done, whole)` is told as they are done."""

    def __init__(
        self,
        goal: Goal,
        known: Facts,
        kinds: Sequence[Kind],
        assume_family: str | None,
        advance: Callable[[int, int], None] | None,
    ) -> None:
        self.goal, self._known, self._kinds, self._family = goal, known, kinds, assume_family
        self._offers = {offer.key: offer for offer in known.offers}
        self._advance, self._done = advance, 0
        self._whole = 2 * len({self._spec(kind) for kind in kinds}) + sum(kind != "open" for kind in kinds)
        self._menus: dict[str, Menu | list[str]] = {}
        self.begun: dict[Kind, Begun] = {}

    @property
    def folder(self) -> Path | None:
        """Where facts of one's own are."""
        return self._known.folder

    def ways(self) -> list[Way]:
        """Each way, in the order in which the kinds were given."""
        return [self._way(kind) for kind in self._kinds]

    def crossings(self, apis: Sequence[tuple[str, float]]) -> list[Crossing]:
        """Each feasible way against each API (name, USD a token)."""
        return [self._crossing(kind, name, usd) for kind in self.begun for name, usd in apis]

    def machines(self, kind: Kind) -> Machines:
        """What serves a feasible way."""
        menu = self._menus[self._spec(kind)]
        assert isinstance(menu, Menu)
        return menu.machines

    def volumes(self, months: int) -> Array:
        """Tokens of each month."""
        traffic = self.goal.traffic
        return ways.monthly_volumes(traffic.tokens_per_month, traffic.growth_frac, months)

    def paid(self, kind: Kind, months: int, factor: Array | None = None) -> Array:
        """What each month costs, upkeep included, where units carry `factor` times their estimates."""
        return ways.own_usd(self.volumes(months), self.machines(kind), factor) + self.goal.upkeep_usd_per_month

    def paid_ends(self, kind: Kind, months: int) -> tuple[Array, Array]:
        """(low, high) of what each month costs, by the measured errors of the throughput."""
        machines = self.machines(kind)
        low, high = (self.paid(kind, months, machines.factor(p)) for p in (HIGH, LOW))
        return low, high

    def _spec(self, kind: Kind) -> str:
        return self.goal.scratch_spec if kind == "pretrain" else self.goal.spec

    def _model(self, kind: Kind) -> Model:
        return self.goal.scratch if kind == "pretrain" else self.goal.model

    def _offer(self, chosen: Candidate) -> Offer:
        return self._offers[chosen.provider, chosen.instance, chosen.region]

    def _plan(self, task: dict[str, Any]) -> tuple[Resolved, Plan] | list[str]:
        """The plan of a workload, or why there is none."""
        from flopwise.search.plan import plan
        from flopwise.search.workload_file import workload_from

        try:
            wanted = workload_from(task, "compare")
            found = plan(wanted, self._known, assume_family=self._family)
        except InfeasibleError as failure:
            return [str(failure), *failure.reasons[:REASONS]]
        finally:
            self._done += 1
            if self._advance is not None:
                self._advance(min(self._done, self._whole), self._whole)
        if found.plans:
            return wanted, found
        return [f"no plan for the {task['task']} workload meets every target", *_why(found)]

    def _way(self, kind: Kind) -> Way:
        goal, spec, model = self.goal, self._spec(kind), self._model(kind)
        if spec not in self._menus:
            self._menus[spec] = self._menu(spec, model)
        menu = self._menus[spec]
        begun = Begun() if kind == "open" else self._begun(kind, spec, model)
        if isinstance(menu, list) or isinstance(begun, list):
            reasons = [*(menu if isinstance(menu, list) else []), *(begun if isinstance(begun, list) else [])]
            return Way(name=NAMES[kind], kind=kind, model=model.name, feasible=False, reasons=reasons)
        self.begun[kind] = begun
        monthly, (least, most) = self.paid(kind, goal.months), self.paid_ends(kind, goal.months)
        paid = ways.cumulative_usd(begun.usd, monthly)
        served, served_low, served_high = (ways.cumulative_usd(0.0, months) for months in (monthly, least, most))
        paid_low, paid_high = ways.summed_ends(paid, begun.ends, (served, served_low, served_high))
        volumes = self.volumes(goal.months)
        each = 1e6 / float(volumes.sum())
        _, upfront_low, upfront_high = begun.ends
        return Way(
            name=NAMES[kind], kind=kind, model=model.name, feasible=True,
            upfront_usd=begun.usd, upfront_usd_low=upfront_low, upfront_usd_high=upfront_high,
            usd_per_month=float(monthly[0]), usd_per_month_low=float(least[0]), usd_per_month_high=float(most[0]),
            last_usd_per_month=float(monthly[-1]), last_usd_per_month_low=float(least[-1]),
            last_usd_per_month_high=float(most[-1]),
            total_usd=float(paid[-1]), total_usd_low=float(paid_low[-1]), total_usd_high=float(paid_high[-1]),
            usd_per_million_tokens=each * float(paid[-1]), usd_per_million_tokens_low=each * float(paid_low[-1]),
            usd_per_million_tokens_high=each * float(paid_high[-1]),
            cumulative_usd=paid.tolist(), cumulative_usd_low=paid_low.tolist(), cumulative_usd_high=paid_high.tolist(),
            training=begun.run, serving=_serving(volumes, (monthly, least, most), menu),
            loss=None if kind != "pretrain" or begun.run is None else _loss(goal, begun.run.tokens),
        )  # fmt: skip

    def _begun(self, kind: Kind, spec: str, model: Model) -> Begun | list[str]:
        """The training run that costs the least, as it is billed."""
        from flopwise.search.plan_training import candidate_job
        from flopwise.training.estimate import training_band

        goal = self.goal
        tokens = goal.finetune_tokens if kind == "finetune" else goal.pretrain_tokens
        limits = {**goal.constraints, **({"purchase": list(goal.train_purchase)} if goal.train_purchase else {})}
        task = {"model": spec, "task": kind, "data": {"tokens": tokens}, "constraints": limits}
        if kind == "finetune" and goal.method:
            task["method"] = dict(goal.method)
        found = self._plan(task)
        if isinstance(found, list):
            return found
        wanted, answer = found

        def usd(chosen: Candidate, longer: float = 1.0) -> float:
            return chosen.num_instances * self._billed(chosen, longer)[0]

        best = min(answer.plans, key=usd)
        band = training_band(candidate_job(wanted, model, self._known, self._offer(best), best))
        method = str(goal.method.get("kind", "full")) if kind == "finetune" else "from scratch"
        run = TrainingRun(
            tokens=tokens, method=method, provider=best.provider, region=best.region, instance=best.instance,
            num_instances=best.num_instances, gpu=best.gpu, num_gpus=best.num_gpus, purchase=best.purchase,
            seconds=best.seconds, seconds_low=best.seconds / band.high, seconds_high=best.seconds / band.low,
            cost_usd=usd(best), cost_usd_low=usd(best, 1 / band.high), cost_usd_high=usd(best, 1 / band.low),
            runs=goal.runs, price_date=best.price_date, usd_per_hour=best.usd_per_hour,
            price_notes=list(self._billed(best, 1.0)[1].notes),
        )  # fmt: skip
        return Begun(run, band)

    def _billed(self, chosen: Candidate, longer: float) -> tuple[float, EffectivePrice]:
        """What an instance of a training plan costs, `longer` times as long as planned."""
        hours = chosen.seconds * longer / HOUR_S
        found = run_usd(self._offer(chosen), chosen.purchase, hours, folder=self._known.folder)
        assert found is not None, "plans are made of what is sold"
        return found

    def _menu(self, spec: str, model: Model) -> Menu | list[str]:
        """What can be rented to serve: the plans for the traffic as it is, and for much more of it."""
        from flopwise.search.plan_serving import candidate_job
        from flopwise.serving.bands import serving_band

        first = self._serve(spec, 1.0, simulate=self.goal.simulate)
        if isinstance(first, list):
            return first
        scale = max(AT_SCALE, (1 + self.goal.traffic.growth_frac) ** self.goal.months)
        many = self._serve(spec, scale, simulate=False)
        failed = {(c.instance, c.region, c.purchase) for c in first[1].demoted}
        units = [(first[0], c, 1.0) for c in first[1].plans]
        if not isinstance(many, list):
            kept = (c for c in many[1].plans if (c.instance, c.region, c.purchase) not in failed)
            units += [(many[0], c, scale) for c in kept]
        traffic, rows, prices, bands = self.goal.traffic, [], [], []
        for wanted, chosen, times in units:
            offer = self._offer(chosen)
            volume, held = times * traffic.tokens_per_month, chosen.layout
            gpus = int(held["tp"]) * int(held["pp"]) * int(held["dp"])
            together = -(-gpus // max(1, chosen.num_gpus // chosen.num_instances))
            price = effective(offer, chosen.purchase, HOURS_PER_MONTH, instances=together, folder=self._known.folder)
            assert price is not None, "plans are made of what is sold"
            rows.append(ways.unit_of(chosen, traffic.tokens_per_request, traffic.peak, volume, price.usd_per_month))
            prices.append(price)
            bands.append(serving_band(candidate_job(wanted, model, self._known, offer, chosen), "throughput"))
        return Menu(
            Machines(
                usd_per_month=np.array([row[0] for row in rows]),
                tokens_per_month=np.array([row[1] for row in rows]),
                units=tuple(c for _, c, _ in units),
                instances=tuple(row[2] for row in rows),
                bands=tuple(bands),
            ),
            tuple(prices),
        )

    def _serve(self, spec: str, times: float, *, simulate: bool) -> tuple[Resolved, Plan] | list[str]:
        goal = self.goal
        rate = times * goal.traffic.tokens_per_month / goal.traffic.tokens_per_request / (HOURS_PER_MONTH * HOUR_S)
        flow: dict[str, Any] = {"requests_per_s": rate, "peak": goal.traffic.peak}
        flow |= {"input_tokens": goal.traffic.input_tokens, "output_tokens": goal.traffic.output_tokens}
        limits = {**goal.constraints, **({"purchase": list(goal.purchase)} if goal.purchase else {})}
        task = {"model": spec, "task": "serve", "traffic": flow, "constraints": limits, "simulate": simulate}
        return self._plan({**task, "targets": dict(goal.targets)})

    def _crossing(self, kind: Kind, api: str, usd_per_token: float) -> Crossing:
        goal, machines, begun = self.goal, self.machines(kind), self.begun[kind]
        other = ways.cumulative_usd(0.0, self.volumes(ways.LONGEST) * usd_per_token)
        months, volumes = [], []
        for upfront, odds in zip(begun.ends, (None, HIGH, LOW), strict=True):
            factor = None if odds is None else machines.factor(odds)
            own = ways.cumulative_usd(upfront, self.paid(kind, ways.LONGEST, factor))
            months.append(ways.break_even_month(own, other))
            held = machines if factor is None else machines.carrying(factor)
            volumes.append(ways.break_even_volume(upfront, goal.upkeep_usd_per_month, goal.months, usd_per_token, held))
        least = 1e6 * float((machines.usd_per_month / machines.tokens_per_month).min())
        why = ""
        if volumes[0] is None:
            why = f"a full machine costs ${least:.3g} a million tokens, the API ${1e6 * usd_per_token:.3g}"
        elif months[0] is None:
            why = f"at this traffic never within {ways.LONGEST} months"
        return Crossing(
            way=NAMES[kind], against=api, why=why, month=months[0], month_low=months[1], month_high=months[2],
            tokens_per_month=volumes[0], tokens_per_month_low=volumes[1], tokens_per_month_high=volumes[2],
        )  # fmt: skip


def _why(found: Plan) -> list[str]:
    """What the nearest miss misses, or else the commonest reasons of the search."""
    for miss in found.misses[:1]:
        short = [f"{name} {times:,.3g} times its limit" for name, times in miss.shortfall.items() if times > 1]
        return [f"nearest: {miss.num_instances} x {miss.provider} {miss.instance}: {', '.join(short) or 'too unsure'}"]
    return [f"{r.count:,} {r.unit}: {r.reason}" for r in found.ruled_out[:REASONS]]


def _serving(volumes: Array, monthly: tuple[Array, Array, Array], menu: Menu) -> Serving:
    """The machines of the first and of the last month."""
    machines = menu.machines
    index, count = ways.chosen(float(volumes[0]), machines)
    last, last_count = ways.chosen(float(volumes[-1]), machines)
    best, final, price = machines.units[index], machines.units[last], menu.prices[index]
    grown = (last, last_count) != (index, count)
    first = float(volumes[0])
    full = float(machines.tokens_per_month[index])
    carried = [full * float(f) for f in (1.0, *(machines.factor(p)[index] for p in (HIGH, LOW)))]
    counts = [max(1, int(np.ceil(np.round(first / each, 9)))) for each in carried]
    filled = [first / (number * each) for number, each in zip(counts, carried, strict=True)]
    each_usd = [1e6 * float(usd[0]) / first for usd in monthly]
    return Serving(
        provider=best.provider,
        what=best.instance,
        num_instances=count * machines.instances[index],
        num_instances_low=counts[1] * machines.instances[index],
        num_instances_high=counts[2] * machines.instances[index],
        gpu=best.gpu,
        purchase=best.purchase,
        usd_per_million_tokens=each_usd[0],
        usd_per_million_tokens_low=each_usd[1],
        usd_per_million_tokens_high=each_usd[2],
        price_date=best.price_date,
        last_num_instances=last_count * machines.instances[last] if grown else None,
        last_what=f"{final.provider} {final.instance}" if grown else None,
        filled_frac=filled[0],
        filled_frac_low=min(filled),
        filled_frac_high=max(filled),
        usd_per_hour=price.usd_per_hour_list,
        price_notes=list(price.notes),
    )


def _loss(goal: Goal, tokens: float) -> float:
    """What the scaling law expects of the model that is trained from scratch."""
    from flopwise.training.token_rules import predicted_loss

    return float(predicted_loss(_active(goal), tokens))


def assumed(goal: Goal, kinds: Sequence[Kind]) -> list[str]:
    """What the comparison takes for granted."""
    said = [
        "every way answers well enough; only cost is compared",
        "machines that serve are on all month, whole",
        "an interval holds 80 % of cases by the measured errors of training and serving; prices are as listed",
    ]
    if "api" in kinds:
        said.append("API prices without discounts for batches, volume or cached prompts")
    if set(kinds) - {"api", "open"}:
        said.append(f"{goal.runs} training run(s) paid, without data, evaluation and people")
    terms = {"reserved_1y": 12, "reserved_3y": 36}
    if set(kinds) - {"api"} and any(terms.get(purchase, 0) > goal.months for purchase in goal.purchase):
        said.append(
            f"a reservation outlasts the {goal.months} months compared; the rest of its term is not in the sums"
        )
    if any(purchase.startswith("reserved") for purchase in goal.train_purchase):
        said.append("a reservation is paid for the months that a training run takes; what is left of its term is not")
    if "pretrain" in kinds:
        ratio = goal.pretrain_tokens / _active(goal)
        said.append(
            f"from scratch on {goal.pretrain_tokens:,.3g} tokens, {ratio:.3g} a parameter; published weights of the "
            "same size have often seen many times that, and answer better for it"
        )
    if not goal.upkeep_usd_per_month and set(kinds) - {"api"}:
        said.append("no upkeep: people and storage of a service of one's own are not counted (--upkeep)")
    return said


def _active(goal: Goal) -> float:
    from flopwise.ops.tensors import active_parameters

    return float(active_parameters(goal.scratch))
