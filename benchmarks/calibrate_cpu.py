"""The whole loop on this CPU: probe it, calibrate, predict, measure real trainings, learn from half, predict the rest.

    python benchmarks/calibrate_cpu.py --out DIR                # about nine minutes
    python benchmarks/calibrate_cpu.py --out DIR --report       # what was measured before, predicted again
    python benchmarks/calibrate_cpu.py --report --out benchmarks/measurements/2026-11-27-cpu-loop --threads 1

Hugging Face Trainer trains tiny Llamas and BERTs of different shapes for a few steps each: AdamW as it comes, gradients
clipped, no dropout. Every second shape is held aside: the profile never sees it. Writes probe-N.json, training.csv and
memory.csv (all), models.jsonl, raw.json and report.md into --out. One half says little of an interval that 80 % of new
shapes are to lie in, so the report repeats the last two steps with the other half, and with halves drawn at random.
A folder of committed measurements, whose probe is rows of facts already, is reported on as it is: into the terminal.

Time: whole steps, from `on_step_begin` to `on_step_end`. All shapes run in rounds, in another order each, with a quick
probe in each round: what disturbs the machine for a while, or lets it drift, does so for all of them, and each time is
the median of its rounds' medians. Memory: every allocation that PyTorch reports, from before the model is built.
"""

from __future__ import annotations

import argparse
import csv
import datetime as dt
import gc
import json
import os
import random
import resource
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "5")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import torch
import transformers

import flopwise
from measure_training import cpu_name, peak_of, write_csv

SCRIPT = "benchmarks/calibrate_cpu.py"
STACK = "hf-trainer-2026"
PROFILED = 3
"""Steps over which memory is summed."""
ROUNDS, WARMUP, STEPS = 5, 2, 5
"""Of all shapes; steps of a round that are left out, and that count."""
HALVES = 8
PROBED, LEARNED = "loop-probed", "loop-learned"
"""Profiles of the probes, and of half of the shapes on them."""
ACCELERATORS = "accelerators.csv"


@dataclass(frozen=True, slots=True)
class TrainedShape:
    """A model and what it is trained on."""

    kind: str  # llama or bert
    layers: int
    width: int
    heads: int
    kv_heads: int
    inner: int
    vocab: int
    batch: int
    seq: int

    @property
    def name(self) -> str:
        """What the model and its run are called in the files."""
        return f"{self.kind}-{self.layers}x{self.width}-v{self.vocab}-b{self.batch}-s{self.seq}"

    @property
    def config(self) -> dict[str, Any]:
        """The config.json."""
        own: dict[str, Any] = {
            "model_type": self.kind, "hidden_size": self.width, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "intermediate_size": self.inner, "vocab_size": self.vocab,
            "max_position_embeddings": 512,
        }  # fmt: skip
        if self.kind == "llama":
            return own | {"num_key_value_heads": self.kv_heads, "tie_word_embeddings": False}
        return own | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _shapes(kind: str, *rows: tuple[int, ...]) -> list[TrainedShape]:
    return [TrainedShape(kind, *row) for row in rows]


