"""A question about the memory of a service, answered with what would make it fit."""

from __future__ import annotations

from flopwise.changes.memory import device_of, with_settings
from flopwise.cost.memory_answer import MemoryAnswer
from flopwise.cost.rates import rates
from flopwise.cost.spec import MachineSpec
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.models.positions import check_length
from flopwise.facts.spec import DatedSourceSpec, ModelName
from flopwise.options import changed_options
from flopwise.serving.deployment import check_platform, on_its_engine, spread
from flopwise.serving.estimate import check_layout
from flopwise.serving.explain import SETTINGS
from flopwise.serving.memory import generates, serving_memory
from flopwise.serving.memory_answer import memory_answer
from flopwise.serving.precision import conversion_note
from flopwise.serving.spec import ServingSpec
from flopwise.training.spec import DataSpec
from flopwise.values import replace


def answer_of(
    model: ModelName, deployment: ServingSpec, machines: MachineSpec, source: DatedSourceSpec, concurrency: int,
    context: int | None,
) -> MemoryAnswer:  # fmt: skip
    """Memory of a replica that serves `concurrency` sequences of `context` tokens, with what would make it fit.

    Raises:
        SpecError: a value that cannot be, or an engine without code for the device.
        MissingFactError: only published figures of the model are known.
    """
    chip, notes = device_of(machines, facts := source.catalog)
    architecture = source.model_with_layers(model)
    deployment = spread(deployment, architecture, machines, facts)
    answer = _replica_memory(architecture, deployment, chip, facts, concurrency, context)
    return with_settings(answer, notes, SETTINGS, changed_options(deployment))


def _replica_memory(
    model: Model, spec: ServingSpec, chip: Accelerator | None, facts: Facts, concurrency: int, context: int | None
) -> MemoryAnswer:
    """Memory of serving `concurrency` sequences of `context` tokens."""
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
