"""A question about the memory of a training step, answered with what would make it fit."""

from __future__ import annotations

from flopwise.changes.memory import device_of, with_settings
from flopwise.cost.memory_answer import MemoryAnswer
from flopwise.cost.rates import rates
from flopwise.cost.spec import MachineSpec
from flopwise.errors import MissingFactError, SpecError
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.spec import DatedSourceSpec, ModelName
from flopwise.options import OptionError, changed_options
from flopwise.training.alternatives import BEST_MEASURED, Setting, measured_recipe
from flopwise.training.layout import check_layout
from flopwise.training.memory import step_memory
from flopwise.training.memory_answer import TrainingMemoryAnswer, memory_answer, usual_recompute
from flopwise.training.on_device import recipe_on, stack_notes
from flopwise.training.routing import check_routing
from flopwise.training.samples import SampledWorkload, network_of_samples
from flopwise.training.spec import LAYOUT_SETTINGS, SETTINGS, DataSpec, TrainingSpec
from flopwise.units import format_gib
from flopwise.values import replace


def answer_of(
    model: ModelName, data: DataSpec, spec: TrainingSpec, machines: MachineSpec, source: DatedSourceSpec,
    grad_accum: int | None,
) -> MemoryAnswer:  # fmt: skip
    """Memory of a training step, of a model with token layers or of a network that is known by its samples.

    It says what would make it fit. `grad_accum`: micro-batches a step; None: one, or as many as a pipeline has stages.

    Raises:
        SpecError: a value that cannot be, or a global batch that does not divide.
        MissingFactError: only published figures of the model are known.
    """
    chip, notes = device_of(machines, facts := source.catalog)
    work = network_of_samples(model, source)
    if work is not None:
        sampled = _sampled_step_memory(work, data, spec, chip, facts, machines.counted, grad_accum or 1)
        return replace(sampled, assumptions=(*sampled.assumptions, *notes))
    architecture = source.model_with_layers(model)
    if machines.num_gpus(None) > 1 and not spec.says_layout:
        spec = replace(spec, fsdp=True)
    answer = _step_memory(architecture, data, spec, chip, facts, grad_accum, machines.counted)
    option_names = [*changed_options(data), *changed_options(spec)]
    return with_settings(answer, notes, LAYOUT_SETTINGS | SETTINGS, option_names)


def _sampled_step_memory(
    work: SampledWorkload, data: DataSpec, spec: TrainingSpec, device: Accelerator | None, facts: Facts,
    counted: int | None, grad_accum: int,
) -> MemoryAnswer:  # fmt: skip
    """The memory of a training step of `grad_accum` passes on `counted` devices (None: not said).

    Raises:
        MissingFactError: its parameters are not known.
        SpecError: options that mean nothing to it, or batches that do not divide.
    """
    from flopwise.training import sampled, sampled_answer  # noqa: PLC0415 - for networks known by samples alone

    sampled.check_sampled_options(work, data, spec)
    gpus = sampled.num_replicas(work, spec, counted)
    recipe, notes = sampled.sampled_recipe(work, spec, facts, None if device is None else rates(device))
    passes = None if grad_accum == 1 and spec.micro_batch is not None else grad_accum
    recipe, passes, assumed = sampled.sampled_batches(recipe, device, gpus, spec.micro_batch, data.global_batch, passes)
    settings = sampled_answer.recipe_settings(recipe, passes)
    answer = sampled_answer.sampled_memory_answer(recipe, device, gpus, facts, settings)
    if answer is None:
        raise MissingFactError(
            f"{work.name}: its parameters are not known, so the memory of training it is not known either"
        )
    return replace(answer, assumptions=(*assumed, *notes, *answer.assumptions))


def _step_memory(
    model: Model,
    data: DataSpec,
    spec: TrainingSpec,
    chip: Accelerator | None,
    facts: Facts,
    grad_accum: int | None,
    gpus: int | None,
) -> TrainingMemoryAnswer:
    """Memory of a training step, `grad_accum` micro-batches a step; `gpus`: of all replicas, where that is known.

    Without a number of micro-batches a pipeline has as many as stages, the fewest that fill it.
    """
    if grad_accum is not None and grad_accum < 1:
        raise SpecError(f"gradient accumulation over {grad_accum} micro-batches; give 1 or more")
    seq_len = data.seq_len(model, tunes=spec.tunes)
    open_settings = spec.open_settings | data.open_settings(model)
    layout = spec.layout(model, gpus)
    stages, filled = int(layout.pp), ""
    if stages > 1 and grad_accum is None and data.sequences(seq_len) is None:
        grad_accum, filled = stages, f"{stages:,} micro-batches a step, which fill the pipeline (--grad-accum)"
    in_a_step = _sequences_of_a_step(data, seq_len, int(layout.dp) * int(layout.micro_batch), grad_accum)
    spec = spec if chip is None else spec.on(chip, facts, model)
    wanted = spec.recipe(seq_len, in_a_step, facts, model, data.documents(seq_len))
    recipe, notes = (wanted, ()) if chip is None else recipe_on(wanted, chip)
    notes = (*notes, *spec.replication_note(layout), *(() if data.seq is None else data.length_note(model, seq_len)))
    check_layout(layout, model, recipe)
    check_routing(model, recipe, layout)
    on_gpus: list[Setting] = []
    if spec.recompute_mode() is None:
        wanted_layout = layout
        layout, why = usual_recompute(model, recipe, wanted_layout, chip)
        notes = (*notes, *why)
        if (measured := measured_recipe(recipe, chip, facts)) is not None:  # the question has another layout there
            there = usual_recompute(model, measured, wanted_layout, facts.accelerator(BEST_MEASURED[0]))[0]
            on_gpus = [(one, measured) for one in dict.fromkeys((layout, there))]
    alone = grad_accum is None and data.sequences(seq_len) is None
    answer = memory_answer(
        model,
        recipe,
        layout,
        chip,
        facts,
        seq_given=data.seq is not None or model.stacks[0].tokens_per_sample is not None,
        open_settings=open_settings,
        on_gpus=on_gpus,
    )
    lacking = stack_notes(layout, recipe.stack, facts.stacks.values(), chip)
    filled = filled or (_accumulation_note(answer) if alone else "")
    return replace(answer, assumptions=(*([filled] if filled else []), *notes, *lacking, *answer.assumptions))


def _accumulation_note(answer: TrainingMemoryAnswer) -> str:
    """The memory of a step of several micro-batches, in a sentence; empty where it takes no more than a single one."""
    recipe, layout = answer.recipe, answer.layout
    several = replace(recipe, global_batch=2 * int(recipe.global_batch))
    kind = "gpu" if answer.accelerator is None else answer.accelerator.kind
    needed = float(step_memory(answer.model, several, layout, device_kind=kind).total_bytes)
    if needed <= answer.per_gpu_bytes:
        return ""
    return (
        f"one micro-batch a step; with gradients accumulated over more it takes {format_gib(needed)} (--grad-accum or "
        "--global-batch sets them)"
    )


def _sequences_of_a_step(data: DataSpec, seq_len: int, at_once: int, grad_accum: int | None) -> int:
    """Sequences of a step: those of `grad_accum` micro-batches of all replicas, or the global batch that is given."""
    batch = data.sequences(seq_len)
    if batch is None:
        return at_once * (grad_accum or 1)
    if (grad_accum or 1) > 1:
        raise OptionError("grad_accum", "the global batch is given as well; give one of them")
    if batch % at_once:
        raise SpecError(f"a global batch of {batch:,} is no multiple of {at_once:,} sequences (replicas x micro-batch)")
    return batch