SHAPES = [
    *_shapes(
        "llama",
        (4, 256, 4, 2, 688, 2048, 2, 128), (2, 128, 4, 4, 344, 1024, 8, 128), (2, 512, 8, 8, 1376, 4096, 1, 256),
        (6, 192, 3, 3, 512, 2048, 4, 128), (3, 384, 6, 2, 1024, 8192, 2, 256), (8, 256, 4, 4, 688, 1024, 1, 512),
        (2, 640, 10, 5, 1728, 2048, 2, 128), (4, 128, 2, 2, 352, 16000, 4, 64), (2, 256, 4, 4, 688, 32000, 2, 128),
        (5, 320, 5, 5, 864, 4096, 4, 64), (1, 768, 12, 4, 2048, 8192, 1, 128), (3, 256, 4, 1, 1024, 2048, 8, 128),
        (12, 128, 4, 2, 344, 2048, 2, 256), (2, 384, 6, 6, 1024, 32000, 1, 256), (4, 512, 8, 4, 1376, 1024, 2, 64),
        (6, 256, 8, 8, 688, 8192, 1, 128),
    ),
    *_shapes(
        "bert",
        (4, 256, 4, 4, 1024, 30522, 4, 128), (2, 128, 2, 2, 512, 30522, 16, 128), (4, 512, 8, 8, 2048, 8192, 1, 128),
        (6, 192, 3, 3, 768, 8192, 4, 128), (3, 384, 6, 6, 1536, 8192, 2, 256), (2, 256, 4, 4, 1024, 8192, 2, 512),
        (8, 256, 4, 4, 1024, 8192, 2, 64), (2, 512, 8, 8, 2048, 30522, 2, 128), (12, 128, 2, 2, 512, 8192, 4, 128),
        (2, 640, 10, 10, 2560, 4096, 1, 256), (4, 320, 5, 5, 1280, 4096, 8, 64), (3, 256, 4, 4, 512, 16000, 4, 256),
    ),
]  # fmt: skip


def built(shape: TrainedShape) -> Any:
    """The model, freshly initialised."""
    torch.manual_seed(0)
    given = {name: value for name, value in shape.config.items() if name != "model_type"}
    config = transformers.AutoConfig.for_model(shape.kind, **given)
    auto = (
        transformers.AutoModelForCausalLM if shape.kind == "llama" else transformers.AutoModelForSequenceClassification
    )
    return auto.from_config(config)


class StepTimes(transformers.TrainerCallback):  # type: ignore[misc]  # untyped
    """Seconds of each step, and bytes that the system handed out page by page in it."""

    def __init__(self) -> None:
        self.every, self.fresh_bytes, self.start, self.faults = list[float](), list[int](), 0.0, 0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Note the time and the page faults so far."""
        self.start, self.faults = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Keep the step."""
        self.every.append(time.perf_counter() - self.start)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - self.faults
        self.fresh_bytes.append(faults * resource.getpagesize())


class RandomTokens(torch.utils.data.Dataset[Any]):  # type: ignore[misc]  # untyped
    """Sequences of one length, as many as are asked for."""

    def __init__(self, shape: TrainedShape, size: int) -> None:
        torch.manual_seed(1)
        self.shape, self.tokens = shape, torch.randint(5, shape.vocab, (size, shape.seq))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, place: int) -> dict[str, Any]:
        tokens = self.tokens[place]
        labels = tokens if self.shape.kind == "llama" else tokens[0] % 2
        return {"input_ids": tokens, "labels": labels}


def trained(shape: TrainedShape, steps: int, callback: StepTimes | None = None) -> int:
    """Train for at most `steps` steps; the parameters."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder, max_steps=steps, per_device_train_batch_size=shape.batch, use_cpu=True, report_to=[],
            save_strategy="no", logging_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        trainer = transformers.Trainer(
            model=built(shape), args=arguments, train_dataset=RandomTokens(shape, shape.batch * steps),
            callbacks=[callback] if callback else [],
        )  # fmt: skip
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
        return sum(p.numel() for p in trainer.model.parameters())


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """What one shape took."""

    shape: TrainedShape
    parameters: int
    rounds_s: tuple[float, ...]  # the median step of each
    rounds_fresh_bytes: tuple[float, ...]  # the median of each
    peak_bytes: int

    @property
    def step_s(self) -> float:
        """The median of its rounds."""
        return statistics.median(self.rounds_s)


def measured(only: str, rounds: int, out: Path) -> list[MeasuredRun]:
    """Train the shapes that `only` names, in rounds; a probe of each goes to `out`."""
    every = [shape for shape in SHAPES if only in shape.name]
    peaks = [peak_bytes(shape) for shape in every]
    times: list[list[float]] = [[] for _ in every]
    fresh: list[list[float]] = [[] for _ in every]
    counts = [0] * len(every)
    for number in range(rounds):
        flopwise.probe(quick=True, device=("cpu",), threads=torch.get_num_threads()).write(out / f"probe-{number}.json")
        rng = random.Random(number)  # noqa: S311 - an order
        for place in rng.sample(range(len(every)), len(every)):
            seen = StepTimes()
            counts[place] = trained(every[place], WARMUP + STEPS, seen)
            times[place].append(statistics.median(seen.every[WARMUP:]))
            fresh[place].append(statistics.median(seen.fresh_bytes[WARMUP:]))
        print(f"round {number + 1} of {rounds}", flush=True)
    return [
        MeasuredRun(
            shape=shape, parameters=count, rounds_s=tuple(taken), rounds_fresh_bytes=tuple(new), peak_bytes=peak
        )
        for shape, count, taken, new, peak in zip(every, counts, times, fresh, peaks, strict=True)
    ]


def peak_bytes(shape: TrainedShape) -> int:
    """Most that a training holds at once."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        trained(shape, PROFILED)
    peak = peak_of(seen)
    del seen
    gc.collect()
    return peak


