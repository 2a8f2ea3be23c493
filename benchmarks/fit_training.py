"""Fit the constants of a training step to benchmarks/truth/training.csv; each publisher is left out in turn.

python benchmarks/fit_training.py            report errors, plain and with each publisher left out
python benchmarks/fit_training.py --write    write the values, and the errors of left-out publishers

Each is a parameter of the calibration or a fitted value of training stacks that several share; none belongs to a row, a
source or one model of GPU. A row weighs one over the square root of its source's rows. Errors are judged on publishers
that were left out: releases of one table share their tuning. What a power limit leaves of large products (`PRODUCTS`)
was measured without a training step around it, and stands beside the runs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

import fitting
from flopwise.backtests.prediction import Row, number
from flopwise.backtests.training import row_job
from flopwise.cost.precisions import LOW_PRECISIONS
from flopwise.cost.rates import Rates, families, rates
from flopwise.cost.sustained import ATTENTION, grouped_kernel, limited_rates, permute_kind
from flopwise.errors import FlopwiseError
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.architecture import Model, Recurrence
from flopwise.facts.catalog import Facts
from flopwise.fitting.deployment import even_weights, moved_records
from flopwise.fitting.robust import STEP, Array, Constant, Fit, FitModel, error_text, fit
from flopwise.training.estimate import single_parts, single_table
from flopwise.training.job import TrainJob
from flopwise.values import dataclass

ROUNDS = 8
LEAST_GAIN = 2e-4  # of the loss, for another round
SINGLE_KERNELS = ("unsloth", "hf-trainer-liger", "axolotl-liger")
"""Stacks with hand-written kernels for single operations; their other operations are eager."""


@dataclass(frozen=True)
class PublishedRun:
    """One published run."""

    id: str
    source: str
    publisher: str
    job: TrainJob
    measured: float

    @property
    def chip(self) -> Accelerator:
        """The accelerator that it ran on."""
        return self.job.cluster.accelerator


@dataclass(frozen=True)
class MeasuredProduct:
    """The best large product in 16 bits on a card that its own power limit slows, as a share of the peak rate."""

    id: str
    source: str
    publisher: str
    chip: Accelerator
    measured: float


PRODUCTS = (
    ("L40S", 0.743, "zzc0721/torch-performance-test-data"),
    ("RTX 6000 Ada", 0.770, "mag-/gpu_benchmark"),
    ("H100-PCIe", 0.660, "mag-/gpu_benchmark"),
    ("H100-NVL", 0.585, "mag-/gpu_benchmark"),
    ("A100-PCIe-80", 0.822, "mag-/gpu_benchmark"),
    ("RTX A6000", 0.614, "fanghostt/transformers-benchmarks"),
)
"""Cards, the shares of their peaks, and the repositories that print them. An L4's 0.755 (mag-) is of a run too short
for its 72 W: training and long prompts keep less than that."""


def products(facts: Facts) -> list[MeasuredProduct]:
    """`PRODUCTS`, each on its card."""
    return [
        MeasuredProduct(f"product {name}", source, source, facts.accelerator(name), share)
        for name, share, source in PRODUCTS
    ]


def runs(rows: Iterable[Row], facts: Facts) -> list[PublishedRun]:
    """All runs that can be predicted."""
    usable = []
    for row in rows:
        measured = number(row, "tokens_per_s_per_gpu")
        try:
            job = row_job(row, facts)
        except FlopwiseError:
            continue
        if measured:
            usable.append(PublishedRun(row["id"], row["study"], row["publisher"], job, measured))
    return usable


class TrainingModel(FitModel):
    """Log errors of runs and products as a function of the constants' logarithms; equal arguments are computed once."""

    def __init__(self, published: Sequence[PublishedRun | MeasuredProduct], facts: Facts) -> None:
        """Keep the runs and products."""
        self.runs, self.facts, self.constants = published, facts, constants(facts)
        self.weights = even_weights([r.source for r in published])
        self.groupings = [r.publisher for r in published], [r.source for r in published]
        self._computed: dict[bytes, Array] = {}

    def errors(self, point: Array) -> Array:
        """log(predicted / measured) of every run."""
        key = np.round(point, 9).tobytes()
        if key not in self._computed:
            self._computed[key] = self._errors(point)
        return self._computed[key]

    def _errors(self, point: Array) -> Array:
        values = self.values(point)
        table = fitting.moved_calibration(self.facts.calibration, values)
        stacks = moved_records(self.facts.stacks, "stacks", values)
        fitted = {constant.name for constant in self.constants if constant.table == "stacks"}
        chips: dict[str, Rates] = {}
        errors = []
        for run in self.runs:
            chip = run.chip
            if chip.name not in chips:
                chips[chip.name] = rates(chip, table)
            if isinstance(run, MeasuredProduct):
                errors.append(math.log(limited_rates(chips[chip.name]).value["matmul_frac.bf16"] / run.measured))
                continue
            layout, recipe = run.job.layout, run.job.recipe
            # of the run's own stack: it says which of its habits the run and its device have
            stack = replace(recipe.stack, **{name: getattr(stacks[recipe.stack.name], name) for name in fitted})
            moved = replace(
                run.job, cluster=replace(run.job.cluster, rates=chips[chip.name]), recipe=replace(recipe, stack=stack)
            )
            step_s = sum(single_parts(single_table(moved), layout).values())
            tokens = recipe.global_batch * recipe.seq_len
            errors.append(math.log(tokens / step_s / int(layout.num_gpus) / run.measured))
        return np.array(errors)

    def slopes(self, point: Array) -> Array:
        """Derivatives of the errors; runs that a constant cannot move are not computed for it."""
        columns = np.zeros((len(self.runs), len(self.constants)))
        for index in range(len(self.constants)):
            own = self._moved_by(index)
            columns[own, index] = self.only(own).slope(point, index) if own else 0.0
        return columns

    def moved_errors(self, errors: Array, point: Array, index: int) -> Array:
        """The errors at `point`; runs that the constant at `index` cannot move are not computed again."""
        own, moved = self._moved_by(index), errors.copy()
        if own:
            moved[own] = self.only(own).errors(point)
        return moved

    def _moved_by(self, index: int) -> list[int]:
        return [i for i, run in enumerate(self.runs) if _moves(self.constants[index], run)]

    def slope(self, point: Array, index: int) -> Array:
        """Derivatives of the errors by one constant, from the side that its bounds leave."""
        step, moved = -STEP if point[index] + STEP > math.log(self.constants[index].high) else STEP, point.copy()
        moved[index] += step
        return (self.errors(moved) - self.errors(point)) / step

    def only(self, members: Sequence[int]) -> TrainingModel:
        """The model of a subset of the runs, with what is known of them."""
        subset = TrainingModel([self.runs[i] for i in members], self.facts)
        subset._computed = {key: errors[list(members)] for key, errors in self._computed.items()}
        return subset

    def groups(self) -> dict[str, list[int]]:
        """Members of each publisher, and of dense models and mixtures that ran."""
        groups: dict[str, list[int]] = defaultdict(list)
        for index, run in enumerate(self.runs):
            groups["all"].append(index)
            if isinstance(run, PublishedRun):
                groups["mixtures" if run.job.model.has_experts else "dense"].append(index)
            groups[run.publisher].append(index)
        return groups


