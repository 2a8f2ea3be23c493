"""Import of runs from files into a store: each once, whole or not at all. A format is a module and a line here."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from flopwise.changes import serving_question
from flopwise.changes.serving_question import question_of
from flopwise.cost.spec import MachineSpec
from flopwise.errors import FlopwiseError, SpecError, UnknownNameError, nearest_hint
from flopwise.facts.spec import SourceSpec
from flopwise.files import read_at_most
from flopwise.keywords import takes
from flopwise.options import DEGREE, OptionError, changed_options, defaults_of, take
from flopwise.records.expectation import ExpectedService, ExpectedTraining
from flopwise.records.exports import FORMAT, VERSION
from flopwise.records.imports import genai_perf, guidellm, mlflow, tensorboard, trainer_state, vllm_bench, wandb
from flopwise.records.imports.names import Meaning, meaning, rank
from flopwise.records.imports.raw import Point, RawRun, Source
from flopwise.records.imports.spec import ImportSpec
from flopwise.records.metrics import METRICS
from flopwise.records.model import Event, Expectation, Run, Sample
from flopwise.records.store import Store, open_store
from flopwise.search import training_question
from flopwise.search.reproduce import SERVE, TRAIN, command_line
from flopwise.search.training_question import TRAINED
from flopwise.serving.spec import RequestSpec, ServingSpec
from flopwise.training.spec import DataSpec, TrainingSpec
from flopwise.values import dataclass, replace


class Format(NamedTuple):
    """A format: its description, how it is recognised, and how it is read."""

    words: str
    recognises: Callable[[Source], bool]
    read_runs: Callable[[Source], list[RawRun]]


FORMATS: dict[str, Format] = {
    "trainer-state": Format("trainer_state.json of Hugging Face", trainer_state.recognises, trainer_state.read_runs),
    "tensorboard": Format("event files of TensorBoard, or a folder", tensorboard.recognises, tensorboard.read_runs),
    "wandb": Format("CSV exports of Weights & Biases", wandb.recognises, wandb.read_runs),
    "mlflow": Format("metric histories of MLflow as CSV", mlflow.recognises, mlflow.read_runs),
    "guidellm": Format("benchmarks.json of guidellm", guidellm.recognises, guidellm.read_runs),
    "genai-perf": Format("exports of genai-perf and AIPerf", genai_perf.recognises, genai_perf.read_runs),
    "vllm-bench": Format("results of vllm bench serve", vllm_bench.recognises, vllm_bench.read_runs),
}
"""Formats by name, in the order in which they are tried."""


def read_file(path: Path, named: str) -> tuple[str, Source, list[RawRun]]:
    """(name of the format, the file, its runs).

    Raises:
        UnknownNameError: there is no such format.
        SpecError: the file cannot be read, or has no known format.
        MissingFactError: a package that reads the format is not installed.
    """
    if named == FORMAT:
        raise SpecError(f"{path}: not a file of `flopwise runs export`; leave out --format to detect the format")
    if named != "auto" and named not in FORMATS:
        raise UnknownNameError("format", named, FORMATS, f"allowed: auto, {', '.join([*FORMATS, FORMAT])}")
    if not path.exists():
        raise SpecError(f"{path}: no such file; give a file that a tool exported")
    source = Source(path)
    kind = named if named != "auto" else next((n for n, f in FORMATS.items() if f.recognises(source)), None)
    if kind is None:
        known = "; ".join(f"{name}: {form.words}" for name, form in FORMATS.items())
        columns = f" (its columns: {', '.join(source.header[:8])})" if source.header[1:] else ""
        raise SpecError(f"{path}: not in a known format{columns}; known: {known}")
    if named != "auto" and not FORMATS[kind].recognises(source):
        raise SpecError(
            f"{path}: not in the format {kind} ({FORMATS[kind].words}); leave out --format to detect the format"
        )
    runs = [run for run in FORMATS[kind].read_runs(source) if run.series]
    if not runs:
        raise SpecError(f"{path}: no values of any metric")
    return kind, source, runs


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRun:
    """A run of a file, ready to be written."""

    run_id: str  # a hash of the content: the same content is the same run
    format: str
    path: Path
    raw: RawRun
    cleaned: CleanRun


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """Information about a run in addition to its file: machines, settings and estimate."""

    gpu: str | None
    gpus: int | None
    settings: Mapping[str, object]  # options of `train` or `serve`, as given, else from the file
    usd_per_hour: float | None = None
    expected: Expectation | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRun:
    """The result of importing one run of a file."""

    run: Run
    path: str
    samples: int
    metrics: tuple[str, ...]
    left_out: tuple[str, ...]  # metrics of the file that are none of ours
    notes: tuple[str, ...]
    new: bool  # False: the store had it already


def _file_runs(paths: Sequence[Path], spec: ImportSpec, gpus: int | None) -> list[FileRun]:
    """The runs of files.

    Raises: SpecError: a file cannot be read, has no known metric, or has the same content as another one.
    """
    by_key: dict[str, FileRun] = {}
    for path in paths:
        kind, source, runs = read_file(path, spec.format)
        for number, raw in enumerate(runs):
            one = clean_run(raw, spec.mapping, gpus if gpus is not None else raw.gpus, source.changed_at_s)
            if not one.samples:
                names = ", ".join(list(raw.series)[:12])
                raise SpecError(
                    f"{path}: no metric has a known name ({names}); name them by --metric step_s=NAME and so on"
                )
            key = hashlib.sha256(f"{kind} {source.digest} {number}".encode()).hexdigest()[:32]
            if key in by_key:
                raise SpecError(f"{path} and {by_key[key].path} have the same content; give one of them")
            by_key[key] = FileRun(run_id=key, format=kind, path=path, raw=raw, cleaned=one)
    return list(by_key.values())


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
    rest = {name: value for name, value in options.items() if name not in names and value is not None}
    spec, machines, source = take(about, ImportSpec, MachineSpec, SourceSpec)
    gpus, machines = gpus or machines.counted, replace(machines, counted=None)
    paths = [Path(file) for file in files]
    own = [path for path in paths if spec.format in ("auto", FORMAT) and _is_export(path)]
    file_runs = _file_runs([path for path in paths if path not in own], spec, gpus)
    planned = [_planned_run(one, spec, machines, source, gpus, _run_settings(one, rest)) for one in file_runs]
    opened, several = open_store(store), len(file_runs) > 1
    written = [
        _write_run(opened, one, plan, spec, several=several) for one, plan in zip(file_runs, planned, strict=True)
    ]
    return [*(run for path in own for run in import_export(opened, path)), *written]


def _is_export(path: Path) -> bool:
    """True if a file was written by `export_runs`."""
    try:
        return f'"{FORMAT}"'.encode() in read_at_most(path, 200).partition(b"\n")[0]
    except OSError:
        return False


def import_export(store: Store, path: Path) -> Iterator[ImportedRun]:
    """Write the runs of a file of `export_runs` to a store, except those that it has already.

    A run is written whole or not at all, and no run is written if the file is damaged.

    Raises: SpecError: an error in the file, with its line.
    """
    for run, samples, events in [*_lines_of_export(path)]:
        new = store.add_run(run, samples, events)
        metrics = tuple(dict.fromkeys(sample.metric for sample in samples))
        yield ImportedRun(
            run=run, path=str(path), samples=len(samples), metrics=metrics, left_out=(), notes=(), new=new
        )


def _lines_of_export(file: Path) -> Iterator[tuple[Run, list[Sample], list[Event]]]:
    """The runs of a file with their samples and events. Raises SpecError: an error in the file, with its line."""
    run: Run | None = None
    samples, events = list[Sample](), list[Event]()
    try:
        with file.open(encoding="utf-8") as stream:
            for number, line in enumerate(stream, start=1):
                try:
                    entry = json.loads(line)
                    if number == 1:
                        _check_head(entry)
                    elif "run" in entry:
                        if run is not None:
                            yield run, samples, events
                        run, samples, events = msgspec.convert(entry["run"], Run, strict=False), [], []
                    elif run is None:
                        raise SpecError("samples before any run")
                    elif "event" in entry:
                        events.append(msgspec.convert(entry["event"], Event, strict=False))
                    else:
                        samples += _samples_of_line(entry["samples"])
                except (ValueError, KeyError, TypeError, AssertionError) as fault:
                    raise SpecError(f"{file}, line {number}: {str(fault)[:200] or 'broken'}") from None
    except (OSError, UnicodeDecodeError) as fault:
        raise SpecError(f"{file}: cannot be read ({getattr(fault, 'strerror', None) or fault})") from None
    if run is not None:
        yield run, samples, events


def _check_head(head: Any) -> None:
    """Raises: SpecError: it is another file, or of a later version."""
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise SpecError(f"not an export of runs: the first line does not have the format {FORMAT!r}")
    if head.get("version") != VERSION:
        raise SpecError(f"version {head.get('version')!r} of the format; this flopwise reads {VERSION}: update it")


def _samples_of_line(entry: Mapping[str, Any]) -> list[Sample]:
    columns = zip(entry["at_s"], entry["step"], entry["value"], strict=True)
    metric, device = entry["metric"], entry["device"]
    return [Sample(metric, float(t), float(v), None if s < 0 else int(s), device) for t, s, v in columns]


def _write_run(store: Store, file_run: FileRun, planned: PlannedRun, spec: ImportSpec, *, several: bool) -> ImportedRun:
    """Write a run with all its samples, or nothing if the store has it already.

    `several`: append the run's name in the file to the given name.

    Raises: SpecError: the store cannot be written.
    """
    one, run = file_run.cleaned, _run(file_run, planned, spec, several=several)
    new = store.add_run(run, one.samples, one.events)
    if spec.replace and not new:
        store.delete(run.run_id)
        new = store.add_run(run, one.samples, one.events)
    return ImportedRun(
        run=run if new else store.run(run.run_id), path=str(file_run.path), samples=len(one.samples),
        metrics=tuple(dict.fromkeys(sample.metric for sample in one.samples)), left_out=one.left_out,
        notes=(*one.notes, *planned.notes), new=new,
    )  # fmt: skip


def _run(file_run: FileRun, planned: PlannedRun, spec: ImportSpec, *, several: bool) -> Run:
    """The run in the form of the store."""
    raw, one, settings = file_run.raw, file_run.cleaned, planned.settings
    tunes = spec.task == "finetune" or any(settings.get(name) for name in ("finetune", "lora", "qlora"))
    own = f"{spec.name}-{raw.name}" if spec.name and several else spec.name or raw.name
    return Run(
        run_id=file_run.run_id, name=own, task="serve" if raw.task == "serve" else "finetune" if tunes else "pretrain",
        started_at_s=one.started_at_s, ended_at_s=one.ended_at_s, status="finished" if raw.finished else "stopped",
        source=file_run.format, model=spec.model or raw.model, gpu=planned.gpu, gpus=planned.gpus,
        software=raw.software, settings=settings, price_usd_per_hour=planned.usd_per_hour, expected=planned.expected,
    )  # fmt: skip


SIGNED = {"loss", "eval_loss"}
"""Metrics that may be negative."""
SHARES = {name for name in METRICS if name.endswith("_frac")}
RESTORED = 0.5
"""A counter that falls to at least this share of its value was restored from a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanRun:
    """Samples sorted by time, events, begin and end of the run, and notes on the cleaning."""

    samples: tuple[Sample, ...]
    events: tuple[Event, ...]
    started_at_s: float
    ended_at_s: float
    notes: tuple[str, ...]
    left_out: tuple[str, ...]  # metrics of the file that are none of ours


