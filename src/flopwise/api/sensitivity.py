"""What would move an answer: the headline figures again, with one input changed at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flopwise.errors import FlopwiseError

if TYPE_CHECKING:
    from flopwise.api.memory import MemoryAnswer
    from flopwise.api.serve import ServeAnswer
    from flopwise.api.train import TrainAnswer
    from flopwise.cost.cluster import Cluster
    from flopwise.training.layout import Precision

NUDGE = 1.1
"""Rates are raised by this factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """One change, and each headline figure after it over what it was; None where either is not known or nothing."""

    change: str
    effects: dict[str, float | None]
    note: str = ""

    @property
    def size(self) -> float:
        """The largest relative effect on any figure."""
        import math

        return max((abs(math.log(e)) for e in self.effects.values() if e), default=0.0)


def sensitivities(answer: TrainAnswer | ServeAnswer | MemoryAnswer) -> tuple[Sensitivity, ...]:
    """The effect of each single change that the question itself would accept, the largest first."""
    from flopwise.api.memory import MemoryAnswer
    from flopwise.api.train import TrainAnswer

    if isinstance(answer, MemoryAnswer):
        base, changes = _memory_headline(answer), _memory_changes(answer)
    elif isinstance(answer, TrainAnswer):
        base, changes = _train_headline(answer.estimate), _train_changes(answer)
    else:
        base, changes = _serve_headline(answer.estimate), _serve_changes(answer)
    found = []
    for change, again in changes:
        try:
            after, note = again()
        except FlopwiseError:
            continue
        effects = {name: _ratio(after[name], base[name]) for name in base}
        found.append(Sensitivity(change=change, effects=effects, note=note))
    return tuple(sorted(found, key=lambda s: -s.size))


Headline = dict[str, float | None]
Again = Callable[[], tuple[Headline, str]]


def _ratio(after: float | None, before: float | None) -> float | None:
    return None if not after or not before else after / before


def _faster(cluster: Cluster, what: str) -> Cluster:
    """The cluster with one kind of rate raised by NUDGE."""
    rates, fabric = cluster.rates, cluster.fabric
    match what:
        case "peak":
            return replace(cluster, rates=replace(rates, peak={k: v * NUDGE for k, v in rates.peak.items()}))
        case "memory":
            return replace(cluster, rates=replace(rates, hbm_bytes_per_s=rates.hbm_bytes_per_s * NUDGE))
        case "products":
            value = {k: v * NUDGE if k.startswith("matmul_frac") else v for k, v in rates.value.items()}
            return replace(cluster, rates=replace(rates, value=value))
        case "kernels":
            value = {k: v / NUDGE if k == "kernel_s" else v for k, v in rates.value.items()}
            return replace(cluster, rates=replace(rates, value=value))
        case _:
            levels = list(fabric.levels)
            index = 0 if what == "link" else len(levels) - 1
            levels[index] = replace(levels[index], bytes_per_s=levels[index].bytes_per_s * NUDGE)
            return replace(cluster, fabric=replace(fabric, levels=tuple(levels)))


def _rates(cluster: Cluster, num_gpus: int) -> Iterator[tuple[str, Cluster]]:
    """Every rate raised by a tenth that the job can feel."""
    yield "peak compute +10 %", _faster(cluster, "peak")
    yield "memory bandwidth +10 %", _faster(cluster, "memory")
    yield "achieved share of matrix products +10 %", _faster(cluster, "products")
    yield "fixed time of a kernel -9 %", _faster(cluster, "kernels")
    if num_gpus > 1:
        yield f"{cluster.fabric.link_kind} bandwidth +10 %", _faster(cluster, "link")
    if num_gpus > cluster.fabric.domain:
        yield "network bandwidth +10 %", _faster(cluster, "network")


def _train_headline(found: Any) -> Headline:
    return {
        "time per token": 1.0 / found.tokens_per_s,
        "memory": float(found.memory.total_bytes),
        "cost per token": None
        if found.job.cluster.usd_per_gpu_hour is None
        else found.num_gpus * found.job.cluster.usd_per_gpu_hour / found.tokens_per_s,
    }


