"""Runs of files written to a store: each once, and whole. A format is a module and a line here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from flopwise.errors import SpecError, UnknownNameError
from flopwise.records.imports import genai_perf, guidellm, mlflow, tensorboard, trainer_state, vllm_bench, wandb
from flopwise.records.imports.cleaned import CleanRun, clean_run
from flopwise.records.imports.raw import RawRun, Source
from flopwise.records.model import Expectation, Run
from flopwise.records.store import Store

if TYPE_CHECKING:
    from flopwise.records.imports.spec import ImportSpec


class Format(NamedTuple):
    """What a format is, how a file of it is known, and how it is read."""

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
"""The formats by their names, in the order in which a file is tried."""


def read_file(path: Path, named: str) -> tuple[str, Source, list[RawRun]]:
    """(name of the format, the file, its runs).

    Raises:
        UnknownNameError: there is no such format.
        SpecError: the file cannot be read, or is of no known format.
        MissingFactError: a package that reads the format is not installed.
    """
    if named != "auto" and named not in FORMATS:
        raise UnknownNameError("format", named, FORMATS, f"allowed: auto, {', '.join(FORMATS)}")
    if not path.exists():
        raise SpecError(f"{path}: no such file; give one that a tool has exported")
    source = Source(path)
    kind = named if named != "auto" else next((n for n, f in FORMATS.items() if f.recognises(source)), None)
    if kind is None:
        known = "; ".join(f"{name}: {form.words}" for name, form in FORMATS.items())
        columns = f" (its columns: {', '.join(source.header[:8])})" if source.header[1:] else ""
        raise SpecError(f"{path}: none of the formats that are read{columns}: {known}")
    if named != "auto" and not FORMATS[kind].recognises(source):
        raise SpecError(
            f"{path}: not of the format {kind} ({FORMATS[kind].words}); leave out --format to have it found"
        )
    runs = [run for run in FORMATS[kind].read_runs(source) if run.series]
    if not runs:
        raise SpecError(f"{path}: holds no values of any metric")
    return kind, source, runs


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRun:
    """A run of a file, ready to be written."""

    run_id: str  # of what the file holds: the same file is the same run
    format: str
    path: Path
    raw: RawRun
    cleaned: CleanRun


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """What is said of a run beside what its file says: machines, settings, and what was expected of it."""

    gpu: str | None
    gpus: int | None
    settings: Mapping[str, object]  # options of `train` or `serve`, as given, else as in the file
    usd_per_hour: float | None = None
    expected: Expectation | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedRun:
    """What became of one run of a file."""

    run: Run
    path: str
    samples: int
    metrics: tuple[str, ...]
    left_out: tuple[str, ...]  # metrics of the file that are none of ours
    notes: tuple[str, ...]
    new: bool  # False: it was there already


def found_runs(paths: Sequence[Path], said: ImportSpec, gpus: int | None) -> list[FoundRun]:
    """The runs of files.

    Raises:
        SpecError: a file cannot be read, holds no metric of ours, or holds what another of them holds.
    """
    found: dict[str, FoundRun] = {}
    for path in paths:
        kind, source, runs = read_file(path, said.format)
        for number, raw in enumerate(runs):
            one = clean_run(raw, said.mapping, gpus if gpus is not None else raw.gpus, source.changed_at_s)
            if not one.samples:
                names = ", ".join(list(raw.series)[:12])
                raise SpecError(
                    f"{path}: no metric is known by its name ({names}); give --metric step_s=NAME and so on"
                )
            key = hashlib.sha256(f"{kind} {source.digest} {number}".encode()).hexdigest()[:32]
            if key in found:
                raise SpecError(f"{path} and {found[key].path} hold the same; give one of them")
            found[key] = FoundRun(run_id=key, format=kind, path=path, raw=raw, cleaned=one)
    return list(found.values())


def write_run(store: Store, found: FoundRun, planned: PlannedRun, said: ImportSpec, *, several: bool) -> ImportedRun:
    """Write a run with all its samples, or nothing where it is there already.

    With `several` of one given name the file's own names follow behind it.

    Raises:
        SpecError: the store cannot be written to.
    """
    one, run = found.cleaned, _run(found, planned, said, several=several)
    new = store.add_run(run, one.samples, one.events)
    if said.replace and not new:
        store.delete(run.run_id)
        new = store.add_run(run, one.samples, one.events)
    return ImportedRun(
        run=run if new else store.run(run.run_id), path=str(found.path), samples=len(one.samples),
        metrics=tuple(dict.fromkeys(sample.metric for sample in one.samples)), left_out=one.left_out,
        notes=(*one.notes, *planned.notes), new=new,
    )  # fmt: skip


def _run(found: FoundRun, planned: PlannedRun, said: ImportSpec, *, several: bool) -> Run:
    """The run as the store has it."""
    raw, one, settings = found.raw, found.cleaned, planned.settings
    tunes = said.task == "finetune" or any(settings.get(name) for name in ("finetune", "lora", "qlora"))
    own = f"{said.name}-{raw.name}" if said.name and several else said.name or raw.name
    return Run(
        run_id=found.run_id, name=own, task="serve" if raw.task == "serve" else "finetune" if tunes else "pretrain",
        started_at_s=one.started_at_s, ended_at_s=one.ended_at_s, status="finished" if raw.finished else "stopped",
        source=found.format, model=said.model or raw.model, gpu=planned.gpu, gpus=planned.gpus, software=raw.software,
        settings=settings, price_usd_per_hour=planned.usd_per_hour, expected=planned.expected,
    )  # fmt: skip
