"""An encoder on this CPU, as people run it: probe, calibrate, predict, measure, learn from half, predict the rest.

    python benchmarks/measure_encoder.py --out DIR              # some nine minutes
    python benchmarks/measure_encoder.py --out DIR --report     # what was measured before, predicted again

BERTs of different shapes run in OpenVINO and in ONNX Runtime, in fp32, one call a batch of inputs of one length. Every
second condition is held aside: the profile of an engine never sees it. Writes probe-N.json, serving.csv (all),
ENGINE.csv (what its profile learns from), ENGINE-aside.csv, models.jsonl, raw.json and report.md into --out. Needs the
packages openvino, onnxruntime and onnx.

Time: from arrays to arrays. All conditions run in rounds, in another order each, with a quick probe in each round: what
disturbs the machine for a while, or lets it drift, does so for all of them, and each time is the median of its rounds'.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import numpy as np
import torch
import transformers

import flopwise
from calibrate_cpu import shown
from measure_training import cpu_name, write_csv

SCRIPT = "benchmarks/measure_encoder.py"
ENGINES = ("openvino", "onnxruntime")
MODELS = ((6, 384, 12), (4, 512, 8), (12, 768, 12), (12, 384, 12), (3, 256, 4))
"""Layers, width, heads; the first, third and fourth are MiniLM-L6, BERT base and MiniLM-L12."""
LOADS = ((1, 16), (1, 128), (1, 512), (8, 64), (8, 256), (32, 32), (32, 128))
"""Inputs a batch, tokens an input."""
VOCAB = 30522
ROUNDS = 5
MOST_CALLS, LONG_S = 3, 0.5
"""Calls of a condition in a round, until they have taken so long together."""
PROBED, LEARNED = "encoder-probed", "encoder-learned"
"""Profiles of the probe alone, and of an engine's conditions on top."""
Call = Callable[[np.ndarray[Any, Any], np.ndarray[Any, Any]], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What is run, and what it took."""

    engine: str
    layers: int
    width: int
    heads: int
    batch: int
    tokens: int
    rounds_s: tuple[float, ...] = ()

    @property
    def seconds(self) -> float:
        """The median of its rounds."""
        return statistics.median(self.rounds_s)

    @property
    def model(self) -> str:
        """What the model is called in the files."""
        return f"bert-{self.layers}x{self.width}"

    @property
    def name(self) -> str:
        """What the row is called."""
        return f"{self.engine} {self.model} b{self.batch} t{self.tokens}"

    @property
    def config(self) -> dict[str, Any]:
        """The config.json."""
        return {
            "model_type": "bert", "hidden_size": self.width, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "intermediate_size": 4 * self.width, "vocab_size": VOCAB,
            "max_position_embeddings": 512,
        }  # fmt: skip


class Encoder(torch.nn.Module):  # type: ignore[misc]  # untyped
    """The part that an engine takes: tokens and mask in, hidden states out."""

    def __init__(self, one: Condition) -> None:
        super().__init__()
        torch.manual_seed(0)
        given = {name: value for name, value in one.config.items() if name != "model_type"}
        how = "eager" if one.engine == "onnxruntime" else "sdpa"  # what the optimizer knows as attention
        config = transformers.BertConfig(**given, attn_implementation=how)
        self.bert = transformers.BertModel(config).eval()

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The last hidden states."""
        states: torch.Tensor = self.bert(input_ids=tokens, attention_mask=mask).last_hidden_state
        return states


def openvino_call(module: Encoder, threads: int) -> Call:
    """The module, compiled by OpenVINO for fp32 and latency."""
    import openvino as ov

    example = (torch.ones(2, 16, dtype=torch.int64),) * 2
    settings = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": str(threads)}
    compiled = ov.Core().compile_model(ov.convert_model(module, example_input=example), "CPU", settings)
    return lambda tokens, mask: compiled([tokens, mask])


def onnxruntime_call(module: Encoder, threads: int) -> Call:
    """The module, exported to ONNX, its layers fused by ONNX Runtime's optimizer for transformers, and run by it."""
    import onnxruntime as ort
    from onnxruntime.transformers.optimizer import optimize_model

    example, names = (torch.ones(2, 16, dtype=torch.int64),) * 2, ["tokens", "mask"]
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/encoder.onnx"
        axes = {name: {0: "batch", 1: "length"} for name in (*names, "states")}
        torch.onnx.export(
            module, example, path, dynamo=False, input_names=names, output_names=["states"], dynamic_axes=axes,
            opset_version=17,
        )  # fmt: skip
        config = module.bert.config
        fused = optimize_model(path, "bert", config.num_attention_heads, config.hidden_size, opt_level=1)
        fused.save_model_to_file(path)
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda tokens, mask: session.run(None, {"tokens": tokens, "mask": mask})


CALLS = {"openvino": openvino_call, "onnxruntime": onnxruntime_call}


def conditions(only: str) -> Iterator[Condition]:
    """All of them, the loads of a model and engine together; those whose name contains `only`."""
    for engine in ENGINES:
        for layers, width, heads in MODELS:
            for batch, tokens in LOADS:
                one = Condition(engine=engine, layers=layers, width=width, heads=heads, batch=batch, tokens=tokens)
                if only in one.name:
                    yield one


def measured(only: str, threads: int, rounds: int, out: Path) -> Iterator[list[Condition]]:
    """Run what `only` names, in rounds; a probe of each goes to `out`. After each round: the conditions until then."""
    every = list(conditions(only))
    made = {(one.engine, one.model): one for one in every}
    calls = {key: CALLS[one.engine](Encoder(one), threads) for key, one in made.items()}
    times: list[list[float]] = [[] for _ in every]
    for number in range(rounds + 1):  # the first warms up
        if number:
            flopwise.probe(quick=True, device=("cpu",), threads=threads).write(out / f"probe-{number}.json")
        for place in np.random.default_rng(number).permutation(len(every)).tolist():
            one = every[place]
            tokens = np.random.default_rng(0).integers(5, VOCAB, (one.batch, one.tokens))
            taken = called(calls[one.engine, one.model], tokens, 1 if number == 0 else MOST_CALLS)
            times[place] += [taken] if number else []
        print(f"round {number} of {rounds}", flush=True)
        if number:
            yield [replace(one, rounds_s=tuple(taken)) for one, taken in zip(every, times, strict=True)]


def called(call: Call, tokens: np.ndarray[Any, Any], most: int) -> float:
    """The median of a few calls, in seconds."""
    mask, taken = np.ones_like(tokens), list[float]()
    while len(taken) < most and sum(taken) < LONG_S:
        begin = time.perf_counter()
        call(tokens, mask)
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def row_of(one: Condition, gpu: str, date: str) -> dict[str, Any]:
    """A row as published ones have it."""
    return {
        "id": one.name, "study": "own", "date": date, "model": one.model, "gpu": gpu, "gpus": 1, "tp": 1,
        "weights": "fp32", "engine": one.engine, "mode": "prefill_latency", "input_tokens": one.tokens,
        "output_tokens": 1, "concurrency": one.batch, "ttft_s": f"{one.seconds:.6g}", "quality": "A", "source": SCRIPT,
    }  # fmt: skip


def write_all(out: Path, done: list[Condition], gpu: str, date: str, threads: int) -> None:
    """The tables, the models and all conditions."""
    write_csv(out / "serving.csv", [row_of(one, gpu, date) for one in done])
    for engine in ENGINES:
        rows = [row_of(one, gpu, date) for one in done if one.engine == engine]
        write_csv(out / f"{engine}.csv", rows[::2])
        write_csv(out / f"{engine}-aside.csv", rows[1::2])
    models = {one.model: one.config for one in done}
    lines = [{"name": name, "source": SCRIPT, "date": date, "config": config} for name, config in models.items()]
    (out / "models.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    machine = {"cpu": cpu_name(), "threads": threads, "torch": torch.__version__}
    raw = {"date": date, "machine": machine, "conditions": [asdict(one) for one in done]}
    (out / "raw.json").write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")


def report(out: Path, engine: str, gpu: str) -> str:
    """Errors on the conditions held aside, before and after learning from the others."""
    flopwise.calibrate(out / f"{engine}.csv", name=LEARNED, facts=out, calibration=PROBED, force=True)
    probed, learned = (
        flopwise.backtest("serving", out / f"{engine}-aside.csv", facts=out, calibration=name)
        for name in (PROBED, LEARNED)
    )
    lines = [
        f"# {engine} on {gpu}", "",
        f"{len(learned.predictions)} conditions held aside; the profile learned from as many others.", "",
        "| condition | measured, ms | probe alone | error | calibrated | error | 80 % interval | holds |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for one, other in zip(probed.predictions, learned.predictions, strict=True):
        assert one.measured is not None
        if one.predicted is None or other.predicted is None or other.low is None or other.high is None:
            lines.append(f"| {one.id} | {1e3 * one.measured:.2f} | {one.skipped or other.skipped} |")
            continue
        inside = "yes" if other.low <= one.measured <= other.high else "no"
        lines.append(
            f"| {one.id} | {1e3 * one.measured:.2f} | {1e3 * one.predicted:.2f} | "
            f"{100 * (one.predicted / one.measured - 1):+.1f} % | {1e3 * other.predicted:.2f} | "
            f"{100 * (other.predicted / one.measured - 1):+.1f} % | {1e3 * other.low:.2f} to {1e3 * other.high:.2f} | "
            f"{inside} |"
        )
    lines += ["", "| | median error | 90th percentile | in the interval |", "|---|---|---|---|"]
    for name, done in (("probe alone", probed), ("calibrated", learned)):
        figures = done.summary
        cells = (figures.median_abs_error, figures.p90_abs_error, figures.coverage)
        lines.append(f"| {name} | {' | '.join(map(shown, cells))} |")
    return "\n".join(lines) + "\n"


def calibrated(out: Path) -> str:
    """Make the profile of all probes in a folder; its device's name."""
    [gpu] = flopwise.calibrate(*sorted(out.glob("probe-*.json")), name=PROBED, force=True).devices
    return str(gpu)


def main() -> None:
    """Probe, calibrate, measure, learn, predict, say so."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--only", default="", help="conditions whose name contains this")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads to use")
    parser.add_argument("--report", action="store_true", help="measure nothing: report on what is in --out")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(asked.threads)
    out, date = asked.out, dt.datetime.now(tz=dt.UTC).date().isoformat()
    out.mkdir(parents=True, exist_ok=True)
    if not asked.report:
        if not any(conditions(asked.only)):
            sys.exit(f"no condition's name contains {asked.only!r}")
        for done in measured(asked.only, asked.threads, asked.rounds, out):  # a run that is cut off leaves its rounds
            write_all(out, done, calibrated(out), date, asked.threads)
    gpu = calibrated(out)
    text = "\n".join(report(out, engine, gpu) for engine in ENGINES)
    (out / "report.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
