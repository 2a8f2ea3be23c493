"""Where the figures of a plan come from, beside those of the estimate of its layout alone: price, bill, odds, load.

The estimate of a service is that of one of its replicas, on average; its plan tells percentiles, a month and the odds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flopwise.facts.accelerators import Accelerator
from flopwise.origin import COUNTED, chip_fact
from flopwise.provenance import Figure, fact, setting, term, walk
from flopwise.search.answer import Candidate, ComparedFigures, Lever, Plan, device_change
from flopwise.search.spec import TRAINING
from flopwise.search.workload import Resolved
from flopwise.units import HOUR_S, HOURS_PER_MONTH

ODDS = "error model"
"""Formulas of odds begin so."""
LATENCIES = {"ttft": ("TTFT", "ttft_s"), "tpot": ("TPOT", "tpot_s"), "latency": ("whole request", "e2e_s")}
_SAME = 1e-6
"""Relative difference up to which two ways to a figure agree."""


def plan_figures(
    answer: Plan, chosen: Candidate, workload: Resolved, chip: Accelerator, alone: Figure,
) -> Figure:  # fmt: skip
    """The tree `alone`, of the estimate of a candidate's layout, with the figures that the plan adds.

    `chip`: its device. Latencies are told at a percentile, of users in step as means.
    """
    from flopwise.search.deployments import latency_percentiles  # noqa: PLC0415 - half is enough

    arrives = answer.task not in TRAINING and workload.requests_per_s is not None
    percentiles = latency_percentiles(workload) if arrives else {}
    capacity = chip_fact(chip, "hbm_bytes", "B")
    made = _PlanFigures(answer, chosen, workload, capacity, {one.name: one for one in walk(alone)}, percentiles)
    return Figure(
        alone.name, alone.value, alone.unit, alone.formula, alone.source, (*made.figures(), *alone.inputs),
        f"{alone.note}; {ODDS}: errors are two-sided lognormal through the measured ends of the 80 % interval",
        kind=alone.kind,
    )  # fmt: skip


class _PlanFigures:
    """The figures of one candidate; `known`: those of the estimate of its layout, by name."""

    def __init__(
        self, answer: Plan, chosen: Candidate, workload: Resolved, capacity: Figure, known: Mapping[str, Figure],
        percentiles: Mapping[str, str],
    ) -> None:  # fmt: skip
        self.answer, self.chosen, self.workload, self.capacity = answer, chosen, workload, capacity
        self.known, self.percentiles = known, percentiles
        self.trains, self.batch = answer.task in TRAINING, answer.task == "batch"
        self.each, self.hourly = _prices(chosen)

    def figures(self) -> list[Figure]:
        """All of them."""
        served = {} if self.trains else dict(self._load())
        cost = self._cost(served)
        values = self._values(served, cost)
        figures = [*served.values(), *self._rates(served, cost), cost, *self._units(cost)]
        figures += [*self._odds(values), *self._ends(self._time(served), cost), self.hourly]
        changes = self._levers(self._time(served), cost) if self.answer.plans[:1] == [self.chosen] else ()
        return [*figures, *changes]

    def _load(self) -> Iterator[tuple[str, Figure]]:
        """Latencies as the plan tells them, and what the machines carry, by the names of a plan's figures."""
        chosen, figures = self.chosen, self.chosen.figures
        for target, (name, key) in LATENCIES.items():
            value = figures.get(key)
            if value is not None:
                at = self.percentiles.get(target, "mean")
                formula = f"queue model: at {at} of requests, under the arrivals of a replica"
                alone = self.known.get(name, self.known["TTFT"])  # what answers in one pass has one latency
                yield key, term(f"{name} of the plan", value, "s", formula, alone)
        full = figures.get("requests_per_s_capacity")
        if full is None:
            return
        count = int(chosen.layout.get("replicas", 1))
        batch = Figure("sequences at once", chosen.layout.get("max_batch"), kind="chosen")
        formula = "queue model: sequences at once / time of a request among so many"
        known = [self.known[name] for name in ("mean step", "cache budget per GPU") if name in self.known]
        one = term("requests/s of a replica", full / count, "1/s", formula, batch, *known)
        replicas = Figure("replicas", count, kind="chosen")
        most = term("requests/s it sustains", full, "1/s", f"{one.name} x replicas", one, replicas)
        yield "requests_per_s_capacity", most
        busy, rate = figures.get("busy_frac"), self.workload.requests_per_s
        if busy is None:
            return
        if rate is None or not _same(busy, rate / full):
            yield "busy_frac", term("busy", busy, "frac", f"{COUNTED}: requests wait all the time", most)
            return
        arriving = setting("requests/s at the peak", rate, "1/s")
        yield "busy_frac", term("busy", busy, "frac", f"{arriving.name} / {most.name}", arriving, most)

    def _time(self, served: Mapping[str, Figure]) -> Figure:
        """The meaning of `seconds`: a run, a batch, or a request."""
        seconds = self.chosen.seconds
        if self.trains:
            return self.known.get("run time", setting("run time", seconds, "s"))
        if not self.batch:
            return served.get("e2e_s", served.get("ttft_s", setting("whole request", seconds, "s")))
        requests, rate = setting("requests", self.workload.requests), served["requests_per_s_capacity"]
        formula, inputs = f"{requests.name} / {rate.name}", (requests, rate)
        if not _same(seconds, (self.workload.requests or 0.0) / float(rate.value or 1.0)):
            formula = f"queue model: {formula}, as long as the run was simulated or its lengths are drawn"
        return term("time of the batch", seconds, "s", formula, *inputs)

    def _cost(self, served: Mapping[str, Figure]) -> Figure:
        """The bill of a month, or of a run with its start."""
        one, hourly = self.chosen, self.hourly
        if self.trains or self.batch:
            start, time = setting("start", one.start_s, "s"), self._time(served)
            start = term(start.name, one.start_s, "s", f"{COUNTED}: machines that boot, image, weights, compilation")
            plain = one.paid_s / HOUR_S * one.usd_per_hour
            formula = f"({start.name} + {time.name}) / {HOUR_S:g} x {hourly.name}"
            if not _same(one.cost_usd, plain):
                formula = f"{COUNTED}: {formula}, rounded as the provider bills"
            return term("cost of the plan", one.cost_usd, "USD", formula, start, time, hourly)
        month = setting("hours of a month", HOURS_PER_MONTH, "h")
        formula = f"{hourly.name} x {HOURS_PER_MONTH:g}"
        if not _same(one.cost_usd, one.usd_per_hour * HOURS_PER_MONTH):
            formula = f"{COUNTED}: {formula}, with what else the month pays (stores of caches, hours of a fleet)"
            return term("cost of the plan", one.cost_usd, "USD", formula, hourly, month)
        return term("cost of the plan", one.cost_usd, "USD", formula, hourly)

    def _ends(self, time: Figure, cost: Figure) -> Iterator[Figure]:
        """Time and cost at the ends of their intervals."""
        one, named = self.chosen, ("throughput per GPU",) if self.trains else ("throughput", "TTFT", "TPOT")
        ends = [f"{name}, {word}" for name in named for word in ("low", "high")]
        known = [self.known[name] for name in ends if name in self.known]
        errors = [below for end in known for below in end.inputs if below.kind == "calibration"]
        runs = "that the run is then paid" if self.trains or self.batch else "of the machines that it then takes"
        for word in ("low", "high"):
            seconds, usd = getattr(one, f"seconds_{word}"), getattr(one, f"cost_usd_{word}")
            name = f"{time.name}, {word}"
            if seconds is not None and name not in self.known:
                yield term(name, seconds, "s", f"{ODDS}: {time.name} over or times the errors", time, *errors)
            if usd is not None:
                formula = f"{ODDS}: {cost.name} for the time {runs}"
                yield term(f"{cost.name}, {word}", usd, "USD", formula, cost, time, *errors)

    def _units(self, cost: Figure) -> Iterator[Figure]:
        """The cost of one of each unit of which the run, or a month of the service, does some."""
        runs = self.trains or self.batch
        amounts = self.workload.amounts(self.chosen.paid_s / HOUR_S if runs else HOURS_PER_MONTH)
        for unit, usd in self.chosen.unit_usd.items():
            what, number = unit.replace("_", " "), amounts.get(unit)
            if what == "session":  # among the rates
                continue
            doer = "the run" if runs else f"the service at its mean rate in {HOURS_PER_MONTH:g} hours"
            done = term(f"units of {what}", number, "", f"{COUNTED}: what {doer} does")
            plain = number is not None and _same(usd, self.chosen.cost_usd / number)
            division = f"{cost.name} / {done.name}"
            yield term(f"cost per {what}", usd, "USD", division if plain else f"{COUNTED}: {division}", cost, done)

    def _levers(self, time: Figure, cost: Figure) -> Iterator[Figure]:
        """Memory, time and cost of the first plan with each single change, over what they are without."""
        others = {device_change(one): one for one in reversed(self.answer.plans)}
        now = {"memory": self.known["memory per GPU"], "time": time, "cost": cost}
        for lever in self.answer.levers:
            if lever.changed is None:
                continue
            other = others.get(lever.change)
            what = f"{COUNTED}: as that plan is ranked" if other else f"{COUNTED}: the plan estimated anew so"
            memory = term(f"memory {_so(lever)}", lever.changed.memory_bytes, "B", what)
            seconds = term(f"time {_so(lever)}", lever.changed.seconds, "s", what)
            then = {"memory": memory, "time": seconds, "cost": self._changed_cost(lever, lever.changed, other, seconds)}
            for name, ratio in (("memory", lever.memory), ("time", lever.seconds), ("cost", lever.cost)):
                after, before = then[name], now[name]
                value = float(after.value or 0.0) / (ratio or 1.0)
                if not _same(value, float(before.value or 0.0)):  # no start, or as it was before it was simulated
                    before = term(f"{name} that is compared", value, before.unit, f"{COUNTED}: as estimated", before)
                yield term(f"{name}, {lever.change}", ratio, "", f"{after.name} / {before.name}", after, before)

    def _changed_cost(self, lever: Lever, changed: ComparedFigures, other: Candidate | None, seconds: Figure) -> Figure:
        """The cost after a change: on another plan's machines, for another time, or with another number of them."""
        each, hourly = (self.each, self.hourly) if other is None else _prices(other)
        name, usd, price = f"cost {_so(lever)}", changed.cost_usd, float(each.value or 0.0)
        ways: list[tuple[str, float, tuple[Figure, ...]]] = []
        if self.trains or self.batch:
            hours = changed.seconds / HOUR_S
            ways.append((f"{seconds.name} / {HOUR_S:g} x {hourly.name}", hours, (seconds, hourly)))
            if other is not None:
                start = term("start", other.start_s, "s", f"{COUNTED}: machines that boot, image, weights, compilation")
                hours += other.start_s / HOUR_S
                formula = f"({start.name} + {seconds.name}) / {HOUR_S:g} x {hourly.name}"
                ways.append((formula, hours, (start, seconds, hourly)))
            paid = float(hourly.value or 0.0)
        else:
            number = round(usd / (price * HOURS_PER_MONTH)) if price else 0
            count = term("instances", number, "", f"{COUNTED}: as many as it then takes")
            ways.append((f"{each.name} x {count.name} x {HOURS_PER_MONTH:g}", number * HOURS_PER_MONTH, (each, count)))
            paid = price
        for formula, hours, inputs in ways:
            if _same(usd, hours * paid):
                return term(name, usd, "USD", formula, *inputs)
        return term(name, usd, "USD", f"{COUNTED}: what it is billed, by {each.name}", each)

    def _rates(self, served: Mapping[str, Figure], cost: Figure) -> Iterator[Figure]:
        """Tokens a second, what they cost, energy, and what sessions find in caches."""
        figures = self.chosen.figures
        tokens, usd = figures.get("output_tokens_per_s"), figures.get("usd_per_million_tokens")
        paid = [self.hourly]
        if tokens:
            formula = "queue model: requests answered a second x output tokens"
            inputs = [served[key] for key in ("requests_per_s_capacity",) if key in served]
            paid.append(term("output tokens/s of the plan", tokens, "tokens/s", formula, *inputs))
            yield paid[-1]
        if usd is not None:
            formula = f"{COUNTED}: {self.hourly.name} over the tokens of an hour, with stores of caches"
            if tokens and _same(usd, self.chosen.usd_per_hour / (tokens * HOUR_S) * 1e6):
                formula = f"{self.hourly.name} / ({paid[-1].name} x {HOUR_S:g}) x 1e6"
            yield term("cost per million tokens of the plan", usd, "USD", formula, *paid)
        if (usd := figures.get("usd_per_session")) is not None:
            yield term("cost per session", usd, "USD", f"{COUNTED}: {cost.name} / sessions of a month", cost)
        if (found_frac := figures.get("prompt_found_frac")) is not None:
            yield term(
                "share of prompts found in caches", found_frac, "frac", "queue model: Che's approximation of a cache"
            )
        joules = self.chosen.energy_joules
        if joules is not None and not self.trains:
            formula = "power model: devices by what their time goes to, host and cooling, over the time that is paid"
            yield term("energy of the plan", joules, "J", formula, *[served[k] for k in ("busy_frac",) if k in served])

    def _values(self, served: Mapping[str, Figure], cost: Figure) -> dict[str, tuple[Figure, Figure, tuple[str, ...]]]:
        """By target: the figure that is held against it, its limit, and the figures whose measured errors it has."""
        workload, known = self.workload, self.known
        rate: tuple[str, ...] = ("throughput per GPU" if self.trains else "throughput",)
        targets: dict[str, tuple[Figure | None, float | None, tuple[str, ...]]] = {
            "deadline": (self._time(served), workload.deadline_s, rate),
            "budget": (cost, workload.budget_usd, rate),
            "throughput": (known.get("throughput"), workload.tokens_per_s, rate),
        }
        for target, (name, key) in LATENCIES.items():
            limit, errors = getattr(workload, target), ("TTFT", "TPOT") if target == "latency" else (name,)
            targets[target] = (served.get(key), None if limit is None else limit.seconds, errors)
        values: dict[str, tuple[Figure, Figure, tuple[str, ...]]] = {
            target: (figure, setting(f"limit of {target}", limit, figure.unit), error)
            for target, (figure, limit, error) in targets.items()
            if figure is not None and limit is not None
        }
        return values | {"memory": (known["memory per GPU"], self.capacity, ("memory per GPU",))}

    def _odds(self, values: Mapping[str, tuple[Figure, Figure, tuple[str, ...]]]) -> Iterator[Figure]:
        """The chance that each target is met, and that all are, as the ranking takes it: the least of them."""
        odds = []
        for target, chance in self.chosen.meets.items():
            inputs: list[Figure] = []
            if target in values:
                figure, limit, errors = values[target]
                inputs = [figure, limit]
                ends = [self.known.get(f"{error}, {word}") for error in errors for word in ("low", "high")]
                inputs += [below for end in ends if end is not None for below in end.inputs if "measured" in below.name]
            run = self.chosen.simulated is not None and target in LATENCIES
            what = "its simulated percentile" if run else "what is estimated"
            formula = f"{ODDS}: probability that measured / predicted times {what} keeps to the limit"
            note = f"errors rest on {self.chosen.evidence}" if self.chosen.evidence else ""
            odds.append(term(f"chance of {target}", chance, "frac", formula, *inputs, note=note))
        yield from odds
        if len(odds) > 1:
            least = min(float(one.value or 0.0) for one in odds)
            formula = f"min({', '.join(one.name for one in odds)})"
            yield term("chance of every target", least, "frac", formula, *odds)


def _prices(one: Candidate) -> tuple[Figure, Figure]:
    """Price of one machine of a plan, and of all of them."""
    bought, each = one.purchase.replace("_", " "), one.usd_per_hour / one.num_instances
    name = f"price of {one.provider} {one.instance}, {bought}"
    price = (
        fact(name, each, "USD/h", source=one.price_source, date=one.price_date, note=one.price_note)
        if one.price_source else setting(name, each, "USD/h")
    )  # fmt: skip
    count = Figure("instances", one.num_instances, kind="chosen")
    return price, term("price of all machines", one.usd_per_hour, "USD/h", f"{name} x instances", price, count)


def _so(lever: Lever) -> str:
    """A change as part of a name."""
    return f"with the change: {lever.change}"


def _same(one: float, other: float) -> bool:
    """True if two ways to a figure agree."""
    return abs(one - other) <= _SAME * max(abs(one), abs(other))
