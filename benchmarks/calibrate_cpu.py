"""The whole loop on this CPU: probe it, calibrate, predict, measure real trainings, learn from half, predict the rest.

    python benchmarks/calibrate_cpu.py --out DIR                # about nine minutes
    python benchmarks/calibrate_cpu.py --out DIR --report       # what was measured before, predicted again

Hugging Face Trainer trains tiny Llamas and BERTs of different shapes for a few steps each: AdamW as it comes, gradients
clipped, no dropout. Every second shape is held aside: the profile never sees it. Writes probe-N.json, training.csv and
memory.csv (all), fitted.csv (the half that the profile learns from), models.jsonl, raw.json and report.md into --out.

Time: whole steps, from `on_step_begin` to `on_step_end`. All shapes run in rounds, in another order each, with a quick
probe in each round: what disturbs the machine for a while, or lets it drift, does so for all of them, and each time is
the median of its rounds' medians. Memory: every allocation that PyTorch reports, from before the model is built.
"""

from __future__ import annotations

import argparse
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
    write_csv(out / "fitted.csv", time_rows[::2])
    write_csv(out / "aside.csv", time_rows[1::2])
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


def report(out: Path, profiles: tuple[str, str], gpu: str) -> str:
    """Errors on the shapes held aside, before and after learning from the others; memory of all."""
    probed, learned = (
        flopwise.backtest("training", out / "aside.csv", facts=out, calibration=name) for name in profiles
    )
    memory = flopwise.backtest("memory", out / "memory.csv", facts=out, calibration=profiles[1])
    lines = [
        f"# The loop on {gpu}", "",
        f"{len(learned.predictions)} shapes held aside; the profile learned from as many others. Times of a step.", "",
        "| shape | measured, ms | probe alone | error | calibrated | error | 80 % interval | holds |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for one, other in zip(probed.predictions, learned.predictions, strict=True):
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
    lines += ["", "| | median error | 90th percentile | in the interval |", "|---|---|---|---|"]
    for name, done in (("probe alone", probed), ("calibrated", learned), ("memory, all shapes", memory)):
        figures = done.summary
        cells = (figures.median_abs_error, figures.p90_abs_error, figures.coverage)
        lines.append(f"| {name} | {' | '.join(map(shown, cells))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Probe, calibrate, measure, learn, predict, say so."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, help="threads to use (default: as PyTorch chooses)")
    parser.add_argument("--report", action="store_true", help="measure nothing: report on what is in --out")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    if asked.threads:
        torch.set_num_threads(asked.threads)
    out, date = asked.out, dt.datetime.now(tz=dt.UTC).date().isoformat()
    out.mkdir(parents=True, exist_ok=True)
    done = [] if asked.report else measured(asked.only, asked.rounds, out)
    profiles = ("loop-probed", "loop-learned")
    [gpu] = flopwise.calibrate(*sorted(out.glob("probe-*.json")), name=profiles[0], force=True).devices
    if not asked.report:
        if not done:
            sys.exit("nothing was measured")
        write_runs(out, done, gpu, date)
    flopwise.calibrate(out / "fitted.csv", name=profiles[1], facts=out, calibration=profiles[0], force=True)
    text = report(out, profiles, gpu)
    (out / "report.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
