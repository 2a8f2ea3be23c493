"""How a recording begins: from options in plain data, a plan or a question, to the recorder of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from flopwise.callbacks.recorder import TrainingRecorder
from flopwise.callbacks.settings import RecordingSpec
from flopwise.errors import SpecError
from flopwise.facts.spec import SourceSpec
from flopwise.options import changed_options, take
from flopwise.records.expectation import ExpectedTraining
from flopwise.values import replace

R = TypeVar("R", bound=TrainingRecorder)


def checked_options(options: Mapping[str, Any]) -> tuple[RecordingSpec, SourceSpec]:
    """The options of a recording. Raises SpecError: one that is not known, or cannot be."""
    spec, source = take(options, RecordingSpec, SourceSpec)
    spec.check()
    return spec, source


def training_recorder(
    kind: type[R], subject: Any, spec: RecordingSpec, source: SourceSpec, *, store: str | Path | None = None,
    question: Any = None, settings: Mapping[str, object] | None = None, resumed: str | None = None,
) -> R:  # fmt: skip
    """The recorder, of a `kind`, of a run that begins now.

    Raises: SpecError: a plan or a question that cannot be read, or a name that is not known.
    """
    source = _common_source(source, question)
    expected = _expectation_of(spec, source, question)
    return kind(
        spec, subject if subject is not None or expected is None else expected.model, store=store, expected=expected,
        source=source, settings=settings, resumed=resumed,
    )  # fmt: skip


def _common_source(source: SourceSpec, question: Any) -> SourceSpec:
    """The facts and the profile of the callback, else those of the question: both have one catalog."""
    if not isinstance(question, Mapping):
        return source
    facts, calibration = question.get("facts"), question.get("calibration")
    return replace(
        source, facts=source.facts or (None if facts is None else Path(facts)),
        calibration=source.calibration or calibration,
    )  # fmt: skip


def _expectation_of(spec: RecordingSpec, source: SourceSpec, question: Any) -> ExpectedTraining | None:
    """The estimate of the run by its plan or its question, or None."""
    if spec.plan is not None:
        from flopwise.search.answer import read_plan  # noqa: PLC0415 - the search, where a plan is given

        if question is not None:
            raise SpecError("plan and question both set what is expected; give one of them")
        return ExpectedTraining.of_plan(read_plan(spec.plan), spec.plan_rank, source.catalog, spec.plan)
    if question is None:
        return None
    if not isinstance(question, Mapping):
        return ExpectedTraining.of_answer(question, "flopwise.train(...)", {})
    from flopwise.api.train import train  # noqa: PLC0415 - the estimate, where a question is given
    from flopwise.search.reproduce import TRAIN, command_line  # noqa: PLC0415
    from flopwise.training.spec import ReadsSpec  # noqa: PLC0415

    options = dict(question)
    if "model" not in options:
        raise SpecError("question: the model is missing; as in question={'model': 'Llama-3.1-8B', 'gpu': 'h100'}")
    model, specs = options.pop("model"), (*TRAIN, ReadsSpec)
    answer = train(model, **{"facts": source.facts, "calibration": source.calibration, **options})
    values = {name: getattr(part, name) for part in take(options, *specs) for name in changed_options(part)}
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
    name = model if isinstance(model, str) else model.name
    return ExpectedTraining.of_answer(answer, command_line("train", name, values, specs), settings)
