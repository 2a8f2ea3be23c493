"""Write benchmarks/accuracy/REPORT.md: how far predictions are from published measurements.

    python benchmarks/accuracy/report.py [-o FILE]

Nothing in the report depends on the machine or the day, so two runs on the same tree write the same file.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import thumb
from fit_intervals import (
    FEW_POINTS,
    FLOOR,
    MOST_INSIDE,
    OTHER_FLOOR,
    SOME_SOURCES,
    Point,
    bands,
    class_factors,
    factor_for,
    inside,
    left_out,
    nearest,
    points_of,
    source_weights,
    unseen_coverage,
)
from memory_software import dependences, software_left_out
from rows import KINDS, MIXTURE_SHARE, TRUTH, Case, cases, unseen_errors

from flopwise.backtests.kernels import KERNELS
from flopwise.backtests.kinds import KINDS as BACKTESTS
from flopwise.backtests.prediction import Row, number
from flopwise.backtests.run import measurements
from flopwise.backtests.summary import reasons, summarize, worst
from flopwise.cost.rates import VARIANTS, families
from flopwise.facts.catalog import load_facts
from flopwise.fitting.kernels import FAMILIES, LINKS

Key = Callable[[Case], str]
MOST_REASONS, WORST, FEW = 15, 8, 3


def _column(name: str) -> Key:
    return lambda case: case.row.get(name) or "not stated"


def _mixture(case: Case) -> str:
    total, active = number(case.row, "params"), number(case.row, "active_params")
    if case.kind == "serving":
        band = case.prediction.band
        asked = (band.exact_name or band.name) if band else ""
        return "mixture" if asked.endswith(".moe") else "dense" if asked.endswith(".dense") else "not told apart"
    return "mixture" if total and active and active < MIXTURE_SHARE * total else "dense"


def _load(case: Case) -> str:
    """Whether memory holds all requests: else times to a first token are mostly waiting."""
    if case.prediction.quantity != "ttft_s":
        return "any"
    band = case.prediction.band
    return (
        "requests wait for memory"
        if band and "queued" in (band.exact_name or band.name)
        else "memory holds all requests"
    )


UNSEEN = {
    "kernels": (
        "Constants that move a GPU's rows refitted without it, each in turn (`benchmarks/fit_kernels.py --leave-out "
        "all --write`). Rates are borrowed where no other GPU of its family, or no other of its link, has rows to fit "
        "them to: then other families' stand in."
    ),
    "training": (
        "Constants refitted without each publisher in turn (`benchmarks/fit_training.py --write`; one step of the "
        "fit, linear in the logarithms of the constants, then predicted exactly)."
    ),
    "serving": (
        "Constants of the engines refitted without each source, and without each GPU, in turn "
        "(`benchmarks/fit_serving.py --write`). Times to a first token are those of runs whose requests all fit "
        "the memory: beyond that, requests wait. Of runs with an end, closed loops of four requests a user or more "
        "are in it, by what their ends make of the steady state."
    ),
    "gpu-hours": (
        "The share that steps have of a campaign's hours, from the other sources (`benchmarks/fit_campaign.py "
        "--write`)."
    ),
}
"""How the errors of constants that have not seen a row's source were found."""
VIEWS: dict[str, dict[str, Key]] = {
    "weights": {"form": _column("form")},
    "memory": {"source": lambda c: c.source, "method": _column("method"), "what was read": _column("reading")},
    "kernels": {"operation": _column("op"), "GPU": _column("gpu")},
    "training": {
        "source": lambda c: c.source,
        "model": _mixture,
        "precision": _column("precision"),
        "GPU": _column("gpu"),
        "software": _column("software"),
        "task": _column("task"),
        "quality": _column("quality"),
    },
    "gpu-hours": {"GPU": _column("gpu")},
    "io": {"workload": _column("workload"), "GPU": _column("gpu")},
    "serving": {
        "source": lambda c: c.source,
        "mode": _column("mode"),
        "load": _load,
        "engine": _column("engine"),
        "model": _mixture,
        "weights": _column("weights"),
        "GPU": _column("gpu"),
    },
}
"""How each kind is split, view by view."""


