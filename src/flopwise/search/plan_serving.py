"""Plan a service, a batch job or an encoder over every offer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flopwise.cost.cluster import cluster
from flopwise.cost.energy import facility_joules
from flopwise.errors import FlopwiseError, MissingFactError
from flopwise.facts.formats import weight_format
from flopwise.facts.software import engine
from flopwise.ops.tensors import active_parameters
from flopwise.search.answer import Candidate, Lever
from flopwise.search.nodes import NodeKind, Priced, node_kinds
from flopwise.search.outcome import Answer
from flopwise.search.pareto import pareto_front
from flopwise.search.serving import MAX_TP, Deployments, deployments
from flopwise.serving.estimate import ServeJob, serving_band
from flopwise.serving.memory import ServingLayout, generates
from flopwise.serving.precision import layer_weight_bits
from flopwise.units import HOUR_S, HOURS_PER_MONTH, format_bytes, format_seconds

if TYPE_CHECKING:
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.facts.offers import Offer
    from flopwise.search.workload import Resolved

Floats = NDArray[np.floating[Any]]
Advance = Callable[[int, int], None]
FRONT = 24
LATENCIES = ("ttft", "tpot", "latency")


@dataclass(frozen=True, slots=True)
class Option:
    """One format on one kind of node bought one way; columns as in `Deployments`."""

    workload: Resolved
    model: Model
    node: NodeKind
    found: Deployments
    priced: Priced
    kv_dtype: str

    @property
    def instances(self) -> Floats:
        """Whole instances that hold all replicas."""
        each = self.found.tp * self.found.pp
        packed = np.maximum(self.node.count // each, 1)
        count: Floats = np.where(
            each <= self.node.count, np.ceil(self.found.replicas / packed), self.found.replicas * each / self.node.count
        )
        return count

    @property
    def seconds(self) -> Floats:
        """Of the batch job, or of one request."""
        if self.workload.requests is not None and self.workload.source.task == "batch":
            job: Floats = self.workload.requests / (self.found.replicas * self.found.requests_per_s)
            return job
        return self.found.e2e_s

    @property
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
            engine=self.workload.source.constraints.engine or "vllm",
            arrivals_per_s=self.workload.requests_per_s,
        )

    def odds(self) -> dict[str, Floats]:
        """Probability, for each target and row, that it is met."""
        w, met = self.workload, dict[str, Floats]()
        decodes = generates(self.model)
        ttft, rate = serving_band(self.job(), "ttft"), serving_band(self.job(), "throughput")
        tpot = serving_band(self.job(), "tpot") if decodes else ttft
        for name, target, value, band in (
            ("ttft", w.ttft, self.found.ttft_s, ttft),
            ("tpot", w.tpot if decodes else None, self.found.tpot_s, tpot),
            ("latency", w.latency, self.found.e2e_s, tpot),
        ):
            if target is not None:
                met[name] = np.where(
                    np.isfinite(value), band.probability_at_most(np.minimum(value, 1e9), target.seconds), 0.0
                )
        if w.tokens_per_s is not None:
            met["throughput"] = 1.0 - np.asarray(rate.probability_at_most(self.found.tokens_per_s, w.tokens_per_s))
        if w.deadline_s is not None and w.source.task == "batch":
            met["deadline"] = 1.0 - np.asarray(rate.probability_at_most(1.0, self.seconds / w.deadline_s))
        if w.budget_usd is not None:
            met["budget"] = (self.cost_usd <= w.budget_usd) * 1.0
        return met

    def shortfall(self) -> Floats:
        """By how much each row misses its worst target: 1 is just met, 2 is twice too much."""
        w, short = self.workload, np.zeros(self.found.batch.size)
        for target, value in ((w.ttft, self.found.ttft_s), (w.tpot, self.found.tpot_s), (w.latency, self.found.e2e_s)):
            if target is not None:
                short = np.maximum(short, np.minimum(value, 1e9) / target.seconds)
        if w.deadline_s is not None and w.source.task == "batch":
            short = np.maximum(short, self.seconds / w.deadline_s)
        if w.budget_usd is not None:
            short = np.maximum(short, self.cost_usd / w.budget_usd)
        if w.tokens_per_s is not None:
            short = np.maximum(short, w.tokens_per_s / self.found.tokens_per_s)
        return short

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
        decodes = generates(self.model)
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
                "tp": int(f.tp[row]), "pp": int(f.pp[row]), "replicas": int(f.replicas[row]),
                "max_batch": int(f.batch[row]), "weights": f.weights, "kv_dtype": self.kv_dtype,
                "engine": self.workload.source.constraints.engine or "vllm",
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
        )  # fmt: skip


def candidate_job(workload: Resolved, model: Model, facts: Facts, offer: Offer, chosen: Candidate) -> ServeJob:
    """The job of one replica that a candidate of a plan stands for."""
    held = chosen.layout
    built = cluster(
        facts.offered_accelerator(offer),
        offer=offer,
        purchase=chosen.purchase,
        node_bytes_per_s=workload.inter_node_bytes_per_s,
    )
    arrivals = None if workload.requests_per_s is None else workload.requests_per_s / held["replicas"]
    return ServeJob(
        model=model,
        cluster=built,
        layout=ServingLayout(tp=held["tp"], pp=held["pp"]),
        weights=held["weights"],
        kv_dtype=held["kv_dtype"],
        engine=held["engine"],
        input_tokens=workload.input_tokens,
        output_tokens=workload.output_tokens,
        concurrency=held["max_batch"],
        arrivals_per_s=arrivals if generates(model) else None,
    )


def formats(workload: Resolved, model: Model) -> list[str]:
    """The weight formats to search: those asked for, else 16 bits, and fp8 for models that generate."""
    asked = workload.source.constraints.weight_formats or (
        [workload.source.precision] if workload.source.precision else []
    )
    if asked:
        return [weight_format(name).name for name in asked]
    return ["bf16", "fp8"] if generates(model) else ["bf16"]


def plan_serving(workload: Resolved, model: Model, facts: Facts, advance: Advance | None = None) -> Answer:
    """Search every offer for the deployments that meet the workload's targets.

    Raises:
        InfeasibleError: the constraints leave no offer.
        SpecError, UnknownNameError: something in the workload is wrong.
    """
    answer = Answer()
    name = engine(workload.source.constraints.engine or "vllm").name
    if workload.source.constraints.engine is None:
        answer.assumptions.append(f"the engine {name}, as none was given (constraints.engine)")
    if not generates(model):
        answer.assumptions.append("the model answers in one pass: TTFT and latency are the whole request")
    wanted = formats(workload, model)
    if not workload.source.constraints.weight_formats and generates(model):
        answer.assumptions.append(
            "weights in bf16 and fp8 were searched (constraints.weight_formats); check quality in fp8"
        )
    nodes = node_kinds(workload, facts, answer.ruled_out)
    options = _options(workload, model, nodes, wanted, answer, advance)
    picked: dict[tuple[str, str, str], tuple[float, Option, int, dict[str, Floats]]] = {}
    missed: list[tuple[float, Option, int, dict[str, Floats]]] = []
    for option in options:
        met = option.odds()
        rows = np.flatnonzero(option.allowed(met))
        if not rows.size:
            _miss(option, met, missed, answer)
            continue
        keys = (option.instances[rows], option.found.e2e_s[rows], option.score()[rows])
        best = int(rows[np.lexsort(keys)[0]])
        key = (option.priced.offer.provider, option.priced.offer.instance, option.priced.purchase)
        value = float(option.score()[best])
        if key not in picked or value < picked[key][0]:
            picked[key] = (value, option, best, met)
    ordered = sorted(picked.values(), key=lambda entry: entry[0])
    answer.plans = [o.candidate(row, met, i) for i, (_, o, row, met) in enumerate(ordered, start=1)]
    answer.front = _front(options)
    if not answer.plans:
        missed.sort(key=lambda entry: entry[0])
        answer.misses = [o.candidate(row, met, i) for i, (_, o, row, met) in enumerate(missed[:5], start=1)]
    else:
        answer.levers = levers(ordered[0][1], answer)
    return answer


def _options(
    workload: Resolved, model: Model, nodes: list[NodeKind], wanted: list[str], answer: Answer, advance: Advance | None
) -> list[Option]:
    kv_dtype = workload.source.constraints.kv_dtype or "bf16"
    options: list[Option] = []
    for done, node in enumerate(nodes):
        if advance is not None:
            advance(done, len(nodes))
        for weights in wanted:
            if _hopeless(workload, model, node, weights, answer):
                continue
            found = _found(workload, model, node, weights, kv_dtype, answer)
            if found is None:
                continue
            answer.evaluated += found.considered
            if found.too_big:
                device = node.cluster.accelerator
                answer.ruled_out.add(
                    "does not fit in memory",
                    found.too_big,
                    f"{device.name} ({node.name}): {weights} weights take at least "
                    f"{format_bytes(found.smallest_bytes)} of {format_bytes(device.hbm_bytes)}",
                )
            if found.batch.size:
                options += [Option(workload, model, node, found, priced, kv_dtype) for priced in node.priced]
    return options


def _hopeless(workload: Resolved, model: Model, node: NodeKind, weights: str, answer: Answer) -> bool:
    """Whether reading the weights once takes longer than the TPOT target, however the layers are cut inside a node."""
    if workload.tpot is None or not generates(model):
        return False
    read = layer_weight_bits(model, weight_format(weights).name) / 8 * active_parameters(model)
    floor_s = read / (min(node.count, MAX_TP) * node.cluster.accelerator.hbm_bytes_per_s)
    if floor_s <= workload.tpot.seconds:
        return False
    example = f"{node.cluster.accelerator.name} ({node.name}): {format_seconds(floor_s)} in {weights}"
    answer.ruled_out.add("reading the weights once takes longer than the TPOT target", 1, example)
    return True


def _found(
    workload: Resolved, model: Model, node: NodeKind, weights: str, kv_dtype: str, answer: Answer
) -> Deployments | None:
    """Deployments on one node; in fp32 where it has no 16-bit units; None (and a count) where a rate is not known."""
    try:
        return deployments(model, workload, node, weights, kv_dtype)
    except MissingFactError as error:
        if weights == "bf16":
            try:
                return deployments(model, workload, node, "fp32", kv_dtype)
            except MissingFactError:
                pass
        answer.ruled_out.add("the device lacks a rate for this format", 1, str(error))
        return None


def _miss(
    option: Option, met: dict[str, Floats], missed: list[tuple[float, Option, int, dict[str, Floats]]], answer: Answer
) -> None:
    short = option.shortfall()
    too_many = option.instances * option.node.count > option.workload.max_gpus
    row = int(np.where(too_many, np.inf, short).argmin()) if not too_many.all() else int(short.argmin())
    missed.append((float(short[row]) + 1e6 * bool(too_many[row]), option, row, met))
    failed = min(met, key=lambda name: float(met[name].max())) if met else "the limits"
    if too_many.all():
        failed = "max_gpus"
    example = (
        f"{option.priced.offer.instance} {option.found.weights}: "
        f"TTFT {format_seconds(float(option.found.ttft_s[row]))}, "
        f"TPOT {format_seconds(float(option.found.tpot_s[row]))} on {int(option.instances[row])} instances"
    )
    answer.ruled_out.add(f"misses {failed}", int(option.found.batch.size), example)


def _front(options: list[Option]) -> list[Candidate]:
    """Cost against the latency that the targets speak of."""
    if not options:
        return []
    costs, times, owners, rows = [], [], [], []
    for index, option in enumerate(options):
        fits = np.flatnonzero(option.instances * option.node.count <= option.workload.max_gpus)
        cost, seconds = option.cost_usd[fits], option.seconds[fits]
        own = pareto_front(cost, seconds)
        costs.append(cost[own])
        times.append(seconds[own])
        rows.append(fits[own])
        owners.append(np.full(own.size, index))
    picked = pareto_front(np.concatenate(costs), np.concatenate(times))
    if picked.size > FRONT:
        picked = picked[np.linspace(0, picked.size - 1, FRONT).astype(int)]
    all_rows, all_owners = np.concatenate(rows), np.concatenate(owners)
    return [
        options[int(all_owners[i])].candidate(int(all_rows[i]), options[int(all_owners[i])].odds(), number)
        for number, i in enumerate(picked, start=1)
    ]


def levers(best: Option, answer: Answer) -> list[Lever]:
    """What single changes would do to the best plan, at the cheapest way to hold the same targets."""
    chosen = answer.plans[0]
    found: list[Lever] = []
    for change, weights, kv_dtype in (
        ("weights fp8", "fp8", best.kv_dtype),
        ("weights int4 (AWQ)", "awq", best.kv_dtype),
        ("weights bf16", "bf16", best.kv_dtype),
        ("KV cache fp8", best.found.weights, "fp8"),
    ):
        if (weights, kv_dtype) != (best.found.weights, best.kv_dtype):
            found.append(_lever(change, best, chosen, weights, kv_dtype, best.workload))
    for factor, change in ((2.0, "twice the traffic"), (0.5, "half the traffic")):
        if best.workload.requests_per_s is not None:
            other = _with(best.workload, requests_per_s=best.workload.requests_per_s * factor)
            found.append(_lever(change, best, chosen, best.found.weights, best.kv_dtype, other))
    for name in LATENCIES:
        target = getattr(best.workload, name)
        if target is not None:
            relaxed = _with(best.workload, **{name: replace_latency(target, 1.5)})
            change = f"{name} {format_seconds(target.seconds)} relaxed to {format_seconds(1.5 * target.seconds)}"
            found.append(_lever(change, best, chosen, best.found.weights, best.kv_dtype, relaxed))
    seen = {chosen.gpu}
    for other_plan in answer.plans[1:]:
        if other_plan.gpu not in seen and len(seen) < 4:
            seen.add(other_plan.gpu)
            change = f"on {other_plan.num_gpus} x {other_plan.gpu} ({other_plan.provider} {other_plan.instance})"
            ratios = (
                other_plan.memory_bytes / chosen.memory_bytes, other_plan.seconds / chosen.seconds,
                other_plan.cost_usd / chosen.cost_usd,
            )  # fmt: skip
            found.append(Lever(change, *ratios, fits=True))
    return found


def replace_latency(target: object, factor: float) -> object:
    """The same target, `factor` times as long."""
    from flopwise.search.workload import Latency  # noqa: PLC0415 - beside its only use

    assert isinstance(target, Latency)
    return Latency(target.percentile, target.seconds * factor)


def _with(workload: Resolved, **changes: object) -> Resolved:
    import msgspec  # noqa: PLC0415 - beside its only use

    return msgspec.structs.replace(workload, **changes)


def _lever(change: str, best: Option, chosen: Candidate, weights: str, kv_dtype: str, workload: Resolved) -> Lever:
    try:
        found = deployments(best.model, workload, best.node, weights, kv_dtype)
    except FlopwiseError as error:
        return Lever(change, None, None, None, fits=False, note=str(error))
    if found is None or not found.batch.size:
        return Lever(change, None, None, None, fits=False, note="does not fit in memory")
    option = replace(best, workload=workload, found=found, kv_dtype=kv_dtype)
    met = option.odds()
    rows = np.flatnonzero(option.allowed(met))
    if not rows.size:
        return Lever(change, None, None, None, fits=True, note="misses the targets on this instance")
    row = int(rows[option.score()[rows].argmin()])
    return Lever(
        change,
        float(option.found.memory_bytes[row]) / chosen.memory_bytes,
        float(option.seconds[row]) / chosen.seconds,
        float(option.cost_usd[row]) / chosen.cost_usd,
        fits=True,
    )
