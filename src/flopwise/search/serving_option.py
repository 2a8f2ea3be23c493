"""One way to serve: a weight format on a kind of node bought one way, its layouts and batches against the targets."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flopwise.cost.energy import facility_joules
from flopwise.facts import defaults
from flopwise.facts.formats import CacheFormat
from flopwise.search.answer import Candidate
from flopwise.search.serving import Deployments, answers_in_one_pass
from flopwise.serving.job import ServeJob, serving_band
from flopwise.units import HOUR_S, HOURS_PER_MONTH

if TYPE_CHECKING:
    from flopwise.facts.architecture import Model
    from flopwise.search.nodes import NodeKind, Priced
    from flopwise.search.workload import Resolved

Floats = NDArray[np.floating[Any]]
Column = NDArray[np.int64]


@dataclass(frozen=True)
class Option:
    """One format on one kind of node bought one way; columns as in `Deployments`, made once."""

    workload: Resolved
    model: Model
    node: NodeKind
    found: Deployments
    priced: Priced
    kv_dtype: CacheFormat
    memo: dict[Hashable, dict[str, Floats]] = field(default_factory=dict)  # odds of those with the same estimates

    @cached_property
    def gpus_each(self) -> Column:
        """Devices of one replica."""
        return self.found.tp * self.found.pp * self.found.dp

    @cached_property
    def instances(self) -> Floats:
        """Whole instances that hold all replicas."""
        each = self.gpus_each
        packed = np.maximum(self.node.count // each, 1)
        count: Floats = np.where(
            each <= self.node.count, np.ceil(self.found.replicas / packed), self.found.replicas * each / self.node.count
        )
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
        """Of the batch job, or of one request."""
        if self.workload.requests is not None and self.workload.source.task == "batch":
            job: Floats = self.workload.requests / (self.found.replicas * self.found.requests_per_s)
            return job
        return self.found.e2e_s

    @cached_property
    def cost_usd(self) -> Floats:
        """Of the batch job, or of a month of service."""
        hourly = self.instances * self.priced.usd_per_hour
        if self.workload.source.task == "batch":
            return hourly * self.seconds / HOUR_S
        return hourly * HOURS_PER_MONTH

    def job(self) -> ServeJob:
        """A job of this option, for its error bands."""
        return ServeJob(
            model=self.model,
            cluster=self.node.cluster,
            weights=self.found.weights,
            engine=self.workload.engine,
            arrivals_per_s=self.workload.requests_per_s,
        )

    def odds(self, workload: Resolved | None = None) -> dict[str, Floats]:
        """Probability, for each target and row, that it is met; `workload`: with other limits on the same figures."""
        w = workload or self.workload
        key = (w.ttft, w.tpot, w.latency, w.tokens_per_s, w.deadline_s)
        if key not in self.memo:
            self.memo[key] = self._estimated_odds(w)
        if w.budget_usd is None:
            return self.memo[key]
        return {**self.memo[key], "budget": (self.cost_usd <= w.budget_usd) * 1.0}

    def _estimated_odds(self, w: Resolved) -> dict[str, Floats]:
        """The odds of what does not depend on prices."""
        met: dict[str, Floats] = {}
        decodes = not answers_in_one_pass(self.model, self.workload)
        ttft, rate = serving_band(self.job(), "ttft"), serving_band(self.job(), "throughput")
        tpot = serving_band(self.job(), "tpot") if decodes else ttft
        least_s = self.found.least_ttft_s + max(w.output_tokens - 1, 0) * self.found.least_tpot_s
        for name, target, value, band, floor in (
            ("ttft", w.ttft, self.found.ttft_s, ttft, self.found.least_ttft_s),
            ("tpot", w.tpot if decodes else None, self.found.tpot_s, tpot, self.found.least_tpot_s),
            ("latency", w.latency, self.found.e2e_s, tpot, least_s if decodes else self.found.least_ttft_s),
        ):
            if target is not None:
                likely = band.probability_at_most(np.minimum(value, 1e9), target.seconds, floor=floor)
                met[name] = np.where(np.isfinite(value), likely, 0.0)
        if w.tokens_per_s is not None:
            met["throughput"] = 1.0 - np.asarray(rate.probability_at_most(self.found.tokens_per_s, w.tokens_per_s))
        if w.deadline_s is not None and w.source.task == "batch":
            met["deadline"] = 1.0 - np.asarray(rate.probability_at_most(1.0, self.seconds / w.deadline_s))
        return met

    def shortfalls(self) -> dict[str, Floats]:
        """How many times its limit each target's figure is: 1 is just met, 2 is twice too much."""
        w = self.workload
        times = {
            "ttft": (w.ttft, self.found.ttft_s),
            "tpot": (w.tpot, self.found.tpot_s),
            "latency": (w.latency, self.found.e2e_s),
        }
        found: dict[str, Floats] = {}
        for name, (target, value) in times.items():
            if target is not None:
                found[name] = np.minimum(value, 1e9) / target.seconds
        if w.deadline_s is not None and w.source.task == "batch":
            found["deadline"] = self.seconds / w.deadline_s
        if w.budget_usd is not None:
            found["budget"] = self.cost_usd / w.budget_usd
        if w.tokens_per_s is not None:
            found["throughput"] = w.tokens_per_s / self.found.tokens_per_s
        if w.max_usd_per_hour is not None:
            found["max_usd_per_hour"] = self.instances * self.priced.usd_per_hour / w.max_usd_per_hour
        found["max_gpus"] = self.instances * self.node.count / w.max_gpus
        return found

    def shortfall(self) -> Floats:
        """By how much each row misses its worst target."""
        worst: Floats = np.max(np.stack(list(self.shortfalls().values())), axis=0)
        return worst

    def allowed(self, met: dict[str, Floats]) -> NDArray[np.bool_]:
        """Rows that meet every target with the asked confidence and the limits."""
        gpus = self.instances * self.node.count
        keep = (gpus <= self.workload.max_gpus) & (gpus >= self.workload.min_gpus) & np.isfinite(self.cost_usd)
        for probability in met.values():
            keep &= probability >= self.workload.confidence
        if self.workload.max_usd_per_hour is not None:
            keep &= self.instances * self.priced.usd_per_hour <= self.workload.max_usd_per_hour
        return keep

    def score(self) -> Floats:
        """What the objective minimises."""
        objective = self.workload.source.objective
        if objective == "time":
            return self.seconds
        if objective == "energy":
            tdp = self.node.cluster.accelerator.tdp_w or np.inf
            length = self.seconds if self.workload.source.task == "batch" else 1.0
            return self.instances * self.node.count * self.found.watts_frac * tdp * length
        return self.cost_usd

    def candidate(self, row: int, met: dict[str, Floats], rank: int) -> Candidate:
        """The candidate of one row."""
        f, offer, device = self.found, self.priced.offer, self.node.cluster.accelerator
        count = int(self.instances[row])
        length = float(self.seconds[row]) if self.workload.source.task == "batch" else HOURS_PER_MONTH * HOUR_S
        energy = None
        if device.tdp_w is not None:
            watts = float(f.watts_frac[row]) * device.tdp_w
            energy = float(facility_joules(device, count * self.node.count, watts, length))
        decodes = not answers_in_one_pass(self.model, self.workload)
        tokens = float(f.tokens_per_s[row])
        hourly = count * self.priced.usd_per_hour
        return Candidate(
            rank=rank,
            provider=offer.provider,
            region=offer.region,
            instance=offer.instance,
            num_instances=count,
            gpu=device.name,
            num_gpus=count * self.node.count,
            purchase=self.priced.purchase,
            layout={
                "tp": int(f.tp[row]), "pp": int(f.pp[row]), "ep": int(f.ep[row]), "dp": int(f.dp[row]),
                "replicas": int(f.replicas[row]), "max_batch": int(f.batch[row]), "weights": f.weights.name,
                "kv_dtype": self.kv_dtype.name, "engine": self.workload.source.constraints.engine or defaults.ENGINE,
            },
            seconds=float(self.seconds[row]),
            usd_per_hour=hourly,
            cost_usd=float(self.cost_usd[row]),
            energy_joules=energy,
            meets={name: round(float(p[row]), 4) for name, p in met.items()},
            figures={
                "ttft_s": float(f.ttft_s[row]),
                "tpot_s": float(f.tpot_s[row]) if decodes else None,
                "e2e_s": float(f.e2e_s[row]),
                "output_tokens_per_s": tokens if decodes else None,
                "requests_per_s_capacity": float(f.requests_per_s[row] * f.replicas[row]),
                "busy_frac": float(f.busy_frac[row]),
                "usd_per_million_tokens": hourly / (tokens * HOUR_S) * 1e6 if tokens else None,
            },
            memory_bytes=float(f.memory_bytes[row]),
            capacity_bytes=float(device.hbm_bytes),
            price_date=offer.price_date,
            price_source=offer.source,
            shortfall={n: float(v[row]) for n, v in self.shortfalls().items() if n in met or v[row] > 1},
        )  # fmt: skip