def _moves(constant: Constant, run: PublishedRun | MeasuredProduct) -> bool:
    """True if a constant enters the step of a run, or the rate of a product, at all."""
    if isinstance(run, MeasuredProduct):
        return constant.name in {"train_joules_per_flop", "train_clock_exponent"} and _scoped(constant, run.chip)
    recipe, layout, experts = run.job.recipe, run.job.layout, run.job.model.has_experts
    stack = recipe.stack
    if constant.table == "stacks":
        sends = {
            "tp_overlap": int(layout.tp) > 1, "ep_overlap": experts, "routing_s": experts, "counts_s": experts,
            "dp_overlap": int(layout.dp) * int(layout.cp) > 1, "message_frac": int(layout.dp) * int(layout.cp) > 1,
            "cast_passes": recipe.precision in LOW_PRECISIONS,
        }  # fmt: skip
        return stack.name in constant.scopes and sends.get(constant.name, True)
    if constant.name.startswith("train_permute"):
        return experts and constant.name.endswith(f".{permute_kind(stack)}")
    if "_grouped_" in constant.name:
        return experts and constant.name.endswith(f".{grouped_kernel(stack, recipe.precision)}")
    if constant.name.startswith("train_attention"):  # a scan's kernels go by flash attention 2
        used = ATTENTION[stack.attention_kernel] + (ATTENTION["fa2"] if _has_scan(run.job.model) else ())
        if constant.name not in used:
            return False
    return _scoped(constant, run.chip)


def _scoped(constant: Constant, chip: Accelerator) -> bool:
    """True if the value that holds for a device is the constant's."""
    return chip.calibration.find(constant.name, (*families(chip), "any")).scope in constant.scopes


def _has_scan(model: Model) -> bool:
    """True if a model has a linear recurrence."""
    return any(isinstance(item, Recurrence) for stack in model.stacks for item in stack.items)