def quantities(members: Sequence[Case]) -> dict[str, list[Case]]:
    """Cases by quantity, those of one-quantity kinds under one name."""
    groups: dict[str, list[Case]] = defaultdict(list)
    for case in members:
        groups[case.prediction.quantity or case.prediction.unit].append(case)
    return dict(sorted(groups.items()))


def percent(value: float | None, *, signed: bool = False) -> str:
    """A fraction as a percentage; a dash for what is not known."""
    if value is None:
        return "-"
    return f"{100 * value:{'+' if signed else ''}.{1 if abs(value) < 1 else 0}f} %"


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(headers)} |", f"|{'|'.join('---' for _ in headers)}|"]
    return "\n".join([*lines, *(f"| {' | '.join(str(cell).replace('|', '/') for cell in row)} |" for row in rows)])


def figures(members: Sequence[Case]) -> tuple[object, ...]:
    """Rows, predicted, median, 90th percentile, bias and coverage."""
    s = summarize(c.prediction for c in members)
    return (
        s.rows,
        s.predicted_rows,
        percent(s.median_abs_error),
        percent(s.p90_abs_error),
        percent(s.bias, signed=True),
        percent(s.coverage),
    )


ERRORS = ("median", "90 %", "bias")


def error_figures(errors: Sequence[float]) -> tuple[str, str, str]:
    """Median and 90th percentile of the absolute errors, and the signed median."""
    size = np.abs(errors)
    return (
        percent(float(np.median(size))),
        percent(float(np.quantile(size, 0.9))),
        percent(float(np.median(errors)), signed=True),
    )


HEADERS = ("rows", "predicted", "median error", "90th percentile", "bias", "in the interval")


def rule(members: Sequence[Case]) -> tuple[str, str]:
    """Median and 90th percentile of the rule of thumb, as fitted and on sources that it has not seen."""
    cells = []
    for unseen in (False, True):
        errors = np.abs(thumb.errors(members, unseen=unseen))
        cells.append(
            f"{percent(float(np.median(errors)))} / {percent(float(np.quantile(errors, 0.9)))}" if errors.size else "-"
        )
    return cells[0], cells[1]


def overview(kinds: dict[str, list[Case]]) -> Iterator[str]:
    """The first table: every kind and quantity beside its rule of thumb."""
    rows = []
    for kind, predicted in kinds.items():
        for name, own in quantities(predicted).items():
            rows.append((kind, name, *figures(own), *rule(own)))
    yield table(("kind", "quantity", *HEADERS, "rule of thumb", "rule on unseen sources"), rows)
    yield (
        "The rules of thumb, as median / 90th percentile of their absolute error: "
        + "; ".join(f"{kind}: {thumb.NAMES[kind]}" for kind in kinds)
        + "."
    )


def coverage(kinds: dict[str, list[Case]]) -> str:
    """How the 10-90 % intervals would hold on sources that they have not seen."""
    rows = []
    for kind, predicted in kinds.items():
        points = points_of(predicted)
        if points:
            folds = left_out(points, FLOOR.get(kind, OTHER_FLOOR))
            factor = factor_for(folds)
            rows.append((kind, len(points), len(folds), f"{factor:.2f}", percent(unseen_coverage(folds, factor))))
    return table(("kind", "rows", "sources", "spread multiplied by", "inside, sources left out"), rows)


CHECKED = ("training", "memory", "kernels", "serving")
"""Kinds whose classes must hold: with `FEW_POINTS` rows and `SOME_SOURCES` publishers or more, between `LEAST_INSIDE`
and `MOST_INSIDE` of measured values inside, as rows weigh in bands: the hundreds of one publisher don't decide
alone."""
LEAST_INSIDE = 0.70
ALL = "all"


