"""Techniques in the simulator: draws have the right mean, tokens are conserved, steps are those of the runner."""

from dataclasses import replace

import numpy as np
import pytest

from flopwise.cost.cluster import cluster
from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.serving.disaggregated import pools
from flopwise.serving.iteration import StepLoad
from flopwise.serving.job import Offload, Speculation, Techniques
from flopwise.serving.memory import ServingLayout
from flopwise.serving.sim.engine import replica
from flopwise.serving.sim.request import transfer
from flopwise.serving.sim.setup import rounds
from flopwise.serving.sim.simulate import simulate
from flopwise.serving.sim.trace import RequestTrace, trace
from flopwise.serving.spec import Scheduling
from flopwise.serving.techniques import TechniqueRunner, runner
from named import serve_job_with

FACTS = load_facts()
H100 = cluster(FACTS.accelerator("H100-SXM-80"), gpus_per_node=8)
MODEL, DRAFT = load_model("Llama-3.1-8B"), load_model("Llama-3.2-1B")
JOB = serve_job_with(model=MODEL, cluster=H100, input_tokens=1000, output_tokens=200)
WAYS = {
    "shared": Techniques(shared_tokens=700),
    "hits": Techniques(hit_frac=0.6),
    "kept": Techniques(kept_frac=0.25),
    "n-grams": Techniques(speculation=Speculation(name="n-grams", tokens=3, acceptance=0.5)),
    "draft": Techniques(speculation=Speculation(name="1B", tokens=4, acceptance=0.7, draft=DRAFT)),
    "streamed": Techniques(offload=Offload(frac=0.25)),
}


def requests(count: int = 60, rate: float = 4.0, seed: int = 0) -> RequestTrace:
    rng = np.random.default_rng(seed)
    come = np.cumsum(rng.exponential(1 / rate, count))
    return trace(come, rng.integers(800, 1200, count), rng.integers(1, 400, count))


def expected_rounds(output: int, acceptance: float, proposals: int) -> float:
    """By the law of total expectation, token by token."""
    odds = [acceptance**j * (1 - acceptance) for j in range(proposals)] + [acceptance**proposals]
    ahead = [0.0] * output
    for left in range(1, output):
        ahead[left] = 1 + sum(p * ahead[max(left - j - 1, 0)] for j, p in enumerate(odds))
    return 1 + ahead[output - 1]


@pytest.mark.parametrize(("acceptance", "proposals"), [(0.0, 4), (0.3, 1), (0.7, 4), (0.95, 8), (1.0, 3)])
@pytest.mark.parametrize("output", [1, 2, 5, 120])
def test_rounds_have_the_mean_of_their_distribution(acceptance: float, proposals: int, output: int) -> None:
    drawn = rounds(np.full(4000, output), acceptance, proposals)
    assert drawn.mean() == pytest.approx(
        expected_rounds(output, acceptance, proposals), abs=5 * drawn.std() / 4000**0.5 + 1e-9
    )
    assert drawn.min() >= 1 + np.ceil((output - 1) / (proposals + 1))
    assert drawn.max() <= output


@pytest.mark.parametrize("name", WAYS)
def test_tokens_are_conserved(name: str) -> None:
    made = replica(replace(JOB, techniques=WAYS[name]), max_tokens=2000)
    asked = requests()
    run = simulate(asked, made.cost, made.limits, samples=1)
    read, written = run.tokens
    assert (read, written) == (asked.prompt.sum(), asked.output.sum())
    assert run.summary().completed == len(asked)


def test_a_shared_prefix_is_computed_once_and_found_by_all_others() -> None:
    made = replica(replace(JOB, techniques=WAYS["shared"]), max_tokens=2000)
    asked = requests(40, rate=0.5)  # one after the other
    run = simulate(asked, made.cost, made.limits, samples=1)
    assert run.reused_tokens == (len(asked) - 1) * (700 // made.limits.block_tokens * made.limits.block_tokens)


@pytest.mark.parametrize("how", [WAYS["shared"], WAYS["hits"]])
def test_requests_with_prefixes_of_their_own_are_refused(how: Techniques) -> None:
    made = replica(replace(JOB, techniques=how), max_tokens=2000)
    own = trace([0.0, 1.0], [900, 900], [10, 10], prefix=[0, 0], prefix_tokens=[100, 100])
    with pytest.raises(SpecError, match="prefixes of their own"):
        simulate(own, made.cost, made.limits)


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("batch", [1, 7, 32, 128])
def test_steps_are_those_of_the_runner(name: str, batch: int) -> None:
    job = replace(JOB, techniques=WAYS[name])
    machine = runner(job)
    assert isinstance(machine, TechniqueRunner)
    bare = replace(machine, cached_tokens=0.0)  # what is cached of prompts the simulator counts itself
    cost = replica(job, max_tokens=2000).cost
    context = 900
    step = float(np.asarray(bare.step(StepLoad(decode_batch=batch, decode_context=context), JOB.layout).seconds))
    assert cost.seconds(batch=batch, cached=batch * context) == pytest.approx(step, rel=0.04)
    for chunk, before in ((128, 0), (1000, 0), (300, 700)):
        load = StepLoad(prefill_tokens=chunk, prefill_context=chunk + before)
        alone = float(np.asarray(bare.step(load, JOB.layout).seconds))
        assert cost.seconds(chunk=chunk, start=before) == pytest.approx(alone, rel=0.08)


def test_mixed_steps_hold_the_draft_and_the_prompt() -> None:
    job = replace(JOB, techniques=WAYS["draft"])
    machine, cost = runner(job), replica(job, max_tokens=2000).cost
    load = StepLoad(decode_batch=16, decode_context=800, prefill_tokens=500, prefill_context=500)
    whole = float(np.asarray(machine.step(load, JOB.layout).seconds))
    assert cost.seconds(batch=16, cached=16 * 800, chunk=500) == pytest.approx(whole, rel=0.05)


def test_a_kept_share_makes_room_for_more() -> None:
    plain, kept = replica(JOB).limits.num_blocks, replica(replace(JOB, techniques=WAYS["kept"])).limits.num_blocks
    assert kept == pytest.approx(4 * plain, rel=0.05)


def test_the_transfer_between_pools_is_that_of_the_estimate() -> None:
    job = replace(JOB, layout=ServingLayout(tp=2), techniques=Techniques(prefill_gpus=2))
    one = transfer(job)
    assert one.latency_s + 1000 * one.s_per_token == pytest.approx(pools(job, runner(job)).transfer_s, rel=1e-6)


@pytest.mark.parametrize(
    ("replicas", "beside", "gpus", "whole"), [(1, 4, 4, 1), (3, 2, 2, 3), (4, 1, 2, 2), (2, 0, 4, 0)]
)
def test_prefill_devices_make_whole_replicas(replicas: int, beside: int, gpus: int, whole: int) -> None:
    assert Scheduling(prefill_gpus=beside).prefill_pool(replicas, gpus) == whole


@pytest.mark.parametrize(("beside", "replicas", "said"), [
    (2, 1, "2 prefill GPUs for each of 1 replica: no whole number of prompt-only replicas of 4; give a multiple"),
    (1, 2, "1 prefill GPU for each of 2 replicas: no whole number of prompt-only replicas of 4; give a multiple"),
])  # fmt: skip
def test_prefill_devices_that_make_none_are_refused(beside: int, replicas: int, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        Scheduling(prefill_gpus=beside).prefill_pool(replicas, 4)
