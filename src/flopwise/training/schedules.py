"""Pipeline schedules: what each leaves idle, and how many micro-batches each stage keeps for the backward pass.

A schedule is two small functions and a row of `SCHEDULES`. Bubbles are stated for a backward pass in two halves:
towards the input, which the stage before waits for, and towards the weights, which nothing waits for. All stages end
with a common optimizer step: gradient norms couple them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flopwise.errors import SpecError, nearest_names
from flopwise.ops.types import Floats, Ints
from flopwise.values import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Pipe(NamedTuple):
    """A pipeline: its stages, the chunks of the model on each (virtual stages), and the micro-batches of a step."""

    stages: Ints
    chunks: Ints
    micro_batches: Floats


class Others(NamedTuple):
    """Seconds of one micro-batch on all stages but the busiest: every pass; of it weight gradients, forward passes."""

    total_s: Floats
    weight_s: Floats
    forward_s: Floats = 0.0


def gpipe_bubble_s(others: Others, pipe: Pipe) -> Floats:
    """All forward passes, then all backward passes: every other stage is waited for once.

    Source: Huang et al. 2018 (arXiv:1811.06965) section 2.3: (p - 1) / (m + p - 1) of the step.
    Assumes: stages of about the same length.
    """
    del pipe
    return others.total_s


def one_f_one_b_bubble_s(others: Others, pipe: Pipe) -> Floats:
    """One forward, one backward in turn; with several chunks a stage, its wait is as many times shorter.

    With fewer micro-batches than stages the chunks of a stage wait for one another as well.

    Source: Narayanan et al. 2021 (arXiv:2104.04473) section 2.2: (p - 1)(f + b) / v.
    Assumes: stages of about the same length.
    """
    if np.max(pipe.chunks) == 1:
        return others.total_s
    idle_s: Floats = others.total_s / pipe.chunks
    short = np.maximum(pipe.stages - pipe.micro_batches, 0.0)
    if np.any(short):
        idle_s = idle_s * (1.0 + short * (pipe.chunks - 1.0) / np.maximum(pipe.stages - 1, 1))
    return idle_s


def zero_bubble_bubble_s(others: Others, pipe: Pipe) -> Floats:
    """ZB-H1: weight gradients fill what 1F1B leaves idle, once while it drains and once by letting others go earlier.

    A stage can put off no more weight gradients than it has micro-batches behind it.

    Source: Qi et al. 2023 (arXiv:2401.10241) section 2.3, table 1: (p - 1)(T_F + T_B - T_W); with chunks: PyTorch's
    ScheduleInterleavedZeroBubble.
    Assumes: the gradient towards the input takes as long as that towards the weights or longer, the forward pass too.
    """
    delayed = np.minimum((pipe.micro_batches - 1.0) / np.maximum(pipe.stages - 1, 1), 1.0)
    return one_f_one_b_bubble_s(others._replace(total_s=others.total_s - (1.0 + delayed) * others.weight_s), pipe)


def v_shaped_bubble_s(others: Others, pipe: Pipe) -> Floats:
    """ZB-V: two chunks a rank, the model folded like a V; only the way down to the last rank and back is left idle.

    Half of what the passes towards the input take, or all of it less the weight gradients that fit in between.

    Source: Qi et al. 2023 (arXiv:2401.10241) section 6, with a common optimizer step at the end; closed form found for,
    and held in the tests against, the order of passes in PyTorch's ScheduleZBVZeroBubble.
    Assumes: the pass towards the input takes as long as the forward pass or longer, and that as long as the gradients
    of weights or longer; twice as many micro-batches as stages, or more.
    """
    del pipe
    inputs = others.total_s - others.forward_s - others.weight_s
    return np.maximum(0.5 * inputs, inputs - others.weight_s)


def both_ways_bubble_s(others: Others, pipe: Pipe) -> Floats:
    """DualPipe: half of the micro-batches from either end of the pipeline, so that it is half as long.

    Source: DeepSeek-V3 report (arXiv:2412.19437) table 2: (p/2 - 1)(F&B + B - 3W), B the whole backward pass, F&B a
    forward and a backward pass that run as one.
    Assumes: F&B takes as long as both; a pass towards the input as long as the forward pass (less is idle where it
    takes longer); as many chunks of micro-batches each way.
    """
    share = np.maximum(0.5 * pipe.stages - 1.0, 0.0) / np.maximum(pipe.stages - 1, 1)
    return share * _paired_bubble_s(others)


def folded_both_ways_bubble_s(others: Others, pipe: Pipe) -> Floats:
    """DualPipe cut in half: the model folded like a V over half of its ranks, with no second copy of the weights.

    Source: DeepSeek, github.com/deepseek-ai/DualPipe: (p/2 - 1)(F&B + B - 3W) for p chunks, two a rank.
    Assumes: as `both_ways_bubble_s`.
    """
    del pipe
    return 0.5 * _paired_bubble_s(others)


def _paired_bubble_s(others: Others) -> Floats:
    """F&B + B - 3W of all stages but the busiest."""
    return np.maximum(2.0 * others.total_s - others.forward_s - 3.0 * others.weight_s, 0.0)


def gpipe_in_flight(behind: Floats, pipe: Pipe) -> Floats:
    """All micro-batches of the step.

    Source: Huang et al. 2018 (arXiv:1811.06965) section 2.3.
    Assumes: activations of every micro-batch are kept; rematerialisation is the layout's recompute.
    """
    del behind
    return pipe.micro_batches


def one_f_one_b_in_flight(behind: Floats, pipe: Pipe) -> Floats:
    """As many as there are stages `behind`, and one; with several chunks, more of them for shorter.

    Source: Narayanan et al. 2021 (arXiv:2104.04473) section 2.2; Megatron-LM's warm-up of interleaved schedules.
    Assumes: chunks alike.
    """
    plain: Floats = np.minimum(behind + 1.0, pipe.micro_batches)
    if np.max(pipe.chunks) == 1:
        return plain
    chunks = np.where(np.asarray(pipe.stages) > 1, pipe.chunks * 1.0, 1.0)
    most = 2.0 * behind + (chunks - 1.0) * pipe.stages + 1.0
    return np.where(chunks > 1.0, np.minimum(most, pipe.micro_batches * chunks) / chunks, plain)


def zero_bubble_in_flight(behind: Floats, pipe: Pipe) -> Floats:
    """As many on every stage as 1F1B keeps on its first: what waits for its weight gradients stays.

    Source: Qi et al. 2023 (arXiv:2401.10241) section 2.3 and table 1: p M_B.
    Assumes: what weight gradients need is as large as what the whole backward pass needs.
    """
    del behind
    return np.minimum(pipe.stages * 1.0, pipe.micro_batches)


def both_ways_in_flight(behind: Floats, pipe: Pipe) -> Floats:
    """One more than there are stages, on every rank: that of the forward pass beside a backward pass.

    Source: DeepSeek-V3 report (arXiv:2412.19437) table 2.
    Assumes: what a backward pass needs goes when it ends.
    """
    del behind
    return np.minimum(pipe.stages + 1.0, pipe.micro_batches)


def folded_both_ways_in_flight(behind: Floats, pipe: Pipe) -> Floats:
    """Micro-batches that a rank keeps: ranks + 1/2, for it keeps 2 x ranks + 1 chunks, each half of its layers.

    Source: DeepSeek, github.com/deepseek-ai/DualPipe: p + 1 for p chunks, two a rank.
    Assumes: as `both_ways_in_flight`.
    """
    del behind
    return np.minimum(pipe.stages + 0.5, pipe.micro_batches)


@dataclass(frozen=True, slots=True)
class PipelineSchedule:
    """One way to order the passes of a step."""

    bubble_s: Callable[[Others, Pipe], Floats]
    in_flight: Callable[[Floats, Pipe], Floats]  # by the number of stages behind
    _: KW_ONLY
    formula: str  # of the bubble, for as many micro-batches as stages or more
    source: str
    splits_backward: bool = False  # weight gradients run on their own
    keeps_losses: bool = False  # the last stage has the logits of all micro-batches at once
    chunks: int = 1  # of the model on each rank, of its own: 2 where the model is folded like a V
    copies: int = 1  # of each stage's weights: 2 where micro-batches come from both ends
    pairs: bool = False  # forward passes run beside backward passes of other micro-batches, and hide their messages
    fill: int = 0  # micro-batches for each stage that it needs at least


OTHERS, WEIGHTS, FORWARD = "all stages but the busiest", "their gradients of weights", "their forward passes"
"""What the formulas of bubbles are about."""
SCHEDULES = {
    "1f1b": PipelineSchedule(
        one_f_one_b_bubble_s, one_f_one_b_in_flight,
        formula=f"{OTHERS} / interleave", source="Narayanan et al. 2021 (arXiv:2104.04473) section 2.2",
    ),
    "gpipe": PipelineSchedule(
        gpipe_bubble_s, gpipe_in_flight, keeps_losses=True,
        formula=f"1 x {OTHERS}", source="Huang et al. 2018 (arXiv:1811.06965) section 2.3",
    ),
    "zero-bubble": PipelineSchedule(
        zero_bubble_bubble_s, zero_bubble_in_flight, splits_backward=True,
        formula=f"({OTHERS} - 2 x {WEIGHTS}) / interleave", source="Qi et al. 2023 (arXiv:2401.10241) section 2.3",
    ),
    "zb-v": PipelineSchedule(
        v_shaped_bubble_s, zero_bubble_in_flight, splits_backward=True, chunks=2, fill=2,
        formula=f"max(0.5 x inputs, inputs - {WEIGHTS}), inputs = {OTHERS} - {FORWARD} - {WEIGHTS}",
        source="Qi et al. 2023 (arXiv:2401.10241) section 6",
    ),
    "dualpipe": PipelineSchedule(
        both_ways_bubble_s, both_ways_in_flight, splits_backward=True, copies=2, pairs=True, fill=2,
        formula=f"(2 x {OTHERS} - {FORWARD} - 3 x {WEIGHTS}) x (stages / 2 - 1) / (stages - 1)",
        source="DeepSeek-V3 report (arXiv:2412.19437) table 2",
    ),
    "dualpipe-v": PipelineSchedule(
        folded_both_ways_bubble_s, folded_both_ways_in_flight, splits_backward=True, chunks=2, pairs=True, fill=2,
        formula=f"(2 x {OTHERS} - {FORWARD} - 3 x {WEIGHTS}) / 2",
        source="github.com/deepseek-ai/DualPipe, README (2025)",
    ),
}  # fmt: skip
"""By name; `Layout.schedule` is the place in this order. 1F1B with several chunks a stage is the interleaved one."""
NAMES = tuple(SCHEDULES)
INTERLEAVED = "interleaved"
"""1F1B with at least two chunks a rank."""
ALIASES = {
    "interleaved-1f1b": INTERLEAVED, "zb-h1": "zero-bubble", "zb1p": "zero-bubble", "zbv": "zb-v",
    "dualpipev": "dualpipe-v",
}  # fmt: skip
"""Other names of schedules."""


def schedule_name(name: str) -> str:
    """The name of a schedule, one of `NAMES` or `INTERLEAVED`, by any of its names however it is spelt.

    Raises:
        SpecError: there is no such schedule; says which there are.
    """
    folded = name.strip().lower().replace("_", "-")
    folded, allowed = ALIASES.get(folded, folded), (*NAMES, INTERLEAVED)
    if folded not in allowed:
        near = nearest_names(folded, (*allowed, *ALIASES))
        nearest = f", nearest: {near[0]}" if near else ""
        raise SpecError(f"unknown schedule {name[:40]!r}{nearest}; allowed: {', '.join(allowed)}")
    return folded


def schedule_code(name: str) -> int:
    """The value of `Layout.schedule` for a schedule's name. Raises: as `schedule_name`."""
    known = schedule_name(name)
    return 0 if known == INTERLEAVED else NAMES.index(known)