class ClassCoverage(NamedTuple):
    """Rows and publishers of a class of errors, and the shares inside, as the row's publisher was left out."""

    rows: int
    publishers: int
    row_share: float
    share: float  # a publisher weighs as the square root of its rows


def class_coverage(scored: Sequence[Case]) -> dict[str, ClassCoverage]:
    """Every class, and all of them together."""
    kind = scored[0].kind
    points = points_of(scored)
    floor = FLOOR.get(kind, OTHER_FLOOR)
    folds = left_out(points, floor)
    factors, fitted = class_factors(kind, folds), bands(points, floor)
    hits: dict[str, list[tuple[Point, bool]]] = defaultdict(list)
    for unseen, own in folds:
        for point in own:
            [hit] = inside(unseen, [point], factors[nearest(fitted, point.name) or kind])
            hits[point.name].append((point, hit))
    hits[ALL] = [hit for own in hits.values() for hit in own]
    return {name: _coverage(own) for name, own in sorted(hits.items())}


def _coverage(hits: Sequence[tuple[Point, bool]]) -> ClassCoverage:
    points, inside_it = zip(*hits, strict=True)
    share = np.average(inside_it, weights=source_weights(points))
    return ClassCoverage(len(points), len({p.source for p in points}), float(np.mean(inside_it)), float(share))


def class_section(scored: Sequence[Case]) -> Iterator[str]:
    """The classes as a table."""
    yield "### Classes of intervals"
    yield CLASSES[scored[0].kind]
    rows = [
        (name, c.rows, c.publishers, percent(c.row_share), percent(c.share))
        for name, c in class_coverage(scored).items()
    ]
    yield table(("class", "rows", "publishers", "in the interval, publishers left out", "weighed as in bands"), rows)


def failing_classes(kinds: Mapping[str, Sequence[Case]]) -> list[str]:
    """Classes with many rows whose intervals are too narrow or too wide."""
    allowed = f"{percent(LEAST_INSIDE)} to {percent(MOST_INSIDE)}"
    return [
        f"{name}: {percent(c.share)} inside, {c.rows} rows of {c.publishers} publishers; allowed: {allowed}"
        for kind in CHECKED
        for name, c in class_coverage(kinds[kind]).items()
        if c.rows >= FEW_POINTS and c.publishers >= SOME_SOURCES and not LEAST_INSIDE <= c.share <= MOST_INSIDE
    ]


def left_out_groups(case: Case) -> Iterator[tuple[str, ...]]:
    """The groups of a case in the table of sources left out: serving by mode and quantity, the others by source."""
    if case.kind == "serving":
        yield case.prediction.quantity, case.row["mode"]
        return
    yield ("all",)
    if case.kind == "training":
        yield (f"all {_mixture(case)}",)
    if case.kind == "kernels":
        rates = "borrowed" if rates_borrowed(case.row) else "of its family"
        yield (f"all, rates {rates}",)
        yield (f"{case.row['op']}, rates {rates}",)
    yield (case.source,)


@cache
def _measured_gpus(*, messages: bool) -> frozenset[str]:
    """GPUs whose messages, or whose kernels, were measured."""
    rows = measurements(BACKTESTS["kernels"], TRUTH / "kernels.csv")
    return frozenset(row["gpu"] for row in rows if (row["op"] not in KERNELS) == messages)


@cache
def _rates_of(gpu: str, *, messages: bool) -> str:
    """The scope of a GPU's own rates: its family, or its link."""
    device = load_facts().accelerator(gpu)
    return (device.link or "pcie").lower() if messages else families(device)[0]


def rates_borrowed(row: Row) -> bool:
    """True if no other GPU measured the rates of this kernel's family, or of this message's link.

    A variant of a family has that family's rates, not the other way round.
    """
    messages = row["op"] not in KERNELS
    own = _rates_of(row["gpu"], messages=messages)
    others = _measured_gpus(messages=messages) - {row["gpu"]}
    fitted = {_rates_of(gpu, messages=messages) for gpu in others} & {*FAMILIES, *LINKS}
    return fitted.isdisjoint((own, VARIANTS.get(own, own)))


