"""Deployments on a kind of node bought one way: their cost, energy, odds and fronts, and the job of one replica."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from flopwise.cost.cluster import Cluster
from flopwise.cost.energy import DEFAULT_POWER, host_watts, metered_joules
from flopwise.cost.fabric import byte_counting
from flopwise.cost.intervals import ErrorBand, Lognormal, WholeBand, probability_at_most, whole_probability_at_most
from flopwise.cost.money import run_cost_usd
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.formats import BF16, CacheFormat
from flopwise.facts.offers import Offer
from flopwise.facts.price_book import PurchaseTerms
from flopwise.ops.types import Ints
from flopwise.search.answer import Candidate
from flopwise.search.deployments import Deployments
from flopwise.search.nodes import NodeKind, Priced
from flopwise.search.rank import ByTarget, ErrorEnds, Floats, PlanOption
from flopwise.search.replica import DEGREES, answers_in_one_pass, candidate_job, replica_job
from flopwise.search.service_machines import loaded_frac, machines_each, machines_needed
from flopwise.search.session_caches import kv_stores
from flopwise.search.spec import Latency
from flopwise.search.workload import Resolved
from flopwise.serving.disaggregated import moved_s
from flopwise.serving.iteration import StepLoad
from flopwise.serving.job import ServeJob, serving_band
from flopwise.serving.memory import ServingLayout
from flopwise.serving.sim.stores import HOST
from flopwise.serving.techniques import layer_bytes, request_work, runner
from flopwise.units import HOUR_S, HOURS_PER_MONTH
from flopwise.values import dataclass, kept_by_identity, replace

LATENCIES = {"ttft": "ttft_s", "tpot": "tpot_s", "latency": "e2e_s"}
"""The column of each target's latency."""


def _job_bands(job: ServeJob, workload: Resolved) -> dict[str, ErrorBand]:
    """The error bands of the first token, of each further one, and of the throughput of a workload's replica."""
    job = replace(job, arrivals_per_s=workload.requests_per_s)
    ttft, throughput = serving_band(job, "ttft"), serving_band(job, "throughput")
    one_pass = answers_in_one_pass(job.model, workload)
    return {"ttft": ttft, "throughput": throughput, "tpot": ttft if one_pass else serving_band(job, "tpot")}


@kept_by_identity(1024)
def _plain_bands(workload: Resolved, model: Model, cluster: Cluster, *, several: bool) -> dict[str, ErrorBand]:
    """Error bands without techniques, the same for all formats; `several`: of replicas with tensor parallelism.

    Source, Assumes: `flopwise.serving.job.serving_class`.
    """
    return _job_bands(replica_job(workload, model, cluster, BF16, ServingLayout(tp=1 + several)), workload)


@dataclass
class SharedEstimates:
    """Estimates that do not depend on the purchase: one for all purchase options of the same deployments."""

    odds: dict[Hashable, ByTarget] = field(default_factory=dict)  # by targets
    loads: MachineLoads | None = None  # `ServingOption.machine_loads`
    machines: tuple[Floats, Floats] | None = None  # `ServingOption.machines_frac`


class Estimates(Protocol):
    """Estimated figures of rows with their measured errors: those of an option, or of several in one column."""

    @property
    def latencies(self) -> dict[str, Floats]:
        """Each latency, at the percentile of its target."""

    @property
    def least_s(self) -> dict[str, Floats]:
        """The lower bound of each latency at datasheet rates, in s."""

    @property
    def bands(self) -> Mapping[str, Lognormal]:
        """Lognormal of the first token, of each further one, and of the throughput."""

    @property
    def decodes(self) -> bool:
        """True if answers are generated token by token."""

    @property
    def tokens_per_s(self) -> Floats:
        """Tokens that all replicas make."""

    @property
    def start_s(self) -> Floats:
        """Seconds that a batch job pays before its first request."""

    @property
    def seconds(self) -> Floats:
        """Of the batch job."""

    @property
    def cost_usd(self) -> Floats:
        """Of a month, or of the batch job."""

    @property
    def machine_loads(self) -> MachineLoads:
        """The share of its machines that a service fills."""


