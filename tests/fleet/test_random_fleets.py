"""The bill of a fleet is the least there is: against all allocations by hand, and against itself asked otherwise."""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flopwise.errors import InfeasibleError
from flopwise.facts.catalog import Facts, load_facts
from flopwise.fleet import planned
from flopwise.fleet.bill import SolvedFleet
from flopwise.fleet.read import fleet_from

sys.path.insert(0, str(Path(__file__).parent))
from random_fleets import INSTANCES, difference, random_fleet, shelf
from small import solved

CLOSE = 1.0011
"""The solver's own gap."""


_ANSWERS: dict[tuple[object, ...], tuple[planned.Search, planned.SearchAnswer]] = {}
"""Searches of these fleets, which share workloads and shelves, with their answers; they keep the offers alive."""


def answered_once(
    search: planned.Search, kinds: int | None, shares: Sequence[str], *, by_region: bool,
    answer: Callable[..., planned.SearchAnswer] = planned._answer,
) -> planned.SearchAnswer:  # fmt: skip
    """The answer of a search; of one workload over the very same offers it is asked for once."""
    workload = msgspec.json.encode(search.workload, enc_hook=str)
    key = (workload, tuple(map(id, search.facts.offers)), kinds, tuple(shares), by_region)
    if key not in _ANSWERS:
        _ANSWERS[key] = search, answer(search, kinds, shares, by_region=by_region)
    return _ANSWERS[key][1]


@pytest.fixture(autouse=True)
def _searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned, "_answer", answered_once)


def bill(document: dict[str, Any], facts: Facts) -> tuple[float, SolvedFleet | None]:
    """USD a month; infinite where nothing holds, or some workload cannot run. Asked once of the same facts."""
    return _bill(json.dumps(document, sort_keys=True), facts)


@cache
def _bill(document: str, facts: Facts) -> tuple[float, SolvedFleet | None]:
    try:
        found = solved(fleet_from(json.loads(document)), facts)
    except InfeasibleError:
        return inf, None
    return (inf, None) if found.lost else (found.cost.total, found)


@pytest.mark.parametrize("seed", range(24))
def test_no_allocation_by_hand_is_cheaper(seed: int) -> None:
    assert difference(seed) == ""


@pytest.mark.parametrize("seed", range(12))
def test_more_offers_never_cost_more(seed: int) -> None:
    """But under shares of the bill, which a cheaper machine of one provider changes."""
    document = random_fleet(seed)
    document["policies"] = {k: v for k, v in document["policies"].items() if k in {"purchase", "quotas"}}
    whole, _ = bill(document, shelf())
    left_out = random.Random(seed).choice(shelf().offers)  # noqa: S311 - one of five for a test
    fewer, _ = bill(document, shelf().with_tables(offers=tuple(o for o in shelf().offers if o is not left_out)))
    assert whole <= fewer * CLOSE


@pytest.mark.parametrize("seed", range(12))
def test_a_restriction_that_the_answer_meets_changes_nothing(seed: int) -> None:
    document = random_fleet(seed)
    usd, found = bill(document, shelf())
    if found is None:
        return
    counts: dict[str, int] = {}
    for row in found.rows:
        counts[row.provider] = counts.get(row.provider, 0) + row.count
    budget = document | {"policies": document["policies"] | {"budget_per_month": usd * 1.01}}
    assert bill(budget, shelf())[0] == pytest.approx(usd, rel=CLOSE - 1)
    if "providers" not in document["policies"] and "max_spot_share" not in document["policies"]:
        quotas = [{"provider": p, "most": n} for p, n in counts.items()]
        held = document | {"policies": document["policies"] | {"quotas": quotas}}
        assert bill(held, shelf())[0] == pytest.approx(usd, rel=CLOSE - 1)


@pytest.mark.parametrize("seed", range(12))
def test_a_looser_policy_never_costs_more(seed: int) -> None:
    document = random_fleet(seed)
    policies = document["policies"]
    if "providers" in policies:
        looser = policies | {"share_tolerance": "35%"}
    elif "quotas" in policies and "max_spot_share" not in policies:
        looser = policies | {"quotas": [quota | {"most": quota["most"] + 1} for quota in policies["quotas"]]}
    else:
        looser = {"purchase": ["on_demand", "spot", "reserved_1y"]}
    assert bill(document | {"policies": looser}, shelf())[0] <= bill(document, shelf())[0] * CLOSE


