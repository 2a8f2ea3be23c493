"""The most users in flight that planned machines hold: the search takes one more replica beyond them."""

from __future__ import annotations

from typing import Any

import pytest

from flopwise.facts.catalog import load_facts
from flopwise.search.answer import Candidate
from flopwise.search.plan import plan
from flopwise.search.service_load import most_users
from flopwise.search.workload import Resolved
from flopwise.search.workload_file import workload_from

FACTS = load_facts()
GENERATES = {"task": "serve", "model": "Llama-3.1-8B", "constraints": {"gpus": ["L4"], "weight_formats": ["fp8"]}}
ENCODES = {"task": "encode", "model": "bert-base-uncased", "constraints": {"gpus": ["T4"], "weight_formats": ["fp16"]}}


def workload(base: dict[str, Any], users: int, targets: dict[str, Any]) -> Resolved:
    lengths = {"input_tokens": 256} if base is ENCODES else {"input_tokens": 500, "output_tokens": 100}
    purchase = base["constraints"] | {"purchase": ["on_demand"], "providers": ["aws"]}
    traffic = {"concurrency": users, **lengths}
    return workload_from({**base, "constraints": purchase, "traffic": traffic, "targets": targets, "simulate": False})


def fewest(base: dict[str, Any], users: int, targets: dict[str, Any]) -> Candidate:
    """The plan with the fewest replicas of one device, as estimated."""
    plans = plan(workload(base, users, targets), FACTS).plans
    return min((one for one in plans if one.layout["tp"] == 1), key=lambda one: one.layout["replicas"])


def holds(base: dict[str, Any], users: int, targets: dict[str, Any]) -> float:
    one = fewest(base, users, targets)
    offer = next(
        o for o in FACTS.offers if (o.provider, o.instance, o.region) == (one.provider, one.instance, one.region)
    )
    asked = workload(base, users, targets)
    return most_users(asked, FACTS.model(asked.model), FACTS, offer, one)


@pytest.mark.parametrize(
    ("base", "targets"),
    [(GENERATES, {"ttft": "p95=1s"}), (GENERATES, {"tpot": "p95=60ms"}), (GENERATES, {"latency": "p95=8s"}),
     (GENERATES, {}), (ENCODES, {"latency": "p95=1s"})],
)  # fmt: skip
def test_one_replica_holds_as_many_users_and_no_twentieth_more(base: dict[str, Any], targets: dict[str, Any]) -> None:
    """The number of users is tried at equal ratios, the search's replicas at the users of each: 5 % between them."""
    most = holds(base, 2, targets)
    assert most > 2
    assert fewest(base, int(most), targets).layout["replicas"] == 1
    assert fewest(base, int(1.05 * most) + 1, targets).layout["replicas"] == 2


def test_replicas_hold_as_many_users_each() -> None:
    """At 2.5 times what one holds three replicas are planned, and they hold three times as many."""
    targets = {"ttft": "p95=1s"}
    most = holds(GENERATES, 2, targets)
    assert fewest(GENERATES, int(2.5 * most), targets).layout["replicas"] == 3
    assert holds(GENERATES, int(2.5 * most), targets) == 3 * most


def test_looser_targets_hold_more_users_and_a_higher_confidence_fewer() -> None:
    at = {limit: holds(GENERATES, 2, {"ttft": f"p95={limit}s"}) for limit in (1, 2, 4)}
    assert at[1] < at[2] < at[4]
    assert holds(GENERATES, 2, {"ttft": "p95=4s", "confidence": 0.95}) < at[4]