def clean_run(
    raw: RawRun, given: Mapping[str, tuple[str, float | None]], gpus: int | None, changed_at_s: float
) -> CleanRun:
    """The samples and events of one run; `given`: our metrics, with factors, by names of the file.

    `changed_at_s`: modification time of the file, used if the file has no times.

    Raises: SpecError: a mapped metric is missing; or a rate is per accelerator and their number is not known.
    """
    known = meanings(raw.series, given)
    notes, events = list(raw.notes), list(raw.events)
    start = raw.started_at_s if raw.started_at_s is not None else _first_time(raw)
    placed = _with_times(raw, start if start is not None else changed_at_s, notes)
    samples: list[Sample] = []
    for name, sort in known.items():
        scale = sort.scale * (_num_gpus(name, gpus) if sort.each_gpu else 1.0)
        points = placed[name]
        if raw.task == "serve":  # requests do not end in the order in which they begin
            points = sorted(points, key=lambda point: point.at_s or 0.0)
        else:
            points = _steady_clock(points, name, notes, events)
        resumes = _resumes(points) if raw.task == "train" else {}
        if sort.metric in {"loss", "tokens", "step_s"}:
            events.extend(resumes.values())
        if METRICS[sort.metric].cumulative:
            points = _growing(points, resumes, name, notes)
        samples.extend(_samples(points, sort, scale, name, notes, events))
    if not any(sample.metric == "step_s" for sample in samples) and raw.task == "train":
        timed = {name: m for name, m in known.items() if all(p.at_s is not None for p in raw.series[name])}
        samples.extend(_step_times(placed, timed, notes))
    samples.sort(key=lambda sample: sample.at_s)
    times = [sample.at_s for sample in samples] or [start if start is not None else changed_at_s]
    return CleanRun(
        samples=tuple(samples),
        events=tuple({(e.kind, e.step, e.text): e for e in sorted(events, key=lambda e: e.at_s)}.values()),
        started_at_s=start if start is not None else times[0],
        ended_at_s=max(raw.ended_at_s or times[-1], times[-1]),
        notes=tuple(dict.fromkeys(notes)),
        left_out=tuple(sorted(set(raw.series) - set(known))),
    )


