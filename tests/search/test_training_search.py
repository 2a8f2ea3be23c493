"""The search against what it must equal: the single estimate, and brute force over a small space."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from flopwise.cost.cluster import cluster
from flopwise.errors import SpecError
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts, load_facts
from flopwise.facts.models import load_model
from flopwise.search.nodes import NodeKind, Priced
from flopwise.search.space import MODES, Limits, inner_combinations, layouts
from flopwise.search.training import columns, gpu_counts, searched, timed
from flopwise.training.estimate import TrainJob, estimate
from flopwise.training.layout import Layout, Recipe
from flopwise.training.memory import step_memory

TOKENS = 1e9


@pytest.fixture(scope="module")
def facts() -> Facts:
    return load_facts()


@pytest.fixture(scope="module")
def node(facts: Facts) -> NodeKind:
    offer = next(o for o in facts.offers if o.instance == "p4d.24xlarge" and o.on_demand_usd_per_hour)
    built = cluster(facts.offered_accelerator(offer), offer=offer)
    price = offer.on_demand_usd_per_hour
    assert price is not None
    return NodeKind(
        cluster=built,
        count=8,
        priced=(Priced(offer=offer, purchase="on_demand", usd_per_hour=price),),
        networked=True,
    )


CASES = [
    ("gpt2-xl", 1024, 64, "megatron-te"),
    ("Llama-3.2-1B", 4096, 32, "fsdp-compile"),
    ("OLMoE-1B-7B", 4096, 32, "megatron-te"),
]


@pytest.mark.parametrize(("name", "seq", "batch", "software"), CASES)
def test_rows_of_the_search_equal_single_estimates(
    name: str, seq: int, batch: int, software: str, node: NodeKind
) -> None:
    model = load_model(name)
    recipe = Recipe(seq_len=seq, global_batch=batch, stack=software)
    job = searched(model, recipe, gpu_counts(32, 8))
    result = timed(job, node, TOKENS, {})
    assert result.rows.size > 50
    rng = np.random.default_rng(7)
    for pick in rng.choice(result.rows.size, size=12, replace=False):
        layout = columns(job.space).at(int(result.rows[pick]))
        single = estimate(TrainJob(model=model, recipe=recipe, layout=layout, cluster=node.cluster, tokens=TOKENS))
        assert result.step_s[pick] == pytest.approx(single.step_s, rel=1e-9)
        assert job.memory_bytes[result.rows[pick]] == pytest.approx(float(single.memory.total_bytes), rel=1e-9)
        assert single.run is not None
        assert result.run_s[pick] == pytest.approx(single.run.seconds, rel=1e-6)


def brute_force(model: Model, recipe: Recipe, node: NodeKind, gpus: int) -> tuple[float, int]:
    """(shortest step, candidates that fit) over every layout of powers of two, one estimate each."""
    best, fitting = float("inf"), 0
    degrees = (1, 2, 4, 8)
    for tp, pp, micro, zero, recompute, interleave in product(
        degrees, degrees, (1, 2, 4), range(4), range(3), (1, 2, 4)
    ):
        if gpus % (tp * pp):
            continue
        dp = gpus // (tp * pp)
        plain = (zero == 0 or dp > 1) and (zero < 2 or pp == 1)
        stages = pp > 1 and model.stacks[0].num_layers % (pp * interleave) == 0
        if not plain or (interleave > 1 and not stages) or recipe.global_batch % (dp * micro):
            continue
        if interleave > 1 and (recipe.global_batch // (dp * micro)) % pp:
            continue
        layout = Layout(dp=dp, tp=tp, pp=pp, micro_batch=micro, zero=zero, recompute=recompute, interleave=interleave)
        if float(step_memory(model, recipe, layout).total_bytes) > node.cluster.accelerator.hbm_bytes:
            continue
        fitting += 1
        single = estimate(TrainJob(model=model, recipe=recipe, layout=layout, cluster=node.cluster))
        best = min(best, single.step_s)
    return best, fitting


def test_the_best_row_is_the_best_of_all_layouts(node: NodeKind) -> None:
    model = load_model("gpt2-medium")
    recipe = Recipe(seq_len=1024, global_batch=32, stack="megatron-te")
    best, fitting = brute_force(model, recipe, node, 8)
    job = searched(model, recipe, np.array([8]), max_domain=8)
    result = timed(job, node, TOKENS, {})
    assert fitting > 100
    assert result.step_s.min() <= best * (1 + 1e-9)
    kept = job.space.inner.micro_batch[job.space.inner_index[result.rows]] <= 4
    degrees = job.space.degrees[job.space.degree_index[result.rows]]
    assert result.step_s[kept & np.isin(degrees, (1, 2, 4, 8))].min() == pytest.approx(best, rel=1e-9)


def test_every_row_is_a_layout_that_the_estimate_takes(node: NodeKind) -> None:
    model = load_model("Qwen3-30B-A3B")
    recipe = Recipe(seq_len=4096, global_batch=128)
    job = searched(model, recipe, gpu_counts(64, 8))
    world = columns(job.space).num_gpus
    assert np.array_equal(np.asarray(world), job.space.num_gpus)
    rng = np.random.default_rng(3)
    for pick in rng.choice(job.space.size, size=30, replace=False):
        layout = columns(job.space).at(int(pick))
        try:
            estimate(TrainJob(model=model, recipe=recipe, layout=layout, cluster=node.cluster))
        except SpecError as error:  # pragma: no cover - the message is the finding
            pytest.fail(f"{layout}: {error}")


def test_rows_come_in_groups_of_recompute_modes() -> None:
    limits = Limits.of(load_model("gpt2"), 1024, 64)
    space = layouts(limits, inner_combinations(limits, 8, 8), gpu_counts(16))
    assert space.size % MODES == 0
    assert np.array_equal(space.recompute, np.tile(np.arange(MODES), space.size // MODES))
    for column in (space.dp, space.zero, space.interleave, space.inner_index, space.degree_index, space.num_gpus):
        groups = column.reshape(-1, MODES)
        assert (groups == groups[:, :1]).all()


def test_more_recompute_never_takes_less_time_or_more_memory(node: NodeKind) -> None:
    model = load_model("gpt2-large")
    recipe = Recipe(seq_len=1024, global_batch=64)
    steps, sizes = [], []
    for mode in range(3):
        layout = Layout(dp=8, zero=1, micro_batch=8, recompute=mode)
        single = estimate(TrainJob(model=model, recipe=recipe, layout=layout, cluster=node.cluster))
        steps.append(single.step_s)
        sizes.append(float(single.memory.total_bytes))
    assert steps == sorted(steps)
    assert sizes == sorted(sizes, reverse=True)


def test_a_node_without_a_known_network_keeps_jobs_on_one_instance(node: NodeKind) -> None:
    model = load_model("gpt2-xl")
    job = searched(model, Recipe(seq_len=1024, global_batch=64), gpu_counts(64, 8))
    alone = timed(job, replace(node, networked=False), TOKENS, {})
    assert set(alone.num_gpus.tolist()) == {8}
    assert timed(job, node, TOKENS, {}).num_gpus.max() == 64