def limits_key(workload: Resolved) -> Hashable:
    """The same of workloads whose estimated odds are the same where their figures are."""
    return (*latency_targets(workload).values(), workload.tokens_per_s, workload.deadline_s)


def latency_odds(
    bands: Mapping[str, Lognormal], name: str, seconds: Floats, ttft_s: Floats, limit_s: float, least_s: Floats
) -> Floats:
    """Probability that a latency, of whose `seconds` the first token takes `ttft_s`, is at most `limit_s`."""
    if name == "latency":
        first, rest = bands["ttft"], bands["tpot"]
        return np.asarray(whole_probability_at_most(first, rest, ttft_s, seconds, limit_s, floor=least_s))
    return np.asarray(probability_at_most(bands[name], seconds, limit_s, floor=least_s))


def estimated_odds(one: Estimates, workload: Resolved) -> ByTarget:
    """The odds of what does not depend on prices."""
    odds: ByTarget = {}
    for name, target in latency_targets(workload).items():
        if target is not None and (name != "tpot" or one.decodes):
            value = one.latencies[name]
            seconds, first = np.minimum(value, 1e9), np.minimum(one.latencies["ttft"], 1e9)
            likely = latency_odds(one.bands, name, seconds, first, target.seconds, one.least_s[name])
            odds[name] = np.where(np.isfinite(value), likely, 0.0)
    rate = one.bands["throughput"]
    if workload.tokens_per_s is not None:
        odds["throughput"] = 1.0 - np.asarray(probability_at_most(rate, one.tokens_per_s, workload.tokens_per_s))
    if workload.deadline_s is not None:
        left_s = np.maximum(workload.deadline_s - one.start_s, 1e-9 * workload.deadline_s)
        odds["deadline"] = 1.0 - np.asarray(probability_at_most(rate, 1.0, one.seconds / left_s))
    return odds


def pace_ends(option: ServingOption) -> tuple[float, float]:
    """Ends of the throughput over the estimate, as far as the number of machines follows it."""
    rate = option.bands["throughput"]
    return (1.0, 1.0) if option.workload.is_closed_loop else (rate.low, rate.high)


class MachineLoads(NamedTuple):
    """The share of the planned machines that the load of a service fills, by row."""

    instances: Floats
    filled: Floats  # share of them
    unit: Ints  # machines of a replica

    @classmethod
    def of(cls, replicas: Floats, busy_frac: Floats, instances: Floats, gpus: Ints, inside: Ints) -> MachineLoads:
        """Of replicas of so many devices, busy that share of the time, on machines that have `inside`."""
        filled = np.asarray(loaded_frac(replicas, busy_frac, gpus, inside, instances))
        return cls(instances, filled, machines_each(gpus, inside))

    def take(self, rows: slice) -> MachineLoads:
        """Only these rows."""
        return MachineLoads(*(np.asarray(column)[rows] for column in self))

    def needed_frac(self, low: float | Floats, high: float | Floats) -> tuple[Floats, Floats]:
        """Machines that are needed where the throughput is `high` or `low` times the estimate, over those planned.

        Source: `machines_needed`. Assumes: as there.
        """
        less = machines_needed(*self, np.minimum(1.0, 1 / high)) / self.instances
        return less, machines_needed(*self, np.maximum(1.0, 1 / low)) / self.instances

    def least_pace(self, most_frac: Floats) -> Floats:
        """Throughput over the estimate at which `most_frac` of the planned machines are enough; infinite below 1.

        Source: the inverse of `machines_needed`. Assumes: as there.
        """
        most = self.unit * np.floor(np.round(self.instances * most_frac / self.unit, 6))
        return np.where(most < self.instances, np.inf, self.filled * self.instances / np.maximum(most, 1.0))


def with_budget(one: Estimates, odds: ByTarget, workload: Resolved) -> ByTarget:
    """The odds with those of the budget, where there is one: that of a service pays the machines that it will need."""
    if workload.budget_usd is None:
        return odds
    if workload.is_closed_loop and workload.task != "batch":
        return {**odds, "budget": (one.cost_usd <= workload.budget_usd) * 1.0}
    room = workload.budget_usd / one.cost_usd
    pace = 1.0 / room if workload.task == "batch" else one.machine_loads.least_pace(room)
    return {**odds, "budget": 1.0 - np.asarray(probability_at_most(one.bands["throughput"], 1.0, pace))}