def _num_gpus(name: str, gpus: int | None) -> float:
    if gpus is None:
        raise OptionError("gpus", f"not given, but {name!r} in the file is per accelerator; give their number")
    return float(gpus)


def _first_time(raw: RawRun) -> float | None:
    """The earliest time of a first point: of training, whose lines are in order, a clock may fall back later."""
    first = 1 if raw.task == "train" else None
    timed = [[p.at_s for p in series if p.at_s is not None][:first] for series in raw.series.values()]
    return min((at_s for times in timed for at_s in times), default=None)


def _with_times(raw: RawRun, start_s: float, notes: list[str]) -> dict[str, list[Point]]:
    """All points with a time: their own, that of another metric at the same step, or else one second per step."""
    by_step = {p.step: p.at_s for s in raw.series.values() for p in s if p.step is not None and p.at_s is not None}
    timeless = sum(1 for s in raw.series.values() for p in s if p.at_s is None and p.step not in by_step)
    if timeless and raw.task == "train":
        notes.append(
            f"{timeless:,} values have no time and are placed one second per step after the start, in their order"
        )

    def with_times(points: Sequence[Point]) -> Iterator[Point]:
        for number, point in enumerate(points):
            if point.at_s is not None:
                yield point
            else:
                step = number if point.step is None else point.step
                yield point._replace(at_s=by_step.get(step if point.step is not None else -1, start_s + step))

    return {name: list(with_times(points)) for name, points in raw.series.items()}


