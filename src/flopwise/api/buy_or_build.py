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
    """Compare the ways to answer the same traffic with a model: an API, open weights, fine-tuning, training.

    Each way has an up-front cost and a monthly one, in US dollars, with 80 % intervals.

    Args:
        model: a catalog name, a hub id, or a size such as "7B".
        traffic: tokens a month and their mix.
        ways: which of api, open, finetune and pretrain.
        facts: folder of rows that override the shipped ones.
        calibration: name of a profile that `flopwise calibrate` made.
        advance: called with (units of work done, units in all) as it goes.
        options: fields of `ComparisonRequest`: `months=24`, `runs=2`, `apis=["groq/Llama-3.1-8B"]` (default: the
            cheapest host), `api_prices=[(0.15, 0.60)]` in USD per million tokens, `pretrain_tokens`, `purchase`,
            `train_purchase`; `targets` and `constraints` have the keys of a workload file.

    Raises:
        SpecError: a figure is out of range.
        UnknownNameError: a name is not known.
        InfeasibleError: no way is feasible; the reasons of each.

    Examples:
        >>> import flopwise
        >>> traffic = flopwise.MonthlyTraffic(tokens_per_month=500e6)
        >>> found = flopwise.compare("Llama-3.1-8B", traffic=traffic, ways=("api",), months=6)
        >>> [way.kind for way in found.ways]
        ['api']
    """
    from flopwise.buy_or_build.comparison import compare_alternatives
    from flopwise.facts.catalog import load_facts

    single: dict[str, Any] = {n: tuple(o) if isinstance(o, list) else o for n, o in options.items() if o is not None}
    kinds = tuple(kind for kind in KINDS if kind in ways)
    request = ComparisonRequest(model=model, traffic=traffic, kinds=kinds, **single)
    return compare_alternatives(request, load_facts(facts, calibration), advance)
