"""Spot capacity that is taken back makes runs longer, by as much as the single estimate says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import flopwise
from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.search.plan import plan
from flopwise.search.run_job import candidate_job, conditions
from flopwise.search.workload_file import parse_workload, read_workload
from flopwise.training.estimate import estimate
from flopwise.training.goodput import goodput_frac
from flopwise.training.job import DEFAULT_CONDITIONS
from named import FACTS


def test_spot_alone_is_interrupted_whoever_sells_it() -> None:
    assert conditions("on_demand", "aws", "H100-SXM-80", 8, FACTS) is DEFAULT_CONDITIONS
    for provider, accelerator in (("aws", "H100-SXM-80"), ("aws", "B200"), ("lambda", "H100-SXM-80")):
        assert conditions("spot", provider, accelerator, 8, FACTS).reliability.interruptions_per_s > 0


def test_plans_on_spot_take_as_long_as_the_estimate_says() -> None:
    wanted = read_workload(
        {
            "model": "Llama-3.1-8B",
            "task": "pretrain",
            "data": {"tokens": 1e9, "seq_len": 4096, "global_batch": 64},
            "constraints": {"gpus": ["h100"], "providers": ["gcp", "aws"], "purchase": ["spot"], "max_gpus": 64},
        }
    )
    made, model, facts = flopwise.plan(wanted), load_model("Llama-3.1-8B"), load_facts()
    assert made.plans
    for chosen in made.plans[:3]:
        offer = next(
            o
            for o in facts.offers
            if (o.provider, o.instance, o.region) == (chosen.provider, chosen.instance, chosen.region)
        )
        found = estimate(candidate_job(wanted, model, facts, offer, chosen)).run
        assert found is not None
        assert found.seconds == pytest.approx(chosen.seconds, rel=1e-9)
        assert found.mtbf_s < 150 * 86400  # 264 days without interruptions, on eight GPUs
    assert any("are interrupted per" in sentence for sentence in made.assumptions)


def test_checkpoints_as_a_workload_says_make_spot_runs_longer() -> None:
    """The run's time is as much longer as its goodput is smaller, by the formula of a run saved so."""
    text = (
        "model: Llama-3.1-8B\ntask: pretrain\ndata: {tokens: 200G, seq_len: 4096, global_batch: 512}\n"
        "constraints: {gpus: [h100], providers: [aws], instances: [p5.48xlarge], regions: [us-east-1], "
        "purchase: [spot], min_gpus: 64, max_gpus: 64}\n"
    )
    facts = load_facts()
    found = {}
    for said in ("", "checkpoints: {every: 60h}\n", "checkpoints: {every: 60h, asynchronous: true}\n"):
        found[said] = plan(parse_workload(text + said), facts).plans[0]
    plain, rare, _ = found.values()
    assert plain.layout == rare.layout
    assert rare.seconds > 1.02 * plain.seconds
    longer = (rare.start_s + rare.seconds) / (plain.start_s + plain.seconds)
    assert rare.start_s == plain.start_s == pytest.approx(60 + 270 + 24 + 32 * 2.35 + 200e9 * 4 / (8 * 8e9))
    assert rare.cost_usd == pytest.approx(plain.cost_usd * longer, rel=1e-4), "billed by the second"
    usual = conditions("spot", "aws", "H100-SXM-80", 8, FACTS).reliability
    nbytes = 14 * 8.03e9  # 2 + 12 bytes a parameter
    ratio = goodput_frac(64, nbytes, usual) / goodput_frac(64, nbytes, replace(usual, interval_s=60 * 3600.0))
    assert rare.seconds / plain.seconds == pytest.approx(float(ratio), rel=2e-3)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("{every: 0}", "checkpoints.every"),
        ("{every: -1h}", "checkpoints.every"),
        ("{write_per_gpu: .inf}", "checkpoints.write_per_gpu"),
        ("{often: true}", "unknown key 'often'"),
    ],
)
def test_checkpoints_that_cannot_be_are_refused(said: str, why: str) -> None:
    text = "model: gpt2\ntask: pretrain\ndata: {tokens: 1G, seq_len: 1024}\n"
    with pytest.raises(SpecError, match=f"w.yaml:4: .*{why}"):
        parse_workload(f"{text}checkpoints: {said}\n", "w.yaml")
    with pytest.raises(SpecError, match="checkpoints: has no meaning for a serve workload"):
        parse_workload("model: gpt2\ntask: serve\ntraffic: {requests_per_s: 1}\ncheckpoints: {every: 1h}\n")
    with pytest.raises(SpecError, match=r"method: has no meaning for a serve workload; .* \(--adapters\)"):
        parse_workload("model: gpt2\ntask: serve\ntraffic: {requests_per_s: 1}\nmethod: {kind: lora}\n")


def test_a_service_on_spot_says_that_interruptions_are_not_in_its_figures() -> None:
    asked: dict[str, Any] = {
        "model": "Llama-3.1-8B",
        "task": "serve",
        "traffic": {"requests_per_s": 1},
        "simulate": False,
    }
    wanted = {"gpus": ["L40S"], "providers": ["aws"]}

    def said(*purchase: str) -> list[str]:
        answer = flopwise.plan(asked | {"constraints": wanted | {"purchase": list(purchase)}})
        assert answer.plans[0].purchase == purchase[-1]  # the cheaper one
        return [
            text for text in answer.assumptions if ("spot" in text and "interrupted" in text) or "taken back" in text
        ]

    assert said("on_demand") == []
    rate, lost = said("on_demand", "spot")
    assert rate.startswith("spot L40S of aws: ")
    assert "neither latencies nor `meets` count that" in lost