PAIRED_LATE = 1.25
"""Micro-batches for each stage whose passes DualPipe runs alone, while the pipeline fills and drains.

Source: counting in the order of github.com/deepseek-ai/DualPipe, on average over its ranks (tests).
"""


def paired_frac(code: Ints, pipe: Pipe) -> Floats:
    """Share of a step's micro-batches whose forward pass runs beside another's backward pass; broadcasts.

    Source: `PAIRED_LATE`. Assumes: ranks alike.
    """
    alone = PAIRED_LATE * pipe.stages / np.maximum(pipe.micro_batches, 1.0)
    return having(code, lambda schedule: schedule.pairs) * np.maximum(1.0 - alone, 0.0)


def runs(code: int, pipe: Pipe, layers: int) -> NDArray[np.bool_]:
    """True for pipelines that a schedule can run, of those with one chunk a rank; shape of the columns.

    Source: DeepSeek, github.com/deepseek-ai/DualPipe (micro-batches), of which ZB-V needs as many to fill. Assumes:
    nothing further.
    """
    one = SCHEDULES[NAMES[code]]
    stages, micros = np.asarray(pipe.stages), np.asarray(pipe.micro_batches)
    even = (stages % 2 == 0) & (micros % 2 == 0) if one.copies > 1 else np.ones(stages.shape, dtype=bool)
    able: NDArray[np.bool_] = even & (stages > 1) & (stages * one.chunks <= layers) & (micros >= one.fill * stages)
    return able