def after_fit(scored: Sequence[Case]) -> list[Case]:
    """The cases of sources that are younger than the fit: no constant has seen a row of theirs."""
    unseen = unseen_errors(scored[0].kind) if scored else {}
    known = {case.source for case in scored if case.key in unseen}
    return [case for case in scored if case.source not in known]


def left_out_section(kind: str, scored: Sequence[Case]) -> Iterator[str]:
    """Errors of constants that have seen a source, of constants that have not, and of sources younger than the fit."""
    left_out = {what: errors for what in ("source", "GPU") if (errors := unseen_errors(kind, what))}
    groups: dict[tuple[str, ...], list[Case]] = defaultdict(list)
    younger: dict[tuple[str, ...], list[Case]] = defaultdict(list)
    for found, members in ((groups, [c for c in scored if c.key in left_out["source"]]), (younger, after_fit(scored))):
        for case in members:
            for group in left_out_groups(case):
                found[group].append(case)
    if kind != "serving":
        left_out.pop("GPU", None)
    whose = {"source": {"training": "publisher", "kernels": "GPU"}.get(kind, "source")}
    label = ("quantity", "mode") if kind == "serving" else ("group" if kind == "kernels" else "source",)
    order = sorted(groups.items(), key=lambda item: (not item[0][0].startswith("all"), item[0]))
    titles = {
        "serving": "### Sources and GPUs left out",
        "training": "### Publishers left out",
        "kernels": "### GPUs left out",
    }
    yield titles.get(kind, "### Sources left out")
    yield UNSEEN[kind]
    names = [f"{whose.get(what, what)} out: {figure}" for what in left_out for figure in ERRORS]
    yield table(
        (*label, "rows", *ERRORS, *names),
        [
            (
                *group,
                len(members),
                *error_figures([c.prediction.error or 0.0 for c in members]),
                *(f for errors in left_out.values() for f in error_figures([errors[c.key] for c in members])),
            )
            for group, members in order
        ],
    )
    if younger:
        yield "### Sources younger than the fit"
        yield "No constant has seen a row of these sources."
        yield table(
            (*label, "rows", *ERRORS),
            [
                (*group, len(members), *error_figures([c.prediction.error or 0.0 for c in members]))
                for group, members in sorted(
                    younger.items(), key=lambda item: (not item[0][0].startswith("all"), item[0])
                )
            ],
        )
    yield UNMET[kind]


def section(kind: str, predicted: list[Case]) -> Iterator[str]:
    """Everything about one kind."""
    yield f"## {kind} (benchmarks/truth/{kind}.csv)"
    for view, key in VIEWS[kind].items():
        rows = []
        for name, own in quantities(predicted).items():
            groups: dict[str, list[Case]] = defaultdict(list)
            for case in own:
                groups[key(case)].append(case)
            rows += [(group, name, *figures(members)) for group, members in sorted(groups.items())]
        yield f"### By {view}"
        yield table((view, "quantity", *HEADERS), rows)
    if kind in UNSEEN:
        yield from left_out_section(kind, [c for c in predicted if c.prediction.error is not None])
    if kind in CHECKED:
        yield from class_section(predicted)
    if kind == "memory":
        yield from memory_constants()
    yield "### Farthest off"
    far = worst([c.prediction for c in predicted], WORST)
    yield table(
        ("row", "quantity", "measured", "predicted", "error"),
        [
            (p.id, p.quantity or p.unit, f"{p.measured:.4g}", f"{p.predicted:.4g}", percent(p.error, signed=True))
            for p in far
        ],
    )
    missing = reasons(c.prediction for c in predicted)
    if missing:
        yield f"### Skipped: {sum(count for _, count in missing)}"
        yield table(("rows", "why"), [(count, why) for why, count in missing[:MOST_REASONS]])
        if len(missing) > MOST_REASONS:
            yield f"and {len(missing) - MOST_REASONS} more reasons."