def constants(facts: Facts) -> tuple[Constant, ...]:
    """The constants to fit, each with its prior, its range and the rows that share it."""
    stacks = facts.stacks
    fused = tuple(n for n, s in stacks.items() if s.activations == "fused" and n not in SINGLE_KERNELS)
    eager = tuple(n for n in stacks if n not in fused)
    engine = tuple(n for n, s in stacks.items() if s.attention_kernel.startswith("cudnn"))
    torch_fused = tuple(n for n in stacks if n in fused and n not in engine)
    torch_eager = tuple(n for n in stacks if n in eager and n not in engine)
    overlapped = tuple(n for n, s in stacks.items() if s.dp_overlap > 0)
    overlapping = ("nemo", "nemo-2026", "nanotron", "fast-llm", "xla", "in-house", "hai-llm")
    stack = partial(Constant, table="stacks")
    return (
        # where products alone reach what ml-engineering's table of maximum achievable matmul FLOPS has: 267 of 312
        # TFLOP/s in 400 W, 794 of 989 in 700 W, 1,745 of 2,250 in 1,000 W
        Constant("train_joules_per_flop", ("ampere",), 1.2e-12, 0.3e-12, 3e-12, 0.3),
        # made in a process of its own: an RTX A6000's 300 W let through 95 of 155 TFLOP/s (mli/transformers-benchmarks)
        Constant("train_joules_per_flop", ("ampere-rtx",), 3.1e-12, 0.8e-12, 6e-12, 0.1),
        # Ada's and Blackwell's cards keep the prior of Hopper's process: an L4 reaches 0.755 of its peak within 72 W by
        # it, while runs on an L40S, whose clock is a quarter higher, would have 1.4e-12; one value cannot serve both
        Constant("train_joules_per_flop", ("hopper",), 0.85e-12, 0.2e-12, 3e-12, 0.3),
        Constant("train_joules_per_flop", ("blackwell",), 0.52e-12, 0.1e-12, 3e-12, 0.3),
        Constant("train_joules_per_flop", ("any",), 1.2e-12, 0.2e-12, 6e-12, 0.5),
        # 1/3 where voltage falls as the clock does, 1 where it cannot; prompts of an RTX 3090 at 250 W and of a 5090 at
        # 400 keep 0.86 and 0.84 of their rate (club-3090, docs/HARDWARE.md), which is 0.8
        Constant("train_clock_exponent", ("any",), 0.65, 0.33, 1.0, 0.2),
        Constant("train_scaled_frac", ("any",), 0.9, 0.5, 1.0, 0.3),
        # FlashAttention-2 (arXiv 2307.08691) abstract and section 4.1: 1.3 to 2.5 times the Triton version of the
        # first; stacks of 2023 ran either
        Constant("train_attention_first", ("any",), 0.75, 0.3, 1.0, 0.3),
        # its instructions are those of all cards with GDDR memory, too
        Constant("train_attention_frac.fa2", ("ampere", "ampere-rtx", "ada", "blackwell-rtx"), 0.5, 0.1, 0.9),
        # three quarters of what the kernel reaches alone, for layouts and what else stands beside it in training: 0.37
        # of an H100 by FlashAttention-3 (arXiv 2407.08608), figures 5 and 6; 0.19 of B200 and GB300 by the repository
        # NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training/artifacts, 2025
        Constant("train_attention_frac.fa2", ("hopper",), 0.28, 0.08, 0.9, 0.2),
        Constant("train_attention_frac.fa2", ("blackwell",), 0.14, 0.05, 0.9, 0.2),
        Constant("train_attention_frac.fa2", ("any",), 0.3, 0.05, 0.9),
        # three quarters again: alone 0.66 on an H100 in 2024, 0.6 on a B200 and 0.7 on a GB300 in 2025
        Constant("train_attention_frac.cudnn", ("hopper",), 0.5, 0.1, 0.9, 0.3),
        Constant("train_attention_frac.cudnn", ("blackwell",), 0.45, 0.1, 0.9, 0.3),
        # Composable Kernel's flash attention on MI300X: 400 to 500 of 1307 TFLOP/s
        Constant("train_attention_frac.cudnn", ("amd",), 0.35, 0.1, 0.9),
        # exponentials come twice as fast: what is left of the limit is the matrix units'
        Constant("train_attention_frac.cudnn", ("blackwell-ultra",), 0.53, 0.1, 0.9, 0.3),
        # cuDNN 9.18 over what B200 and GB300 reached in 2025, 8,192 to 32,768 tokens: 1.10 to 1.37 (cudnn-frontend)
        Constant("train_attention_late", ("any",), 1.22, 1.0, 1.6, 0.1),
        # a head of 128 pads no array of that side, half of one of 256; softmax takes as long as a side (`score_dims`)
        Constant("train_attention_frac.cudnn", ("tpu",), 2 / 3, 0.1, 1.0),
        Constant("train_attention_frac.cudnn", ("tpu-v6e", "tpu-v7"), 1 / 3, 0.1, 1.0),
        # products of one expert are plain ones: what their size and number cost is priced apart
        Constant("train_grouped_frac.split", ("any",), 0.9, 0.2, 1.0, 0.2),
        Constant("train_grouped_frac.fused", ("any",), 0.9, 0.2, 1.0, 0.2),
        Constant("train_grouped_frac.ragged", ("any",), 0.8, 0.2, 1.0, 0.3),
        # Megatron-Core's all-to-all dispatcher permutes tokens, sorts chunks by expert, and pads what is quantised;
        # after DeepEP one kernel permutes, and HybridEP leaves them in the experts' order: a read and a write; MaxText
        # sorts and gathers
        Constant("train_permute_passes.exchange", ("any",), 4.0, 0.5, 40.0),
        Constant("train_permute_passes.node", ("any",), 2.0, 0.5, 40.0),
        Constant("train_permute_passes.ragged", ("any",), 4.0, 0.5, 40.0),
        Constant("train_contention", ("any",), 0.2, 0.01, 1.0),
        stack("pointwise_traffic", fused, 0.8, 0.3, 3.0),
        stack("pointwise_traffic", eager, 0.8, 0.3, 4.0),
        stack("cast_passes", engine, 0.5, 0.02, 4.0),
        stack("cast_passes", torch_fused, 0.5, 0.02, 4.0),
        stack("cast_passes", torch_eager, 1.0, 0.02, 4.0),
        stack("tp_overlap", overlapping, 0.5, 0.02, 0.95),
        stack("tp_overlap", ("fsdp-compile-async-tp",), 0.5, 0.02, 0.95),
        stack("ep_overlap", ("in-house", "hai-llm"), 0.3, 0.02, 0.95),
        stack("routing_s", tuple(n for n, s in stacks.items() if s.routing_s), 4e-3, 5e-4, 2e-2),
        stack("counts_s", tuple(n for n, s in stacks.items() if s.counts_s), 5e-4, 5e-5, 2e-2),
        stack("dp_overlap", overlapped, 0.8, 0.1, 1.0),
        stack("message_frac", ("deepspeed-zero3",), 0.5, 0.02, 1.0, 1.0),
    )


