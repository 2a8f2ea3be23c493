"""Deployments on a kind of node bought one way: their cost, energy, odds and fronts, and the job of one replica."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from flopwise.cost.energy import facility_joules
from flopwise.search.nodes import offer_cluster
from flopwise.search.rank import Floats, Odds, Option, Pick, Shortfalls, candidates, front
from flopwise.search.serving import Deployments, answers_in_one_pass
from flopwise.search.serving_grid import Column
from flopwise.search.serving_techniques import job_of, with_draft
from flopwise.serving.bands import serving_band
from flopwise.serving.estimate import ServeJob
from flopwise.serving.memory import ServingLayout
from flopwise.units import HOUR_S, HOURS_PER_MONTH

if TYPE_CHECKING:
    from flopwise.cost.intervals import ErrorBand
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.facts.offers import Offer
    from flopwise.search.answer import Candidate
    from flopwise.search.spec import Latency
    from flopwise.search.workload import Resolved

DEGREES = ("tp", "pp", "ep", "dp")
LATENCIES = {"ttft": "ttft_s", "tpot": "tpot_s", "latency": "e2e_s"}
"""The column of each target's latency."""


@dataclass(frozen=True, kw_only=True)
class ServingOption(Option):
    """One format of weights and cache; columns as in `Deployments`."""

    model: Model
    found: Deployments
    kv_dtype: str
    memo: dict[Hashable, Odds] = field(default_factory=dict)  # odds of those with the same estimates

    @property
    def decodes(self) -> bool:
        """Whether answers are made token by token."""
        return not answers_in_one_pass(self.model, self.workload)

    @cached_property
    def gpus_each(self) -> Column:
        """Devices of one replica."""
        return self.found.tp * self.found.pp * self.found.dp

    @cached_property
    def instances(self) -> Floats:
        """Whole instances that hold all replicas of each row."""
        each, packed = self.gpus_each, self.node.count // self.gpus_each
        shared = np.ceil(self.found.replicas / np.maximum(packed, 1))
        count: Floats = np.where(packed > 0, shared, self.found.replicas * each / self.node.count)
        return count

    def replicas_on(self, instances: int, row: int) -> float:
        """Replicas of one row that so many instances hold at most; 1 at least."""
        each = int(self.gpus_each[row])
        return float(max(instances * (self.node.count // each) or instances * self.node.count // each, 1))

    def instances_of(self, replicas: float, row: int) -> int:
        """Instances that hold so many replicas of one row."""
        each = int(self.gpus_each[row])
        packed = self.node.count // each
        return int(np.ceil(replicas / packed)) if packed else int(replicas * each // self.node.count)

    @cached_property
    def seconds(self) -> Floats:
        """Time of the batch job, or of one request."""
        if self.workload.requests is not None and self.workload.task == "batch":
            job: Floats = self.workload.requests / (self.found.replicas * self.found.requests_per_s)
            return job
        return self.found.e2e_s

    @property
    def billed_s(self) -> Floats | float:
        """Time of the batch job, or a month of service."""
        return self.seconds if self.workload.task == "batch" else HOURS_PER_MONTH * HOUR_S

    @cached_property
    def cost_usd(self) -> Floats:
        """Cost of the batch job, or of a month of service."""
        if self.workload.task == "batch":
            return self.usd_per_hour * self.seconds / HOUR_S
        return self.usd_per_hour * HOURS_PER_MONTH

    @cached_property
    def energy_joules(self) -> Floats:
        """Energy of the batch job or of a month, at the meter; infinite where the power limit is not known."""
        device = self.node.cluster.accelerator
        if device.tdp_w is None:
            return np.full(self.num_gpus.shape, np.inf)
        watts = self.found.watts_frac * device.tdp_w
        return np.asarray(facility_joules(device, self.num_gpus, watts, self.billed_s))

    @property
    def memory_bytes(self) -> Floats:
        """Memory of each row's fullest device."""
        return self.found.memory_bytes

    @property
    def tokens_per_s(self) -> Floats:
        """Tokens of answers (of inputs, where there are none) a second."""
        return self.found.tokens_per_s

    @cached_property
    def bands(self) -> dict[str, ErrorBand]:
        """The error bands of each latency and of the throughput."""
        job = ServeJob(
            model=self.model,
            cluster=self.node.cluster,
            weights=self.found.weights,
            engine=self.workload.engine,
            arrivals_per_s=self.workload.requests_per_s,
        )
        ttft = serving_band(job, "ttft")
        tpot = serving_band(job, "tpot") if self.decodes else ttft
        return {"ttft": ttft, "tpot": tpot, "latency": tpot, "throughput": serving_band(job, "throughput")}

    @cached_property
    def least_s(self) -> dict[str, Floats]:
        """What datasheet rates allow each latency at least."""
        ttft, tpot = self.found.least_ttft_s, self.found.least_tpot_s
        whole = ttft + max(self.workload.output_tokens - 1, 0) * tpot if self.decodes else ttft
        return {"ttft": ttft, "tpot": tpot, "latency": whole}

    def odds(self, workload: Resolved | None = None) -> Odds:
        """Probability that each target is met; `workload`: with other limits on the same figures."""
        workload = workload or self.workload
        key = (*latency_targets(workload).values(), workload.tokens_per_s, workload.deadline_s)
        if key not in self.memo:
            self.memo[key] = self._estimated_odds(workload)
        if workload.budget_usd is None:
            return self.memo[key]
        return {**self.memo[key], "budget": (self.cost_usd <= workload.budget_usd) * 1.0}

    def _estimated_odds(self, workload: Resolved) -> Odds:
        """The odds of what does not depend on prices."""
        odds: Odds = {}
        for name, target in latency_targets(workload).items():
            if target is not None and (name != "tpot" or self.decodes):
                value = getattr(self.found, LATENCIES[name])
                likely = self.bands[name].probability_at_most(
                    np.minimum(value, 1e9), target.seconds, floor=self.least_s[name]
                )
                odds[name] = np.where(np.isfinite(value), likely, 0.0)
        rate = self.bands["throughput"]
        if workload.tokens_per_s is not None:
            odds["throughput"] = 1.0 - np.asarray(rate.probability_at_most(self.tokens_per_s, workload.tokens_per_s))
        if workload.deadline_s is not None:
            odds["deadline"] = 1.0 - np.asarray(rate.probability_at_most(1.0, self.seconds / workload.deadline_s))
        return odds

    def service_shortfalls(self) -> Shortfalls:
        """How many times its limit each latency is, and how many times more devices than allowed there are."""
        found: Shortfalls = {
            name: np.minimum(getattr(self.found, LATENCIES[name]), 1e9) / target.seconds
            for name, target in latency_targets(self.workload).items()
            if target is not None
        }
        return found | {"max_gpus": self.num_gpus / self.workload.max_gpus}

    def job(self, row: int) -> ServeJob:
        """The job of one replica of a row, with as many sequences at most."""
        layout = ServingLayout(**{name: int(getattr(self.found, name)[row]) for name in DEGREES})
        job = job_of(self.workload, self.model, self.node.cluster, self.found.weights, layout)
        return replace(job, kv_dtype=self.kv_dtype, max_batch=max(1, int(self.found.batch[row])))

    def layout_document(self, row: int) -> dict[str, Any]:
        """The layout of a row in plain values; `candidate_job` reads it back."""
        return {
            **{name: int(getattr(self.found, name)[row]) for name in DEGREES},
            "replicas": int(self.found.replicas[row]),
            "max_batch": int(self.found.batch[row]),
            "weights": self.found.weights,
            "kv_dtype": self.kv_dtype,
            "engine": self.workload.engine,
        }

    def figures(self, row: int) -> dict[str, float | None]:
        """Latencies, rates and the price of tokens."""
        found, tokens = self.found, float(self.tokens_per_s[row])
        hourly = float(self.usd_per_hour[row])
        return {
            "ttft_s": float(found.ttft_s[row]),
            "tpot_s": float(found.tpot_s[row]) if self.decodes else None,
            "e2e_s": float(found.e2e_s[row]),
            "output_tokens_per_s": tokens if self.decodes else None,
            "requests_per_s_capacity": float(found.requests_per_s[row] * found.replicas[row]),
            "busy_frac": float(found.busy_frac[row]),
            "usd_per_million_tokens": hourly / (tokens * HOUR_S) * 1e6 if tokens else None,
        }


def latency_targets(workload: Resolved) -> dict[str, Latency | None]:
    """The target of each latency, or None."""
    return {"ttft": workload.ttft, "tpot": workload.tpot, "latency": workload.latency}


def candidate_job(workload: Resolved, model: Model, facts: Facts, offer: Offer, chosen: Candidate) -> ServeJob:
    """The job of one replica that a candidate of a plan stands for, from its `layout_document`."""
    document = chosen.layout
    built = offer_cluster(workload, facts, offer, chosen.purchase)
    arrivals = None if workload.requests_per_s is None else workload.requests_per_s / document["replicas"]
    layout = ServingLayout(**{name: document.get(name, 1) for name in DEGREES})
    return replace(
        job_of(with_draft(workload, facts), model, built, document["weights"], layout),
        kv_dtype=document["kv_dtype"],
        engine=document["engine"],
        concurrency=document["max_batch"] * int(layout.dp),
        arrivals_per_s=None if answers_in_one_pass(model, workload) else arrivals,
    )


def cost_front(options: Sequence[ServingOption]) -> list[Candidate]:
    """Cost against the time of a request, or of the job: all that max_gpus allows."""
    return _shown(_front(options, None))


def latency_fronts(options: Sequence[ServingOption], workload: Resolved) -> dict[str, list[Candidate]]:
    """Cost against TTFT and against TPOT, each among what meets the other targets with the asked confidence."""
    return {name: _shown(_front(options, name, others)) for name, others in _other_targets(workload).items()}


def front_nodes(options: Sequence[ServingOption], workload: Resolved) -> set[int]:
    """The identities of the nodes that have a point on one of the fronts."""
    fronts = [_front(options, name, others) for name, others in _other_targets(workload).items()]
    return {id(option.node) for points in (*fronts, _front(options, None)) for option, _ in points}


def _other_targets(workload: Resolved) -> dict[str, Resolved]:
    """For each latency with a front, the workload without its own target."""
    return {"ttft": replace(workload, ttft=None), "tpot": replace(workload, tpot=None)}


def _front(
    options: Sequence[ServingOption], latency: str | None, others: Resolved | None = None
) -> list[tuple[ServingOption, int]]:
    """(option, row) of the front of cost against a latency, or the whole time; `others`: targets to meet."""
    return front(
        options,
        lambda option: (option.cost_usd, option.seconds if latency is None else getattr(option.found, f"{latency}_s")),
        lambda option: (
            np.flatnonzero(option.num_gpus <= option.workload.max_gpus)
            if others is None
            else option.allowed(option.odds(others))
        ),
    )


def _shown(points: Sequence[tuple[ServingOption, int]]) -> list[Candidate]:
    return candidates(Pick(option, row, option.odds()) for option, row in points)
