"""`compare`: call an API, serve open weights, fine-tune them or train from scratch, for the same traffic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flopwise.buy_or_build.alternatives import KINDS, ComparisonRequest, CostComparison, Kind, MonthlyTraffic


def compare(
    model: str,
    *,
    traffic: MonthlyTraffic,
    ways: Sequence[Kind] = KINDS,
    facts: str | Path | None = None,
    calibration: str | None = None,
    advance: Callable[[int, int], None] | None = None,
    **options: Any,
) -> CostComparison:
    """What each way to answer `traffic` with `model` costs over `months`, and when own machines pay off.

    `options` are fields of `flopwise.buy_or_build.alternatives.ComparisonRequest` (`months=24, runs=2 ...`). `apis` are
    names of hosted models (`groq/Llama-3.1-8B`, or a name alone for its cheapest host), `api_prices` are USD a million
    tokens as (input, output); without either, whoever hosts `model` at the least. `targets` and `constraints` have the
    keys of a workload file; `purchase` is for serving, `train_purchase` for training. `pretrain_tokens` None: the
    compute-optimal number.

    Raises:
        SpecError, UnknownNameError: a figure out of range, or a name that is not known.
        InfeasibleError: no way is feasible; the reasons of each.
    """
    from flopwise.buy_or_build.comparison import compare_alternatives
    from flopwise.facts.catalog import load_facts

    single: dict[str, Any] = {n: tuple(o) if isinstance(o, list) else o for n, o in options.items() if o is not None}
    kinds = tuple(kind for kind in KINDS if kind in ways)
    request = ComparisonRequest(model=model, traffic=traffic, kinds=kinds, **single)
    return compare_alternatives(request, load_facts(facts, calibration), advance)
