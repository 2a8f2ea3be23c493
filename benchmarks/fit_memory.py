"""Refit the few fitted constants of data/stacks.json and data the band of the memory backtest, leaving one source out.

    python benchmarks/fit_memory.py training_memory.csv

Constants, each shared by every stack of its kind: bytes a token and vocabulary entry at the loss in eager code and
under a compiler, what the caching allocator reserves beyond what tensors take.
The rest follows from the software.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from flopwise.backtests import memory
from flopwise.backtests.kinds import KINDS
from flopwise.backtests.run import measurements
from flopwise.errors import FlopwiseError
from flopwise.facts.catalog import Facts, load_facts
from flopwise.facts.software import TrainingStack

Constants: TypeAlias = tuple[float, float, float]
NAMES = ("loss_bytes of eager stacks", "loss_bytes of compiled stacks", "fragmentation_frac")
GRID = ((10.0, 12.0, 14.0, 16.0), (8.0, 10.0, 12.0, 14.0), (0.03, 0.05, 0.08, 0.12))
EAGER = ("hf-trainer", "litgpt", "fsdp-eager", "torchtune-eager", "torchtune-2024", "deepspeed-zero3", "fsdp-fused")
COMPILED = ("fsdp-compile", "torchtune-compile", "fsdp-te")


def with_constants(facts: Facts, constants: Constants) -> Facts:
    """The facts with these constants in the rows of stacks."""

    def moved(name: str, row: TrainingStack) -> TrainingStack:
        loss = constants[0] if name in EAGER else constants[1] if name in COMPILED else row.loss_bytes
        return replace(row, loss_bytes=loss, fragmentation_frac=constants[2])

    return facts.replaced(stacks={name: moved(name, row) for name, row in facts.stacks.items()})


def quantile(values: list[float], share: float) -> float:
    """The value below which `share` of them lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def score(errors: list[float]) -> float:
    """What the fit makes small: mean of the absolute errors, each counted up to 40 %."""
    return sum(min(abs(e), 0.4) for e in errors) / len(errors)


def main() -> None:
    facts = load_facts()
    rows = measurements(KINDS["memory"], Path(sys.argv[1]))
    errors: dict[Constants, dict[str, list[float]]] = {}
    for constants in itertools.product(*GRID):
        moved = with_constants(facts, constants)
        by_source: dict[str, list[float]] = defaultdict(list)
        for row in rows:
            try:
                found = memory.predict_row(row, moved).error
            except FlopwiseError:
                continue
            if found is not None:
                by_source[row["study"]].append(found)
        errors[constants] = by_source

    def best(without: str = "") -> Constants:
        return min(errors, key=lambda c: score([e for s, v in errors[c].items() if s != without for e in v]))

    chosen = best()
    print("fitted:", dict(zip(NAMES, chosen, strict=True)))
    unseen: list[float] = []
    for source in errors[chosen]:
        held = errors[best(source)][source]
        here = errors[chosen][source]
        unseen += held
        print(
            f"{source:22s} n={len(here):3d} median |error| {statistics.median(map(abs, here)):.3f}"
            f" signed {statistics.median(here):+.3f};"
            f" left out {statistics.median(map(abs, held)):.3f} with {best(source)}"
        )
    for name, values in (("fitted", [e for v in errors[chosen].values() for e in v]), ("left out", unseen)):
        sizes = [abs(e) for e in values]
        ratio = [1 / (1 + e) for e in values]
        print(
            f"{name}: rows {len(values)}, median {statistics.median(sizes):.3f}, p90 {quantile(sizes, 0.9):.3f},"
            f" bias {statistics.median(values):+.3f},"
            f" measured/predicted 10-90 %: {quantile(ratio, 0.1):.2f} to {quantile(ratio, 0.9):.2f}"
        )


if __name__ == "__main__":
    main()