RELAXED: dict[str, list[Any]] = {
    "max_spot_share": ["5%", "30%", "60%", None],
    "share_tolerance": ["5%", "20%", "45%"],
    "budget_per_month": ["$50", "$400", None],
    "regions": [["eu-*", "europe-*"], ["eu-*", "europe-*", "us-*"], None],
    "vendors": [["nvidia"], ["nvidia", "google"], None],
    "gpus": [["t4"], ["t4", "l4"], None],
    "exclude": [["t4", "l40s"], ["l40s"], None],
    "purchase": [["on_demand"], ["on_demand", "spot"], ["on_demand", "spot", "reserved_1y", "reserved_3y"]],
    "marketplace": [False, True],
}
"""Values of policies from the strictest to the loosest; None: not written."""


@cache
def wide_shelf() -> Facts:
    """Machines of three providers on two continents, two of other vendors, and hosts of third parties."""
    whole = load_facts(None)
    names = INSTANCES | {"1x L40S community", "1x RTX A5000 community", "tpu-v6e-1", "inf2.xlarge"}
    offers = {
        (o.provider, o.instance, o.region[:2]): o for o in reversed(whole.offers)
        if o.instance in names and o.region[:2] in {"us", "eu", "an"}
    }  # fmt: skip
    return whole.with_tables(offers=tuple(offers.values()))


@cache
def clouds() -> Facts:
    """All that three clouds have on offer."""
    whole = load_facts(None)
    return whole.with_tables(offers=tuple(o for o in whole.offers if o.provider in {"aws", "gcp", "azure"}))


def bills_beside_shares(seed: int, field: str, *, retired: bool, facts: Facts | None = None) -> list[float]:
    """The bills of a random fleet with shares of two providers, from the strictest value of a policy to the loosest."""
    document, draw = random_fleet(seed), random.Random(seed)  # noqa: S311 - figures for a test
    policies: dict[str, Any] = {"purchase": ["on_demand", "spot"], "software": ["any"], "include_retired": retired}
    share = draw.choice([20, 40, 60])
    policies |= {"providers": {"aws": f"{share}%", "gcp": f"{100 - share}%"}, "share_tolerance": "30%"}
    tried = (policies | ({} if value is None else {field: value}) for value in RELAXED[field])
    return [bill(document | {"policies": one}, facts or wide_shelf())[0] for one in tried]


@pytest.mark.parametrize("field", RELAXED)
@pytest.mark.parametrize("seed", [0, 5, 6, 9])
def test_a_policy_relaxed_in_one_field_never_costs_more(seed: int, field: str) -> None:
    """Nor is it refused, beside shares of the bill."""
    for strict, loose in itertools.pairwise(bills_beside_shares(seed, field, retired=True)):
        assert loose <= strict * CLOSE


def test_a_region_more_never_costs_more_beside_shares_that_bind() -> None:
    """Without machines that are retired, so that a share may rest on one region."""
    for strict, loose in itertools.pairwise(bills_beside_shares(0, "regions", retired=False)):
        assert loose <= strict * CLOSE


@pytest.mark.parametrize(("seed", "field"), [(7, "max_spot_share"), (7, "exclude"), (7, "purchase"), (20, "purchase")])
def test_a_policy_relaxed_over_all_that_clouds_sell_never_costs_more(seed: int, field: str) -> None:
    """With hundreds of options, not those of a small shelf alone: what held without one more of them holds with it."""
    for strict, loose in itertools.pairwise(bills_beside_shares(seed, field, retired=False, facts=clouds())):
        assert loose <= strict * CLOSE


