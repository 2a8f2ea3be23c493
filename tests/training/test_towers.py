"""Models of two stacks: a step runs both, so it takes at least what all their operations take at the peak rate."""

from dataclasses import replace

import pytest

import flopwise
from flopwise.cost.cluster import cluster
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.ops.flops import causal_forward_flops
from flopwise.ops.tensors import parameters
from flopwise.training.estimate import estimate
from flopwise.training.explain import train_figure
from flopwise.training.job import TrainJob
from flopwise.training.layout import Layout
from flopwise.training.step_table import tower_items
from named import FACTS, recipe_with, train_answer

H100 = cluster(load_facts().accelerator("H100-SXM-80"), gpus_per_node=8)


def job(name: str, **layout: int) -> TrainJob:
    model = load_model(name)
    seq = min(model.max_position or 512, 512)
    shape = {"dp": 2, "zero": 1, "micro_batch": 4, **layout}
    return TrainJob(model=model, recipe=recipe_with(seq_len=seq, global_batch=64), layout=Layout(**shape), cluster=H100)  # type: ignore[arg-type]


TOWERED = ["whisper-large-v3", "t5-base", "flan-t5-xxl", "CLIP ViT-L/14"]


@pytest.mark.parametrize("name", TOWERED)
def test_no_step_beats_the_peak_rate(name: str) -> None:
    found = job(name)
    result = estimate(found)
    floor_s = 3 * float(causal_forward_flops(found.model, 64, int(found.recipe.seq_len))) / 2 / 989.4e12
    assert result.step_s > floor_s
    assert result.lower_bound_s > 0.9 * floor_s  # the stem's products have no gradient towards pixels or sound
    assert result.mfu_frac < 0.8


def test_towers_make_the_first_stage_heavier() -> None:
    assert tower_items(load_model("t5-base"))
    assert not tower_items(load_model("Llama-3.1-8B"))
    whole = estimate(job("t5-base"))
    cut = estimate(job("t5-base", pp=2, dp=1, zero=0))
    assert dict(cut.breakdown)["pipeline_bubble"] > 0
    assert cut.step_s > whole.step_s


@pytest.mark.parametrize("name", ["t5-base", "whisper-large-v3"])
def test_the_tree_lists_the_towers(name: str) -> None:
    from flopwise.provenance import walk

    names = {figure.name for figure in walk(train_figure(estimate(job(name))))}
    assert any("encoder" in n for n in names)


def test_every_catalog_model_with_layers_trains_below_the_peak() -> None:
    fast = []
    for name in FACTS.models.names:
        model = load_model(name)
        if not model.stacks or model.stacks[0].num_layers > 100:
            continue
        result = estimate(job(name))
        if not (result.mfu_frac < 0.9 and result.lower_bound_s <= result.step_s * (1 + 1e-9)):
            fast.append((name, result.mfu_frac))
    assert fast == []


@pytest.mark.parametrize(("name", "stack"), [("t5-base", 1), ("whisper-large-v3", 1)])
def test_towers_send_tensor_parallel_messages_of_their_own(name: str, stack: int) -> None:
    """Twice the layers of the tower: their messages once more, and none without tensor parallelism."""
    found = job(name, dp=1, zero=0, tp=2)
    tower = found.model.stacks[stack]
    stacks = list(found.model.stacks)
    spent = {}
    for times in (0, 1, 2):
        stacks[stack] = replace(tower, order=tower.order * times)
        model = replace(found.model, stacks=tuple(stacks))
        spent[times] = dict(estimate(replace(found, model=model)).breakdown)["tensor_parallel"]
    assert spent[0] < spent[1] < spent[2]
    assert spent[2] - spent[1] == pytest.approx(spent[1] - spent[0], rel=0.02)
    assert dict(estimate(job(name)).breakdown)["tensor_parallel"] == 0


def test_towers_that_text_does_not_run_take_weights_alone() -> None:
    """A model that also reads images trains on text in the time and with the activations of its decoder."""
    whole = load_model("Qwen3-VL-8B")
    recipe, layout = recipe_with(seq_len=4096, global_batch=8), Layout(dp=8)
    text = replace(whole, stacks=whole.stacks[:1])
    found, alone = (estimate(TrainJob(model=m, recipe=recipe, layout=layout, cluster=H100)) for m in (whole, text))
    assert dict(found.breakdown)["forward"] == pytest.approx(dict(alone.breakdown)["forward"])
    items, fewer = found.memory.items, alone.memory.items
    assert items["activations"] == pytest.approx(fewer["activations"])
    assert float(items["weights"]) / float(fewer["weights"]) == pytest.approx(parameters(whole) / parameters(text))
    assert any("text only" in told and "vision" in told for told in found.assumptions)
    assert not any("text only" in told for told in alone.assumptions)


@pytest.mark.parametrize("name", ["CLIP ViT-L/14", "SigLIP base (224)", "ViT-L/16"])
def test_images_fix_the_length(name: str) -> None:
    """CLIP's table of 77 positions is of its text tower: it bounds no image of 257 patches."""
    patches = load_model(name).stacks[0].tokens_per_sample
    plain, other = (train_answer(name, gpu="h100", gpus=8, samples=1e6, seq=seq) for seq in (None, 512))
    assert plain.estimate.job.recipe.seq_len == patches
    assert other.estimate.step_s == plain.estimate.step_s
    text = f"encodes every sample as {patches} tokens, whatever length is given"
    assert any(text in note for note in other.assumptions)
    assert not any("--seq" in note or text in note for note in plain.assumptions)
    memory = flopwise.memory(name, gpu="h100", task="train", micro_batch=4, seq=512)
    assert any(text in note for note in memory.assumptions)
