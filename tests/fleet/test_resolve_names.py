"""Names that a fleet uses: what is misspelt is named with its line and the nearest, what exists passes."""

from __future__ import annotations

import re

import pytest
from small import assess

from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts.catalog import Facts, load_facts
from flopwise.fleet.planned import planned_workloads
from flopwise.fleet.read import fleet_from, parse_fleet, resolve_names

GOOD = """name: platform
policies:
  providers: {aws: 60%, gcp: 40%}
  regions: [us-east-1, us-central1, eu-*]
  quotas:
    - {provider: aws, instance: p5*, most: 4}
workloads:
  - name: chat
    task: serve
    model: gpt2
    traffic: {requests_per_s: 5, input_tokens: 100, output_tokens: 20}
    residency: [us-*, eu-west-1]
    tags: [hipaa]
    constraints: {providers: [aws], gpus: [h100], instances: [p5.48xlarge], regions: [us-east-1]}
  - name: desks
    task: develop
    machines: {count: 2, gpus: [t4]}
"""


@pytest.fixture(scope="module")
def facts() -> Facts:
    return load_facts()


def test_names_that_are_known_pass(facts: Facts) -> None:
    assert resolve_names(parse_fleet(GOOD, "f.yaml"), facts)[1] is facts


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("aws: 60%", "asw: 60%", "f.yaml:3: policies.providers.asw: unknown provider 'asw'; nearest: aws"),
        (
            "us-central1, eu-*",
            "us-centrall1, eu-*",
            "f.yaml:4: policies.regions.1: unknown region .*nearest: us-central1",
        ),
        ("us-central1, eu-*", "us-eest-1, eu-*", "f.yaml:4: policies.regions.1: .*'us-eest-1'; nearest: us-east-1"),
        ("eu-*]\n", "moon-*]\n", "f.yaml:4: policies.regions.2: unknown region 'moon-"),
        ("instance: p5*", "instance: q5*", "f.yaml:6: policies.quotas.0.instance: unknown instance"),
        (
            "provider: aws",
            "provider: awz",
            "f.yaml:6: policies.quotas.0.provider: .*'awz'; nearest: aws",
        ),
        ("model: gpt2", "model: gtp2", "f.yaml:10: workloads.0.model: unknown model 'gtp2'; nearest: "),
        ("eu-west-1]", "eu-wets-1]", "f.yaml:12: workloads.0.residency.1: unknown region .*nearest: eu-west-1"),
        ("hipaa", "hippa", "f.yaml:13: workloads.0.tags.0: unknown tag 'hippa'; nearest: hipaa"),
        ("providers: [aws]", "providers: [amazn]", "f.yaml:14: workloads.0.constraints.providers.0: unknown provider"),
        ("[h100]", "[h1000]", "f.yaml:14: workloads.0.constraints.gpus.0: unknown accelerator .*nearest: H100"),
        ("[p5.48xlarge]", "[p5.48xlrge]", "f.yaml:14: .*instances.0: unknown instance .*nearest: p5.48xlarge"),
        ("regions: [us-east-1]", "regions: [us-est-1]", "f.yaml:14: .*regions.0: unknown region .*nearest: us-east-1"),
        ("[t4]", "[t44]", "f.yaml:17: workloads.1.machines.gpus.0: unknown accelerator 't44'; nearest: T4"),
        ("us-central1, eu-*", "us-west-2", "f.yaml:3: policies.providers.gcp: 40 % of the bill .*one of us-central1"),
    ],
)
def test_names_that_are_not_known_are_refused(old: str, new: str, says: str, facts: Facts) -> None:
    assert old in GOOD
    with pytest.raises(SpecError, match=says):
        resolve_names(parse_fleet(GOOD.replace(old, new), "f.yaml"), facts)


def test_a_share_that_may_be_nothing_needs_no_region(facts: Facts) -> None:
    text = GOOD.replace("aws: 60%, gcp: 40%}", "aws: 96%, gcp: 4%}").replace("us-central1, eu-*", "us-west-2")
    resolve_names(parse_fleet(text, "f.yaml"), facts)


def test_plain_data_has_paths_and_no_lines(facts: Facts) -> None:
    work = {"name": "chat", "task": "serve", "model": "gtp2", "traffic": {"requests_per_s": 1}}
    with pytest.raises(SpecError, match=r"^fleet: workloads\.0\.model: unknown model"):
        resolve_names(fleet_from({"name": "x", "workloads": [work]}), facts)


@pytest.mark.parametrize(
    "more", ["precision: fp3", "constraints: {engine: vlm}", "constraints: {weight_formats: [fp9]}"]
)
def test_what_the_search_refuses_has_the_line_of_its_workload(more: str, facts: Facts) -> None:
    text = re.sub(r"    constraints: .*\n", f"    {more}\n", GOOD)
    with pytest.raises(SpecError, match=r"^f\.yaml:8: workload chat: .*(nearest|allowed)"):
        assess(parse_fleet(text, "f.yaml"), facts, scenarios=0)


def test_places_that_exclude_one_another_leave_nothing(facts: Facts) -> None:
    """Every name exists, no offer has them all: a reason, not a misspelling."""
    text = GOOD.replace("residency: [us-*, eu-west-1]", "residency: [us-central1]")
    items = planned_workloads(parse_fleet(text, "f.yaml"), facts)
    assert not items[0].options
    assert any(reason.endswith("offers: provider not allowed") for reason in items[0].reasons)


