"""What candidates are ranked by: the odds of their targets, the objective, fronts, and the misses that come nearest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from flopwise.cost.energy import start_joules
from flopwise.cost.intervals import ErrorBand
from flopwise.cost.money import commitment_note
from flopwise.facts.catalog import Facts
from flopwise.facts.offers import Offer
from flopwise.search.answer import Candidate
from flopwise.search.nodes import NodeKind, Priced
from flopwise.search.workload import Resolved
from flopwise.units import HOUR_S
from flopwise.values import dataclass

Floats = NDArray[np.floating[Any]]
Index = NDArray[np.intp]
Mask = NDArray[np.bool_]
ByTarget = dict[str, Floats]
"""A column for each target: the probability that it is met, or how far it is missed."""
NEAREST_MISSES = 5
"""Misses that a plan shows where nothing meets the targets."""
CHEAPER_MISSES = 3
"""Misses that are cheaper than the best plan, one of each kind of device, that a plan for a fleet shows."""


class ErrorEnds(NamedTuple):
    """Lower and upper ends of the 80 % intervals of a candidate: seconds, and factors on its cost and energy."""

    seconds: tuple[float, float]
    cost: tuple[float, float]
    energy: tuple[float, float]
    evidence: str  # the measurements behind them

    @classmethod
    def of_run(cls, candidate: Candidate, band: ErrorBand, start_joules: float) -> ErrorEnds:
        """The error ends of a run whose time and cost follow its throughput (`band`), after its start."""
        longer = 1 / band.high, 1 / band.low
        idle = start_joules / candidate.energy_joules if candidate.energy_joules else 0.0
        energy = idle + (1.0 - idle) * longer[0], idle + (1.0 - idle) * longer[1]
        cost = candidate.cost_frac(longer[0]), candidate.cost_frac(longer[1])
        return cls((candidate.seconds * longer[0], candidate.seconds * longer[1]), cost, energy, band.evidence)

    def onto(self, candidate: Candidate) -> Candidate:
        """The candidate with its intervals."""
        ends: dict[str, Any] = {"evidence": self.evidence}
        rate, joules = candidate.usd_per_hour, candidate.energy_joules
        rates = candidate.usd_per_hour_interval or (rate, rate)  # of an assumed price: both may err
        for end, seconds, cost, energy, usd in zip(
            ("low", "high"), self.seconds, self.cost, self.energy, rates, strict=True
        ):
            ends |= {
                f"seconds_{end}": seconds, f"cost_usd_{end}": candidate.cost_usd * cost * (usd / rate if rate else 1.0),
                f"energy_joules_{end}": None if joules is None else joules * energy,
            }  # fmt: skip
        return msgspec.structs.replace(candidate, **ends)


def within_limits(
    workload: Resolved, num_gpus: Floats, cost_usd: Floats, usd_per_hour: Floats, host_frac: Floats | float
) -> Mask:
    """A mask of the rows that keep to the limits of a workload and of their machines, whatever their probability."""
    keep = (num_gpus <= workload.max_gpus) & (num_gpus >= workload.min_gpus) & np.isfinite(cost_usd)
    keep &= np.asarray(host_frac) <= 1.0
    if workload.max_usd_per_hour is not None:
        keep &= usd_per_hour <= workload.max_usd_per_hour
    return np.asarray(keep)


def meeting(rows: Mask, odds: ByTarget, confidence: float) -> Mask:
    """A mask of `rows` that meet every target with the required confidence."""
    for probability in odds.values():
        rows = rows & (probability >= confidence)
    return rows


@dataclass(frozen=True, kw_only=True)
class PlanOption(ABC):
    """A kind of node bought one way, with what a workload can be laid out as on it: columns with a row for each."""

    workload: Resolved
    node: NodeKind
    priced: Priced
    instances: Floats
    seconds: Floats  # of the run or the batch job; of one request of a service
    cost_usd: Floats  # of the run or the batch job; of a month of service
    energy_joules: (
        Floats  # at the meter, in the time that is paid, the start with it; infinite where the power limit is not known
    )
    memory_bytes: Floats  # of the fullest device
    tokens_per_s: Floats  # that are trained on, or answered (read, where nothing is)
    start_s: Floats  # paid before the first step of a run; 0 of a service
    host_frac: Floats | float = 0.0  # share of its own memory that an instance needs: above 1 it has less

    @abstractmethod
    def odds(self, workload: Resolved | None = None) -> ByTarget:
        """Probability that each target is met; `workload`: the same with other targets."""

    @abstractmethod
    def layout_document(self, row: int) -> dict[str, Any]:
        """The layout of a row in plain values; `candidate_job` beside it reads it back."""

    @abstractmethod
    def figures(self, row: int) -> dict[str, float | None]:
        """Rates, latencies and whatever else the task has."""

    @abstractmethod
    def error_ends(self, row: int, candidate: Candidate) -> ErrorEnds:
        """The relative errors of a row's figures, as ends of intervals."""

    def service_shortfalls(self) -> ByTarget:
        """As `shortfalls`, of what services alone have: latencies, and more devices than are allowed."""
        return {}

    @property
    def capacity(self) -> Floats:
        """Work a second that each row could do at most."""
        return self.tokens_per_s

    @property
    def alike(self) -> Hashable | None:
        """The same of options whose rows meet the same targets, and in the same order: they differ in price alone.

        None: no other option is known to be alike.
        """
        return None

    @cached_property
    def num_gpus(self) -> Floats:
        """Accelerators of all instances of each row."""
        return self.instances * self.node.count

    @cached_property
    def usd_per_hour(self) -> Floats:
        """Price of all instances of each row."""
        return self.instances * self.priced.usd_per_hour

    @cached_property
    def start_usd(self) -> Floats:
        """The cost of the start of each row, in USD."""
        return self.start_s / HOUR_S * self.usd_per_hour

    @cached_property
    def start_joules(self) -> Floats:
        """Energy of the start of each row, in `energy_joules`."""
        return np.asarray(start_joules(self.node.cluster.accelerator, self.num_gpus, self.start_s))

    @property
    def score(self) -> Floats:
        """The value that the objective minimises."""
        columns = {"cost": self.cost_usd, "time": self.seconds, "energy": self.energy_joules}
        return columns[self.workload.objective]

    @cached_property
    def shortfalls(self) -> ByTarget:
        """The figure of each target over its limit: above 1 it misses."""
        workload, by_target = self.workload, self.service_shortfalls()
        for name, value, limit in (
            ("deadline", self.start_s + self.seconds, workload.deadline_s),
            ("budget", self.cost_usd, workload.budget_usd),
            ("max_usd_per_hour", self.usd_per_hour, workload.max_usd_per_hour),
        ):
            if limit is not None:
                by_target[name] = value / limit
        if workload.tokens_per_s is not None:
            by_target["throughput"] = workload.tokens_per_s / self.tokens_per_s
        if workload.min_gpus > 1:
            by_target["min_gpus"] = workload.min_gpus / self.num_gpus
        return by_target

    @property
    def shortfall(self) -> Floats:
        """The worst of each row's `shortfalls`; 0 without any."""
        worst: Floats = np.max(np.stack([np.zeros(self.seconds.shape), *self.shortfalls.values()]), axis=0)
        return worst

    def allowed_rows(self, odds: ByTarget) -> Index:
        """The rows that meet every target with the confidence asked for, and keep to the limits."""
        return np.flatnonzero(meeting(self._within_limits, odds, self.workload.confidence))

    @cached_property
    def _within_limits(self) -> Mask:
        return within_limits(self.workload, self.num_gpus, self.cost_usd, self.usd_per_hour, self.host_frac)

    def nearest_miss(self) -> tuple[float, int]:
        """(shortfall, row) of the row that misses its worst target by least; beyond `max_gpus` only if all are."""
        short, too_many = self.shortfall, self.num_gpus > self.workload.max_gpus
        row = int((short if too_many.all() else np.where(too_many, np.inf, short)).argmin())
        return float(short[row]) + 1e6 * bool(too_many[row]), row

    def candidate(self, row: int, odds: ByTarget, rank: int) -> Candidate:
        """The candidate of one row."""
        offer, device = self.priced.offer, self.node.cluster.accelerator
        energy = float(self.energy_joules[row])
        made = Candidate(
            rank=rank, provider=offer.provider, region=offer.region, instance=offer.instance,
            num_instances=int(self.instances[row]), gpu=device.name, num_gpus=int(self.num_gpus[row]),
            purchase=self.priced.purchase, layout=self.layout_document(row), seconds=float(self.seconds[row]),
            start_s=float(self.start_s[row]),
            usd_per_hour=float(self.usd_per_hour[row]), cost_usd=float(self.cost_usd[row]),
            energy_joules=energy if np.isfinite(energy) else None,
            meets={name: round(float(p[row]), 4) for name, p in odds.items()}, figures=self.figures(row),
            memory_bytes=float(self.memory_bytes[row]), capacity_bytes=float(device.hbm_bytes),
            **price_facts(offer, self.priced.purchase, int(self.instances[row])) | self._commitment(row),
            shortfall={n: float(v[row]) for n, v in self.shortfalls.items() if n in odds or v[row] > 1},
        )  # fmt: skip
        return self.error_ends(row, made).onto(made)

    def _commitment(self, row: int) -> dict[str, str]:
        """The remarks on the price of a run, which pays for its hours of a reservation alone."""
        if self.workload.task in ("serve", "encode"):
            return {}
        priced, seconds = self.priced, float(self.start_s[row] + self.seconds[row])
        whole = commitment_note(priced.purchase, float(self.usd_per_hour[row]), seconds)
        return {"price_note": ", ".join(filter(None, [priced.offer.price_note(priced.purchase), whole]))}