def schedule_text(code: int, chunks: int) -> str:
    """The name of a schedule as people say it."""
    name = NAMES[code]
    if chunks == 1:
        return name
    return "interleaved" if name == "1f1b" else f"interleaved {name}"


def bubble_s(code: Ints, others: Others, pipe: Pipe) -> Floats:
    """Seconds a step that the busiest stage waits, under schedule `code`; broadcasts.

    Source and assumptions: those of each schedule.
    """
    return _by_code(code, lambda schedule: schedule.bubble_s(others, pipe))


def in_flight(code: Ints, behind: Floats, pipe: Pipe) -> Floats:
    """Micro-batches that a stage keeps with `behind` stages after it, under schedule `code`; broadcasts.

    Source and assumptions: those of each schedule.
    """
    return _by_code(code, lambda schedule: schedule.in_flight(behind, pipe))


def any_of(code: Ints, trait: Callable[[PipelineSchedule], bool]) -> bool:
    """True if any candidate's schedule has a trait."""
    return any(trait(SCHEDULES[NAMES[c]]) for c in _codes(code))


def copies(code: Ints, stages: Ints) -> Floats:
    """Number of stages whose weights a rank holds; ranks with the same stage share its optimizer states."""
    if not any_of(code, lambda schedule: schedule.copies > 1):
        return 1.0
    return np.where(np.asarray(stages) > 1, having(code, lambda schedule: schedule.copies), 1.0)


def having(code: Ints, trait: Callable[[PipelineSchedule], float]) -> Floats:
    """1.0 where a candidate's schedule has a trait, else 0.0; a trait that is a number, as it is."""
    return _by_code(code, lambda schedule: float(trait(schedule)))


def _codes(code: Ints) -> list[int]:
    return [code] if isinstance(code, int) else sorted(set(np.ravel(code).tolist()))


def _by_code(code: Ints, value: Callable[[PipelineSchedule], Floats]) -> Floats:
    """`value` of each candidate's schedule; evaluated once for each schedule that occurs."""
    first, *rest = _codes(code)
    chosen = value(SCHEDULES[NAMES[first]])
    for other in rest:
        chosen = np.where(np.asarray(code) == other, value(SCHEDULES[NAMES[other]]), chosen)
    return chosen