CLASSES = {
    "training": """\
A row's class says whether the model is a mixture, and whether all inputs were published. What nobody published
(recompute, micro-batch, interleaving, sharding, adapters) is taken at the ends of what people do, and the interval
holds both ends. Neither constants nor bands have seen the row's publisher.""",
    "memory": """\
A row's class says what is trained (all weights, adapters, adapters on quantised weights), in whose modules (a
framework's own, or those of transformers), and whether other publishers measured that software with it. What nobody
published is taken at the ends of what people do, and the interval holds both ends. No band has seen the publisher.""",
    "kernels": """\
A row's class is its operation; a GPU stands for a publisher. Neither constants nor bands have seen the row's.""",
    "serving": """\
A row's class says what was measured (throughput, time a token, time to the first token), of what load (a batch, a
server with a number of users, a run with an end, arrivals at a rate, an engine of one user, more requests than
memory holds), of a mixture or not, and what makes its errors larger: `far`, unlike what rates and engines were
fitted to; `ported`, such a server's software on a device of another maker; `replicas`, attention replicas that share
experts. Neither constants nor bands have seen the row's publisher. One publication has nine of ten rows of a class:
what must hold is the share in which a publisher weighs as the square root of its rows, as it does in the bands. A
class of one or two publishers has nobody to judge it.""",
}
HEAD = """\
Predictions against the published measurements in [benchmarks/truth](../truth/README.md), made by `make accuracy`. No
measured figure enters its own prediction (tests/backtests holds that), and no rule knows a row or a source. Errors are
predicted / measured - 1: the median and the 90th percentile of their absolute values, and the median with its sign as
the bias. The interval is the one that every estimate prints; it should hold 80 %."""
JUDGED = """\
Intervals are quantiles of measured / predicted by class (`fit_intervals.py`), of training and GPU-hours under constants
that have not seen a row's source. On families of devices without enough rows they are wider, by what leaving families
and makers out of the calibration costs (`fit_coverage.py`). Judged on sources left out in turn:"""
FITTED = """\
Kernel and collective rates are fitted to the kernels file (`benchmarks/fit_kernels.py`; its section gives each GPU
from the others, too), the few memory constants to the memory file (`benchmarks/fit_memory.py`); their errors here
are those of rows that they have seen. Training has 40 constants fitted to its file (`benchmarks/fit_training.py`),
GPU-hours one (`benchmarks/fit_campaign.py`); their sections give errors on sources left out beside the plain ones.
Serving has 30 constants of its engines fitted to its file (`benchmarks/fit_serving.py`); the rest is what kernels,
messages and documented engine behaviour add up to, and a few shares that are medians of publications (bandwidth on
TPUs and Trainium; libraries on AMD devices without an engine's kernels; llama.cpp on Intel's GPUs and its first delta
rules). Constants of serving were fitted on 2026-12-01, before the last 149 rows came, those of training on 2026-11-30,
before its last 176. Those of memory have not seen the rows that were added on 2026-11-22 (51), 2026-11-26 (72),
2026-11-30 (145) and 2026-12-01 (20); those of kernels neither the 20 rows of 2026-11-22 nor, but for what a repeated
call finds in the L2 cache, the 234 of 2026-11-30; the rate of links through the host's memory is a mean of seven
machines, two of which are the last 17 rows."""
UNMET = {
    "kernels": """\
What keeps kernels off, and why no constant mends it:

- Experts (25 / 68 % left out, rates of their family): one fixed time and one number of passes stand for many ways of
  sorting tokens. vLLM skips its alignment of tokens where these are few since December 2025 (pull request 29354: +50 to
  +100 % on RTX 5090, RTX PRO 6000 and L40S), its first DeepGEMM and untuned Triton experts on H100 took three times as
  long as predicted (pull request 13932), hpc-ops on an H20 computes few rows at once where others compute 64.
- Messages through hosts: eight L40S take ten times as long as eight RTX 4090, whose bus is the same (1.5 and 15 GB/s).
- Decoding attention of a few tokens of context: whether heads that share keys share a block is the kernel's choice.
- Products of one row in nvfp4 (FlashInfer's CUTLASS on RTX 5090 and GB10, -38 to -55 %), not explained.
- Left out, an H100 leaves its family 66 rows of H20, H200 and H800, an A100 eight of experts.""",
    "serving": """\
What keeps serving rows off, and why no constant mends it:

- Times to a first token of SGLang: means with the first requests' kernel compilation, 2 to 8 s in some runs and none in
  others. No constant was fitted to them: what its host takes to launch an operation of a prompt is fitted to times a
  token and throughput alone. DeepSeek-R1 on B300 (0.5.10, -57 %): 1,024 tokens take 150 to 180 ms, as if no graph held
  them; it was started with symmetric memory, and whether that switches graphs off is not known.
- Times to a first token of DeepSeek-R1 on TensorRT-LLM (-40 %): a lone prompt of 1,024 tokens takes 160 ms on B200 and
  240 to 310 ms on H200 in every layout, so that its host launches several times what is counted for a layer; prompts of
  gpt-oss-120b and Llama take what is predicted.
- A prompt on one of several attention replicas of vLLM (-33 %, DeepSeek-V4 -40 %): the host takes 5 to 20 ms more a
  step than for one replica. Prompts of models with recurrent states are read in two steps there (to a multiple of a
  cache block, and the rest), which is not modelled: the first token is up to twice as late where the host sets the
  pace.
- Runs of few requests at rates near saturation: their answers' lengths vary, the longest go on alone, and rows name the
  mean only.
- DeepSeek-R1 on TensorRT-LLM (up to +150 % in time a token at few users): speculative decoding that rows do not record;
  the same point is twice as slow in another release.
- Intel's GPU Max in llama.cpp of 2024: layers on a second and fourth tile make it up to ten times slower.
- Community runs: models larger than the card's memory, iGPUs that may have run on the CPU.
- Llama 2 and 3 70B in 16 bits on four 40 GB cards: what memory is left for the cache decides, and depends on buffers of
  an engine built for a batch that is not published.
- Attention replicas of mixtures whose requests are all of one length (TensorRT-LLM 1.1 and 1.2 on Hopper: +14 to +84
  % for gpt-oss-120b, where one H100 without replicas is -20 to +24 % off; vLLM's of DeepSeek-V3.2 and
  Qwen3-Coder-480B +44 and +35 %). Columns of TensorRT-LLM's page that are in no fit say the same: 31 figures with
  replicas (Qwen3-235B on B200, GB200, H200, H100 and RTX PRO 6000, DeepSeek-R1 and Llama 4 Maverick on H200) are -15
  to +79 % off, +24 % at the median, 26 without -17 to +31 %, +4 % at the median. Where lengths are drawn, DeepSeek-V3
  on eight GB200 is +4 % off with prompts apart and joined. SGLang's of DeepSeek-V4 are -30 to +9 %, but where weights
  leave a few gigabytes beside them (GB300, V4-Pro: -65 %; the share of memory in use is not stated).
- Whole requests (latency_s) are measured of fixed batches and of single streams, and of 23 loads of servers; of most
  batches it is the throughput's own measurement, read the other way. The interval of a server's is composed of the
  errors of TTFT and TPOT, and on the 559 rows with both it would hold 86 % of TTFT + (n - 1) x TPOT.
- Mixtures with hundreds of users on Hopper (+30 to +100 % in throughput): vLLM and SGLang multiply experts in kernels
  whose tiles are tuned for some shapes only, and runs do not say for which.
- MI300X: vLLM's own builds for it with limits on sequences that tables do not state (-40 to -60 % in throughput), and
  mixtures "as they come" (+40 to +260 %): what tuning of its libraries is worth, runs do not say.
- Prompts whose length is not stated (taken at 512 tokens), and prompts that are the same each time, of which a prefix
  cache serves all but the first (A100 PCIe, +150 to +600 % in the first token).
- Long contexts in transformers (-40 to -57 % in time a token from 32,000 tokens on): what custom code of a model copies
  beyond the cache and its heads is not known.
- Llama 2 70B on Trainium and encoders on Inferentia: one vendor's tables, of which batches and copies are read.
- DeepSeek-V4 far beyond its memory, four RTX 3090 on PCIe (+35 %), linear attention in llama.cpp on Metal (+122 %),
  split pools (skipped).""",
    "training": """\
What keeps training rows off, and why no constant mends it:

- Mixtures of experts: fused experts' kernels begin with Megatron-Bridge 0.5 (June 2026, by the row's month); within one
  release B200 in x86 nodes lies 30 to 70 % below GB200 until spring 2026, one run on H100 took twice the time of the
  release before it at the same layout, and DeepSeek-V3 on GB300 runs whole iterations as one graph from June on.
- Qwen3-235B on H800 with eight stages (+7 to +30 %; with 32, -20 to 0 %): its memory was full.
- GH200 of JUPITER (+25 to +90 %, at four GPUs as at 4,096): 680 W for GPU, CPU and memory together, of which the GPU's
  part is not published. PyTorch/XLA on TPU v6e (+10 to +80 %; MaxText there is met within 10 %), frameworks of
  PaddleNLP, InternEvo and Colossal-AI (+10 to +55 %) and prime-rl are slower than what vendors tune.
- Megatron as people run it (+10 to +30 % on GH200, B300 and MI350X, small models too): what its documented defaults
  leave open, sources do not state. NVIDIA's recipes are 5 to 20 % faster than estimated where dense models train on
  H100: a constant of their own for fused kernels mends that, but NVIDIA's rows alone know it, and without them mixtures
  were 22 % off at the median instead of 14 %. None is kept.
- BigScience at tp 8 with micro-batches of 1 and 2 (+13 to +33 %): at tp 4 and below, and at micro-batch 4, the same
  table is met within 11 %; its second iteration was read.
- ZeRO 3 over the PCIe slots of rented machines (+35 to +60 % on RTX A5000, RTX 6000 Ada and one pair of RTX 3090):
  their lanes are not published; the same software is met within 13 % where weights are not gathered.
- DeepSpeed ZeRO 3 on 384 and more GPUs: one source knows how slow its gathers are; left out, they are too fast.
- RTX 4090: one source; left out, families stand in for one another.
- Hybrids of Nemotron 3 under Megatron (+10 to +55 %, beside NVIDIA's on Isambard, too; under PyTorch -25 to -45 %): the
  backward pass of Mamba's scan is measured nowhere; NVFP4 recipes keep most of Super's products in wider formats.
- GPT-OSS in bf16 (+13 to +55 %, by four publishers), its biases and its clamped activation counted.
- AutoModel with adapters in pipelines (+70 to +150 %).
- Gaudi under DeepSpeed's ZeRO 2 (+30 to +50 %), Trainium's published Llamas (+40 to +85 %), MI300X under PyTorch of
  early 2025 (+50 to +80 %): AMD's own Megatron of the same year is met within 11 %.
- NeMo fine-tuning: attention stays within SQuAD's documents, whose lengths are those of the paper; what is left is full
  fine-tuning of Llama 2 7B (+13 %) and, without published interleaving, of 13B in four stages.""",
    "gpu-hours": """\
What keeps these rows off: hours of the steps are those of the fastest layout that the search finds, unless a row states
its own; the share of a campaign's hours that its steps are goes by what they cover (`train_campaign_frac`: a project,
its main run alone, a family of models), and cards seldom say. Llama 3.2 was pruned and distilled from larger models,
Llama 3 and 3.1 8B count far more than their steps, and OPT-175B's hours are calendar days with 35 restarts.""",
}


