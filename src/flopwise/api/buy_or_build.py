"""`compare`: call an API, serve open weights, fine-tune them or train from scratch, for the same traffic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flopwise.buy_or_build.alternatives import KINDS, ComparisonRequest, CostComparison, Kind, MonthlyTraffic
from flopwise.keywords import takes
from flopwise.options import COUNT, USD_OR_ZERO, whole


@takes(
    months=whole(high=120), finetune_tokens=COUNT, pretrain_tokens=COUNT, runs=whole(high=10_000),
    upkeep_usd_per_month=USD_OR_ZERO,
)  # fmt: skip
def compare(
    model: str,
    *,
    traffic: MonthlyTraffic,
    ways: Sequence[Kind] = KINDS,
    months: int = 12,
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
    software: Sequence[str] = (),
    purchase: Sequence[str] = (),
    train_purchase: Sequence[str] = (),
    simulate: bool = True,
    assume_family: str | None = None,
    facts: str | Path | None = None,
    calibration: str | None = None,
    advance: Callable[[int, int], None] | None = None,
) -> CostComparison:
    """Compare the ways to answer the same traffic with a model: an API, open weights, fine-tuning, training.

    Each way has an up-front cost and a monthly one, in US dollars, with 80 % intervals.

    Args:
        model: a catalog name, a hub id, or a size such as "7B".
        traffic: tokens a month and their mix.
        ways: which of api, open, finetune and pretrain.
        months: how many are compared, 1 to 120.
        apis: hosted models, such as "groq/Llama-3.1-8B"; of a name alone the cheapest host (default: of `model`).
        api_prices: further prices of (input, output), in USD per million tokens.
        finetune_tokens: tokens of one fine-tuning run, as a number or text such as "50M".
        pretrain_tokens: tokens of training from scratch (default: the compute-optimal number).
        pretrain_model: model that is trained from scratch instead, such as "1B".
        method: of fine-tuning, with the keys of `method` in a workload file: `{"kind": "lora", "rank": 16}`.
        runs: training runs that are paid for.
        upkeep_usd_per_month: USD per month for people and storage of a self-hosted service.
        targets: of the service, with the keys of `targets` in a workload file: `{"ttft": {"p95": "1s"}}`.
        constraints: on its machines, with the keys of `constraints` in a workload file: `{"gpus": ["h100"]}`.
        software: stacks and engines that may be used; "any" for all (default: those that run without a port).
        purchase: on_demand, spot, reserved_1y ... of serving (default: on_demand).
        train_purchase: the same of training.
        simulate: run plans of services through the simulator before they are ranked.
        assume_family: treat a model that is not known as one of this family.
        facts: folder of rows that override the shipped ones.
        calibration: name of a profile that `flopwise calibrate` made.
        advance: called with (units of work done, units in all) as it goes.

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

    request = ComparisonRequest(
        model=model, traffic=traffic, months=months, kinds=tuple(kind for kind in KINDS if kind in ways),
        apis=tuple(apis), api_prices=tuple(api_prices), finetune_tokens=finetune_tokens,
        pretrain_tokens=pretrain_tokens, pretrain_model=pretrain_model, method=method or {}, runs=runs,
        upkeep_usd_per_month=upkeep_usd_per_month, targets=targets or {}, constraints=constraints or {},
        software=software, purchase=tuple(purchase), train_purchase=tuple(train_purchase), simulate=simulate,
        assume_family=assume_family,
    )  # fmt: skip
    return compare_alternatives(request, load_facts(facts, calibration), advance)