def _train_changes(answer: TrainAnswer) -> Iterator[tuple[str, Again]]:
    from flopwise.training.estimate import estimate
    from flopwise.training.layout import RECOMPUTE

    job = answer.estimate.job
    recipe, layout, gpus = job.recipe, job.layout, answer.estimate.num_gpus

    def again(**changed: Any) -> Again:
        def run() -> tuple[Headline, str]:
            found = estimate(replace(job, **changed))
            fits = float(found.memory.total_bytes) <= job.cluster.accelerator.hbm_bytes
            return _train_headline(found), "" if fits else "does not fit"

        return run

    for name, cluster in _rates(job.cluster, gpus):
        yield name, again(cluster=cluster)
    yield "global batch x 2", again(recipe=replace(recipe, global_batch=2 * int(recipe.global_batch)))
    doubled = replace(recipe, global_batch=2 * int(recipe.global_batch))
    yield (
        "micro-batch x 2 (and global batch)",
        again(recipe=doubled, layout=replace(layout, micro_batch=2 * int(layout.micro_batch))),
    )
    yield "sequence length x 2", again(recipe=recipe.with_seq(2 * int(recipe.seq_len)))
    if int(layout.dp) % 2 == 0:
        half = int(layout.dp) // 2
        yield f"tp {2 * int(layout.tp)}, dp {half}", again(layout=replace(layout, dp=half, tp=2 * int(layout.tp)))
        yield f"pp {2 * int(layout.pp)}, dp {half}", again(layout=layout.with_degrees(dp=half, pp=2 * int(layout.pp)))
    others: tuple[Precision, ...] = ("bf16", "fp8", "nvfp4")
    for precision in others:
        if precision != recipe.precision:
            yield f"precision {precision}", again(recipe=replace(recipe, precision=precision))
    for mode in sorted({0, 1, 2} - {int(layout.recompute)}):
        yield f"recompute {RECOMPUTE[mode]}", again(layout=layout.recomputing(mode))
    stages = {0, 1, recipe.stack.zero} if int(layout.dp) * int(layout.cp) > 1 else {int(layout.zero)}
    for zero in sorted(stages - {int(layout.zero)}):
        yield f"ZeRO {zero}", again(layout=replace(layout, zero=zero))


def _serve_headline(found: Any) -> Headline:
    return {
        "TTFT": found.ttft_s.value,
        "TPOT": None if found.tpot_s is None else found.tpot_s.value,
        "throughput per GPU": (found.output_tokens_per_s or found.throughput).value / found.num_gpus,
        "concurrency": float(found.max_concurrency),
        "cost per token": found.usd_per_million_output_tokens,
    }


def _serve_changes(answer: ServeAnswer) -> Iterator[tuple[str, Again]]:
    from flopwise.serving.estimate import estimate
    from flopwise.serving.remedies import runnable_formats

    found = answer.estimate
    job = found.job

    def again(**changed: Any) -> Again:
        def run() -> tuple[Headline, str]:
            after = estimate(replace(job, **changed))
            return _serve_headline(after), "" if after.max_concurrency else "does not fit"

        return run

    for name, cluster in _rates(job.cluster, found.num_gpus):
        yield name, again(cluster=cluster)
    in_flight = job.concurrency or max(1, found.max_concurrency)
    if job.arrivals_per_s is None:
        yield "requests in flight x 2", again(concurrency=2 * in_flight)
        yield "requests in flight / 2", again(concurrency=max(1, in_flight // 2))
    else:
        yield "arrivals x 2", again(arrivals_per_s=2 * job.arrivals_per_s)
    yield "input tokens x 2", again(input_tokens=2 * job.input_tokens)
    yield "output tokens x 2", again(output_tokens=2 * job.output_tokens)
    formats = tuple(map(answer.facts.weight_format, ("bf16", "fp8", "awq", "nvfp4")))
    for form in runnable_formats(job.model, job.engine, job.cluster.rates, formats):
        if form is not job.weights:
            yield f"weights in {form.name}", again(weights=form)
    other = "bf16" if job.kv_dtype.name == "fp8" else "fp8"
    yield f"KV cache in {other}", again(kv_dtype=answer.facts.cache_format(other))
    wider = replace(job.layout, tp=2 * int(job.layout.tp))

    def on_more() -> tuple[Headline, str]:
        more = answer.machines.cluster(int(wider.num_gpus), answer.facts)
        return again(layout=wider, cluster=more)()

    yield f"tp {int(wider.tp)}", on_more
    for name in ("vllm", "sglang", "tensorrt-llm"):
        row = answer.facts.engine(name)
        if row is not job.engine and row.runs_on(job.cluster.accelerator):
            yield f"engine {name}", again(engine=row)


def _memory_headline(answer: MemoryAnswer) -> Headline:
    return {"memory": answer.per_gpu_bytes}


def _memory_changes(answer: MemoryAnswer) -> Iterator[tuple[str, Again]]:
    """Every single change that saves memory, as `remedies` lists them, whether it fits already or not."""
    from flopwise.serving.remedies import serving_remedies
    from flopwise.training.remedies import training_remedies

    remedies: Any
    if answer.training is not None:
        recipe, layout, _ = answer.training
        kind = "gpu" if answer.accelerator is None else answer.accelerator.kind
        remedies = training_remedies(
            answer.model, recipe, layout, answer.facts, answer.capacity_bytes, device_kind=kind
        )
    else:
        assert answer.serving is not None
        assert answer.deployment is not None
        asked = answer.deployment
        remedies = serving_remedies(
            answer.model,
            answer.serving[0],
            answer.facts,
            concurrency=answer.concurrency,
            context=answer.context,
            device=answer.accelerator,
            **asked.software(answer.facts),
            memory_frac=asked.memory_fraction,
        )
    for remedy in remedies:
        yield remedy.change, _known({"memory": remedy.total_bytes})


def _known(after: Headline) -> Again:
    """A change whose effect is there already."""
    return lambda: (after, "")
