"""`compare`: call an API, serve open weights, fine-tune them or train from scratch, for the same traffic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flopwise.buy_or_build.alternatives import CostComparison, MonthlyTraffic
from flopwise.buy_or_build.spec import AlternativesSpec, ComparisonRequest, ComparisonSpec
from flopwise.errors import SpecError
from flopwise.keywords import takes
from flopwise.options import changed_options, defaults_of, take


@takes(ComparisonSpec, AlternativesSpec)
def compare(
    model: str,
    *,
    traffic: MonthlyTraffic | None = None,
    method: Mapping[str, Any] | None = None,
    targets: Mapping[str, Any] | None = None,
    constraints: Mapping[str, Any] | None = None,
    simulate: bool = True,
    assume_family: str | None = None,
    facts: str | Path | None = None,
    calibration: str | None = None,
    advance: Callable[[int, int], None] | None = None,
    **options: Any,
) -> CostComparison:
    """Compare the ways to answer the same traffic with a model: an API, open weights, fine-tuning, training.

    Each way has an up-front cost and a monthly one, in US dollars, with 80 % intervals.

    Args:
        model: a catalog name, a hub id, or a size such as "7B".
        traffic: instead of `tokens_per_month` and what goes with it.
        method: of fine-tuning, with the keys of `method` in a workload file: `{"kind": "lora", "rank": 16}`.
        targets: of the service, with the keys of `targets` in a workload file: `{"ttft": {"p95": "1s"}}`.
        constraints: on its machines, with the keys of `constraints` in a workload file: `{"gpus": ["h100"]}`.
        simulate: run plans of services through the simulator before they are ranked.
        assume_family: treat a model that is not known as one of this family.

    Raises:
        SpecError: a figure is out of range, or there is no volume.
        UnknownNameError: a name is not known.
        InfeasibleError: no way is feasible; the reasons of each.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.compare("Llama-3.1-8B", tokens_per_month="500M", way="api", months=6)
        >>> [way.kind for way in answer.ways]
        ['api']
    """
    from flopwise.buy_or_build.comparison import compare_alternatives
    from flopwise.facts.catalog import load_facts
    from flopwise.search.workload import as_in_file, one_as_several

    named = one_as_several(options, ComparisonSpec, AlternativesSpec)
    alternatives = {name: value for name, value in named.items() if name in defaults_of(AlternativesSpec)}
    spec, _ = take(named, ComparisonSpec, AlternativesSpec)
    if traffic is not None:
        of_traffic = {"tokens_per_month", "input_tokens", "output_tokens", "growth_frac", "peak"}
        refused = of_traffic & {*changed_options(spec)}
        if refused:
            raise SpecError(f"{', '.join(sorted(refused))}: `traffic` already gives them; leave one of them out")
    placed, book = as_in_file(alternatives), load_facts(facts, calibration)
    traffic = traffic or spec.traffic(book.model(model, assume_family=assume_family))
    request = ComparisonRequest(
        model=model, options=spec, traffic=traffic,
        method={**(method or {}), **placed.get("method", {})}, targets={**(targets or {}), **placed.get("targets", {})},
        constraints={**(constraints or {}), **placed.get("constraints", {})},
        software=tuple(placed.get("software", ())), simulate=simulate, assume_family=assume_family,
    )  # fmt: skip
    return compare_alternatives(request, book, advance)