def row_of(run: MeasuredRun, gpu: str, date: str) -> dict[str, Any]:
    """Cells that rows of time and of memory share."""
    shape = run.shape
    return {
        "id": shape.name, "study": "own", "year": date[:4], "model": shape.name, "params": run.parameters,
        "seq_len": shape.seq, "gpu": gpu, "gpus": 1, "zero": 0, "micro_batch": shape.batch,
        "global_batch": shape.batch, "recompute": "none", "attention": "flash", "precision": "fp32",
        "software": STACK, "quality": "A", "source": f"{SCRIPT}, {date}",
    }  # fmt: skip


def write_runs(out: Path, done: Sequence[MeasuredRun], gpu: str, date: str) -> None:
    """The tables, the shapes and every step."""
    time_rows = [
        {**row_of(run, gpu, date), "task": "pretrain",
         "tokens_per_s_per_gpu": round(run.shape.batch * run.shape.seq / run.step_s, 2)}
        for run in done
    ]  # fmt: skip
    write_csv(out / "training.csv", time_rows)
    memory = [
        {**row_of(run, gpu, date), "method": "pretrain", "optimizer": "adamw", "reading": "allocated",
         "peak_bytes": run.peak_bytes}
        for run in done
    ]  # fmt: skip
    write_csv(out / "memory.csv", memory)
    lines = [{"name": r.shape.name, "source": SCRIPT, "date": date, "config": r.shape.config} for r in done]
    (out / "models.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    machine = {"torch": torch.__version__, "transformers": transformers.__version__, "cpu": cpu_name()}
    raw = {"date": date, "machine": machine | {"threads": torch.get_num_threads()}, "runs": [asdict(r) for r in done]}
    (out / "raw.json").write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")


def shown(value: float | None) -> str:
    """A share in percent."""
    return "-" if value is None else f"{100 * value:.1f} %"


@dataclass(frozen=True)
class Halves:
    """The rows that a profile learns from, and those held aside; the name of both together."""

    name: str
    learned: list[dict[str, Any]]
    aside: list[dict[str, Any]]


def halves(rows: list[dict[str, Any]], drawn: int) -> list[Halves]:
    """Every second row held aside, the others, and `drawn` halves at random."""
    found = [Halves("every second shape", rows[::2], rows[1::2]), Halves("the others", rows[1::2], rows[::2])]
    for number in range(drawn):
        order = random.Random(number).sample(rows, len(rows))  # noqa: S311 - an order
        found.append(Halves(f"drawn {number + 1}", order[: len(rows) // 2], order[len(rows) // 2 :]))
    return found


def learned_and_predicted(out: Path, half: Halves, base: str | None) -> Any:
    """The backtest of the rows held aside, with the profile of the others; `base`: the profile of the probe, if any."""
    with tempfile.TemporaryDirectory() as place:
        for name, rows in (("fitted.csv", half.learned), ("aside.csv", half.aside)):
            write_csv(Path(place) / name, rows)
        flopwise.calibrate(Path(place) / "fitted.csv", name=LEARNED, facts=out, calibration=base, force=True)
        return flopwise.backtest("training", Path(place) / "aside.csv", facts=out, calibration=LEARNED)


def report(out: Path, base: str | None, gpu: str, drawn: int) -> str:
    """Errors on the shapes held aside, before and after learning from the others, in several halves; memory of all."""
    with (out / "training.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    first, *others = halves(rows, drawn)
    whole = flopwise.backtest("training", out / "training.csv", facts=out, calibration=base)
    before = {one.id: one for one in whole.predictions}
    learned = learned_and_predicted(out, first, base)
    memory = flopwise.backtest("memory", out / "memory.csv", facts=out, calibration=base)
    lines = [
        f"# The loop on {gpu}", "",
        f"{len(learned.predictions)} shapes held aside; the profile learned from as many others. Times of a step.", "",
        "| shape | measured, ms | probe alone | error | calibrated | error | 80 % interval | holds |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for other in learned.predictions:
        one = before[other.id]
        assert one.measured is not None
        row = next(r for r in learned.rows if r["id"] == other.id)
        tokens = 1e3 * float(row["micro_batch"]) * float(row["seq_len"])
        if one.predicted is None or other.predicted is None or other.low is None or other.high is None:
            lines.append(f"| {one.id} | {tokens / one.measured:.1f} | {one.skipped or other.skipped} |")
            continue
        inside = "yes" if other.low <= one.measured <= other.high else "no"
        lines.append(
            f"| {one.id} | {tokens / one.measured:.1f} | {tokens / one.predicted:.1f} | "
            f"{100 * (one.measured / one.predicted - 1):+.1f} % | {tokens / other.predicted:.1f} | "
            f"{100 * (one.measured / other.predicted - 1):+.1f} % | {tokens / other.high:.1f} to "
            f"{tokens / other.low:.1f} | {inside} |"
        )
    head = ["median error", "90th percentile", "in the interval"]
    lines += ["", f"| | {' | '.join(head)} |", "|---|---|---|---|"]
    for name, done in (("probe alone, all shapes", whole), ("calibrated", learned), ("memory, all shapes", memory)):
        figures = done.summary
        cells = (figures.median_abs_error, figures.p90_abs_error, figures.coverage)
        lines.append(f"| {name} | {' | '.join(map(shown, cells))} |")
    lines += ["", f"| half held aside | {' | '.join(head)} | interval, a factor of |", "|---|---|---|---|---|"]
    coverages = list[float]()
    for half, done in ((first, learned), *((one, learned_and_predicted(out, one, base)) for one in others)):
        figures, one = done.summary, done.predictions[0]
        coverages.append(figures.coverage or 0.0)
        cells = (figures.median_abs_error, figures.p90_abs_error, figures.coverage)
        lines.append(f"| {half.name} | {' | '.join(map(shown, cells))} | {one.high / one.predicted:.2f} |")
    lines += ["", f"In the interval, mean of the {len(coverages)} halves: {shown(statistics.fmean(coverages))}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Probe, calibrate, measure, learn, predict, say so."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, help="threads to use (default: as PyTorch chooses)")
    parser.add_argument("--halves", type=int, default=HALVES, help=f"drawn at random (default: {HALVES})")
    parser.add_argument("--report", action="store_true", help="measure nothing: report on what is in --out")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    if asked.threads:
        torch.set_num_threads(asked.threads)
    out, date = asked.out, dt.datetime.now(tz=dt.UTC).date().isoformat()
    if asked.report and (out / ACCELERATORS).exists():
        with (out / ACCELERATORS).open(encoding="utf-8", newline="") as file:
            [row] = csv.DictReader(file)
        print(report(out, None, row["name"], asked.halves))
        return
    out.mkdir(parents=True, exist_ok=True)
    done = [] if asked.report else measured(asked.only, asked.rounds, out)
    [gpu] = flopwise.calibrate(*sorted(out.glob("probe-*.json")), name=PROBED, force=True).devices
    if not asked.report:
        if not done:
            sys.exit("nothing was measured")
        write_runs(out, done, gpu, date)
    text = report(out, PROBED, gpu, asked.halves)
    (out / "report.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