@pytest.mark.parametrize("providers", [[], ["lambda"], ["lambda", "aws"]])
def test_a_pattern_of_an_offer_vouches_for_no_name(providers: list[str], facts: Facts) -> None:
    """Lambda has `us-*`: a misspelt name that fits is refused, beside good ones as alone; a good one has its offers."""
    assert any(o.region == "us-*" for o in facts.offers_for(provider="lambda"))
    for names in (["us-eest-1"], ["us-east-1", "us-eest-1"]):
        limits = {"regions": names, "providers": providers}
        text = GOOD.replace("regions: [us-east-1]}", f"regions: [{', '.join(names)}]}}")
        with pytest.raises(
            SpecError, match=r"f\.yaml:14: workloads\.0\.constraints\.regions.*'us-eest-1'; nearest: us-east"
        ):
            resolve_names(parse_fleet(text, "f.yaml"), facts)
        desks = {"name": "d", "task": "develop", "machines": {}, "constraints": limits}
        with pytest.raises(SpecError, match=r"constraints\.regions.*unknown region 'us-eest-1'"):
            resolve_names(fleet_from({"name": "f", "workloads": [desks]}), facts)
    with pytest.raises(UnknownNameError, match="'us-eest-1'; nearest: us-east-1"):
        facts.offers_for(region="us-eest-1")


@pytest.mark.parametrize(("residency", "providers"), [("us-east-1", set()), ("us-*", {"lambda"}), ("any", set())])
def test_an_offer_of_a_pattern_is_in_none_of_its_places(residency: str, providers: set[str], facts: Facts) -> None:
    """Lambda sells `us-*`: what has to be in us-east-1 may not be there, what may be anywhere in the states may."""
    chat = {
        "name": "chat", "task": "serve", "model": "gpt2", "residency": [residency],
        "traffic": {"requests_per_s": 5, "input_tokens": 100, "output_tokens": 20},
        "constraints": {"regions": [residency], "gpus": ["A10"]},
    }  # fmt: skip
    platform = fleet_from({"name": "f", "workloads": [chat], "policies": {"providers": {"lambda": 1}}})
    [item] = planned_workloads(*resolve_names(platform, facts))
    assert {w.offer.provider for w in item.options} == providers


def test_shares_are_held_whatever_the_case_of_a_provider(facts: Facts) -> None:
    """Shares, quotas and constraints alike: the same bill as in the catalog's spelling."""
    bills = []
    for name in ("aws", "AWS", "Aws"):
        desks = {"name": "d", "task": "develop", "machines": {"gpus": ["T4"]}, "constraints": {"providers": [name]}}
        policies = {"providers": {name: "100%"}, "quotas": [{"provider": name, "most": 1}]}
        fleet = fleet_from({"name": "f", "workloads": [desks], "policies": policies})
        bills.append(assess(fleet, facts, scenarios=0))
    assert {row.provider for bill in bills for row in bill.allocation} == {"aws"}
    assert len({bill.usd_per_month.total for bill in bills}) == 1
    assert [risk.evidence for risk in bills[1].risks] == [risk.evidence for risk in bills[0].risks]


def test_apis_are_held_to_their_share_whatever_the_case(facts: Facts) -> None:
    chat = {
        "name": "chat", "task": "serve", "model": "Llama-3.1-8B", "constraints": {"providers": ["DeepInfra"]},
        "traffic": {"requests_per_s": 0.01, "input_tokens": 100, "output_tokens": 20}, "purchase": ["api"],
    }  # fmt: skip
    policies = {"providers": {"DeepInfra": 1}, "purchase": ["on_demand", "api"]}
    found = assess(fleet_from({"name": "f", "workloads": [chat], "policies": policies}), facts, scenarios=0)
    assert {row.provider for row in found.allocation} == {"deepinfra"}


def test_a_provider_has_one_share() -> None:
    text = GOOD.replace("{aws: 60%, gcp: 40%}", "{aws: 60%, gcp: 20%, AWS: 20%}")
    with pytest.raises(
        SpecError, match=r"f\.yaml:3: policies\.providers\.AWS: aws is the same provider; give it one share"
    ):
        resolve_names(parse_fleet(text, "f.yaml"), load_facts())


def test_a_provider_of_policies_may_have_any_of_its_names(facts: Facts) -> None:
    """A share of amazon was a share of nobody: no offer could run any workload."""
    text = GOOD.replace("{aws: 60%, gcp: 40%}", "{Amazon: 60%, google: 40%}").replace(
        "{provider: aws,", "{provider: ec2,"
    )
    rules = resolve_names(parse_fleet(text), facts)[0].rules
    assert rules.shares == {"aws": 0.6, "gcp": 0.4}
    assert [quota.provider for quota in rules.quotas] == ["aws"]
    twice = GOOD.replace("{aws: 60%, gcp: 40%}", "{aws: 60%, amazon: 40%}")
    with pytest.raises(SpecError, match=r"policies\.providers\.amazon: aws is the same provider; give it one share"):
        resolve_names(parse_fleet(twice), facts)
