"""Runs of the past, from files of other tools: recorded beside what `train` or `serve` expects of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise.cost.spec import MachineSpec
from flopwise.errors import FlopwiseError, SpecError
from flopwise.facts.spec import SourceSpec
from flopwise.keywords import takes
from flopwise.options import DEGREE, OptionError, changed_options, defaults_of, take
from flopwise.records.imports.spec import ImportSpec
from flopwise.serving.spec import RequestSpec, ServingSpec
from flopwise.training.spec import DataSpec, TrainingSpec
from flopwise.values import replace

if TYPE_CHECKING:
    from flopwise.records.imports.imported import FileRun, ImportedRun, PlannedRun
    from flopwise.records.model import Expectation
    from flopwise.serving.answer import ServeAnswer

TRAINING, SERVING = (DataSpec, TrainingSpec), (RequestSpec, ServingSpec)
"""Options of what was run, beside those of its machines."""


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
    from flopwise.records.imports.imported import import_files

    if not files:
        raise SpecError("no file to import; give one that a tool has exported")
    names = {name for spec in (ImportSpec, MachineSpec, SourceSpec) for name in defaults_of(spec)}
    about = {name: value for name, value in options.items() if name in names}
    about_spec, machines, source = take(about, ImportSpec, MachineSpec, SourceSpec)
    gpus, machines = gpus or machines.counted, replace(machines, counted=None)
    rest = {name: value for name, value in options.items() if name not in names and value is not None}

    def planned_run(one: FileRun) -> PlannedRun:
        return _planned_run(one, about_spec, machines, source, gpus, _settings(one, rest))

    return import_files([Path(file) for file in files], about_spec, gpus, planned_run, store)


def _settings(one: FileRun, rest: Mapping[str, Any]) -> dict[str, object]:
    """The settings of a run as `train` or `serve` takes them: as given, else as the file says.

    Raises:
        SpecError: an option of the other kind of runs, or none of either.
    """
    mine, others = (SERVING, TRAINING) if one.raw.task == "serve" else (TRAINING, SERVING)
    own, foreign = ({name for spec in specs for name in defaults_of(spec)} for specs in (mine, others))
    for name in rest:
        if name not in own and name in foreign:
            kind, other = ("serving", "training") if one.raw.task == "serve" else ("training", "serving")
            raise OptionError(name, f"of {other}; {one.path} holds a run of {kind}")
    specs = take(rest, *mine)
    options = {name: getattr(spec, name) for spec in specs for name in changed_options(spec)}
    settings = dict(one.raw.settings)
    if {"concurrency", "rate"} & options.keys():
        settings = {name: value for name, value in settings.items() if name not in {"concurrency", "rate"}}
    return settings | options


def _planned_run(
    one: FileRun, spec: ImportSpec, machines: MachineSpec, source: SourceSpec, gpus: int | None,
    settings: dict[str, object],
) -> PlannedRun:  # fmt: skip
    """Settings and estimate of a run; the reason in its notes where there is no estimate.

    Raises:
        FlopwiseError: a model that was given is not known, or its question cannot be answered.
    """
    from flopwise.records.imports.imported import PlannedRun

    model, gpu = spec.model or one.raw.model, machines.gpu or machines.instance
    machine_options = {name: getattr(machines, name) for name in changed_options(machines) if name != "gpu"}
    plain = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in {**settings, **machine_options}.items()
    }
    alone = PlannedRun(gpu=gpu, gpus=gpus or one.raw.gpus, settings=plain)
    missing = [name for name, fact in (("model", model), ("gpu", gpu)) if fact is None]
    if model is None or missing:
        return replace(alone, notes=(f"nothing is expected of the run without {' and '.join(missing)}",))
    try:
        usd, expected = _expectation(one, model, machines, source, alone.gpus, settings)
    except FlopwiseError as failure:
        if spec.model is not None:
            raise
        return replace(alone, notes=(f"nothing is expected of the run: {failure}",))
    unstated = one.raw.task == "train" and not {"global_batch", "global_batch_tokens"} & settings.keys()
    note = "the file does not say the sequences of a step: the plan's are assumed (give --global-batch)"
    return replace(alone, usd_per_hour=usd, expected=expected, notes=(note,) if unstated else ())


def _expectation(
    one: FileRun, model: str, machines: MachineSpec, source: SourceSpec, gpus: int | None,
    settings: Mapping[str, Any],
) -> tuple[float | None, Expectation]:  # fmt: skip
    """(USD an hour of all accelerators, what is expected of a run of these settings)."""
    from flopwise.search.reproduce import SERVE, TRAIN, command_line

    options = {name: getattr(spec, name) for spec in (machines, source) for name in changed_options(spec)}
    verb, specs = ("serve", SERVE) if one.raw.task == "serve" else ("train", TRAIN)
    known = {name for spec in specs for name in defaults_of(spec)}
    line = command_line(
        verb, model, {n: v for n, v in {**options, **settings, "gpus": gpus}.items() if n in known}, specs
    )
    if verb == "serve":
        from flopwise.api.serve import serve

        answer = serve(model, gpus=gpus, machines=machines, source=source, **settings)
        each = answer.estimate.job.cluster.usd_per_gpu_hour
        return None if each is None else each * answer.num_gpus, _serving_expectation(answer, line)
    from flopwise.api.train import train
    from flopwise.records.expectation import ExpectedTraining

    trained = train(model, gpus=gpus or 1, machines=machines, source=source, **settings)
    plan = ExpectedTraining.of_answer(trained, line, settings)
    return plan.price_usd_per_hour, plan.expected


def _serving_expectation(answer: ServeAnswer, question: str) -> Expectation:
    """Latencies of a request and rates of all replicas, with 80 % intervals; `question`: the command of the answer.

    Under a rate the latencies are those of the mean request under that load, where replicas keep up; their intervals
    are as wide as those without. A request's terms are its first token and the further ones.
    """
    from flopwise import __version__
    from flopwise.records.explanation import FIRST, FURTHER
    from flopwise.records.model import Expectation, ranged_figures

    estimate, load = answer.estimate, answer.under_load
    figures: dict[str, tuple[float, float, float]] = {}
    first = estimate.ttft_s
    figures["ttft_s"] = first.value, first.low, first.high
    if estimate.tpot_s is not None:
        figures["itl_s"] = estimate.tpot_s.value, estimate.tpot_s.low, estimate.tpot_s.high
    figures["e2e_s"] = estimate.e2e_s, estimate.e2e_low, estimate.e2e_high
    if load is None:
        rates = {"requests_per_s": estimate.throughput, "tokens_per_s": estimate.output_tokens_per_s}
        for name, rate in rates.items():
            if rate is not None:
                figures[name] = rate.value * answer.replicas, rate.low * answer.replicas, rate.high * answer.replicas
    terms = {FIRST: first.value}
    if estimate.e2e_s > first.value:
        terms[FURTHER] = estimate.e2e_s - first.value
    return Expectation(
        figures=ranged_figures(figures),
        terms=terms, question=question, version=__version__,
    )  # fmt: skip