def main() -> None:
    """Fit, report, write."""
    given = fitting.parser(__doc__).parse_args()
    rows, facts = fitting.published_rows("training")
    steps, large = runs(rows, facts), products(facts)
    model = TrainingModel([*steps, *large], facts)
    point = fitting.start(model.constants, facts, fresh=given.fresh)
    what = f"{len(steps)} published training runs and {len(large)} products"
    print(f"{what}, {len(model.constants)} constants; start {error_text(model.errors(point))}")
    found = fit(model, point, ROUNDS, LEAST_GAIN, print)
    fitting.show_values(found.values)
    unseen = found.left_out([run.publisher for run in model.runs])
    print(*fitting.group_lines(model.groups(), {"plain": found.errors, "publisher out": unseen}), sep="\n")
    if given.write:
        fitting.write(found.values, "fit_training.py", what)
        (fitting.HERE / "accuracy" / "training_constants.csv").write_text(moved_text(found, model), encoding="utf-8")
        fitting.write_left_out("training", [run.id for run in steps], {"error": unseen[: len(steps)]})


FELT = 0.02
"""A constant moves a row where the logarithm of its error changes by this share of the constant's own."""


def moved_text(found: Fit, model: TrainingModel) -> str:
    """For each constant the rows and publishers that it moves, and where it goes without the weightiest of these."""
    publishers = np.array([run.publisher for run in model.runs])
    without = found.points_without(publishers.tolist())
    lines = ["constant,scopes,value,prior,rows,publishers,moved_most_by,value_without,change_percent"]
    for index, (constant, value) in enumerate(found.values.items()):
        felt = np.abs(found.slopes[:, index]) > FELT
        whose = sorted(set(publishers[felt].tolist()))
        moves = {name: float(point[index] - found.point[index]) for name, point in without.items() if name in whose}
        most = max(moves, key=lambda name: abs(moves[name]), default="")
        other = value * math.exp(moves.get(most, 0.0))
        cells = (
            constant.name, " ".join(constant.scopes), f"{value:.4g}", f"{constant.prior:.4g}", int(felt.sum()),
            " ".join(whose), most, f"{other:.4g}", f"{100 * (other / value - 1):+.0f}",
        )  # fmt: skip
        lines.append(",".join(map(str, cells)))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
