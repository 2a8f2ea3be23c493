"""The search against what it must equal: the single estimate, and brute force over a small space."""

from dataclasses import replace
from functools import cache, partial
from itertools import product
from math import log
from operator import le
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwise.api.plan import plan
from flopwise.cost.cluster import cluster
from flopwise.errors import InfeasibleError, SpecError
from flopwise.facts import defaults
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.facts.models.config import model_from_config
from flopwise.search.answer import Candidate
from flopwise.search.layout_search import (
    TIE,
    GivenSettings,
    LayoutSearch,
    StepTables,
    TimedLayouts,
    fastest_layout,
    floor_s,
    inner_combinations,
    kinds_in,
    layout_search,
    steps_s,
    timed_layouts,
)  # fmt: skip
from flopwise.search.nodes import NodeKind, Priced
from flopwise.search.plan import plan as searched_plan
from flopwise.search.plan_training import OFFLOADS, Offloads, copying_is_quicker, floor_flops, floor_gpu_s, with_offload
from flopwise.search.run_job import candidate_job, recipes
from flopwise.search.space import EVERY, LayoutLimits, layouts
from flopwise.search.workload import merged_onto
from flopwise.search.workload_file import workload_from
from flopwise.training.documents import lognormal
from flopwise.training.estimate import estimate, single_parts, single_table
from flopwise.training.frozen import Frozen
from flopwise.training.job import TrainJob
from flopwise.training.layout import ALL_TARGETS, Layout, Recipe
from flopwise.training.memory import FITS_WITH, confident_capacity_bytes, memory_band, step_memory
from flopwise.training.schedules import NAMES
from flopwise.training.step import whole_step_s
from named import FACTS, lora_with, recipe_with

TOKENS = 1e9


@cache
def eight(instance: str = "p4d.24xlarge") -> NodeKind:
    facts = load_facts()
    offer = next(o for o in facts.offers if o.instance == instance and o.on_demand_usd_per_hour)
    price = offer.on_demand_usd_per_hour
    assert price is not None
    return NodeKind(
        cluster=cluster(facts.offered_accelerator(offer), offer=offer),
        count=8,
        priced=(Priced(offer=offer, purchase="on_demand", usd_per_hour=price),),
        networked=True,
    )


@pytest.fixture
def node() -> NodeKind:
    return eight()


PREDICTING = model_from_config(
    {
        "model_type": "deepseek_v3", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 15,
        "num_attention_heads": 16, "vocab_size": 65_536, "q_lora_rank": 512, "kv_lora_rank": 256,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 32,
        "n_shared_experts": 1, "num_experts_per_tok": 4, "moe_intermediate_size": 512, "first_k_dense_replace": 1,
        "num_nextn_predict_layers": 1, "tie_word_embeddings": False,
    },
    name="predicts two tokens",
)  # fmt: skip
CASES: dict[str, tuple[str | Model, Recipe]] = {
    "predicted tokens": (PREDICTING, recipe_with(seq_len=4096, global_batch=64, stack="nemo")),
    "dense": ("gpt2-xl", recipe_with(seq_len=1024, global_batch=64, stack="megatron-te")),
    "sharded": ("Llama-3.2-1B", recipe_with(seq_len=4096, global_batch=96, stack="fsdp-compile")),
    "experts": ("OLMoE-1B-7B", recipe_with(seq_len=4096, global_batch=32, stack="megatron-te")),
    "orthogonalised": (
        "OLMoE-1B-7B",
        recipe_with(seq_len=4096, global_batch=32, stack="megatron-te", optimizer="muon"),
    ),
    "orthogonalised, even slices": (
        "Llama-3.2-1B",
        recipe_with(seq_len=4096, global_batch=96, stack="fsdp-te", optimizer="muon"),
    ),
    "first layers differ": ("DeepSeek-V2-Lite", recipe_with(seq_len=4096, global_batch=64, stack="megatron-te")),
    "long": ("Llama-3.1-8B", recipe_with(seq_len=65_536, global_batch=16, stack="megatron-te", precision="fp8")),
    "adapters": (
        "Llama-3.1-8B",
        recipe_with(seq_len=2048, global_batch=64, lora=lora_with(rank=16, targets=ALL_TARGETS, base="nf4")),
    ),
    "zero bubble": ("Llama-3.2-1B", recipe_with(seq_len=4096, global_batch=96, stack="megatron-deepspeed")),
    "padded": (
        "Llama-3.2-1B",
        recipe_with(seq_len=4096, global_batch=96, documents=lognormal(600, 1.0, 4096, "padded")),
    ),
    "frozen, packed, skewed": (
        "OLMoE-1B-7B",
        recipe_with(
            seq_len=4096,
            global_batch=32,
            stack="megatron-te",
            expert_skew=2.5,
            documents=lognormal(600, 1.0, 4096, "packed"),
            frozen=Frozen(embedding=True, first=5),
        ),
    ),
    "uneven stages": (
        "Llama-3.2-3B",
        recipe_with(seq_len=8192, global_batch=60, stack="megatron-deepspeed", precision="fp16"),
    ),
}


@cache
def whole(case: str) -> LayoutSearch:
    given, recipe = CASES[case]
    return layout_search(load_model(given) if isinstance(given, str) else given, recipe, most=96, least=8)