def spot_assumptions(plans: Iterable[Candidate], facts: Facts) -> list[str]:
    """Assumptions about the spot capacity in `plans`, once for each provider and accelerator."""
    bought = dict.fromkeys((one.gpu, one.provider) for one in plans if one.purchase == "spot")
    return [f"spot {gpu} of {provider}: {facts.spot(provider, gpu).text}" for gpu, provider in bought]


def price_facts(offer: Offer, purchase: str, instances: int) -> dict[str, Any]:
    """The fields of a candidate on the price of its machines."""
    band = offer.assumed_usd_per_hour(purchase)
    return {
        "price_date": offer.price_date_of(purchase),
        "price_source": offer.price_source_of(purchase),
        "price_note": offer.price_note(purchase),
        "retires_on": offer.retires_on or "",
        "usd_per_hour_interval": None if band is None else (instances * band[0], instances * band[1]),
    }


O = TypeVar("O", bound=PlanOption)


class Pick(NamedTuple, Generic[O]):
    """A row of an option, with the odds of all its rows."""

    option: O
    row: int
    odds: ByTarget

    @property
    def score(self) -> float:
        """The value that plans are ranked by."""
        return float(self.option.score[self.row])

    def kind(self, *, by_region: bool = False) -> tuple[str, ...]:
        """The key of which the ranking has one plan: instance, provider and purchase; `by_region`: and region."""
        offer = self.option.priced.offer
        return offer.provider, offer.instance, self.option.priced.purchase, *([offer.region] if by_region else ())

    def candidate(self, rank: int = 1) -> Candidate:
        """The candidate that it stands for."""
        return self.option.candidate(self.row, self.odds, rank)


