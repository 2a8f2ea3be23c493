"""The rows of many serving options in one column: odds, limits, fronts and picks of all of them at once.

Options have few rows each, so that what a question costs option by option is mostly the calls of its formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from flopwise.cost.intervals import LognormalColumns
from flopwise.search.rank import ByTarget, Floats, Index, Mask, Pick, meeting, pareto_front, within_limits
from flopwise.search.serving_option import (
    LATENCIES,
    MachineLoads,
    ServingOption,
    estimated_odds,
    gpus_each,
    limits_key,
    pace_ends,
    with_budget,
)
from flopwise.search.workload import Resolved

BANDS = ("ttft", "tpot", "throughput")
Place = tuple[ServingOption, int]
"""An option and one of its rows."""


class _Column(cached_property[Floats]):
    """A figure of the rows of all options, put together when it is first asked for."""

    def __init__(self, of: Callable[[ServingOption], Any]) -> None:
        super().__init__(lambda table: table.column(map(of, table.options)))


class OptionTable:
    """The rows of options of one workload, but for the engines of each, one option after the other."""

    def __init__(self, options: Sequence[ServingOption], workload: Resolved) -> None:
        """Of these options of a workload; their columns are put together as they are asked for."""
        self.options, self.workload = options, workload
        self.sizes = np.array([one.deployments.batch.size for one in options], dtype=np.intp)
        self.ends = np.cumsum(self.sizes)
        self._odds: dict[Hashable, ByTarget] = {}

    @property
    def decodes(self) -> bool:
        """True if answers are generated token by token."""
        return any(option.decodes for option in self.options)

    @cached_property
    def owner(self) -> Index:
        """The number of each row's option."""
        return np.repeat(np.arange(len(self.options)), self.sizes)

    @staticmethod
    def column(figures: Iterable[Any]) -> Floats:
        """A figure of the rows of all options, from those of each."""
        column: Floats = np.concatenate([np.empty(0), *figures])
        return column

    @cached_property
    def latencies(self) -> dict[str, Floats]:
        """Each latency, at the percentile of its target."""
        return {name: self.column(one.latencies[name] for one in self.options) for name in LATENCIES}

    @cached_property
    def least_s(self) -> dict[str, Floats]:
        """The lower bound of each latency at datasheet rates, in s."""
        return {name: self.column(one.least_s[name] for one in self.options) for name in LATENCIES}

    @cached_property
    def bands(self) -> dict[str, LognormalColumns]:
        """Errors of the first token, of each further one, and of the throughput."""
        each = [option.bands for option in self.options]
        return {name: LognormalColumns.of([bands[name] for bands in each], self.sizes) for name in BANDS}

    cost_usd = _Column(lambda one: one.cost_usd)
    """Cost of each row, of a month or of the batch job."""

    host_frac = _Column(lambda one: np.broadcast_to(one.host_frac, one.cost_usd.shape))
    """Share of its own memory that an instance of each row needs: above 1 it has less."""

    seconds = _Column(lambda one: one.seconds)
    """Of a request, or of the batch job."""

    start_s = _Column(lambda one: one.start_s)
    """Seconds that a batch job pays before its first request."""

    tokens_per_s = _Column(lambda one: one.tokens_per_s)
    """Tokens that all replicas make."""

    instances = _Column(lambda one: one.instances)
    """Instances of each row."""

    @cached_property
    def num_gpus(self) -> Floats:
        """Accelerators of all instances of each row."""
        inside = np.repeat(np.array([one.node.count for one in self.options], dtype=float), self.sizes)
        return np.asarray(self.instances * inside)

    score = _Column(lambda one: one.score)
    """The value that the objective minimises."""

    @cached_property
    def _within_limits(self) -> Mask:
        each = np.array([one.priced.usd_per_hour for one in self.options], dtype=float)
        usd_per_hour = self.instances * np.repeat(each, self.sizes)
        return within_limits(self.workload, self.num_gpus, self.cost_usd, usd_per_hour, self.host_frac)

    def odds(self, workload: Resolved | None = None) -> ByTarget:
        """Probability that each target is met; `workload`: with other limits on the same figures. Options know theirs.

        Source: `estimated_odds`, of all rows at once.
        """
        workload = workload or self.workload
        key = limits_key(workload)
        if key not in self._odds:
            fresh = list({id(one.shared): one for one in self.options if key not in one.shared.odds}.values())
            if len(fresh) == len(self.options):
                self._odds[key] = self._fresh_odds(key, workload)
            else:  # ways to buy the same share theirs, and those of another table are known
                OptionTable(fresh, self.workload)._fresh_odds(key, workload)  # noqa: SLF001 - of its own class
                each = [option.shared.odds[key] for option in self.options]
                self._odds[key] = {name: self.column(one[name] for one in each) for name in each[0]}
        return with_budget(self, self._odds[key], workload)

    def _fresh_odds(self, key: Hashable, workload: Resolved) -> ByTarget:
        """The odds of all rows, computed at once; options know theirs."""
        odds_of = estimated_odds(self, workload) if self.options else {}
        for option, end, size in zip(self.options, self.ends.tolist(), self.sizes.tolist(), strict=True):
            option.shared.odds[key] = {name: column[end - size : end] for name, column in odds_of.items()}
        return odds_of

    @cached_property
    def machine_loads(self) -> MachineLoads:
        """The share of its machines that a service fills."""
        inside = np.repeat(np.array([one.node.count for one in self.options], dtype=np.int64), self.sizes)
        replicas, busy = (
            self.column(one.deployments.replicas for one in self.options),
            self.column(one.deployments.busy_frac for one in self.options),
        )
        each = [gpus_each(partial(getattr, one.deployments)) for one in self.options]
        gpus = np.concatenate([np.empty(0, np.int64), *each])
        return MachineLoads.of(replicas, busy, self.instances, gpus, inside)

    def _estimate_machines(self) -> None:
        """Have each option know its `machine_loads` and `machines_frac`: those of all rows are computed at once."""
        ends = np.array([pace_ends(one) for one in self.options])
        low, high = np.repeat(ends.reshape(-1, 2).T, self.sizes, axis=1)
        less, more = self.machine_loads.needed_frac(low, high)
        for option, end, size in zip(self.options, self.ends.tolist(), self.sizes.tolist(), strict=True):
            rows = slice(end - size, end)
            option.shared.loads, option.shared.machines = self.machine_loads.take(rows), (less[rows], more[rows])

    def allowed_rows(self, workload: Resolved | None = None) -> Mask:
        """The rows that meet every target of `workload` with the confidence asked for, and keep to the limits."""
        return meeting(self._within_limits, self.odds(workload), self.workload.confidence)

    def at(self, row: int) -> Place:
        """The option of a row of the table, and its row there."""
        number = int(self.owner[row])
        return self.options[number], row - int(self.ends[number] - self.sizes[number])

    def front(self, latency: str, rows: Mask) -> list[Place]:
        """The Pareto front of `rows` in cost and each latency, the cheapest first; of equals the first.

        `latency`: one of the targets' names, else the time of a request, or of the job.
        """
        seconds = self.latencies.get(latency, self.seconds)
        order = self._by_cost[(rows & np.isfinite(seconds))[self._by_cost]]
        some = np.sort(order[seconds[order] <= np.minimum.accumulate(seconds[order])])  # no cheaper one is quicker
        return [self.at(row) for row in some[pareto_front(self.cost_usd[some], seconds[some])].tolist()]

    @cached_property
    def _by_cost(self) -> Index:
        """The rows of finite cost, the cheapest first."""
        finite = np.flatnonzero(np.isfinite(self.cost_usd))
        return finite[np.argsort(self.cost_usd[finite], kind="stable")]

    def cheapest(self, rows: Mask) -> Place | None:
        """The cheapest of `rows`; of equals the first."""
        some = np.flatnonzero(rows)
        return self.at(int(some[self.cost_usd[some].argmin()])) if some.size else None

    def best_and_missed(
        self, options: Sequence[ServingOption], layouts: int, *, fills: bool = False
    ) -> tuple[list[Pick[ServingOption]], list[tuple[float, Pick[ServingOption]]]]:
        """The best rows of so many layouts of each option that meets the targets; (shortfall, nearest row) of others.

        `options`: those of the table and what is `alike`; `fills`: machines may take more load later.
        """
        place = {one.alike or id(one): number for number, one in enumerate(self.options)}
        best, nearest = self._best_rows(layouts, fills=fills), dict[int, tuple[float, int]]()
        every = [one.odds() for one in self.options]
        picks, missed = list[Pick[ServingOption]](), list[tuple[float, Pick[ServingOption]]]()
        for option in options:
            number = place[option.alike or id(option)]
            if number in best:
                picks += [Pick(option, row, every[number]) for row in best[number]]
                continue
            if number not in nearest:
                nearest[number] = self.options[number].nearest_miss()
            missed.append((nearest[number][0], Pick(option, nearest[number][1], every[number])))
        if self.workload.task != "batch":
            self._estimate_machines()
        return picks, missed

    def _best_rows(self, layouts: int, *, fills: bool) -> dict[int, list[int]]:
        """By the number of each option that meets the targets: the best row of each of so many layouts, best first.

        Of batch limits that come out alike the largest: requests that are longer than others then wait for no place. An
        encoder's batches wait until they are full: of those at one price the fastest, but where machines are filled.
        """
        rows = np.flatnonzero(self.allowed_rows())
        owner, starts = self.owner[rows], (self.ends - self.sizes)[self.owner[rows]]
        of_layout = (rows - starts) % np.array([one.deployments.num_layouts for one in self.options], dtype=np.intp)[
            owner
        ]
        batch = self.column(one.deployments.batch for one in self.options)[rows]
        score, instances, e2e_s = self.score[rows], self.instances[rows], self.latencies["latency"][rows]
        among_equals = e2e_s if self.workload.task == "encode" and not fills else -batch
        order = np.lexsort((among_equals, instances, score.round(9), of_layout, owner))
        first = order[_begins(owner[order], of_layout[order])]
        first = first[np.lexsort((e2e_s[first], instances[first], score[first], owner[first]))]
        rows_of: dict[int, list[int]] = {}
        for number, row in zip(owner[first].tolist(), (rows - starts)[first].tolist(), strict=True):
            if len(chosen := rows_of.setdefault(number, [])) < layouts:
                chosen.append(row)
        return rows_of


def _begins(*keys: Index) -> Mask:
    """True at rows, in order of their keys, that differ from the row before."""
    begins = np.ones(keys[0].size, dtype=bool)
    begins[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return begins