def _steady_clock(points: list[Point], name: str, notes: list[str], events: list[Event]) -> list[Point]:
    """Points with times that never decrease: after a jump of the clock they continue from the time of the jump."""
    shift, last, shifted, jumps = 0.0, -math.inf, list[Point](), 0
    for point in points:
        assert point.at_s is not None
        at_s = point.at_s + shift
        if at_s < last:
            shift += last - at_s
            events.append(Event(last, "clock", f"the clock fell back by {last - at_s:,.1f} s", point.step))
            at_s, jumps = last, jumps + 1
        last = at_s
        shifted.append(point._replace(at_s=at_s))
    if jumps:
        notes.append(f"{name}: the wall clock jumps back {_times(jumps)}; later times are shifted accordingly")
    return shifted


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _resumes(points: list[Point]) -> dict[int, Event]:
    """Events where the step number falls, as after a checkpoint was loaded, by the indices of the points."""
    resumes: dict[int, Event] = {}
    known = [(place, point) for place, point in enumerate(points) if point.step is not None]
    for (_, before), (place, point) in pairwise(known):
        assert before.step is not None and point.step is not None and point.at_s is not None  # noqa: PT018 - of types
        if point.step < before.step:
            text = f"continues from step {point.step:,} after step {before.step:,}: the steps between are repeated"
            resumes[place] = Event(point.at_s, "resumed", text, point.step)
    return resumes


