"""What is given of a layout holds in all that are tried; the rest of it is searched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flopwise import plan, train
from flopwise.cost.cluster import cluster
from flopwise.errors import InfeasibleError, SpecError
from flopwise.facts.models.catalog import load_model
from flopwise.search.layout_search import TIE, AnyNodes, GivenSettings, StepTables, layout_search, timed_layouts
from flopwise.search.space import MAX_MICRO_BATCH, MAX_MICRO_TOKENS
from flopwise.search.workload import merged_onto
from flopwise.training.answer import TrainAnswer
from flopwise.training.estimate import estimate
from flopwise.training.job import TrainJob
from flopwise.training.layout import Layout
from flopwise.training.memory import step_memory
from named import FACTS, recipe_with

MODEL = "Llama-3.1-8B"
EIGHT = cluster(FACTS.accelerator("A100-SXM-40"), gpus_per_node=8, network_bytes_per_s_per_gpu=50e9)


def answer(**options: Any) -> TrainAnswer:
    """The training of a model that fits eight devices in shards alone."""
    found = train(options.pop("model", MODEL), gpu="8xh100", **options)
    assert isinstance(found, TrainAnswer)
    return found


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ({"offload": ("optimizer",)}, {"offload_optimizer": True}),
        ({"offload": ("parameters",)}, {"offload_parameters": True, "zero": 3}),
        ({"offload": ("activations",), "offload_layers": 5}, {"offload_activations": True, "offload_layers": 5}),
        ({"recompute_every": 5}, {"recompute": 2, "recompute_every": 5}),
        ({"recompute_first": 4}, {"recompute": 2, "recompute_first": 4}),
        ({"interleave": 4}, {"interleave": 4, "schedule": 0}),
        ({"interleave": 1}, {"interleave": 1}),
        ({"schedule": "1f1b"}, {"schedule": 0, "interleave": 1}),
        ({"schedule": "zero-bubble", "interleave": 2}, {"schedule": 2, "interleave": 2}),
        ({"sequence_parallel": False}, {"sequence_parallel": False}),
    ],
)
def test_one_setting_leaves_the_others_searched(options: dict[str, Any], setting: dict[str, Any]) -> None:
    found = answer(**options)
    layout = found.estimate.job.layout
    assert found.fits
    assert found.laid_out.startswith("simplest among the fastest of")
    assert {name: getattr(layout, name) for name in setting} == setting
    assert int(layout.num_gpus) == 8
    if options.get("interleave", 1) > 1 or "schedule" in options:
        assert int(layout.pp) > 1


@pytest.mark.parametrize("options", [{"recompute_first": 4}, {"offload": ("optimizer",)}, {"interleave": 2}])
def test_no_layout_with_the_setting_is_faster(options: dict[str, Any]) -> None:
    found = answer(**options)
    for degrees in ({"pp": 2}, {"pp": 2, "zero": 1}, {"pp": 4}, {"tp": 2, "pp": 2}, {"zero": 3}, {"zero": 2}):
        if "interleave" in options and "pp" not in degrees:
            continue
        other = answer(**options, **degrees)
        if other.memory.fits_probability is not None and other.memory.fits_probability >= 0.9:
            assert other.estimate.step_s * TIE >= found.estimate.step_s


@pytest.mark.parametrize(
    "given",
    [
        GivenSettings(Layout(recompute=2, recompute_first=3), schedule="interleaved", needed="schedule interleaved"),
        GivenSettings(Layout(recompute=2, recompute_every=5)),
        GivenSettings(Layout(offload_activations=True, offload_layers=7)),
        GivenSettings(Layout(sequence_parallel=False)),
    ],
)
def test_rows_are_what_single_estimates_say(given: GivenSettings) -> None:
    model, recipe, built = load_model("gpt2-medium"), recipe_with(seq_len=1024, global_batch=64), EIGHT
    given = given._replace(recomputes=(2,)) if given.like.recomputes_some else given
    search = layout_search(model, recipe, most=8, least=8, given=given)
    timed = timed_layouts(search, AnyNodes(built, host_bytes=np.inf), 1.0, StepTables(), every=True)
    assert timed.rows.size > 20
    for place in np.random.default_rng(1).choice(timed.rows.size, 20, replace=False):
        layout = search.space.layout(int(timed.rows[place]))
        assert layout.recompute_first == given.like.recompute_first
        single = estimate(TrainJob(model=model, recipe=recipe, layout=layout, cluster=built))
        assert timed.step_s[place] == pytest.approx(single.step_s, rel=1e-9)
        assert timed.memory_bytes[place] == pytest.approx(
            float(step_memory(model, recipe, layout).total_bytes), rel=1e-9
        )


@pytest.mark.parametrize("option", [{"interleave": 4}, {"schedule": "1f1b"}])
def test_what_a_pipeline_heeds_is_refused_without_one(option: dict[str, Any]) -> None:
    for degrees in ({"pp": 1}, {"tp": 2}, {"fsdp": True}):
        with pytest.raises(SpecError, match="needs pipeline stages; give pp above 1"):
            answer(**option, **degrees)
    with pytest.raises(SpecError, match="needs pipeline stages; give 2 accelerators or more"):
        train(MODEL, gpu="h100", **option)


def test_what_no_layout_can_heed_is_said() -> None:
    with pytest.raises(InfeasibleError, match="goes with interleave 64 and a global batch"):
        answer(interleave=64)


def test_micro_batches_are_tried_as_far_as_memory_allows() -> None:
    """Short sequences are trained many at a time: the fastest micro-batch is none that the search cuts off."""
    found = answer(model="vit-l-16", global_batch=8192)
    micro = int(found.estimate.job.layout.micro_batch)
    assert micro > 32
    for other in (8, 32, 2 * micro):
        assert answer(model="vit-l-16", global_batch=8192, micro_batch=other).estimate.step_s >= found.estimate.step_s
    recipe = recipe_with(seq_len=256, global_batch=4096)
    tried = set(layout_search(load_model("gpt2"), recipe, most=1).space.inner.micro_batch.tolist())
    assert max(tried) == MAX_MICRO_TOKENS // 256 > MAX_MICRO_BATCH


@pytest.mark.parametrize(
    ("asked", "chunked"), [("1f1b", False), ("interleaved", True), ("Interleaved_1F1B", True), ("zero-bubble", None)]
)
def test_a_schedule_means_the_same_to_plan_and_to_train(asked: str, chunked: bool | None) -> None:
    """Layouts with a pipeline that runs it, and no others; an interleaved one has several chunks a rank."""
    workload = {
        "model": "gpt2-medium", "task": "pretrain", "data": {"tokens": "1B", "seq_len": 1024, "global_batch": 64},
        "constraints": {"gpus": ["h100"], "min_gpus": 8, "max_gpus": 16, "schedule": asked},
    }  # fmt: skip
    planned = plan(workload)
    trained = answer(model="gpt2-medium", seq=1024, global_batch=64, schedule=asked)
    layouts = [one.layout for one in (*planned.plans, *planned.front)]
    assert len(layouts) > 2
    for layout in [*layouts, trained.estimate.job.layout.settings]:
        assert layout["pp"] > 1
        assert chunked is None or (layout["interleave"] > 1) is chunked
        assert layout["schedule"] == (asked if chunked is None else "1f1b")
    with pytest.raises(SpecError, match=f"schedule {asked} needs pipeline stages; give 2 accelerators or more"):
        train("gpt2-medium", gpu="h100", seq=1024, global_batch=64, schedule=asked)
    alone = plan(merged_onto(workload, {"constraints": {"min_gpus": 1, "max_gpus": 1}}))
    assert not alone.plans
    assert "no pipeline, which the schedule or interleave asked for needs" in {one.reason for one in alone.ruled_out}
    with pytest.raises(SpecError, match=f"schedule {asked} needs pipeline stages, and shard 4 is searched without"):
        plan(merged_onto(workload, {"constraints": {"shard": 4}}))
