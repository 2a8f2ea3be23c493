"""`compare`: call an API, serve open weights, fine-tune them or train from scratch, for the same traffic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flopwise.buy_or_build.alternatives import KINDS, ComparisonRequest, CostComparison, Kind, MonthlyTraffic


def compare(
    model: str,
    *,
    traffic: MonthlyTraffic,
    months: int = 12,
    ways: Sequence[Kind] = KINDS,
    apis: Sequence[str] = (),
    api_prices: Sequence[tuple[float, float]] = (),
    finetune_tokens: float = 50e6,
    pretrain_tokens: float | None = None,
    pretrain_model: str | None = None,
    method: Mapping[str, Any] | None = None,
    runs: int = 1,
    upkeep_usd_per_month: float = 0.0,
    targets: Mapping[str, Any] | None = None,
    constraints: Mapping[str, Any] | None = None,
    purchase: Sequence[str] = (),
    train_purchase: Sequence[str] = (),
    simulate: bool = True,
    facts: str | Path | None = None,
    assume_family: str | None = None,
    advance: Callable[[int, int], None] | None = None,
) -> CostComparison:
    """What each way to answer `traffic` with `model` costs over `months`, and from where on own machines pay.

    `apis` are names of hosted models (`groq/Llama-3.1-8B`, or a name alone for its cheapest host), `api_prices` are
    (input, output) USD a million tokens; without either, whoever hosts `model` at the least. `targets` and
    `constraints` have the keys of a workload file; `purchase` is for serving, `train_purchase` for training.
    `pretrain_tokens` None: the compute-optimal number.

    Raises:
        SpecError, UnknownNameError: a figure out of range, or a name that is not known.
        InfeasibleError: no way is feasible; the reasons of each.
    """
    from flopwise.buy_or_build.comparison import compare_alternatives
    from flopwise.facts.catalog import load_facts

    request = ComparisonRequest(
        model=model, traffic=traffic, months=months, kinds=tuple(kind for kind in KINDS if kind in ways),
        apis=tuple(apis), api_prices=tuple(api_prices), finetune_tokens=finetune_tokens,
        pretrain_tokens=pretrain_tokens, pretrain_model=pretrain_model, method=method or {}, runs=runs,
        upkeep_usd_per_month=upkeep_usd_per_month, targets=targets or {}, constraints=constraints or {},
        purchase=tuple(purchase), train_purchase=tuple(train_purchase), simulate=simulate, assume_family=assume_family,
    )  # fmt: skip
    return compare_alternatives(request, load_facts(facts), advance)