def _growing(points: list[Point], resumes: Mapping[int, Event], name: str, notes: list[str]) -> list[Point]:
    """A total that never falls: a restarted counter is added to it; a restored one is ignored until it exceeds it."""
    shift, most, raw_last, shifted, restarts = 0.0, 0.0, 0.0, list[Point](), 0
    for place, point in enumerate(points):
        if not math.isfinite(point.value):
            continue
        if point.value < raw_last and not (place in resumes and point.value >= RESTORED * raw_last):
            shift, restarts = most - min(point.value, 0.0), restarts + 1
        raw_last = point.value
        most = max(most, point.value + shift)
        shifted.append(point._replace(value=most))
    if restarts:
        notes.append(f"{name}: a counter restarted {_times(restarts)}; its values are added up")
    return shifted


def _samples(
    points: list[Point], meaning: Meaning, scale: float, name: str, notes: list[str], events: list[Event]
) -> Iterator[Sample]:
    """Valid samples; a series of values that are not finite is an event."""
    dropped, previous_finite, strange = 0, True, 0
    if meaning.metric in SHARES and any(1.5 < point.value * scale < math.inf for point in points):
        scale /= 100.0  # the whole series is in percent, including its small values
    for point in points:
        value = point.value * scale
        assert point.at_s is not None
        if not math.isfinite(value):
            if previous_finite:
                text = f"{meaning.metric} is {'NaN' if math.isnan(value) else 'infinite'}"
                events.append(Event(point.at_s, "not finite", text, point.step))
            strange += 1
        elif value < 0 and meaning.metric not in SIGNED:
            dropped += 1
            continue
        previous_finite = math.isfinite(value)
        yield Sample(meaning.metric, point.at_s, value, point.step, meaning.device)
    if dropped:
        notes.append(f"{name}: {dropped:,} {'negative value was' if dropped == 1 else 'negative values were'} left out")
    if strange:
        notes.append(
            f"{name}: {strange:,} {'value is not a finite number' if strange == 1 else 'values are not finite numbers'}"
        )


