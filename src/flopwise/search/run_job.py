"""A training run of a workload as a job: its recipes and conditions, and the job that a candidate stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.cost.precisions import TRAINING_PRECISIONS
from flopwise.errors import SpecError
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.offers import Offer
from flopwise.facts.software import RECOMPUTE, TrainingStack
from flopwise.options import OptionError, changed_options
from flopwise.search.answer import Candidate
from flopwise.search.nodes import offer_cluster
from flopwise.search.spec import ANY
from flopwise.search.workload import Resolved
from flopwise.training.goodput import DEFAULT_RELIABILITY
from flopwise.training.job import DEFAULT_CONDITIONS, Conditions, TrainJob
from flopwise.training.layout import COLUMNS, Layout, Recipe
from flopwise.training.on_device import recipe_on
from flopwise.training.routing import check_skew
from flopwise.training.schedules import schedule_code
from flopwise.training.spec import CHOSEN_MICRO_BATCH
from flopwise.training.start import with_start
from flopwise.values import replace

if TYPE_CHECKING:
    from flopwise.training.alternatives import UnstatedInput
    from flopwise.training.estimate import TimedStep


def precisions(workload: Resolved, software: TrainingStack) -> tuple[list[str], str]:
    """The precisions that are searched with a training stack, and what is assumed of them.

    `any` stands for all that the stack trains in; devices without a rate for one are ruled out for it alone.

    Raises: SpecError: an unknown precision.
    """
    one, several = workload.one_precision, workload.limits.precision
    wanted = list(several) or [one or "bf16"]
    for name in wanted:
        if name not in (*TRAINING_PRECISIONS, ANY):
            raise SpecError(f"precision: {name!r} is unknown; allowed: {', '.join((*TRAINING_PRECISIONS, ANY))}")
    if ANY not in wanted:
        open_ = one is None and not several
        return wanted, f"bf16, as no precision was given (constraints.precision; {ANY} searches all)" if open_ else ""
    names = ["bf16"]
    if not workload.training.adapts and software.activations == "fused":
        names += ["fp8", "nvfp4"] if software.fp8_inputs else ["fp8"]
    names += [name for name in wanted if name not in (*names, ANY)]
    return names, f"{', '.join(names)} were searched; check that narrower formats need no more tokens"


def recipes(workload: Resolved, model: Model, software: TrainingStack, facts: Facts) -> tuple[list[Recipe], list[str]]:
    """The recipes that the workload allows with the training stack `software`, and what was assumed.

    Raises: SpecError: an unknown precision. UnknownNameError: an unknown optimizer or format.
    """
    data, spec = workload.data, replace(workload.training, stack=software.name)
    wanted, chosen = precisions(workload, software)
    try:
        seq = data.seq_len(model, tunes=spec.tunes)
        batch, batch_notes = data.batch(model, seq, tunes=spec.tunes)
    except OptionError as error:
        raise SpecError(f"data.{error.name}: {error.reason}") from None
    except SpecError as error:
        raise SpecError(f"data.seq_len: {error}") from None
    notes = [*([chosen] if chosen else []), *data.length_note(model, seq), *batch_notes]
    documents = data.documents(seq)
    rows = [replace(spec, precision=name).recipe(seq, batch, facts, model, documents) for name in wanted]
    check_skew(model, rows[0])
    return rows, notes


def stated_conditions(workload: Resolved) -> Conditions:
    """The interval and speed of checkpoints and the spread of ranks, as the workload states them, else the default."""
    spec = workload.conditions
    if not changed_options(spec):
        return DEFAULT_CONDITIONS
    reliability = spec.reliability(DEFAULT_RELIABILITY.gpus_per_node, workload.facts)[0]
    return Conditions(reliability=reliability, jitter_frac=spec.jitter_frac)


def conditions(
    purchase: str, provider: str, accelerator: str, count: int, facts: Facts, stated: Conditions = DEFAULT_CONDITIONS
) -> Conditions:
    """The conditions of a run on instances of `count` accelerators, bought so; as `stated` but for spot."""
    if purchase != "spot":
        return stated
    record = facts.spot(provider, accelerator)
    interrupted = replace(stated.reliability, interruptions_per_s=record.interruptions_per_s, gpus_per_node=count)
    return replace(stated, reliability=interrupted, origins=(("interruptions_per_s", record.text),))


def open_settings(workload: Resolved, model: Model) -> frozenset[str]:
    """The settings that neither the workload states nor its search chooses, as `alternatives.other_settings` has them.

    Those of the command of a plan, too, which states what the search chose.
    """
    settings = workload.training.assumed_settings | workload.data.open_settings(model)
    return settings - {CHOSEN_MICRO_BATCH}


def step_inputs(step: TimedStep, workload: Resolved, model: Model, facts: Facts) -> tuple[UnstatedInput, ...]:
    """The inputs of a workload that nobody stated, and how far each moves the speed of a step that was found for it.

    Source and assumptions: `open_inputs`.
    """
    from flopwise.training.unstated import open_inputs  # noqa: PLC0415 - exports read a job alone

    return open_inputs(step, open_settings(workload, model), facts)


def candidate_job(workload: Resolved, model: Model, facts: Facts, offer: Offer, chosen: Candidate) -> TrainJob:
    """The job that a candidate of a plan stands for, from its `layout_document`."""
    document = chosen.layout
    allowed, _ = recipes(workload, model, facts.stack(document["stack"]), facts)
    here = [recipe_on(recipe, facts.accelerators[chosen.gpu])[0] for recipe in allowed]
    recipe = next(r for r in here if r.precision == document["precision"])
    degrees = {name: document[name] for name in COLUMNS if name in document} | {
        "recompute": RECOMPUTE.index(document["recompute"]),
        "schedule": schedule_code(document["schedule"]),
        **{f"offload_{part}": True for part in document.get("offload", ())},
    }
    job = TrainJob(
        model=model,
        recipe=replace(recipe, global_batch=document["global_batch"], seq_len=document["seq_len"]),
        layout=Layout(**degrees),
        cluster=offer_cluster(workload, facts, offer, chosen.purchase),
        tokens=workload.with_tokens(model).tokens,
        conditions=conditions(
            chosen.purchase, chosen.provider, chosen.gpu, chosen.num_gpus // chosen.num_instances, facts,
            stated_conditions(workload),
        ),
    )  # fmt: skip
    return with_start(job, facts, epochs=workload.data.epochs, pretrained=workload.training.tunes)
