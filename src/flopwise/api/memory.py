"""Does it fit: memory per GPU of training or serving, item by item, and what would make it fit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from flopwise.cost.memory_answer import MemoryAnswer
from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.spec import DatedSourceSpec
from flopwise.keywords import takes
from flopwise.options import BATCH, CONTEXT, OptionError, changed_options, defaults_of, take
from flopwise.serving.spec import ServingSpec
from flopwise.training.spec import DataSpec, TrainingSpec
from flopwise.values import replace


@takes(DataSpec, TrainingSpec, ServingSpec, DatedSourceSpec, grad_accum=BATCH, concurrency=BATCH, context=CONTEXT)
def memory(
    model: Model | str, *, task: Literal["train", "serve"] | None = None, gpu: str | None = None,
    grad_accum: int | None = None, concurrency: int | None = None, context: int | None = None, **options: Any,
) -> MemoryAnswer:  # fmt: skip
    """Memory per accelerator of a training step, or of serving, item by item in bytes.

    Without a `task`, options of serving alone, such as `context`, mean serving; else it is training. Of several
    accelerators (`gpu="8xh100"`) without a degree, training shards everything over all of them (FSDP) and serving
    is one replica over all of them.

    Args:
        model: a catalog name, a hub id, a folder, a config.json, a size such as "7B", or a `Model`.
        task: "train" or "serve".
        gpu: what it has to fit: "h100", "2xa100-80gb".
        grad_accum: micro-batches of a training step; None: one, or as many as a pipeline has stages.
        concurrency: sequences in the cache at once, in serving.
        context: tokens of each of them: 32768 or "32k".
        **options: options of the command line by name, or whole specs.

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: only published figures of the model are known.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.memory("Llama-3.1-8B", gpu="h100", context="8k", weights="fp8")
        >>> print(answer.fits, answer.task)
        True serve
    """
    if task is None:
        task = "serve" if concurrency or context or _of_serving(options) else "train"
    if task == "train":
        return _training(model, options, MachineSpec(gpu=gpu), grad_accum)
    if task == "serve":
        return _serving(model, options, MachineSpec(gpu=gpu), concurrency or 1, context)
    raise SpecError(f"unknown task {task!r}; allowed: train, serve")


def _of_serving(options: Mapping[str, Any]) -> bool:
    """True if any of the options is one of serving alone."""
    of_training = {name for spec in (DataSpec, TrainingSpec, DatedSourceSpec) for name in defaults_of(spec)}
    further = {name: value for name, value in options.items() if name not in of_training and value is not None}
    if not further:
        return False

    return any(name in defaults_of(ServingSpec) or isinstance(value, ServingSpec) for name, value in further.items())


def _device(machines: MachineSpec, facts: Facts) -> tuple[Accelerator | None, tuple[str, ...]]:
    """The accelerator that is to hold it, and what its name leaves open; None and nothing where none is named."""
    if machines.gpu is None:
        return None, ()
    resolution = facts.resolve(machines.gpu)
    return resolution.accelerator, (resolution.note,) if resolution.note else ()


def _answer(
    answer: MemoryAnswer, notes: tuple[str, ...], settings: Mapping[str, Collection[str]], option_names: Collection[str]
) -> MemoryAnswer:
    """The answer with the device's notes, the kinds of its implied settings, and what would make it fit."""
    from flopwise.changes.memory import with_remedies
    from flopwise.provenance import implied_kinds

    kinds = implied_kinds(settings, option_names, "default")
    return with_remedies(replace(answer, assumptions=(*answer.assumptions, *notes), kinds=kinds))


def _training(
    model: Model | str, options: dict[str, Any], machines: MachineSpec, grad_accum: int | None
) -> MemoryAnswer:
    """Memory of a training step, of a model with token layers or of a network that is known by its samples."""
    from flopwise.training.samples import network_of_samples
    from flopwise.training.spec import LAYOUT_SETTINGS, SETTINGS

    data, spec, source = take(options, DataSpec, TrainingSpec, DatedSourceSpec)
    chip, notes = _device(machines, facts := source.catalog)
    work = network_of_samples(model, source)
    if work is not None:
        from flopwise.training.sampled_answer import sampled_step_memory

        sampled = sampled_step_memory(work, data, spec, chip, facts, machines.counted, grad_accum or 1)
        return replace(sampled, assumptions=(*sampled.assumptions, *notes))
    architecture = source.model_with_layers(model)
    if machines.num_gpus(None) > 1 and not spec.says_layout:
        spec = replace(spec, fsdp=True)
    answer = _step_memory(architecture, data, spec, chip, facts, grad_accum, machines.counted)
    option_names = [*changed_options(data), *changed_options(spec)]
    return _answer(answer, notes, LAYOUT_SETTINGS | SETTINGS, option_names)


