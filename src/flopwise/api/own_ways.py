"""The ways of `compare` that run on machines of one's own: their plans, what they cost, and where they meet an API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flopwise.errors import InfeasibleError
from flopwise.fleet import ways
from flopwise.fleet.ways import Crossing, Kind, Machines, Serving, TrainingRun, Way
from flopwise.units import HOUR_S, HOURS_PER_MONTH

if TYPE_CHECKING:
    from flopwise.api.compare_ways import Goal
    from flopwise.facts.catalog import Facts
    from flopwise.ops.types import Array
    from flopwise.search.answer import Plan

AT_SCALE = 30.0
"""Machines are also planned for so many times the traffic: what a full one carries is what break-even volumes need."""
REASONS = 3
NAMES: dict[Kind, str] = {"open": "open weights", "finetune": "fine-tune", "pretrain": "train from scratch"}


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
        self._goal, self._known, self._kinds, self._family = goal, known, kinds, assume_family
        self._advance, self._done = advance, 0
        self._whole = 2 * len({self._spec(kind) for kind in kinds}) + sum(kind != "open" for kind in kinds)
        self._machines: dict[str, Machines | list[str]] = {}
        self._upfront: dict[Kind, float] = {}

    def ways(self) -> list[Way]:
        """Each way, in the order in which the kinds were given."""
        return [self._way(kind) for kind in self._kinds]

    def crossings(self, apis: Sequence[tuple[str, float]]) -> list[Crossing]:
        """Each feasible way against each API (name, USD a token)."""
        return [self._crossing(kind, name, usd) for kind in self._upfront for name, usd in apis]

    def _spec(self, kind: Kind) -> str:
        return self._goal.scratch_spec if kind == "pretrain" else self._goal.spec

    def _plan(self, task: dict[str, Any]) -> Plan | list[str]:
        """The plan of a workload, or why there is none."""
        from flopwise.search.plan import plan
        from flopwise.search.workload_file import workload_from

        try:
            found = plan(workload_from(task, "compare"), self._known, assume_family=self._family)
        except InfeasibleError as failure:
            return [str(failure), *failure.reasons[:REASONS]]
        finally:
            self._done += 1
            if self._advance is not None:
                self._advance(min(self._done, self._whole), self._whole)
        if found.plans:
            return found
        return [f"no plan for the {task['task']} workload meets every target", *_why(found)]

    def _way(self, kind: Kind) -> Way:
        goal, spec = self._goal, self._spec(kind)
        model = goal.scratch if kind == "pretrain" else goal.model
        if spec not in self._machines:
            self._machines[spec] = self._menu(spec)
        machines = self._machines[spec]
        run = None if kind == "open" else self._run(kind, spec)
        reasons = [*(machines if isinstance(machines, list) else []), *(run if isinstance(run, list) else [])]
        if isinstance(machines, list) or isinstance(run, list):
            return Way(name=NAMES[kind], kind=kind, model=model.name, feasible=False, reasons=reasons)
        volumes = self._volumes(goal.months)
        monthly = ways.own_usd(volumes, machines) + goal.upkeep_usd_per_month
        upfront = self._upfront[kind] = 0.0 if run is None else run.cost_usd * run.runs
        paid = ways.cumulative_usd(upfront, monthly)
        loss = None if kind != "pretrain" or run is None else _loss(goal, run.tokens)
        return Way(
            name=NAMES[kind],
            kind=kind,
            model=model.name,
            feasible=True,
            upfront_usd=upfront,
            usd_per_month=float(monthly[0]),
            last_usd_per_month=float(monthly[-1]),
            total_usd=float(paid[-1]),
            usd_per_million_tokens=1e6 * float(paid[-1]) / float(volumes.sum()),
            cumulative_usd=paid.tolist(),
            training=run,
            serving=_serving(volumes, monthly, machines),
            loss=loss,
        )

    def _volumes(self, months: int) -> Array:
        traffic = self._goal.traffic
        return ways.monthly_volumes(traffic.tokens_per_month, traffic.growth_frac, months)

    def _run(self, kind: Kind, spec: str) -> TrainingRun | list[str]:
        """The cheapest training run."""
        goal = self._goal
        tokens = goal.finetune_tokens if kind == "finetune" else goal.pretrain_tokens
        limits = {**goal.constraints, **({"purchase": list(goal.train_purchase)} if goal.train_purchase else {})}
        task = {"model": spec, "task": kind, "data": {"tokens": tokens}, "constraints": limits}
        if kind == "finetune" and goal.method:
            task["method"] = dict(goal.method)
        found = self._plan(task)
        if isinstance(found, list):
            return found
        best = found.plans[0]
        method = str(goal.method.get("kind", "full")) if kind == "finetune" else "from scratch"
        return TrainingRun(
            tokens=tokens, method=method, provider=best.provider, region=best.region, instance=best.instance,
            num_instances=best.num_instances, gpu=best.gpu, num_gpus=best.num_gpus, purchase=best.purchase,
            seconds=best.seconds, cost_usd=best.cost_usd, runs=goal.runs, price_date=best.price_date,
        )  # fmt: skip

    def _menu(self, spec: str) -> Machines | list[str]:
        """What can be rented to serve: the plans for the traffic as it is, and for much more of it."""
        first = self._serve(spec, 1.0, simulate=self._goal.simulate)
        if isinstance(first, list):
            return first
        scale = max(AT_SCALE, (1 + self._goal.traffic.growth_frac) ** self._goal.months)
        many = self._serve(spec, scale, simulate=False)
        failed = {(c.instance, c.region, c.purchase) for c in first.demoted}
        units = [(c, 1.0) for c in first.plans]
        if not isinstance(many, list):
            units += [(c, scale) for c in many.plans if (c.instance, c.region, c.purchase) not in failed]
        traffic = self._goal.traffic
        rows = [
            ways.unit_of(c, traffic.tokens_per_request, traffic.peak, times * traffic.tokens_per_month)
            for c, times in units
        ]
        return Machines(
            usd_per_month=np.array([row[0] for row in rows]),
            tokens_per_month=np.array([row[1] for row in rows]),
            units=tuple(c for c, _ in units),
            instances=tuple(row[2] for row in rows),
        )

    def _serve(self, spec: str, times: float, *, simulate: bool) -> Plan | list[str]:
        goal = self._goal
        rate = times * goal.traffic.tokens_per_month / goal.traffic.tokens_per_request / (HOURS_PER_MONTH * HOUR_S)
        flow: dict[str, Any] = {"requests_per_s": rate, "peak": goal.traffic.peak}
        flow |= {"input_tokens": goal.traffic.input_tokens, "output_tokens": goal.traffic.output_tokens}
        limits = {**goal.constraints, **({"purchase": list(goal.purchase)} if goal.purchase else {})}
        task = {"model": spec, "task": "serve", "traffic": flow, "constraints": limits, "simulate": simulate}
        return self._plan({**task, "targets": dict(goal.targets)})

    def _crossing(self, kind: Kind, api: str, usd_per_token: float) -> Crossing:
        goal, machines = self._goal, self._machines[self._spec(kind)]
        assert isinstance(machines, Machines)
        upfront, upkeep = self._upfront[kind], goal.upkeep_usd_per_month
        volumes = self._volumes(ways.LONGEST)
        own = ways.cumulative_usd(upfront, ways.own_usd(volumes, machines) + upkeep)
        other = ways.cumulative_usd(0.0, volumes * usd_per_token)
        month = ways.break_even_month(own, other)
        volume = ways.break_even_volume(upfront, upkeep, goal.months, usd_per_token, machines)
        least = 1e6 * float((machines.usd_per_month / machines.tokens_per_month).min())
        why = ""
        if volume is None:
            why = f"a full machine costs ${least:.3g} a million tokens, the API ${1e6 * usd_per_token:.3g}"
        elif month is None:
            why = f"at this traffic never within {ways.LONGEST} months"
        return Crossing(way=NAMES[kind], against=api, month=month, tokens_per_month=volume, why=why)


def _why(found: Plan) -> list[str]:
    """What the nearest miss misses, or else the commonest reasons of the search."""
    for miss in found.misses[:1]:
        short = [f"{name} {times:,.3g} times its limit" for name, times in miss.shortfall.items() if times > 1]
        return [f"nearest: {miss.num_instances} x {miss.provider} {miss.instance}: {', '.join(short) or 'too unsure'}"]
    return [f"{r.count:,} {r.unit}: {r.reason}" for r in found.ruled_out[:REASONS]]


def _serving(volumes: Array, monthly: Array, machines: Machines) -> Serving:
    """The machines of the first and of the last month."""
    index, count = ways.chosen(float(volumes[0]), machines)
    last, last_count = ways.chosen(float(volumes[-1]), machines)
    best, final = machines.units[index], machines.units[last]
    grown = (last, last_count) != (index, count)
    return Serving(
        provider=best.provider,
        what=best.instance,
        num_instances=count * machines.instances[index],
        gpu=best.gpu,
        purchase=best.purchase,
        usd_per_million_tokens=1e6 * float(monthly[0] / volumes[0]),
        price_date=best.price_date,
        last_num_instances=last_count * machines.instances[last] if grown else None,
        last_what=f"{final.provider} {final.instance}" if grown else None,
    )


def _loss(goal: Goal, tokens: float) -> float:
    """What the scaling law expects of the model that is trained from scratch."""
    from flopwise.training.token_rules import predicted_loss

    return float(predicted_loss(_active(goal), tokens))


def assumed(goal: Goal, kinds: Sequence[Kind]) -> list[str]:
    """What the comparison takes for granted."""
    said = ["every way answers well enough; only cost is compared", "machines that serve are on all month, whole"]
    if "api" in kinds:
        said.append("API prices without discounts for batches, volume or cached prompts")
    if set(kinds) - {"api", "open"}:
        said.append(f"{goal.runs} training run(s) paid, without data, evaluation and people")
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
