"""What would make a job or a service fit: the single changes that save memory, with an answer and its device."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

from flopwise.cost.memory_answer import MemoryAnswer, Remedy
from flopwise.cost.spec import MachineSpec
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.catalog import Facts
from flopwise.provenance import implied_kinds
from flopwise.values import replace

Answer = TypeVar("Answer", bound=MemoryAnswer)


def with_remedies(answer: Answer) -> Answer:
    """The answer with remedies, where it does not fit."""
    return replace(answer, remedies=tuple(memory_remedies(answer))) if answer.fits is False else answer


def memory_remedies(answer: MemoryAnswer) -> list[Remedy]:
    """Single changes that save memory, those that fit first; whether the job or the service fits already or not."""
    if answer.task == "train":
        from flopwise.changes import training  # noqa: PLC0415 - half is enough
        from flopwise.training.memory_answer import TrainingMemoryAnswer  # noqa: PLC0415 - half is enough

        assert isinstance(answer, TrainingMemoryAnswer)
        kind = "gpu" if answer.accelerator is None else answer.accelerator.kind
        setup = training.TrainingSetup(answer.model, answer.recipe, answer.layout, answer.facts)
        return training.remedies(setup, answer.capacity_bytes, device_kind=kind)
    from flopwise.changes import serving  # noqa: PLC0415 - half is enough
    from flopwise.serving.memory_answer import ServingMemoryAnswer  # noqa: PLC0415 - half is enough

    assert isinstance(answer, ServingMemoryAnswer)
    return serving.remedies(
        answer.model, answer.layout, answer.facts, device=answer.accelerator, concurrency=answer.concurrency,
        context=answer.context, memory_frac=answer.deployment.memory_fraction, max_batch=answer.deployment.max_batch,
        job=answer.job, **answer.deployment.software(answer.facts, answer.accelerator),
    )  # fmt: skip


def device_of(machines: MachineSpec, facts: Facts) -> tuple[Accelerator | None, tuple[str, ...]]:
    """The accelerator that is to hold it, and what its name leaves open; None and nothing where none is named."""
    if machines.gpu is None:
        return None, ()
    resolution = facts.resolve(machines.gpu)
    return resolution.accelerator, (resolution.note,) if resolution.note else ()


def with_settings(
    answer: MemoryAnswer, notes: tuple[str, ...], settings: Mapping[str, Collection[str]], option_names: Collection[str]
) -> MemoryAnswer:
    """The answer with the device's notes, the kinds of its implied settings, and what would make it fit."""
    kinds = implied_kinds(settings, option_names, "default")
    return with_remedies(replace(answer, assumptions=(*answer.assumptions, *notes), kinds=kinds))