FIRST_ROWS_END = {
    "training": "neuron-trn1-bert-ph1-n16",
    "memory": "unsloth-tinyllama-alpaca-packed",
}
"""By kind, the last of the rows that the project began with (2026-11-22). Rows come to a file's end, in the order in
which they were collected."""
GOALS = {"training dense": (0.085, 0.23), "training mixture": (0.14, 0.34), "memory": (0.12, 0.32)}
"""Median and 90th percentile that the first rows are to be met within, left out."""


def row_sets(kinds: Mapping[str, Sequence[Case]]) -> Iterator[str]:
    """Errors on what was left out, of the rows that the project began with and of those that came later."""
    training, memory = unseen_errors("training"), software_errors()
    training |= {case.key: case.prediction.error or 0.0 for case in after_fit(kinds["training"])}
    errors: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for case in kinds["training"]:
        if case.key in training:
            errors[f"training {_mixture(case)}"].append((case.prediction.id, training[case.key]))
    errors["memory"] = list(memory.items())
    order = {kind: [case.prediction.id for case in cases_] for kind, cases_ in kinds.items() if kind in FIRST_ROWS_END}
    rows = []
    for what, own in sorted(errors.items()):
        kind = what.partition(" ")[0]
        first = set(order[kind][: order[kind].index(FIRST_ROWS_END[kind]) + 1])
        sets = {"first": [e for name, e in own if name in first], "later": [e for name, e in own if name not in first]}
        for name, some in {**sets, "all": [e for _, e in own]}.items():
            goal = " / ".join(percent(one) for one in GOALS[what]) if name == "first" else ""
            rows.append((what, name, len(some), *error_figures(some), goal))
    yield "## Rows by the time they came"
    yield (
        "The first rows are those that the project began with, on 2026-11-22; goals were set for them. Training is "
        "predicted by constants that have not seen the publisher, memory by the nearest of other software."
    )
    yield table(("kind", "rows that came", "rows", *ERRORS, "goal (median / 90 %)"), rows)


