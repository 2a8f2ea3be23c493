"""One setting, three answers: `serve`, `simulate` and `plan` speak of the same deployment."""

from typing import Any

import pytest

from flopwise.api.plan import plan
from flopwise.api.serve import serve
from flopwise.api.simulate import simulate
from flopwise.errors import FlopwiseError, SpecError
from flopwise.search.answer import Candidate

SHAPE: dict[str, Any] = {"gpu": "h100", "tp": 4, "weights": "bf16"}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "shared": {"shared_prefix": 500},
    "hits": {"prefix_hit": 0.5},
    "kept": {"kv_keep": 0.3},
    "draft": {"draft": "Llama-3.2-1B", "acceptance": 0.75},
    "eagle": {"draft": "eagle", "acceptance": 0.7},
    "n-grams": {"draft": "ngram", "acceptance": 0.4},
    "offloaded": {"offload_weights": 0.1},
}


def limit_per_s(how: dict[str, Any]) -> float:
    found = serve("Llama-3.1-70B", input_tokens=1000, output_tokens=250, rate=0.01, **SHAPE, **how).under_load
    assert found is not None
    return 0.01 / found.utilisation_frac


@pytest.mark.parametrize("share", [0.15, 0.5])
@pytest.mark.parametrize("name", [*WAYS, "pools"])
def test_serve_and_simulate_agree(name: str, share: float) -> None:
    how = WAYS.get(name, {"prefill_gpus": 4})
    rate = share * limit_per_s(how)
    load = serve("Llama-3.1-70B", input_tokens=1000, output_tokens=250, rate=rate, **SHAPE, **how).under_load
    run = simulate(
        "Llama-3.1-70B", input_tokens="1000", output_tokens="250", rate=rate, requests=1200, seed=1, **SHAPE, **how
    ).summary
    assert load is not None
    assert load.tpot_s["p50"] == pytest.approx(run.tpot_s.p50, rel=0.05 if share < 0.2 else 0.15)
    assert load.tpot_s["p95"] == pytest.approx(run.tpot_s.p95, rel=0.1 if share < 0.2 else 0.18)
    # the estimate's median waits for no step in progress: and queues little
    assert load.ttft_s["p50"] == pytest.approx(run.ttft_s.p50, rel=0.15, abs=run.itl_s.p50)


def planned(how: dict[str, Any], rate: float) -> Candidate:
    asked = {
        "model": "Llama-3.1-70B", "task": "serve", "techniques": how,
        "traffic": {"requests_per_s": rate, "input_tokens": 1000, "output_tokens": 250},
        "targets": {"ttft": {"p50": "10s"}, "tpot": {"p50": "1s"}, "confidence": 0.05},
        "constraints": {
            "instances": ["p5.48xlarge"], "weight_formats": ["bf16"], "kv_dtype": "bf16", "purchase": ["on_demand"]
        },
    }  # fmt: skip
    return plan(asked).plans[0]


@pytest.mark.parametrize("share", [0.15, 0.5])
@pytest.mark.parametrize("name", [n for n in WAYS if n not in {"kept", "n-grams"}])
def test_plan_agrees_with_both(name: str, share: float) -> None:
    how = WAYS[name]
    best = planned(how, share * limit_per_s(how))
    layout, rate = best.layout, share * limit_per_s(how) / best.layout["replicas"]
    shape = SHAPE | {"tp": layout["tp"], "pp": layout["pp"]}
    asked = {"input_tokens": 1000, "output_tokens": 250, "rate": rate, **shape, **how}
    load, closed = (serve("Llama-3.1-70B", closed_form=yes, **asked).under_load for yes in (False, True))
    assert load is not None
    assert closed is not None
    assert best.figures["tpot_s"] == pytest.approx(closed.tpot_s["p50"], rel=0.05)
    assert best.figures["ttft_s"] == pytest.approx(closed.ttft_s["p50"], rel=0.05)
    assert best.figures["tpot_s"] == pytest.approx(load.tpot_s["p50"], rel=0.1)
    assert best.figures["ttft_s"] == pytest.approx(load.ttft_s["p50"], rel=0.1)
    assert best.simulated is not None
    for simulated in (closed, load):
        assert best.simulated.tpot_s["p50"] == pytest.approx(simulated.tpot_s["p50"], rel=0.15)


def test_every_technique_that_saves_is_worth_its_lever() -> None:
    rate = 0.5 * limit_per_s({})
    asked = {
        "model": "Llama-3.1-70B", "task": "serve",
        "techniques": {"draft": "eagle", "acceptance": "70%", "shared_prefix": 500, "kv_keep": 0.5},
        "traffic": {"requests_per_s": rate, "input_tokens": 1000, "output_tokens": 250},
        "targets": {"tpot": {"p50": "100ms"}},
        "constraints": {"instances": ["p5.48xlarge"], "weight_formats": ["bf16"], "kv_dtype": "bf16"},
        "simulate": False,
    }  # fmt: skip
    found = {one.change: one.seconds for one in plan(asked).levers if one.seconds is not None}
    without = {name: found[name] for name in ("without drafts", "without cached prefixes", "without eviction")}
    assert min(without.values()) > 1  # the same requests take longer
    assert max(without, key=without.__getitem__) == "without drafts"


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"draft": "eagle"}, "techniques.draft: needs --acceptance"),
        ({"acceptance": 0.5}, "techniques.acceptance: needs a draft"),
        ({"prefix_hit": 1.5}, "techniques.prefix_hit: 1.5 is out of range; allowed: 0 or more, up to 1"),
        ({"prefix_hit": "lots"}, "techniques.prefix_hit"),
        ({"shared_prefix": 1000}, "techniques: a shared prefix of 1,000 tokens in prompts of 1,000"),
        ({"draft": "Lama-3.2-1B", "acceptance": 0.5}, "unknown model 'Lama-3.2-1B'"),
        ({"draft": "Qwen3-0.6B", "acceptance": 0.5}, "vocabulary"),
        ({"expert_skew": 2}, "no experts"),
        ({"prefix_hits": 0.5}, "nearest: prefix_hit"),
        ({"offload_weights": 0.5, "gpu_layers": 3}, "(--offload-weights) is given as well"),
    ],
)
def test_techniques_that_cannot_be_are_refused(how: dict[str, Any], says: str) -> None:
    with pytest.raises(FlopwiseError) as found:
        planned(how, 1.0)
    assert says in str(found.value)


def test_techniques_mean_nothing_in_training() -> None:
    with pytest.raises(SpecError, match="techniques: has no meaning"):
        plan({"model": "Llama-3.1-8B", "task": "pretrain", "data": {"tokens": "1B"}, "techniques": {"kv_keep": 0.5}})


def test_split_pools_do_not_scale_by_themselves() -> None:
    with pytest.raises(SpecError, match="prefill_replicas is given as well"):
        simulate("Llama-3.1-8B", gpu="h100", rate=1, prefill_replicas=1, prefill_gpus=1)