def _step_memory(
    model: Model,
    data: DataSpec,
    spec: TrainingSpec,
    chip: Accelerator | None,
    facts: Facts,
    grad_accum: int | None,
    gpus: int | None,
) -> MemoryAnswer:
    """Memory of a training step, `grad_accum` micro-batches a step; `gpus`: of all replicas, where that is known.

    Without a number of micro-batches a pipeline has as many as stages, the fewest that fill it.
    """
    from flopwise.training.layout import check_layout
    from flopwise.training.memory_answer import memory_answer
    from flopwise.training.on_device import recipe_on, stack_notes
    from flopwise.training.routing import check_routing

    if grad_accum is not None and grad_accum < 1:
        raise SpecError(f"gradient accumulation over {grad_accum} micro-batches; give 1 or more")
    seq_len = data.seq_len(model, tunes=spec.tunes)
    open_settings = spec.open_settings | data.open_settings(model)
    layout = spec.layout(model, gpus)
    stages, filled = int(layout.pp), ""
    if stages > 1 and grad_accum is None and data.sequences(seq_len) is None:
        grad_accum, filled = stages, f"{stages:,} micro-batches a step, which fill the pipeline (--grad-accum)"
    in_a_step = _sequences_of_a_step(data, seq_len, int(layout.dp) * int(layout.micro_batch), grad_accum)
    spec = spec if chip is None else spec.on(chip, facts)
    wanted = spec.recipe(seq_len, in_a_step, facts, data.documents(seq_len))
    recipe, notes = (wanted, ()) if chip is None else recipe_on(wanted, chip)
    check_layout(layout, model, recipe)
    check_routing(model, recipe, layout)
    answer = memory_answer(
        model, recipe, layout, chip, facts, seq_given=data.seq is not None, open_settings=open_settings
    )
    lacking = stack_notes(layout, recipe.stack, facts.stacks.values(), chip)
    return replace(answer, assumptions=(*([filled] if filled else []), *notes, *lacking, *answer.assumptions))


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


def _serving(
    model: Model | str, options: dict[str, Any], machines: MachineSpec, concurrency: int, context: int | None
) -> MemoryAnswer:
    """Memory of a replica."""
    from flopwise.serving.deployment import spread
    from flopwise.serving.explain import SETTINGS

    deployment, source = take(options, ServingSpec, DatedSourceSpec)
    chip, notes = _device(machines, facts := source.catalog)
    architecture = source.model_with_layers(model)
    deployment = spread(deployment, architecture, machines, facts)
    answer = _replica_memory(architecture, deployment, chip, facts, concurrency, context)
    return _answer(answer, notes, SETTINGS, changed_options(deployment))


def _replica_memory(
    model: Model, spec: ServingSpec, chip: Accelerator | None, facts: Facts, concurrency: int, context: int | None
) -> MemoryAnswer:
    """Memory of serving `concurrency` sequences of `context` tokens."""
    from flopwise.cost.rates import rates
    from flopwise.facts.models.positions import check_length
    from flopwise.serving.deployment import check_platform, on_its_engine
    from flopwise.serving.estimate import check_layout
    from flopwise.serving.memory import generates, serving_memory
    from flopwise.serving.memory_answer import memory_answer
    from flopwise.serving.precision import conversion_note

    spec, format_notes = on_its_engine(spec, model, chip, facts)
    software, layout, each = spec.software(facts, chip), spec.layout(), -(-concurrency // spec.dp)
    check_layout(model, layout)
    if chip is not None:
        check_platform(software["engine"], chip, facts)
    tokens = context or DataSpec().seq_len(model)
    length_notes = check_length(model, tokens, what="a context") if context else ()
    memory = serving_memory(
        model, layout, concurrency=each, context=tokens, hbm_bytes=None if chip is None else chip.hbm_bytes,
        **software, memory_frac=spec.memory_fraction, max_batch=spec.max_batch,
        device_kind="gpu" if chip is None else chip.kind,
    )  # fmt: skip
    answer = memory_answer(model, spec, memory, chip, facts, context=tokens, concurrency=each)
    converted = None if chip is None or not generates(model) else conversion_note(software["kv_dtype"], rates(chip))
    notes = (*format_notes, *length_notes, *((converted,) if converted else ()))
    return replace(answer, assumptions=(*notes, *answer.assumptions))