@dataclass(frozen=True, kw_only=True)
class ServingOption(PlanOption):
    """One format of weights and cache; columns as in `Deployments`."""

    model: Model
    deployments: Deployments
    kv_dtype: CacheFormat
    shared: SharedEstimates

    @property
    def latencies(self) -> dict[str, Floats]:
        """Each latency of its rows, at the percentile of its target."""
        return {name: getattr(self.deployments, column) for name, column in LATENCIES.items()}

    @property
    def decodes(self) -> bool:
        """True if answers are generated token by token."""
        return not answers_in_one_pass(self.model, self.workload)

    @property
    def capacity(self) -> Floats:
        """Requests a second that all replicas of each row could answer."""
        return self.deployments.requests_per_s * self.deployments.replicas

    @property
    def alike(self) -> Hashable | None:
        """The deployments, where no target is about money, nor what they keep in the memory of a machine."""
        workload = self.workload
        priced = workload.budget_usd is not None or workload.max_usd_per_hour is not None or workload.task == "batch"
        return None if priced or self.fills_hosts else id(self.shared)

    @property
    def fills_hosts(self) -> bool:
        """True if machines keep caches or weights in their own memory, which may be too small in some."""
        return fills_hosts(self.workload)

    def estimated_as(
        self, deployments: Deployments, workload: Resolved | None = None, kv_dtype: CacheFormat | None = None
    ) -> ServingOption:
        """The same machines, bought so, with other deployments."""
        cache = kv_dtype or self.kv_dtype
        return serving_options(workload or self.workload, self.model, self.node, deployments, cache, [self.priced])[0]

    def gpus_each(self, row: int) -> int:
        """Devices of one replica of a row."""
        return int(gpus_each(lambda name: getattr(self.deployments, name)[row]))

    def replicas_on(self, instances: int, row: int) -> float:
        """Replicas of one row that so many instances hold at most; 1 at least."""
        each = self.gpus_each(row)
        return float(max(instances * (self.node.count // each) or instances * self.node.count // each, 1))

    @property
    def bands(self) -> dict[str, ErrorBand]:
        """The error bands of the first token, of each further one, and of the throughput."""
        bands = self.deployments.bands
        if not bands and self.workload.techniques.any:
            bands |= _job_bands(self.job(0), self.workload)
        elif not bands:
            several = int(self.deployments.tp[0]) > 1
            bands |= _plain_bands(self.workload, self.model, self.node.cluster, several=several)
        return bands

    def latency_odds(self, name: str, seconds: Floats, ttft_s: Floats, limit_s: float, least_s: Floats) -> Floats:
        """Probability that a latency, of whose `seconds` the first token takes `ttft_s`, is at most `limit_s`."""
        return latency_odds(self.bands, name, seconds, ttft_s, limit_s, least_s)

    @cached_property
    def least_s(self) -> dict[str, Floats]:
        """The lower bound of each latency at datasheet rates, in s."""
        ttft_s, tpot_s = self.deployments.least_ttft_s, self.deployments.least_tpot_s
        whole_s = ttft_s + max(self.workload.output_tokens - 1, 0) * tpot_s if self.decodes else ttft_s
        return {"ttft": ttft_s, "tpot": tpot_s, "latency": whole_s}

    def odds(self, workload: Resolved | None = None) -> ByTarget:
        """Probability that each target is met; `workload`: with other limits on the same figures."""
        workload = workload or self.workload
        key = limits_key(workload)
        if key not in self.shared.odds:
            self.shared.odds[key] = estimated_odds(self, workload)
        return with_budget(self, self.shared.odds[key], workload)

    @property
    def machine_loads(self) -> MachineLoads:
        """The share of its machines that a service fills."""
        if self.shared.loads is None:
            found, each = self.deployments, gpus_each(partial(getattr, self.deployments))
            loads = MachineLoads.of(found.replicas, found.busy_frac, self.instances, each, self.node.count)
            self.shared.loads = loads
        return self.shared.loads

    @property
    def machines_frac(self) -> tuple[Floats, Floats]:
        """Machines that each row of a service needs at the ends of its throughput, over those that are planned."""
        if self.shared.machines is None:
            self.shared.machines = self.machine_loads.needed_frac(*pace_ends(self))
        return self.shared.machines

    def error_ends(self, row: int, candidate: Candidate) -> ErrorEnds:
        """Of a batch those of its throughput; of a service the request's own, and the machines that it then needs.

        Assumes: energy goes with the time that requests take of machines.
        """
        through = self.bands["throughput"]
        if self.workload.task == "batch":
            return ErrorEnds.of_run(candidate, through, float(self.start_joules[row]))
        first, whole = (
            float(np.minimum(seconds[row], 1e9)) for seconds in (self.deployments.ttft_s, self.deployments.e2e_s)
        )
        times = min(1.0, 1 / through.high), max(1.0, 1 / through.low)
        less, more = (float(frac[row]) for frac in self.machines_frac)
        seconds = WholeBand(self.bands["ttft"], self.bands["tpot"]).interval(first, whole)
        return ErrorEnds(seconds, (less, more), times, through.evidence)

    def service_shortfalls(self) -> ByTarget:
        """Each latency over its limit, and the number of devices over the allowed one."""
        shortfalls: ByTarget = {
            name: np.minimum(self.latencies[name], 1e9) / target.seconds
            for name, target in latency_targets(self.workload).items()
            if target is not None
        }
        shortfalls["max_gpus"] = self.num_gpus / self.workload.max_gpus
        return shortfalls | ({"host_memory": np.asarray(self.host_frac)} if self.fills_hosts else {})

    def job(self, row: int) -> ServeJob:
        """The job of one replica of a row, with as many sequences at most."""
        layout = ServingLayout(**{name: int(getattr(self.deployments, name)[row]) for name in DEGREES})
        job = replica_job(self.workload, self.model, self.node.cluster, self.deployments.weights, layout)
        return replace(job, kv_dtype=self.kv_dtype, max_batch=max(1, int(self.deployments.batch[row])))

    def layout_document(self, row: int) -> dict[str, Any]:
        """The layout of a row in plain values; `candidate_job` reads it back."""
        return {
            **{name: int(getattr(self.deployments, name)[row]) for name in DEGREES},
            "replicas": int(self.deployments.replicas[row]),
            "max_batch": int(self.deployments.batch[row]),
            "weights": self.deployments.weights.name,
            "kv_dtype": self.kv_dtype.name,
            "engine": self.workload.engine.name,
            **({"prefill_gpus": pool} if (pool := int(self.deployments.prefill_gpus[row])) else {}),
        }

    def figures(self, row: int) -> dict[str, float | None]:
        """Latencies, rates and the price of tokens."""
        deployments, tokens = self.deployments, float(self.tokens_per_s[row])
        hourly = float(self.usd_per_hour[row])
        given_out = tokens / self.workload.computed_frac
        if self.workload.sessions is not None or given_out != tokens:  # whose stores and caches are paid besides
            hourly = float(self.cost_usd[row]) / HOURS_PER_MONTH
        return {
            "ttft_s": float(deployments.ttft_s[row]),
            "tpot_s": float(deployments.tpot_s[row]) if self.decodes else None,
            "e2e_s": float(deployments.e2e_s[row]),
            "output_tokens_per_s": tokens if self.decodes else None,
            "requests_per_s_capacity": float(deployments.requests_per_s[row] * deployments.replicas[row]),
            "busy_frac": float(deployments.busy_frac[row]),
            "usd_per_million_tokens": hourly / (given_out * HOUR_S) * 1e6 if tokens else None,
            **self._session_figures(row),
        }

    def _session_figures(self, row: int) -> dict[str, float | None]:
        """The cost of a session at the mean rate, and the prompts in caches; nothing without sessions."""
        workload = self.workload
        if workload.sessions_per_s is None:
            return {}
        month = workload.sessions_per_s / workload.peak * HOURS_PER_MONTH * HOUR_S
        found_frac = float(self.deployments.found_frac[row])
        return {"usd_per_session": float(self.cost_usd[row]) / month, "prompt_found_frac": found_frac}


class Offered(NamedTuple):
    """Deployments of a workload on a kind of node, and the ways in which that is bought."""

    workload: Resolved
    node: NodeKind
    deployments: Deployments
    kv_dtype: CacheFormat
    bought: Sequence[Priced]


def serving_options(
    workload: Resolved, model: Model, node: NodeKind, deployments: Deployments, kv_dtype: CacheFormat,
    bought: Sequence[Priced],
) -> list[ServingOption]:  # fmt: skip
    """Deployments on a kind of node, bought in each of these ways."""
    return options_together(model, [Offered(workload, node, deployments, kv_dtype, bought)])


def options_together(model: Model, offered: Sequence[Offered]) -> list[ServingOption]:
    """Deployments on kinds of nodes, each bought in its ways; of workloads that differ in their engine alone."""
    if not offered:
        return []
    workload, batch = offered[0].workload, offered[0].workload.task == "batch"
    rows = [one.deployments.batch.size for one in offered]

    def column(name: str) -> Floats:
        return np.concatenate([getattr(one.deployments, name) for one in offered])

    def of_each(figures: Iterable[float]) -> Floats:
        return np.repeat(np.array([*figures]), rows)

    count, each, replicas = of_each(one.node.count for one in offered), gpus_each(column), column("replicas")
    packed = count // each  # replicas of an instance; 0: a replica takes several instances
    shared = np.ceil(replicas / np.maximum(packed, 1))
    instances = np.where(packed > 0, shared, np.ceil(replicas * each / count))
    seconds, start_s = column("e2e_s"), column("start_s")
    paid_s = np.full(instances.shape, HOURS_PER_MONTH * HOUR_S)
    if batch:
        assert workload.requests is not None
        seconds = paid_s = workload.requests / (replicas * column("requests_per_s"))
    devices = [one.node.cluster.accelerator for one in offered]
    host_w = of_each(np.nan if chip.tdp_w is None else host_watts(chip) for chip in devices)
    tdp_w = of_each(np.nan if chip.tdp_w is None else chip.tdp_w for chip in devices)
    energy = metered_joules(instances * count, column("watts_frac") * tdp_w, host_w, paid_s)
    energy += metered_joules(instances * count, DEFAULT_POWER.idle * tdp_w, host_w, start_s)
    energy = np.where(np.isnan(tdp_w), np.inf, energy)
    pool = column("prefill_gpus")
    readers = np.where(pool > 0, pool / (each - pool), 1.0)  # of a replica: what reads prompts has stores of prefixes
    cost_usd = np.empty(0) if batch else _month_usd(offered, rows, instances, replicas * readers)
    host_frac = _host_frac(model, offered, rows, packed * readers, np.where(packed > 0, packed * each, count))
    options, start, priced_rows = list[ServingOption](), 0, 0
    for one, size in zip(offered, rows, strict=True):
        here, estimates = slice(start, start + size), SharedEstimates()
        for priced in one.bought:
            usd = cost_usd[priced_rows : priced_rows + size]
            if batch:
                hourly = instances[here] * priced.usd_per_hour
                usd = np.asarray(run_cost_usd(seconds[here], start_s[here], hourly, _terms(workload, priced)))
            options.append(
                ServingOption(
                    workload=one.workload, node=one.node, priced=priced, instances=instances[here],
                    seconds=seconds[here], cost_usd=usd, start_s=start_s[here], energy_joules=energy[here],
                    memory_bytes=one.deployments.memory_bytes, tokens_per_s=one.deployments.tokens_per_s, model=model,
                    deployments=one.deployments, kv_dtype=one.kv_dtype, shared=estimates,
                    host_frac=0.0 if host_frac is None else host_frac[priced_rows : priced_rows + size],
                )
            )  # fmt: skip
            priced_rows += size
        start += size
    return options


def gpus_each(column: Callable[[str], Any]) -> Any:
    """Devices of a replica with those of its prefill pool, from the columns of its degrees."""
    return column("tp") * column("pp") * column("dp") + column("prefill_gpus")


def fills_hosts(workload: Resolved) -> bool:
    """True if machines of a service keep caches or weights in their own memory."""
    stores = workload.sessions is not None and workload.sessions.kv_stores is not None
    return stores or workload.techniques.offloads


class _Ways(NamedTuple):
    """The rows of deployments in each way to buy their nodes, one way after the other."""

    offered: Sequence[Offered]
    rows: Sequence[int]  # of each

    @property
    def every(self) -> list[tuple[int, Priced]]:
        """(number of the deployments, way) of all."""
        return [(place, priced) for place, one in enumerate(self.offered) for priced in one.bought]

    def rows_of(self, values: Floats) -> Floats:
        """Values of the deployments' rows, in each way."""
        ends = np.cumsum(self.rows).tolist()
        parts = [values[ends[place] - self.rows[place] : ends[place]] for place, _ in self.every]
        return np.concatenate(parts) if parts else np.empty(0)

    def of_each(self, figures: Iterable[float]) -> Floats:
        """A figure of each way for its rows."""
        return np.repeat(np.array([*figures], dtype=float), [self.rows[place] for place, _ in self.every])


def _month_usd(offered: Sequence[Offered], rows: Sequence[int], instances: Floats, readers: Floats) -> Floats:
    """The monthly cost with stores of prefixes and of answers, in each way; `readers`: replicas that have stores."""
    ways = _Ways(offered, rows)
    stores = [kv_stores(one.workload, one.node.cluster.rates, 1) for one in offered]
    stores_usd = [sum(each.usd(HOURS_PER_MONTH * HOUR_S) for each in some) for some in stores]
    hourly = ways.rows_of(instances) * ways.of_each(one.usd_per_hour for _, one in ways.every)
    stored = ways.rows_of(readers) * ways.of_each(stores_usd[place] for place, _ in ways.every)
    cached = ways.of_each(_month_of_answers_usd(one.workload) for one in offered for _ in one.bought)
    return np.asarray(hourly * HOURS_PER_MONTH + stored + cached)


def _month_of_answers_usd(workload: Resolved) -> float:
    """The cost of a month of the memory of a service's cache of answers, in USD; 0 without one."""
    if workload.cache.response_cache is None:
        return 0.0
    from flopwise.serving.sim.request import ResponseCache  # noqa: PLC0415 - few caches are asked for

    cache = ResponseCache.of(workload.cache)
    assert cache is not None
    return cache.usd(workload.output_tokens, HOURS_PER_MONTH * HOUR_S)


def _host_frac(
    model: Model, offered: Sequence[Offered], rows: Sequence[int], readers: Floats, devices: Floats
) -> Floats | None:
    """Share of its own memory that an instance needs, in each way; 0 where that is not known. None: it keeps nothing.

    `readers`: replicas with stores on an instance, at least one; `devices`: those in use, each with its offloaded
    weights.

    Source: vLLM, --cpu-offload-gb: GiB of a GPU's weights in (pinned) host memory. Assumes: all of the memory is free.
    """
    if not any(fills_hosts(one.workload) for one in offered):
        return None
    ways = _Ways(offered, rows)
    stores_bytes = [
        sum(each.capacity_bytes for each in kv_stores(one.workload, one.node.cluster.rates, 1) if each.name == HOST)
        for one in offered
    ]
    stored = np.maximum(readers, 1) * np.repeat(np.array(stores_bytes, dtype=float), rows)
    needed = stored + devices * np.concatenate([_offloaded_bytes(model, one) for one in offered])
    room = ways.of_each(np.inf if one.offer.ram_bytes is None else one.offer.ram_bytes for _, one in ways.every)
    return np.asarray(ways.rows_of(needed) / room)


def _offloaded_bytes(model: Model, offered: Offered) -> Floats:
    """Bytes of each device's weights that stand in the host's memory, by row."""
    found = offered.deployments
    if not offered.workload.techniques.offloads or not found.batch.size:
        return np.zeros(found.batch.size)
    layout = ServingLayout(tp=found.tp, pp=found.pp, ep=found.ep, dp=found.dp)
    first = ServingLayout(**{name: int(getattr(found, name)[0]) for name in DEGREES})
    away = replica_job(offered.workload, model, offered.node.cluster, found.weights, first).techniques.offload
    return np.asarray((0.0 if away is None else away.frac) * layer_bytes(model, found.weights, layout))


def _terms(workload: Resolved, priced: Priced) -> PurchaseTerms | None:
    """The billing terms of the machines."""
    terms: PurchaseTerms | None = workload.facts.terms_of(priced.offer.provider, priced.offer.instance)
    return terms


def latency_targets(workload: Resolved) -> dict[str, Latency | None]:
    """The target of each latency, or None."""
    return {"ttft": workload.ttft, "tpot": workload.tpot, "latency": workload.latency}


def link_needs(
    workload: Resolved, model: Model, facts: Facts, offer: Offer, chosen: Candidate
) -> tuple[RequestLinkNeed, ...]:
    """The traffic on the links of one replica of a candidate: at its planned rate, and at its full rate."""
    job, replicas = candidate_job(workload, model, facts, offer, chosen), int(chosen.layout["replicas"])
    planned = None if workload.requests_per_s is None else workload.requests_per_s / replicas
    full = (chosen.figures["requests_per_s_capacity"] or 0.0) / replicas
    return request_network_needs(job, planned, full, replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLinkNeed:
    """The traffic on one kind of link: bytes that a GPU sends for a request by purpose, and bytes/s, one direction.

    `average`: at the planned rate; `full`: where the replica answers as much as it can. `link_bytes_per_s`: of the
    datasheet, for one GPU; None where that is not known.
    """

    link: str
    between_nodes: bool
    request_bytes: dict[str, float]
    average_bytes_per_s: float  # of one GPU
    full_bytes_per_s: float
    node_average_bytes_per_s: float  # of all GPUs of a node
    node_full_bytes_per_s: float
    link_bytes_per_s: float | None


def request_network_needs(
    job: ServeJob, requests_per_s: float | None, full_per_s: float, replicas: int = 1
) -> tuple[RequestLinkNeed, ...]:
    """Each kind of link that a replica uses, innermost first; rates are of one replica of `replicas`, None: as full.

    Every token passes through all layers once: those of the prompt that are not cached, and those of the answer but
    the last, or all that a round of drafts has. A GPU has the layers of its pipeline stage.

    Source: `flopwise.serving.iteration`, whose messages are counted (2 (g - 1) / g n from each of g ranks that sum n
    bytes), and `flopwise.serving.disaggregated` for caches that go from prompts to answers.
    Assumes: requests of mean length; towers beside the first stack send nothing; replicas fill whole nodes.
    """
    layout, fabric, (prompt, steps) = job.layout, job.cluster.fabric, request_work(job)
    if int(layout.num_gpus) == 1 and not job.techniques.prefill_gpus:
        return ()
    drafted = 0 if job.techniques.speculation is None else job.techniques.speculation.tokens
    tokens = prompt + max(steps - 1.0, 0.0) * (1 + drafted)
    stages, each = int(layout.pp), 1.0 / int(layout.dp)
    on_node = min(job.cluster.gpus_per_node, int(layout.num_gpus) * replicas)
    rates = [each * (full_per_s if rate is None else rate) for rate in (requests_per_s, full_per_s)]
    needs = []
    for number, level in enumerate(fabric.levels):
        counted = replace(job, cluster=replace(job.cluster, fabric=byte_counting(fabric, number)))
        machine, load = runner(counted), StepLoad(prefill_tokens=tokens, prefill_context=tokens)
        layers, whole = (float(np.asarray(machine.sent_s(load, split))) for split in (replace(layout, pp=1), layout))
        sent = {"tensor_parallel": layers / stages, "pipeline_p2p": (whole - layers) / max(stages - 1, 1)}
        sent["cache_transfer"] = moved_s(counted, round(prompt)) if job.techniques.prefill_gpus else 0.0
        sent = {name: nbytes for name, nbytes in sent.items() if 1.0 < nbytes < np.inf}
        average, full = (rate * sum(sent.values()) for rate in rates)
        if sent:
            need = RequestLinkNeed(
                link=level.kind, between_nodes=len(fabric.levels) > 1 and number == len(fabric.levels) - 1,
                request_bytes=sent, average_bytes_per_s=average, full_bytes_per_s=full,
                node_average_bytes_per_s=average * on_node, node_full_bytes_per_s=full * on_node,
                link_bytes_per_s=level.bytes_per_s if np.isfinite(level.bytes_per_s) else None,
            )  # fmt: skip
            needs.append(need)
    return tuple(needs)