@cache
def software_errors() -> dict[str, float]:
    """Errors of memory where a row's software is left out, by row."""
    return software_left_out(measurements(BACKTESTS["memory"], TRUTH / "memory.csv"), load_facts())


def unknown_software() -> str:
    """How far memory is off where a row's software is left out."""
    errors = np.abs(list(software_errors().values()))
    middle, most = (100 * np.quantile(errors, share) for share in (0.5, 0.9))
    return (
        "Memory of software that no row was measured on, predicted by the documented columns of the nearest of other "
        f"software: median {middle:.1f} %, 90th percentile {most:.1f} % of {len(errors)} rows."
    )


def memory_constants() -> Iterator[str]:
    """Which rows depend on each constant of a stack's memory."""
    rows = measurements(BACKTESTS["memory"], TRUTH / "memory.csv")
    yield "### Rows that decide the constants of memory"
    yield (
        "Each column of data/stacks.json taken back in all software: the rows whose prediction moves by more than 1 %, "
        "by publisher, and their median error with and without it. What one publisher alone decides rests on the "
        "source that data/stacks.json names for it, not on rows."
    )
    lines = []
    for one in dependences(rows, load_facts()):
        whose = ", ".join(f"{publisher} {count}" for publisher, count in one.rows.items())
        lines.append((one.constant, sum(one.rows.values()), whose, percent(one.before), percent(one.after)))
    yield table(("constant", "rows", "by publisher", "median error", "taken back"), lines)


def report(kinds: dict[str, list[Case]]) -> str:
    """The whole report."""
    parts = [
        "# Accuracy",
        HEAD,
        *overview(kinds),
        JUDGED,
        coverage(kinds),
        FITTED,
        unknown_software(),
        *row_sets(kinds),
    ]
    for kind, predicted in kinds.items():
        parts.extend(section(kind, predicted))
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Write the report; fail where a class of intervals does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parent / "REPORT.md")
    given = parser.parse_args()
    kinds = {kind: cases(kind) for kind in KINDS}
    given.output.write_text(report(kinds), encoding="utf-8")
    if failing := failing_classes(kinds):
        raise SystemExit("\n".join(failing))


if __name__ == "__main__":
    main()