def best_and_missed(
    options: Iterable[O], best: Callable[[O, Index], Iterable[int]]
) -> tuple[list[Pick[O]], list[tuple[float, Pick[O]]]]:
    """The `best` of the rows of each option that meet the targets; (shortfall, nearest row) of options without any.

    Of options that are `alike` one is looked at.
    """
    picks, missed = list[Pick[O]](), list[tuple[float, Pick[O]]]()
    seen: dict[Hashable, tuple[list[int], tuple[float, int]]] = {}
    for option in options:
        odds, key = option.odds(), option.alike
        if key is None or key not in seen:
            rows = option.allowed_rows(odds)
            chosen, nearest = [int(row) for row in best(option, rows)] if rows.size else [], (0.0, 0)
            nearest = nearest if rows.size else option.nearest_miss()
            if key is not None:
                seen[key] = chosen, nearest
        else:
            chosen, nearest = seen[key]
        picks += [Pick(option, row, odds) for row in chosen]
        if not chosen:
            missed.append((nearest[0], Pick(option, nearest[1], odds)))
    return picks, missed


def likeliest(options: Iterable[O]) -> list[Pick[O]]:
    """The row within `max_gpus` that likeliest meets its targets; of those that are sure enough the fastest.

    Of equals (times within a hundredth) the one that could do most. Empty: there is no row.
    """
    best: tuple[float, ...] | None = None
    picks: list[Pick[O]] = []
    for option in options:
        odds, most = option.odds(), option.workload.max_gpus
        rows = np.flatnonzero((option.num_gpus <= most) & (option.instances >= 1) & (np.asarray(option.host_frac) <= 1))
        if not rows.size:
            continue
        least = np.min(np.stack([np.ones(rows.size), *(p[rows] for p in odds.values())]), axis=0)
        sure = np.minimum(least, option.workload.confidence).round(4)
        keys = np.stack([-sure, np.log(option.seconds[rows]).round(2), -option.capacity[rows]])
        at = int(np.lexsort(keys[::-1])[0])
        key = tuple(keys[:, at].tolist())
        if best is None or key < best:
            best, picks = key, [Pick(option, int(rows[at]), odds)]
    return picks


