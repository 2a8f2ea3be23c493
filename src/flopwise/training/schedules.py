"""Pipeline schedules: what each leaves idle, and how many micro-batches each stage keeps for the backward pass.

A schedule is two small functions and a row of `SCHEDULES`. Bubbles are stated for a backward pass in two halves:
towards the input, which the stage before waits for, and towards the weights, which nothing waits for. All stages end
with a common optimizer step: gradient norms couple them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flopwise.errors import SpecError, nearest_names
from flopwise.ops.types import Floats, Ints

if TYPE_CHECKING:
    from flopwise.facts.software import Stack
    from flopwise.training.layout import Layout


class Pipe(NamedTuple):
    """A pipeline: its stages, the chunks of the model on each (virtual stages), and the micro-batches of a step."""

    stages: Ints
    chunks: Ints
    micro_batches: Floats


class Others(NamedTuple):
    """Seconds of one micro-batch on all stages but the busiest: every pass, and its weight gradients' share."""

    total_s: Floats
    weight_s: Floats


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
    found: Floats = others.total_s / pipe.chunks
    short = np.maximum(pipe.stages - pipe.micro_batches, 0.0)
    if np.any(short):
        found = found * (1.0 + short * (pipe.chunks - 1.0) / np.maximum(pipe.stages - 1, 1))
    return found


def zero_bubble_bubble_s(others: Others, pipe: Pipe) -> Floats:
    """ZB-H1: weight gradients fill what 1F1B leaves idle, once while it drains and once by letting others go earlier.

    A stage can put off no more weight gradients than it has micro-batches behind it.

    Source: Qi et al. 2023 (arXiv:2401.10241) section 2.3, table 1: (p - 1)(T_F + T_B - T_W); with chunks: PyTorch's
    ScheduleInterleavedZeroBubble.
    Assumes: the gradient towards the input takes as long as that towards the weights or longer, the forward pass too.
    """
    delayed = np.minimum((pipe.micro_batches - 1.0) / np.maximum(pipe.stages - 1, 1), 1.0)
    return one_f_one_b_bubble_s(Others(others.total_s - (1.0 + delayed) * others.weight_s, others.weight_s), pipe)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One way to order the passes of a step."""

    bubble_s: Callable[[Others, Pipe], Floats]
    in_flight: Callable[[Floats, Pipe], Floats]  # by the number of stages behind
    splits_backward: bool  # weight gradients run on their own
    keeps_losses: bool  # the last stage has the logits of all micro-batches at once
    formula: str  # of the bubble, for as many micro-batches as stages or more
    source: str


OTHERS, WEIGHTS = "all stages but the busiest", "their gradients of weights"
"""What the formulas of bubbles are about."""
SCHEDULES: dict[str, Schedule] = {
    "1f1b": Schedule(
        bubble_s=one_f_one_b_bubble_s,
        in_flight=one_f_one_b_in_flight,
        splits_backward=False,
        keeps_losses=False,
        formula=f"{OTHERS} / interleave",
        source="Narayanan et al. 2021 (arXiv:2104.04473) section 2.2",
    ),
    "gpipe": Schedule(
        bubble_s=gpipe_bubble_s,
        in_flight=gpipe_in_flight,
        splits_backward=False,
        keeps_losses=True,
        formula=f"1 x {OTHERS}",
        source="Huang et al. 2018 (arXiv:1811.06965) section 2.3",
    ),
    "zero-bubble": Schedule(
        bubble_s=zero_bubble_bubble_s,
        in_flight=zero_bubble_in_flight,
        splits_backward=True,
        keeps_losses=False,
        formula=f"({OTHERS} - 2 x {WEIGHTS}) / interleave",
        source="Qi et al. 2023 (arXiv:2401.10241) section 2.3",
    ),
}
"""By name; `Layout.schedule` is the place in this order. 1F1B with several chunks a stage is the interleaved one."""
NAMES = tuple(SCHEDULES)
ALIASES = {"interleaved": "1f1b", "interleaved-1f1b": "1f1b", "zb-h1": "zero-bubble", "zb1p": "zero-bubble"}
"""Other names of schedules."""


def schedule_code(name: str) -> int:
    """The value of `Layout.schedule` for a schedule's name.

    Raises:
        SpecError: there is no such schedule; says which there are.
    """
    folded = name.strip().lower().replace("_", "-")
    folded = ALIASES.get(folded, folded)
    if folded not in SCHEDULES:
        near = nearest_names(folded, (*NAMES, *ALIASES))
        said = f", nearest: {near[0]}" if near else ""
        raise SpecError(f"unknown schedule {name[:40]!r}{said}; allowed: {', '.join((*NAMES, 'interleaved'))}")
    return NAMES.index(folded)


def quicker_schedules(names: str) -> tuple[int, ...]:
    """Codes of those among `names`, separated by semicolons, that are worth trying beside 1F1B: GPipe never is."""
    found = (SCHEDULES[ALIASES.get(name, name)] for name in names.split(";"))
    quicker = {id(schedule) for schedule in found if schedule.splits_backward}
    return tuple(code for code, schedule in enumerate(SCHEDULES.values()) if id(schedule) in quicker)


def schedule_notes(layout: Layout, software: Stack) -> tuple[str, ...]:
    """What is assumed of a training stack that is not known to run the schedule of a layout."""
    pp, chunks = int(layout.pp), int(layout.interleave)
    name = schedule_text(int(layout.schedule), chunks)
    known = software.schedules.split(";")
    if pp == 1 or name in known or (chunks > 1 and {"interleaved", NAMES[int(layout.schedule)]} <= set(known)):
        return ()
    return (f"{software.name} is not known to run the schedule {name}; it runs {', '.join(known)}",)


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


def any_of(code: Ints, trait: Callable[[Schedule], bool]) -> bool:
    """Whether any candidate's schedule has a trait."""
    return any(trait(SCHEDULES[NAMES[c]]) for c in _codes(code))


def having(code: Ints, trait: Callable[[Schedule], bool]) -> Floats:
    """1.0 where a candidate's schedule has a trait, else 0.0."""
    return _by_code(code, lambda schedule: float(trait(schedule)))


def _codes(code: Ints) -> list[int]:
    return [code] if isinstance(code, int) else sorted(set(np.ravel(code).tolist()))


def _by_code(code: Ints, value: Callable[[Schedule], Floats]) -> Floats:
    """`value` of each candidate's schedule; evaluated once for each schedule that occurs."""
    first, *rest = _codes(code)
    found = value(SCHEDULES[NAMES[first]])
    for other in rest:
        found = np.where(np.asarray(code) == other, value(SCHEDULES[NAMES[other]]), found)
    return found
