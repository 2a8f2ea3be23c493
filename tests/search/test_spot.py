"""Spot capacity that is taken back makes runs longer, by as much as the single estimate says."""

from __future__ import annotations

import pytest

import flopwise
from flopwise.api.plan import workload
from flopwise.facts.catalog import load_facts
from flopwise.facts.models import load_model
from flopwise.search.plan_training import candidate_job
from flopwise.search.spot import conditions
from flopwise.training.estimate import estimate
from flopwise.training.run import DEFAULT_CONDITIONS


def test_spot_alone_is_interrupted_whoever_sells_it() -> None:
    assert conditions("on_demand", "aws", "H100-SXM-80", 8) is DEFAULT_CONDITIONS
    for provider, accelerator in (("aws", "H100-SXM-80"), ("aws", "B200"), ("lambda", "H100-SXM-80")):
        assert conditions("spot", provider, accelerator, 8).reliability.interruptions_per_s > 0


def test_plans_on_spot_take_as_long_as_the_estimate_says() -> None:
    wanted = workload(
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
    assert any("taken back" in sentence for sentence in made.assumptions)