def candidates(picks: Iterable[Pick[O]]) -> list[Candidate]:
    """The candidates of picks, ranked in their order."""
    return [pick.candidate(rank) for rank, pick in enumerate(picks, start=1)]


def cheaper_misses(options: Iterable[O], cost_usd: float) -> list[Candidate]:
    """Of rows cheaper than `cost_usd` that a target forbids, the likeliest on each kind of device; likeliest first."""
    misses: dict[str, tuple[float, Pick[O]]] = {}
    for option in options:
        odds = option.odds()
        cheaper = np.flatnonzero((option.cost_usd < cost_usd) & (np.asarray(option.host_frac) <= 1))
        rows = np.setdiff1d(cheaper, option.allowed_rows(odds), assume_unique=True)
        if not rows.size or not odds:
            continue
        likely = np.min(np.stack([p[rows] for p in odds.values()]), axis=0)
        best, device = int(likely.argmax()), option.node.cluster.accelerator.name
        if device not in misses or likely[best] > misses[device][0]:
            misses[device] = (float(likely[best]), Pick(option, int(rows[best]), odds))
    ordered = sorted(misses.values(), key=lambda entry: -entry[0])
    return candidates(pick for _, pick in ordered[:CHEAPER_MISSES])


def front(
    options: Sequence[O], objectives: Callable[[O], Sequence[Floats]], rows: Callable[[O], Index]
) -> list[tuple[O, int]]:
    """(option, row) of those among `rows` that no other beats in all objectives at once, least of the first first."""
    points, owners, places = [], [], []
    for index, option in enumerate(options):
        kept = rows(option)
        points.append(np.stack([column[kept] for column in objectives(option)]))
        places.append(kept)
        owners.append(np.full(kept.size, index))
    if not points:
        return []
    unbeaten = pareto_front(*np.concatenate(points, axis=1))
    all_owners, all_places = np.concatenate(owners), np.concatenate(places)
    return [(options[int(all_owners[i])], int(all_places[i])) for i in unbeaten]


def pareto_front(*objectives: Floats) -> Index:
    """Indices of the candidates that none beats in one objective without losing in another, least of the first first.

    Every objective has shape (n,), and smaller is better; of equals the first one stands. Candidates of which an
    objective is not finite are left out.
    """
    finite = np.flatnonzero(np.logical_and.reduce([np.isfinite(each) for each in objectives]))
    order: Index = finite[np.lexsort([each[finite] for each in reversed(objectives)])]
    if order.size == 0:
        return order
    if len(objectives) == 2:
        best = np.minimum.accumulate(objectives[1][order])
        kept = np.flatnonzero(np.concatenate([[True], best[1:] < best[:-1]]))
    else:
        kept = _unbeaten(np.stack([each[order] for each in objectives], axis=1))
    return order[kept]


def _unbeaten(points: Floats) -> Index:
    """Rows of `points`, in lexicographic order, that no other row is at most equal to in every column.

    What beats a row has a smaller sum of ranks, so it comes first: each row that still stands in turn is on the front.
    """
    ranks = np.argsort(np.argsort(points, axis=0, kind="stable"), axis=0)
    left = np.argsort(ranks.sum(axis=1), kind="stable")
    kept: list[int] = []
    while left.size:
        first, left = left[0], left[1:]
        kept.append(int(first))
        left = left[~(points[left] >= points[first]).all(axis=1)]
    return np.sort(np.array(kept, dtype=np.intp))