def traits(layout: Layout) -> tuple[object, ...]:
    """What a layout makes use of: two with the same traits take the same formulas."""
    more_than_one = (layout.tp, layout.pp, layout.cp, layout.ep, layout.dp, layout.micro_batch, layout.interleave)
    kinds = layout.zero, layout.shard > 0, layout.schedule, layout.recompute, layout.recomputes_some
    return (*(n > 1 for n in more_than_one), *kinds)


@pytest.mark.parametrize("case", CASES)
def test_rows_of_the_search_equal_single_estimates(case: str) -> None:
    """Layouts of each case that make use of different things, 80 at most, and ten with recompute of some blocks."""
    job = whole(case)
    node = eight("p5.48xlarge")
    result = timed_layouts(job, node, TOKENS, StepTables(), every=True)
    assert np.count_nonzero(result.rows < job.space.size) == result.fitting > 100
    assert np.unique(result.rows).size == result.rows.size
    rng = np.random.default_rng(7)
    some = np.flatnonzero(result.rows >= job.space.size)  # few and far between: recompute of some blocks
    assert some.size or case in {"dense", "adapters"}  # over a quantised base all blocks are computed again
    drawn = {pick: job.space.layout(int(result.rows[pick])) for pick in rng.choice(result.rows.size, size=400)}
    unlike = list({traits(layout): pick for pick, layout in drawn.items()}.values())
    assert len(unlike) > 20
    for pick in (*unlike[:80], *rng.choice(some, size=10 if some.size else 0)):
        layout = job.space.layout(int(result.rows[pick]))
        assert layout.num_gpus == result.num_gpus[pick]
        assert layout.recomputes_some == (pick in some)
        train = TrainJob(model=job.model, recipe=job.recipe, layout=layout, cluster=node.cluster, tokens=TOKENS)
        single = estimate(train)
        assert result.step_s[pick] == pytest.approx(single.step_s, rel=1e-9)
        assert result.memory_bytes[pick] == pytest.approx(float(single.memory.total_bytes), rel=1e-9)
        assert single.run is not None
        assert result.run_s[pick] == pytest.approx(single.run.seconds, rel=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_steps_are_the_same_to_the_last_bit_whatever_is_timed_beside(case: str) -> None:
    """Choice by mesh or candidate by candidate: a search prunes by steps of either."""
    job, node = whole(case), eight("p5.48xlarge")
    table, rng = StepTables().table(job, node.cluster), np.random.default_rng(0)
    for start, family in zip(job.space.starts, job.space.families, strict=True):
        steps, places = (
            steps_s(table, job.space, family).ravel(),
            rng.integers(family.choices * family.meshes, size=507),
        )
        for some in (places[:7], places[7:]):
            assert (steps[some] == whole_step_s(table, *job.space.at_rows(start + some))).all()


@pytest.mark.parametrize("case", CASES)
def test_what_is_dropped_is_no_better_than_what_is_kept(case: str) -> None:
    """The fastest of each number of GPUs go on: nothing that fits beats them."""
    job, node = whole(case), eight("p5.48xlarge")
    kept, every = (timed_layouts(job, node, TOKENS, StepTables(), every=every) for every in (False, True))
    assert (kept.considered, kept.fitting) == (every.considered, every.fitting)
    order = np.argsort(every.rows)
    same = order[np.searchsorted(every.rows, kept.rows, sorter=order)]
    for name in ("rows", "step_s", "num_gpus", "kinds", "memory_bytes"):
        assert (getattr(kept, name) == getattr(every, name)[same]).all()
    for gpus in np.unique(every.num_gpus):
        ours, all_of_it = kept.num_gpus == gpus, every.num_gpus == gpus
        assert kept.step_s[ours].min() == every.step_s[all_of_it].min()
        assert kept.run_s[ours].min() == every.run_s[all_of_it].min()
    assert kept.rows.size <= 2 * np.unique(every.num_gpus).size


@pytest.mark.parametrize("case", CASES)
def test_no_step_is_shorter_than_the_bound_that_rules_meshes_out(case: str) -> None:
    job, node = whole(case), eight("p5.48xlarge")
    table = StepTables().table(job, node.cluster)
    for family in job.space.families:
        bound = floor_s(table, job.space, family, family.recomputes)
        assert (steps_s(table, job.space, family).min(axis=(0, 1)) >= bound * (1 - 1e-9)).all()
        least = floor_s(table, job.space, family, (0,))
        for every, first in (*((n, 0) for n in EVERY), (1, 1), (1, 2)):  # full recompute of some blocks
            some = replace(job.space.columns(family), recompute=2, recompute_every=every, recompute_first=first)
            steps = whole_step_s(table, family.inner_index, family.degree_index, some)
            assert (steps >= least * (1 - 1e-9)).all()


@pytest.mark.parametrize(("stack", "precision"), [("nemo", "fp8"), ("fsdp-eager", "bf16")])
def test_what_hides_beside_other_micro_batches_is_in_no_bound(stack: str, precision: str) -> None:
    """Messages of experts, by the software's own overlap between nodes and by DualPipe's."""
    recipe = recipe_with(seq_len=8192, global_batch=128, stack=stack, precision=precision)
    job = layout_search(load_model("Qwen3-Next-80B-A3B"), recipe, most=64, least=64)
    table = StepTables().table(job, eight("p5.48xlarge").cluster)
    for family in job.space.families:
        bound = floor_s(table, job.space, family, family.recomputes)
        assert (steps_s(table, job.space, family).min(axis=(0, 1)) >= bound * (1 - 1e-9)).all()


def test_no_run_takes_less_than_its_operations_at_the_rates_of_kernels() -> None:
    """Six operations a weight and token (Kaplan et al. 2020), adapters four; attention comes on top, 2 % of GPT-2 XL.

    GPT-2 XL has 1,557,611,200 parameters, of which the 1024 x 1600 positions are added and not multiplied.
    """
    node, weights = eight("p5.48xlarge"), 1_557_611_200 - 1024 * 1600
    for passes, lora in ((6, None), (4, lora_with(rank=8, targets=ALL_TARGETS))):
        job = layout_search(load_model("gpt2-xl"), recipe_with(seq_len=1024, global_batch=64, lora=lora), most=8)
        flops = floor_flops(job) * 1e9
        assert flops == pytest.approx(passes * weights * 1e9, rel=0.06)
        assert flops > passes * weights * 1e9
        peak, product = node.cluster.accelerator.peak["bf16"], node.cluster.rates.matmul_flops_per_s("bf16")
        floor = floor_gpu_s(job, node, flops)
        assert flops / peak < floor <= flops / product
        times = timed_layouts(job, node, 1e9, StepTables(), every=True)
        assert (times.step_s / job.recipe.useful_tokens * 1e9 * times.num_gpus).min() > floor


@pytest.mark.parametrize("parts", [parts for row in OFFLOADS for parts in row])
def test_offloaded_rows_equal_single_estimates_and_stay_within_the_host(parts: tuple[str, ...]) -> None:
    node = eight("p5.48xlarge")
    job = with_offload(whole("sharded"), parts)
    result = timed_layouts(job, node, TOKENS, StepTables(), every=True)
    rng = np.random.default_rng(5)
    for pick in rng.choice(result.rows.size, size=40):
        layout = job.space.layout(int(result.rows[pick]))
        assert layout.offload_optimizer == ("optimizer" in parts)
        assert layout.offload_parameters == ("parameters" in parts)
        assert layout.offload_activations == ("activations" in parts)
        assert layout.zero == 3 or not layout.offload_parameters
        train = TrainJob(model=job.model, recipe=job.recipe, layout=layout, cluster=node.cluster, tokens=TOKENS)
        single = estimate(train)
        assert result.step_s[pick] == pytest.approx(single.step_s, rel=1e-9)
        assert result.memory_bytes[pick] == pytest.approx(float(single.memory.total_bytes), rel=1e-9)
        assert float(single.memory.host_bytes) <= node.host_bytes
    poor = replace(node, priced=tuple(replace(p, offer=replace(p.offer, ram_bytes=int(8e9))) for p in node.priced))
    held = timed_layouts(job, poor, TOKENS, StepTables(), every=True)
    assert 0 < held.rows.size < result.rows.size
    for row in held.rows[:: max(1, held.rows.size // 20)]:
        memory = step_memory(job.model, job.recipe, job.space.layout(int(row)))
        assert float(memory.host_bytes) <= 1e9


@pytest.mark.parametrize(("seq", "quicker"), [(2048, False), (131_072, True)])
def test_activations_are_copied_where_that_is_quicker_than_recompute(seq: int, quicker: bool) -> None:
    """Long sequences compute much for each byte kept; then plans with copied activations are among the options."""
    node = eight("p5.48xlarge")
    job = layout_search(load_model("Llama-3.1-8B"), recipe_with(seq_len=seq, global_batch=64), most=64, least=8)
    result = timed_layouts(job, node, TOKENS, StepTables())
    away = Offloads(job)
    assert copying_is_quicker(job, away.at(("activations",)), result) == quicker
    tried = list(away.worth_trying(node, result, partial(timed_layouts, node=node, tokens=TOKENS, tables=StepTables())))
    assert bool(tried) == quicker
    if tried:
        assert tried[0][1].run_s.min() < result.run_s.min()
    bare = replace(node, priced=tuple(replace(p, offer=replace(p.offer, ram_bytes=None)) for p in node.priced))
    unknown = replace(
        node, cluster=replace(node.cluster, rates=replace(node.cluster.rates, host_link_bytes_per_s=None))
    )
    clock = partial(timed_layouts, node=node, tokens=TOKENS, tables=StepTables())
    for where in (bare, unknown):
        assert not list(away.worth_trying(where, result, clock))


def test_a_workload_may_freeze_pack_and_skew() -> None:
    held = {
        "model": "OLMoE-1B-7B", "task": "finetune",
        "constraints": {"gpus": ["h100"], "providers": ["aws"], "max_gpus": 8},
        "data": {"samples": 10_000, "seq_len": 4096, "packing": "packed", "mean_length": 500},
        "routing": {"expert_skew": 2}, "method": {"freeze": "all-but-last:4"},
    }  # fmt: skip
    cheapest = plan(held).plans[0].cost_usd
    for section, other in (("routing", {"expert_skew": 6}), ("method", {"freeze": "embedding"}),
                           ("data", {**held["data"], "packing": "padded"})):  # type: ignore[dict-item]  # fmt: skip
        assert plan({**held, section: other}).plans[0].cost_usd >= cheapest


def test_nothing_is_offloaded_where_something_fits_without() -> None:
    workload = {"model": "Llama-3.1-70B", "task": "finetune", "data": {"tokens": "10M", "seq_len": 2048}}
    for gpu, away in (("b200", False), ("h100", True)):
        limits = {"gpus": [gpu], "providers": ["lambda", "aws", "coreweave"], "max_gpus": 8}
        plans = plan({**workload, "constraints": limits}).plans
        assert any("offload" in p.layout for p in plans) == away
        for one in plans:
            assert one.num_gpus <= 8


def fills(schedule: int, pp: int, waiting: int, layers: int) -> bool:
    """ZB-V and DualPipe want two micro-batches a stage; the first and the folded one have two chunks a rank, the other
    half of the micro-batches from either end."""
    if schedule in {3, 4, 5} and waiting < 2 * pp:
        return False
    if schedule in {3, 5} and 2 * pp > layers:
        return False
    return schedule != 4 or (pp % 2 == 0 and waiting % 2 == 0)


def allowed(layout: Layout, recipe: Recipe, layers: int) -> bool:
    """The rules of the space, in plain words and numbers."""
    dp, pp = int(layout.dp), int(layout.pp)
    if int(recipe.global_batch) % (dp * int(layout.micro_batch)):
        return False
    most = {"fsdp-compile": (0, 2), "in-house": (0, 1, 2)}.get(recipe.stack.name, (0, 1))  # in pipelines
    if int(layout.zero) and (dp == 1 or (pp > 1 and int(layout.zero) not in most)):
        return False
    group = int(layout.shard)
    nodes = {4, 8, 16, 32, 64, 6, 12, 36, 72}
    if group and (
        int(layout.zero) != 3 or group < 2 or group >= dp or dp % group or group * int(layout.tp) not in nodes
    ):
        return False
    waiting = int(recipe.global_batch) // (dp * int(layout.micro_batch))
    code = int(layout.schedule)
    if code and (pp == 1 or int(layout.interleave) > 1 or not fills(code, pp, waiting, layers)):
        return False
    if int(layout.interleave) == 1:
        return True
    fullest, chunks = -(-layers // pp), int(layout.interleave)  # a chunk may be embedding or head alone
    return pp > 1 and fullest % chunks == 0 and pp * chunks <= layers + 2 and waiting % pp == 0


def brute_force(model: Model, recipe: Recipe, node: NodeKind, gpus: int) -> tuple[float, int, int]:
    """(shortest step, candidates, those that fit) over every layout there is, one estimate each.

    Full recompute of some blocks is tried everywhere, and counted nowhere; that of the first blocks of chunks, however
    many, where something has to be computed again.
    """
    best, candidates, fitting = float("inf"), 0, 0
    layers = model.stacks[0].num_layers
    degrees = sorted({p for p in range(1, gpus + 1) if layers % p == 0} | {1, 2, 4, 8, 16})
    known = recipe.stack.schedules
    schedules = (0, *(NAMES.index(name) for name in known if name in {"zero-bubble", "zb-v", "dualpipe", "dualpipe-v"}))
    groups = [(3, g) for g in range(2, gpus) if g in {2, 4, 8, 16, 3, 6, 12, 9, 18}]
    heads, room = LayoutLimits.of(model, 1, 1).heads, node.cluster.accelerator.hbm_bytes

    @cache
    def fits(layout: Layout) -> bool:
        return float(step_memory(model, recipe, layout).total_bytes) <= room

    for tp, pp, micro, sharding, recompute, interleave, schedule in product(
        (1, 2, 4, 8),
        degrees,
        (1, 2, 4, 8, 16, 32),
        ((0, 0), (1, 0), (2, 0), (3, 0), *groups),
        ((0, 1, 0), (1, 1, 0), (2, 1, 0), *((2, n, 0) for n in EVERY), *((2, 1, k) for k in range(1, layers))),
        range(1, 17),
        schedules,
    ):
        if gpus % (tp * pp) or heads % tp:
            continue
        zero, group = sharding
        if zero > recipe.stack.zero:
            continue
        layout = Layout(
            dp=gpus // (tp * pp), tp=tp, pp=pp, micro_batch=micro, zero=zero, shard=group, recompute=recompute[0],
            recompute_every=recompute[1], recompute_first=recompute[2], interleave=interleave, schedule=schedule,
        )  # fmt: skip
        if recompute[2] * interleave >= -(-layers // pp) or not allowed(layout, recipe, layers):
            continue
        whole = not layout.recomputes_some
        candidates += whole
        if not fits(layout):
            continue
        fitting += whole
        if recompute[2] and fits(replace(layout, recompute=0, recompute_first=0)):
            continue
        job = TrainJob(model=model, recipe=recipe, layout=layout, cluster=node.cluster)
        best = min(best, sum(single_parts(single_table(job), layout).values()))
    return best, candidates, fitting


@pytest.mark.parametrize(
    ("name", "batch", "gpus", "software", "hbm_bytes"),
    [
        ("gpt2-medium", 8, 8, "megatron-te", None),
        ("gpt2", 24, 24, "megatron-te", None),
        ("gpt2", 8, 8, "megatron-deepspeed", None),
        ("gpt2", 8, 8, "hai-llm", None),
        ("gpt2-medium", 16, 8, "in-house", 5_200_000_000),
        ("gpt2-medium", 8, 8, "fsdp-te", None),
        ("gpt2-medium", 16, 8, "fsdp-compile", None),
    ],
)
def test_the_best_row_is_the_best_of_all_layouts(
    name: str, batch: int, gpus: int, software: str, hbm_bytes: int | None, node: NodeKind
) -> None:
    if hbm_bytes is not None:
        small = replace(node.cluster.accelerator, hbm_bytes=hbm_bytes)
        node = replace(node, cluster=replace(node.cluster, accelerator=small))
    model = load_model(name)
    recipe = recipe_with(seq_len=1024, global_batch=batch, stack=software)
    best, candidates, fitting = brute_force(model, recipe, node, gpus)
    job = layout_search(model, recipe, most=gpus, least=gpus, max_tp=8)
    result = timed_layouts(job, node, TOKENS, StepTables())
    assert fitting > 100
    assert (job.space.size, result.considered, result.fitting) == (candidates, candidates, fitting)
    assert result.step_s.min() == pytest.approx(best, rel=1e-9)
    partly = job.space.layout(int(result.rows[result.step_s.argmin()])).recomputes_some
    assert partly == (hbm_bytes is not None)
    found = fastest_layout(model, recipe, node.cluster, gpus)
    assert found is not None
    single = estimate(TrainJob(model=model, recipe=recipe, layout=found[0], cluster=node.cluster))
    if not partly:  # else the automatic layout may choose blocks more finely
        assert single.step_s >= result.step_s.min() * (1 - 1e-9)


@settings(max_examples=25, deadline=None)
@given(
    seq=st.sampled_from([512, 2048, 32_768]),
    batch=st.integers(1, 2000),
    most=st.integers(1, 3000),
    name=st.sampled_from(["gpt2", "Qwen3-30B-A3B", "Llama-3.1-405B"]),
)
def test_every_row_keeps_the_rules(seq: int, batch: int, most: int, name: str) -> None:
    limits = LayoutLimits.of(load_model(name), seq, batch)
    space = layouts(limits, inner_combinations(limits, 8, 8), most=most)
    assert space.size == sum(np.prod(f.shape) for f in space.families)
    for family in space.families:
        layout = space.columns(family)
        assert layout.shape() == family.shape
        ranks = np.asarray(layout.dp * layout.cp)
        assert np.array_equal(np.asarray(layout.num_gpus), family.num_gpus)
        assert (family.num_gpus <= most).all()
        assert not np.any(batch % (layout.dp * layout.micro_batch))
        assert not np.any(ranks % layout.ep)
        assert not np.any(ranks % np.maximum(layout.shard, 1))
        assert ((np.asarray(layout.zero) == 0) | (ranks > 1)).all()
        deep = np.asarray(layout.interleave) > 1
        alike = -(-limits.layers // np.asarray(layout.pp)) % layout.interleave == 0
        assert (~deep | alike & (layout.pp * layout.interleave <= limits.layers + 2)).all()


def test_a_row_is_the_layout_at_its_place() -> None:
    space = whole("experts").space
    row = 0
    for family in space.families:
        columns = space.columns(family)
        for index in range(0, family.meshes * family.choices, 997):
            assert space.layout(row + index) == columns.at(index)
        row += family.meshes * family.choices
    with pytest.raises(IndexError):
        space.layout(space.size)


def test_numbers_of_gpus_are_all_that_divide_the_batch() -> None:
    limits = LayoutLimits.of(load_model("gpt2"), 1024, 45)
    space = layouts(limits, inner_combinations(limits, 4, 8), most=100_000)
    counts = {int(g) for f in space.families for g in f.num_gpus}
    assert {1, 3, 5, 9, 15, 45, 90, 45 * 4 * 12} <= counts
    assert max(counts) == 45 * 4 * 12
    assert not {7, 11, 13} & counts


def test_every_row_is_a_layout_that_the_estimate_takes(node: NodeKind) -> None:
    model = load_model("Qwen3-30B-A3B")
    recipe = recipe_with(seq_len=4096, global_batch=128)
    job = layout_search(model, recipe, most=64)
    rng = np.random.default_rng(3)
    for pick in rng.choice(job.space.size, size=30, replace=False):
        layout = job.space.layout(int(pick))
        try:
            estimate(TrainJob(model=model, recipe=recipe, layout=layout, cluster=node.cluster))
        except SpecError as error:  # pragma: no cover - the message is the finding
            pytest.fail(f"{layout}: {error}")


def test_only_wanted_modes_and_micro_batches(node: NodeKind) -> None:
    model = load_model("gpt2")
    recipe = recipe_with(seq_len=1024, global_batch=64)
    job = layout_search(model, recipe, most=16, given=GivenSettings(recomputes=(2,), micro_batch=4))
    assert {int(job.space.layout(r).recompute) for r in range(0, job.space.size, 7)} == {2}
    assert set(job.space.inner.micro_batch.tolist()) == {4}
    assert layout_search(model, recipe, most=16, given=GivenSettings(micro_batch=128)).space.size == 0
    assert fastest_layout(model, recipe, node.cluster, 16, GivenSettings(micro_batch=128)) is None


@pytest.mark.parametrize(
    ("asked", "turns"),
    [
        ("1f1b", {(1, 0)}),
        ("interleaved", {(v, 0) for v in (2, 3, 4, 6, 12)}),  # of 24 layers on 2, 4 and 8 stages
        ("gpipe", {(1, 1)}),
        ("Interleaved_1F1B", {(v, 0) for v in (2, 3, 4, 6, 12)}),
        ("zb-h1", {(1, 2)}),
        ("zb-v", {(1, 3)}),
        ("dualpipe", {(1, 4)}),
    ],
)
def test_only_the_schedule_that_was_asked_for(asked: str, turns: set[tuple[int, int]]) -> None:
    model, recipe = load_model("gpt2-medium"), recipe_with(seq_len=1024, global_batch=64)
    job = layout_search(model, recipe, most=16, given=GivenSettings(schedule=asked))
    found = {
        (int(one.interleave), int(one.schedule))
        for one in (job.space.layout(r) for r in range(0, job.space.size, 11))
        if one.pp > 1
    }
    assert found == turns
    with pytest.raises(SpecError, match="nearest: gpipe"):
        layout_search(model, recipe, most=16, given=GivenSettings(schedule="gpip"))


def test_zero_bubble_is_tried_where_the_stack_runs_it() -> None:
    for software, tried in (("fsdp-eager", True), ("megatron-deepspeed", True), ("fsdp-compile", False)):
        recipe = recipe_with(seq_len=1024, global_batch=64, stack=software)
        space = layout_search(load_model("gpt2"), recipe, most=16).space
        assert any(t.schedule for f in space.families for t in f.turns) == tried


def test_plans_and_front_hold_the_energy_of_the_single_estimate_and_nothing_beaten() -> None:
    workload = {
        "model": "gpt2-xl", "task": "pretrain", "data": {"tokens": "1B", "seq_len": 1024, "global_batch": 64},
        "constraints": {"gpus": ["h100", "a100-80gb", "l4"], "max_gpus": 32, "providers": ["aws", "gcp", "lambda"]},
    }  # fmt: skip
    answer = plan(workload)
    facts, wanted = load_facts(), workload_from(workload)
    for one in (*answer.plans[:3], *answer.front[:: max(1, len(answer.front) // 5)]):
        bought = (one.provider, one.instance, one.region)
        offer = next(o for o in facts.offers if (o.provider, o.instance, o.region) == bought)
        found = estimate(candidate_job(wanted, load_model("gpt2-xl"), facts, offer, one)).run
        assert found is not None
        assert found.energy_joules is not None
        tdp_w = facts.accelerators[one.gpu].tdp_w or 0.0  # idle devices with their hosts while the machines start
        start = one.num_gpus * (0.1 + 0.5) * tdp_w * 1.2 * one.start_s
        assert found.start_joules == pytest.approx(start, rel=1e-6)
        assert one.energy_joules == pytest.approx(found.energy_joules, rel=1e-6)

    def weighed(one: Candidate) -> tuple[float, ...]:
        return one.cost_usd, one.seconds, one.num_gpus, one.energy_joules or float("inf")

    front = [weighed(one) for one in answer.front]
    assert len(set(front)) == len(front) > 5
    assert {one.num_gpus for one in answer.front} >= {min(one.num_gpus for one in answer.plans)}
    for point in [*front, *(weighed(p) for p in answer.plans)]:
        assert not any(all(map(le, point, other)) and point != other for other in front)
        assert point in front or any(all(map(le, other, point)) for other in front)


def test_any_precision_is_searched_where_device_and_stack_have_it() -> None:
    workload = {
        "model": "Llama-3.1-8B", "task": "pretrain", "data": {"tokens": "1B", "seq_len": 4096, "global_batch": 64},
        "constraints": {"gpus": ["H100-SXM-80", "A100-SXM-80", "b200"], "max_gpus": 16, "precision": ["any"],
                        "stack": "megatron-te"},
    }  # fmt: skip
    answer = plan(workload)
    best = {one.gpu: one.layout["precision"] for one in answer.plans}
    assert best == {"H100-SXM-80": "fp8", "A100-SXM-80": "bf16", "B200": "nvfp4"}
    alone = {
        name: plan(merged_onto(workload, {"constraints": {"precision": [name]}})) for name in ("bf16", "fp8", "nvfp4")
    }
    assert answer.evaluated == sum(one.evaluated for one in alone.values())
    for one in answer.plans:
        same = [
            p for name in alone for p in alone[name].plans if (p.provider, p.instance) == (one.provider, one.instance)
        ]
        assert one.cost_usd == min(p.cost_usd for p in same)
    assert any("were searched" in sentence for sentence in answer.assumptions)
    tuned = {
        "model": "Llama-3.1-8B",
        "task": "finetune",
        "data": {"tokens": "1M"},
        "method": {"kind": "lora"},
        "precision": "any",
    }
    assert [
        r.precision
        for r in recipes(workload_from(tuned), load_model("Llama-3.1-8B"), FACTS.stack("fsdp-compile"), FACTS)[0]
    ] == ["bf16"]
    with pytest.raises(SpecError, match="any"):
        recipes(
            workload_from({**tuned, "precision": "fp9"}), load_model("Llama-3.1-8B"), FACTS.stack("fsdp-compile"), FACTS
        )


def test_every_machine_is_planned_with_software_that_runs_on_it() -> None:
    asked = {"model": "gpt2", "task": "pretrain", "data": {"tokens": "1B"}}
    stacks = {"h100": "fsdp-compile", "k80": "hf-trainer", "gaudi2": "fsdp-compile", "tpu-v6e": "xla", "trn1": "xla"}
    for gpu, usual in stacks.items():
        answer = plan(workload_from({**asked, "constraints": {"gpus": [gpu]}}))
        assert {c.layout["stack"] for c in answer.plans} == {usual}
        assert any(f"the training stack {usual}, as none was given" in told for told in answer.assumptions)
    both = plan(workload_from({**asked, "constraints": {"gpus": ["h100", "tpu-v6e"]}}))
    assert {c.layout["stack"] for c in both.plans} == {"fsdp-compile", "xla"}
    assert any("fsdp-compile (where it does not run, xla)" in told for told in both.assumptions)
    with pytest.raises(InfeasibleError) as error:
        plan(workload_from({**asked, "constraints": {"gpus": ["tpu-v6e"], "stack": "megatron-te"}}))
    assert "megatron-te is not known to run there" in str(error.value.reasons)


def test_groups_of_hsdp_are_all_sensible_ones_or_the_one_asked_for() -> None:
    model, recipe = load_model("gpt2"), recipe_with(seq_len=1024, global_batch=144)
    space = layout_search(model, recipe, most=144, max_tp=1).space
    found = {
        (int(r), int(g)) for f in space.families if f.shard is not None for r, g in zip(f.dp, f.shard, strict=True)
    }
    sizes = {2**k for k in range(2, 8)} | {6, 12, 36, 72}
    every = {d for d in range(1, 145) if 144 % d == 0}
    assert found == {(r, g) for r in every for g in every & sizes if r % g == 0 and g < r}
    only = layout_search(model, recipe, most=144, max_tp=1, given=GivenSettings(shard=16)).space
    assert {int(f.dp[i]) for f in only.families for i in range(f.meshes)} == {16, 48, 144}
    assert all(f.zeros == (3,) and f.shard is not None and set(f.shard) == {16} for f in only.families)


def test_blocks_of_a_chunk_are_those_of_the_largest() -> None:
    """Of 32 layers on four stages eight each: eight in one chunk, four in two, three, three and two in three."""
    search = layout_search(load_model("Llama-3.1-8B"), recipe_with(seq_len=1024, global_batch=8), most=4, least=4)
    assert search.chunk_blocks(Layout(pp=4, interleave=np.array([1, 2, 3]))).tolist() == [8, 4, 3]


def test_no_more_blocks_are_computed_again_than_have_to_be() -> None:
    """Where full recompute is the fastest that fits, it is of as few blocks as fit: faster than any row."""
    model, recipe = load_model("Llama-2-13B"), recipe_with(seq_len=7424, global_batch=64, stack="fsdp-compile")
    built = eight().cluster
    found = fastest_layout(model, recipe, built, 8)
    fixed = fastest_layout(model, recipe, built, 8, GivenSettings(recomputes=(2,)))
    assert found is not None
    assert fixed is not None
    layout = found[0]
    assert int(layout.recompute) == int(fixed[0].recompute) == 2
    assert layout.recompute_first > 0
    assert fixed[0].recompute_first == 0
    fewer = replace(layout, recompute_first=layout.recompute_first - 1)
    held = [float(step_memory(model, recipe, one).total_bytes) for one in (layout, fewer)]
    most = confident_capacity_bytes(recipe, built.accelerator)
    assert held[0] <= most < held[1]
    steps = [
        estimate(TrainJob(model=model, recipe=recipe, layout=one, cluster=built)).step_s for one in (layout, fixed[0])
    ]
    assert steps[0] < steps[1]


def test_the_default_layout_is_the_fastest_that_fits_with_a_probability_of_nine_in_ten() -> None:
    """The band of memory estimates is lognormal on either side of its median: measured over predicted."""
    model, recipe = load_model("Llama-3.1-8B"), recipe_with(seq_len=8192, global_batch=512)
    built = cluster(load_facts().accelerator("H100-SXM-80"), gpus_per_node=8, network_bytes_per_s_per_gpu=50e9)
    hbm, band = float(built.accelerator.hbm_bytes), memory_band(recipe, FACTS.calibration)
    job = layout_search(model, recipe, most=64, least=64, max_tp=8, max_pp=16)
    found = fastest_layout(model, recipe, built, 64)
    assert found is not None

    def odds(layout: Layout) -> float:
        needed = float(step_memory(model, recipe, layout).total_bytes)
        spread = band.high / band.median if hbm / needed > band.median else band.median / band.low
        return NormalDist().cdf(log(hbm / needed / band.median) / (log(spread) / NormalDist().inv_cdf(0.9)))

    def step_s(layout: Layout) -> float:
        return estimate(TrainJob(model=model, recipe=recipe, layout=layout, cluster=built)).step_s

    assert odds(found[0]) >= FITS_WITH == 0.9
    assert found[2] < job.space.size == found[1]
    rows = np.random.default_rng(1).choice(job.space.size, 300, replace=False).tolist()
    sure = [layout for layout in map(job.space.layout, rows) if odds(layout) >= FITS_WITH]
    assert len(sure) > 20
    assert all(step_s(layout) >= step_s(found[0]) for layout in sure)
    small = replace(built, accelerator=replace(built.accelerator, hbm_bytes=6 * 2**30))
    likeliest = fastest_layout(model, recipe, small, 64)
    assert likeliest is not None
    assert likeliest[2] == 0
    assert all(
        step_memory(model, recipe, likeliest[0]).total_bytes <= step_memory(model, recipe, layout).total_bytes
        for layout in map(job.space.layout, rows)
    )


def test_where_none_fits_so_surely_the_fastest_that_a_plan_would_take_is_the_default() -> None:
    """A device on which the leanest layout fits with 89 %: those above 80 % count, and the fastest of them is taken."""
    model, recipe = load_model("Llama-3.1-8B"), recipe_with(seq_len=8192, global_batch=512)
    built = cluster(load_facts().accelerator("H100-SXM-80"), gpus_per_node=8, network_bytes_per_s_per_gpu=50e9)
    job = layout_search(model, recipe, most=64, least=64, max_tp=8, max_pp=16)
    layouts = [job.space.layout(row) for row in range(job.space.size)]
    needs = np.array([float(step_memory(model, recipe, layout).total_bytes) for layout in layouts])
    band = memory_band(recipe, FACTS.calibration)
    hbm = needs.min() * band.quantile(0.89)
    tight = replace(built, accelerator=replace(built.accelerator, hbm_bytes=int(hbm)))
    found = fastest_layout(model, recipe, tight, 64)
    assert found is not None
    assert found[2] == 0

    odds = np.asarray(band.probability_at_most(needs, hbm))
    allowed = [layouts[row] for row in np.flatnonzero(odds >= defaults.CONFIDENCE)]
    assert odds.max() < FITS_WITH
    assert band.probability_at_most(float(step_memory(model, recipe, found[0]).total_bytes), hbm) >= defaults.CONFIDENCE
    leanest = layouts[int(needs.argmin())]
    own_s, least_s, *others = (
        estimate(TrainJob(model=model, recipe=recipe, layout=one, cluster=tight)).step_s
        for one in (found[0], leanest, *allowed)
    )
    assert own_s <= TIE * min(others)
    assert own_s < least_s


def test_smaller_domains_hold_tensor_ranks_back(node: NodeKind) -> None:
    job = layout_search(load_model("gpt2"), recipe_with(seq_len=1024, global_batch=64), most=64, least=8)
    alone = timed_layouts(job, replace(node, networked=False), TOKENS, StepTables())
    assert set(alone.num_gpus.tolist()) == {8}
    assert timed_layouts(job, node, TOKENS, StepTables()).num_gpus.max() == 64
    narrow = replace(node, count=2, networked=False)
    tp = {int(job.space.layout(int(r)).tp) for r in timed_layouts(job, narrow, TOKENS, StepTables(), every=True).rows}
    assert tp <= {1, 2}


@pytest.mark.parametrize(("name", "batch"), [("Llama-3.1-8B", 512), ("Llama-3.1-70B", 256), ("Qwen3-30B-A3B", 512)])
def test_the_simplest_of_layouts_that_are_as_fast_is_chosen(node: NodeKind, name: str, batch: int) -> None:
    """Of all that fit and are within 8 % of the fastest, none has fewer kinds of parallelism."""
    job = layout_search(load_model(name), recipe_with(seq_len=8192, global_batch=batch), most=128, least=8)
    every = timed_layouts(job, node, 1e9, StepTables(), every=True)
    found = timed_layouts(job, node, 1e9, StepTables())
    for gpus in np.unique(every.num_gpus):
        own, chosen = np.flatnonzero(every.num_gpus == gpus), np.flatnonzero(found.num_gpus == gpus)
        fastest = float(every.step_s[own].min())
        as_fast = own[every.step_s[own] <= 1.08 * fastest]
        fewest = int(every.kinds[as_fast].min())
        one = found.simplest(chosen)
        assert found.step_s[chosen].min() == pytest.approx(fastest)
        assert int(kinds_in(job.space.layout(int(found.rows[one])))) == found.kinds[one] == fewest
        assert found.step_s[one] == pytest.approx(every.step_s[as_fast][every.kinds[as_fast] == fewest].min())


def test_no_exotic_layout_for_a_hundredth() -> None:
    """Tensor and pipeline parallelism are not worth 1 % of a step; 10 % they are."""
    step_s, kinds = np.array([1.0, 1.01, 1.02, 1.1]), np.array([2, 1, 1, 0])
    none = np.zeros(4)
    few = TimedLayouts(
        rows=np.arange(4), step_s=step_s, run_s=step_s, num_gpus=np.full(4, 64), kinds=kinds, memory_bytes=none,
        watts=none, table=None, considered=4, timed=4, fitting=4, smallest_bytes=0.0,
    )  # fmt: skip
    assert few.simplest(np.arange(4)) == 1
    assert few.simplest(np.array([0, 3])) == 0


def test_machines_that_cannot_be_cheapest_are_left_out_of_no_best_plan() -> None:
    """Up to twice the least cost the plans are those of the whole search, in their order."""
    tuning = {"model": "gpt2", "task": "finetune", "data": {"tokens": 20e6}}
    workload = workload_from({**tuning, "constraints": {"providers": ["aws", "gcp"]}}, "x")
    facts = load_facts()
    every = searched_plan(workload, facts, alone=False)
    near = searched_plan(workload, facts, alone=False, dearest=2.0)
    assert near.evaluated < every.evaluated
    limit = 2 * every.plans[0].cost_usd
    close = [[(p.instance, p.region, p.cost_usd) for p in each.plans if p.cost_usd <= limit] for each in (every, near)]
    assert close[0] == close[1]
    assert len(close[0]) > 1


def test_tensor_groups_that_shared_experts_do_not_divide_are_left_out() -> None:
    """Two ranks to an expert need an even tp, and three divide no power of two."""
    recipe = replace(recipe_with(seq_len=2048, global_batch=16), ranks_per_expert=2)
    search = layout_search(load_model("Mixtral-8x7B"), recipe, most=8)
    assert set(search.space.inner.tp.tolist()) == {2, 4, 8}
    with pytest.raises(InfeasibleError, match=r"expert tp 3 divides none of the tp tried: 1, 2, 4, 8"):
        layout_search(load_model("Mixtral-8x7B"), replace(recipe, ranks_per_expert=3), most=8)