def _step_times(placed: Mapping[str, list[Point]], timed: Mapping[str, Meaning], notes: list[str]) -> list[Sample]:
    """Step times from the times of log lines, from the training metric in `timed` with the most lines.

    Lines after a jump of the clock, a resume, or a repeated step are left out.
    """
    training = [name for name, m in timed.items() if m.metric in {"loss", "tokens", "grad_norm", "learning_rate"}]
    steps = {name: [p for p in placed[name] if p.step is not None] for name in training}
    name = max(steps, key=lambda one: len(steps[one]), default=None)
    if name is None:
        return []
    samples, strides = list[Sample](), list[int]()
    for before, point in pairwise(steps[name]):
        assert before.step is not None and point.step is not None  # noqa: PT018 - of types
        assert before.at_s is not None and point.at_s is not None  # noqa: PT018 - of types
        stride, seconds = point.step - before.step, point.at_s - before.at_s
        if stride > 0 and seconds > 0:
            samples.append(Sample("step_s", point.at_s, seconds / stride, point.step))
            strides.append(stride)
    if not samples:
        return []
    stride = sorted(strides)[len(strides) // 2]
    within = "" if stride == 1 else f", which are {stride:,} steps apart: pauses in between are included"
    notes.append(f"step times are those between the log lines of {name}{within}")
    return samples


def meanings(names: Iterable[str], given: Mapping[str, tuple[str, float | None]]) -> dict[str, Meaning]:
    """The metrics of a file: as `given` (our name and a factor, by their name), else recognised by name.

    Each of our metrics has one name in the file: the given one, else the first in the table that matches.

    Raises: UnknownNameError: a given metric is not one of ours. SpecError: the file has no metric with a given name.
    """
    listed = list(names)
    for theirs, (ours, _) in given.items():
        if ours not in METRICS:
            raise UnknownNameError("metric", ours, METRICS, f"allowed: {', '.join(METRICS)}")
        if theirs not in listed:
            raise SpecError(f"no metric {theirs[:60]!r} in the file{nearest_hint(theirs, listed) or _some(listed)}")
    by_name = {}
    for theirs, (ours, factor) in given.items():  # the unit is known if the name is, for that metric
        known = meaning(theirs)
        if factor is not None or known is None or known.metric != ours:
            known = Meaning(ours, 1.0 if factor is None else factor)
        by_name[theirs] = known
    taken = {(one.metric, one.device) for one in by_name.values()}
    ranked = [(one, known) for one in listed if one not in given and (known := meaning(one)) is not None]
    for theirs, known in sorted(ranked, key=lambda pair: rank(pair[1])):
        if (known.metric, known.device) not in taken:
            taken.add((known.metric, known.device))
            by_name[theirs] = known
    return by_name


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:12])
    return f"; it has {shown}{' ...' if len(names) > 12 else ''}"


TRAINING, SERVING = (DataSpec, TrainingSpec), (RequestSpec, ServingSpec)
"""Options of what was run, beside those of its machines."""


def _run_settings(one: FileRun, rest: Mapping[str, Any]) -> dict[str, object]:
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
        plan = _expected_run(model, machines, source, alone.gpus, settings, serves=one.raw.task == "serve")
    except FlopwiseError as failure:
        if spec.model is not None:
            raise
        return replace(alone, notes=(f"nothing is expected of the run: {failure}",))
    unstated = one.raw.task == "train" and not {"global_batch", "global_batch_tokens"} & settings.keys()
    note = "the file does not say the sequences of a step: the plan's are assumed (give --global-batch)"
    return replace(
        alone, usd_per_hour=plan.price_usd_per_hour, expected=plan.expected, notes=(note,) if unstated else ()
    )


def _expected_run(
    model: str,
    machines: MachineSpec,
    source: SourceSpec,
    gpus: int | None,
    settings: Mapping[str, Any],
    *,
    serves: bool,
) -> ExpectedService | ExpectedTraining:
    """The expected figures of a run with `settings`, options of `serve` or `train`, on so many accelerators.

    Raises: FlopwiseError: the question cannot be answered.
    """
    options = {name: getattr(spec, name) for spec in (machines, source) for name in changed_options(spec)}
    verb, specs = ("serve", SERVE) if serves else ("train", TRAIN)
    known = {name for spec in specs for name in defaults_of(spec)}
    stated = {name: value for name, value in {**options, **settings, "gpus": gpus}.items() if name in known}
    line = command_line(verb, model, stated, specs)
    keywords = {**settings, "machines": machines, "source": source}
    if serves:
        question, where = question_of(keywords, gpus=gpus)
        return ExpectedService.of_answer(serving_question.serve(model, question, where), line)
    answer = training_question.train(model, gpus or 1, *take(keywords, *TRAINED))
    return ExpectedTraining.of_answer(answer, line, settings)