LOOSER: dict[str, list[dict[str, Any]]] = {
    "providers": [{"providers": names} for names in (["gcp"], ["gcp", "aws"], ["gcp", "aws", "runpod"], [])],
    "deadline": [{"deadline": each} for each in ("1h", "3h", "24h", "100h")],
    "latency": [{"latency": {"p95": each}} for each in ("1s", "3s", "10s")],
    "confidence": [{"confidence": each} for each in (0.95, 0.8, 0.5)],
    "max_gpus": [{"max_gpus": each} for each in (1, 2, 8)],
}
"""Constraints and targets of workloads, from the strictest to the loosest."""
ENDS = {"deadline": {"batch", "finetune"}, "latency": {"serve"}, "confidence": {"batch", "finetune", "serve"}}
"""Tasks that have a target."""


def with_limit(document: dict[str, Any], limit: dict[str, Any]) -> dict[str, Any]:
    """A fleet with a target or a constraint of all workloads that may have it."""
    (name,) = limit
    key = "targets" if name in ENDS else "constraints"
    kinds = ENDS.get(name, ENDS["confidence"])
    workloads = [
        one | ({key: one.get(key, {}) | limit} if one["task"] in kinds else {}) for one in document["workloads"]
    ]
    return document | {"workloads": workloads}


@pytest.mark.parametrize("field", LOOSER)
@pytest.mark.parametrize("seed", [5, 17, 36])
def test_a_workload_with_a_looser_limit_never_costs_more(seed: int, field: str) -> None:
    """More providers, a later deadline, a slower answer, less confidence, more GPUs, each of all workloads."""
    policies = {"purchase": ["on_demand", "spot"], "software": ["any"], "marketplace": field == "providers"}
    tried = [with_limit(random_fleet(seed) | {"policies": policies}, limit) for limit in LOOSER[field]]
    for strict, loose in itertools.pairwise(bill(document, wide_shelf())[0] for document in tried):
        assert loose <= strict * CLOSE


@pytest.mark.parametrize("field", ["providers", "deadline", "latency"])
@pytest.mark.parametrize("seed", [5, 36])
def test_more_providers_and_later_answers_cost_no_more_beside_shares(seed: int, field: str) -> None:
    policies: dict[str, Any] = {"purchase": ["on_demand", "spot"], "marketplace": True, "share_tolerance": "30%"}
    policies |= {"providers": {"aws": "40%", "gcp": "60%"}}
    tried = [with_limit(random_fleet(seed) | {"policies": policies}, limit) for limit in LOOSER[field]]
    for strict, loose in itertools.pairwise(bill(document, wide_shelf())[0] for document in tried):
        assert loose <= strict * CLOSE


@pytest.mark.parametrize("regions", [["eu*"], ["eu*", "us*"], None])
def test_a_share_rests_on_an_instance_in_a_dearer_region_where_its_cheapest_is_left_out(
    regions: list[str] | None,
) -> None:
    """Half and half hold with gcp's machine in Europe, at the price of aws' own; Virginia has the same for 40 %."""
    aws, gcp = (next(o for o in wide_shelf().offers if o.instance == name) for name in ("g6.xlarge", "g2-standard-4"))
    places = [(aws, "us-east-1", 1.0), (aws, "eu-west-1", 1.0), (gcp, "us-east4", 0.4), (gcp, "europe-west4", 1.0)]
    offers = tuple(replace(offer, region=region, on_demand_usd_per_hour=usd) for offer, region, usd in places)
    traffic = {"requests_per_s": 5, "input_tokens": 128, "output_tokens": 16}
    service: dict[str, Any] = {"task": "serve", "model": "gpt2", "traffic": traffic}
    service["targets"] = {"latency": {"p95": "10s"}}
    policies: dict[str, Any] = {"purchase": ["on_demand"], "providers": {"aws": "50%", "gcp": "50%"}}
    document = {
        "name": "halves", "policies": policies | ({} if regions is None else {"regions": regions}),
        "workloads": [service | {"name": name, "constraints": {"providers": [name]}} for name in ("aws", "gcp")],
    }  # fmt: skip
    usd, found = bill(document, wide_shelf().with_tables(offers=offers))
    assert usd == pytest.approx(2 * 730)
    assert found is not None
    assert {row.region for row in found.rows if row.provider == "gcp"} == {"europe-west4"}
