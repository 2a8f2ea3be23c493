"""What a kernel engineer would say of a model's shapes on a device: `flopwise.advise`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from flopwise.api.machines import Machines, described, loaded
from flopwise.errors import MissingFactError, SpecError

if TYPE_CHECKING:
    from flopwise.cost.advice import Advice, Case, Fine
    from flopwise.cost.cluster import Cluster
    from flopwise.cost.shapes import Operation
    from flopwise.facts.architecture import Model
    from flopwise.training.shape_advice import StackTime

DEFAULT_BATCH = {"train": 1, "serve": 32}
"""Sequences of a pass where none are given."""
OF_TRAINING = ("precision", "stack", "attention")
OF_SERVING = ("weights", "kv_dtype", "engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeAnswer:
    """The operations of a pass on one rank, and what to change. Seconds are of one pass.

    A pass is a micro-batch forward and backward (`train`), or a step that gives each sequence one token (`serve`).
    """

    model: Model
    cluster: Cluster
    task: str
    tp: int
    batch: int
    seq: int
    dtype: str
    pass_s: float
    kernels_s: float
    memory_bound_frac: float  # of the pass, in operations that memory bounds
    ridge_flops_per_byte: float
    l2_ridge_flops_per_byte: float | None
    operations: tuple[Operation, ...]
    advice: tuple[Advice, ...]
    fine: tuple[Fine, ...]
    stacks: tuple[StackTime, ...]
    settings: tuple[tuple[str, str], ...]
    assumptions: tuple[str, ...]


def advise(
    model: Model | str,
    *,
    gpu: str | None = None,
    task: Literal["train", "serve"] = "train",
    tp: int = 1,
    batch: int | None = None,
    seq: int | None = None,
    ep: int | None = None,
    precision: str | None = None,
    stack: str | None = None,
    attention: str | None = None,
    offload: bool = False,
    weights: str | None = None,
    kv_dtype: str | None = None,
    engine: str | None = None,
    machines: Machines | None = None,
    facts: Path | str | None = None,
    assume_family: str | None = None,
    offline: bool = False,
) -> ShapeAnswer:
    """Shapes of `model` on `tp` accelerators: `batch` sequences of `seq` tokens in training, as many cached in serving.

    `precision`, `stack`, `attention`, `offload` (the optimizer to host memory) and `ep` go with training; `weights`,
    `kv_dtype` and `engine` with serving.

    Raises:
        SpecError: a value cannot be, or does not go with the task.
        MissingFactError: only published figures of the model are known, or the device lacks a rate.
    """
    said = {
        "precision": precision, "stack": stack, "attention": attention, "weights": weights, "kv_dtype": kv_dtype,
        "engine": engine,
    }  # fmt: skip
    if offload and task == "serve":
        raise SpecError("--offload does not go with --task serve")
    _check(task, said, ep, {"tp": tp, "batch": batch, "seq": seq, "ep": ep})
    place = machines or Machines(gpu=gpu, facts=facts)
    found = described(loaded(model, assume_family=assume_family, offline=offline, facts=place.facts))
    cluster = place.cluster(tp)
    sequences = DEFAULT_BATCH[task] if batch is None else batch
    if task == "train":
        return _training(found, cluster, tp, sequences, seq, ep or 1, said, offload=offload)
    return _decoding(found, cluster, tp, sequences, seq, said)


def _check(task: str, said: dict[str, str | None], ep: int | None, sizes: dict[str, int | None]) -> None:
    if task not in DEFAULT_BATCH:
        raise SpecError(f"unknown task {str(task)[:40]!r}; allowed: {', '.join(DEFAULT_BATCH)}")
    for name, value in sizes.items():
        if value is not None and value < 1:
            raise SpecError(f"{name} {value}; give 1 or more")
    foreign = OF_SERVING if task == "train" else OF_TRAINING
    wrong = [name for name in foreign if said[name] is not None]
    wrong += ["ep"] if task == "serve" and ep is not None else []
    if wrong:
        raise SpecError(f"--{wrong[0].replace('_', '-')} does not go with --task {task}")


def _training(
    model: Model,
    cluster: Cluster,
    tp: int,
    batch: int,
    seq: int | None,
    ep: int,
    said: dict[str, str | None],
    *,
    offload: bool,
) -> ShapeAnswer:
    from flopwise.api.memory import default_seq
    from flopwise.api.recipes import Method
    from flopwise.ops.degrees import check_expert_parallel
    from flopwise.training.shape_advice import TrainingClock, training_advice

    tokens = default_seq(model, seq)
    check_expert_parallel(model, ep)
    how = Method(
        precision=said["precision"] or "bf16", stack=said["stack"], attention=said["attention"] or "flash", ep=ep
    )
    recipe = how.recipe(tokens, batch)
    clock = TrainingClock(model=model, recipe=recipe, cluster=cluster, tp=tp, ep=ep, batch=batch, offload=offload)
    case, advice, fine, stacks = training_advice(clock)
    settings = (
        ("pass", f"forward and backward of {batch:,} x {tokens:,} tokens on one rank"),
        ("accelerator", f"{cluster.accelerator.name}, tp {tp}" + (f", ep {ep}" if ep > 1 else "")),
        ("recipe", f"{recipe.precision}, {recipe.attention} attention, {recipe.stack}"),
    )
    return _answered(case, advice, fine, stacks, settings)


def _decoding(
    model: Model, cluster: Cluster, tp: int, batch: int, seq: int | None, said: dict[str, str | None]
) -> ShapeAnswer:
    from flopwise.api.memory import default_seq
    from flopwise.facts.formats import weight_format
    from flopwise.facts.software import engine
    from flopwise.serving.shape_advice import DecodeClock, decode_advice

    if model.kind not in ("decoder", "encoder-decoder", "vision-text"):
        raise MissingFactError(
            f"{model.name} does not generate tokens: there is no decoding to advise on; --task train"
        )
    clock = DecodeClock(
        model=model,
        cluster=cluster,
        weights=weight_format(said["weights"] or "bf16").name,
        kv_dtype=said["kv_dtype"] or "bf16",
        engine=engine(said["engine"] or "vllm").name,
        tp=tp,
        batch=batch,
        seq=default_seq(model, seq),
    )
    case, advice, fine = decode_advice(clock)
    settings = (
        ("pass", f"one token for each of {batch:,} sequences with {clock.seq:,} tokens cached"),
        ("accelerator", f"{cluster.accelerator.name}, tp {tp}"),
        ("serving", f"weights {clock.weights}, cache {clock.kv_dtype}, {clock.engine}"),
    )
    return _answered(case, advice, fine, (), settings)


def _answered(
    case: Case,
    advice: tuple[Advice, ...],
    fine: tuple[Fine, ...],
    stacks: tuple[StackTime, ...],
    settings: tuple[tuple[str, str], ...],
) -> ShapeAnswer:
    from flopwise.cost.shapes import l2_ridge_flops_per_byte, ridge_flops_per_byte

    clock, rates = case.clock, case.clock.cluster.rates
    shares = [o.share_frac for o in case.operations if o.bound == "memory"]
    return ShapeAnswer(
        model=clock.model,
        cluster=clock.cluster,
        task=clock.task,
        tp=clock.tp,
        batch=clock.batch,
        seq=clock.seq,
        dtype=clock.dtype,
        pass_s=case.now_s,
        kernels_s=sum(o.seconds * o.layers for o in case.operations),
        memory_bound_frac=sum(shares),
        ridge_flops_per_byte=ridge_flops_per_byte(rates, clock.dtype),
        l2_ridge_flops_per_byte=l2_ridge_flops_per_byte(rates, clock.dtype),
        operations=case.operations,
        advice=advice,
        fine=fine,
        stacks=stacks,
        settings=settings,
        assumptions=tuple(dict.fromkeys((*clock.model.notes, *clock.cluster.assumptions))),
    )
