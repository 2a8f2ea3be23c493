"""Runs of the past, from files of other tools: recorded beside what `train` or `serve` expects of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flopwise.api.serve import serve
from flopwise.api.train import train
from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError
from flopwise.facts.spec import SourceSpec
from flopwise.keywords import takes
from flopwise.options import DEGREE, changed_options, defaults_of, take
from flopwise.records.expectation import ExpectedService, ExpectedTraining
from flopwise.records.imports.imported import FileRun, ImportedRun, import_files
from flopwise.records.imports.spec import ImportSpec
from flopwise.records.model import Expectation
from flopwise.search.reproduce import SERVE, TRAIN, command_line
from flopwise.serving.spec import RequestSpec, ServingSpec
from flopwise.training.spec import DataSpec, TrainingSpec
from flopwise.values import replace


@takes(ImportSpec, MachineSpec, SourceSpec, DataSpec, TrainingSpec, RequestSpec, ServingSpec, gpus=DEGREE)
def import_runs(
    *files: Path | str, store: Path | str | None = None, gpus: int | None = None, **options: Any
) -> list[ImportedRun]:
    """Write runs of other tools to the store, with their expected figures where model and GPU are known.

    The same content is imported once. What a file says itself need not be given; options of training go with runs of
    training, those of requests and engines with runs of services.

    Args:
        files: files or folders of trainer-state, TensorBoard, W&B, MLflow, GuideLLM, genai-perf or vLLM's
            benchmark.
        store: a path or a postgresql:// URL (default: FLOPWISE_RUNS, else the file in your data folder).
        gpus: number of accelerators.
        **options: what the files do not say.

    Raises:
        SpecError: a file cannot be read, or an option is not of its kind of run; nothing is written then.

    Examples:
        >>> import flopwise
        >>> (one,) = flopwise.import_runs("examples/vllm-bench-serve.json", gpu="h100")
        >>> one.run.task
        'serve'
    """
    if not files:
        raise SpecError("no file to import; give one that a tool has exported")
    names = {name for spec in (ImportSpec, MachineSpec, SourceSpec) for name in defaults_of(spec)}
    about = {name: value for name, value in options.items() if name in names}
    about_spec, machines, source = take(about, ImportSpec, MachineSpec, SourceSpec)
    gpus, machines = gpus or machines.counted, replace(machines, counted=None)
    rest = {name: value for name, value in options.items() if name not in names and value is not None}

    def estimate(
        one: FileRun, model: str, gpus: int | None, settings: dict[str, object]
    ) -> tuple[float | None, Expectation]:
        return _expectation(one, model, machines, source, gpus, settings)

    return import_files([Path(file) for file in files], about_spec, machines, gpus, rest, estimate, store)


def _expectation(
    one: FileRun, model: str, machines: MachineSpec, source: SourceSpec, gpus: int | None,
    settings: Mapping[str, Any],
) -> tuple[float | None, Expectation]:  # fmt: skip
    """(USD an hour of all accelerators, what is expected of a run of these settings)."""
    options = {name: getattr(spec, name) for spec in (machines, source) for name in changed_options(spec)}
    verb, specs = ("serve", SERVE) if one.raw.task == "serve" else ("train", TRAIN)
    known = {name for spec in specs for name in defaults_of(spec)}
    line = command_line(
        verb, model, {n: v for n, v in {**options, **settings, "gpus": gpus}.items() if n in known}, specs
    )
    plan: ExpectedService | ExpectedTraining
    if verb == "serve":
        served = serve(model, gpus=gpus, machines=machines, source=source, **settings)
        plan = ExpectedService.of_answer(served, line)
    else:
        trained = train(model, gpus=gpus or 1, machines=machines, source=source, **settings)
        plan = ExpectedTraining.of_answer(trained, line, settings)
    return plan.price_usd_per_hour, plan.expected
