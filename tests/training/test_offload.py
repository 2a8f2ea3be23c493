"""Offloading: what PCIe and the host add to a step."""

from dataclasses import replace

import numpy as np
import pytest

from flopwise.cost.cluster import cluster
from flopwise.cost.fabric import PINNED_FRAC, host_link_bytes_per_s
from flopwise.errors import MissingFactError, SpecError
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.options import OptionError
from flopwise.provenance import walk
from flopwise.training.estimate import TrainEstimate, estimate
from flopwise.training.explain import train_figure
from flopwise.training.job import TrainJob
from flopwise.training.layout import Layout
from flopwise.training.spec import TrainingSpec
from flopwise.training.step import host_update_s, passes_transfer_s
from named import recipe_with


def trained(layout: Layout, gpu: str = "a100-80gb", batch: int = 64) -> TrainEstimate:
    built = cluster(load_facts().accelerator(gpu))
    recipe = recipe_with(seq_len=1024, global_batch=batch, stack="deepspeed")
    return estimate(TrainJob(model=load_model("gpt2-xl"), recipe=recipe, layout=layout, cluster=built))


def test_host_updates_a_billion_parameters_in_a_quarter_of_a_second() -> None:
    """ZeRO-Offload (arXiv:2101.06840), table 4: CPU-Adam takes 0.22 s for 1e9 and 2.57 s for 10e9 parameters."""
    fabric = replace(cluster(load_facts().accelerator("v100")).fabric)
    alone = replace(fabric, levels=fabric.levels[-1:])
    for params, measured in ((1e9, 0.22), (2e9, 0.51), (4e9, 1.03), (8e9, 2.41), (10e9, 2.57)):
        assert float(host_update_s(params * 28.0, alone)) == pytest.approx(measured, rel=0.2)


def test_states_on_the_host_cost_time_and_save_memory() -> None:
    plain, away = (trained(Layout(dp=8, zero=2, offload_optimizer=o)) for o in (False, True))
    lines = dict(away.breakdown)
    assert sum(lines.values()) == pytest.approx(away.step_s)
    assert away.step_s > plain.step_s
    assert away.memory.total_bytes < plain.memory.total_bytes
    assert lines["optimizer"] > 5 * dict(plain.breakdown)["optimizer"]
    assert "offload" not in dict(plain.breakdown)


def test_weights_on_the_host_come_up_for_every_micro_batch() -> None:
    few = Layout(dp=1, zero=3, micro_batch=1, offload_parameters=True)
    many = dict(trained(replace(few), batch=64).breakdown)["offload"]
    assert many == pytest.approx(2 * dict(trained(few, batch=32).breakdown)["offload"])
    hidden = dict(trained(replace(few, micro_batch=32), batch=64).breakdown)["offload"]
    assert hidden < many


def test_activations_on_the_host_are_moved_twice_a_micro_batch() -> None:
    """All layers but two: their bytes leave in the forward pass and return in the backward pass, behind compute."""
    plain, away = (trained(Layout(dp=8, micro_batch=4, offload_activations=o), batch=64) for o in (False, True))
    layers, sent = 48, float(away.memory.host_bytes)
    kept = float(plain.memory.items["activations"])
    assert sent == pytest.approx(kept * (layers - 2) / layers, rel=0.02)
    saved = float(plain.memory.allocated_bytes) - float(away.memory.allocated_bytes)
    assert saved <= sent * (1 + 1e-9)
    lines = dict(away.breakdown)
    assert sum(lines.values()) == pytest.approx(away.step_s)
    rates, passes = away.job.cluster.rates, 64 / 8 / 4
    assert rates.host_link_bytes_per_s is not None
    one_way = passes * sent / (0.76 * rates.host_link_bytes_per_s)
    compute = lines["forward"] + lines["backward"]
    assert max(0.0, 2 * one_way - compute) <= lines["offload"] <= 2 * one_way + 0.1 * compute


def test_activations_hide_behind_enough_compute() -> None:
    """A faster link moves them for next to nothing; layers' inputs alone (full recompute) always hide."""
    found = trained(Layout(dp=8, micro_batch=4, recompute=2, offload_activations=True))
    assert dict(found.breakdown)["offload"] < 0.01 * found.step_s
    rates, inputs = found.job.cluster.rates, 1e9
    quick = replace(rates, host_link_bytes_per_s=1e15)
    slow = float(np.asarray(passes_transfer_s(0.0, inputs, rates, 1e-3, 2e-3, 3.0)))
    fast = float(np.asarray(passes_transfer_s(0.0, inputs, quick, 1e-3, 2e-3, 3.0)))
    assert fast == pytest.approx(3 * 2 * inputs / rates.read_bytes_per_s)
    assert fast < 0.1 * slow
    both = float(np.asarray(passes_transfer_s(inputs, inputs, rates, 0.0, 0.0, 1.0)))
    weights, activations = (1e9, 0.0), (0.0, 1e9)
    apart = [float(np.asarray(passes_transfer_s(*one, rates, 0.0, 0.0, 1.0))) for one in (weights, activations)]
    assert max(apart) < both < sum(apart)  # weights come up while activations go down


def test_pipelines_hold_two_layers_and_send_what_every_micro_batch_keeps() -> None:
    deep = Layout(dp=1, pp=4, micro_batch=1, offload_activations=True)
    here, away = trained(replace(deep, offload_activations=False)), trained(deep)
    first = float(here.memory.items["activations"])
    assert float(away.memory.host_bytes) == pytest.approx(first * (4 - 2 / 12) / 4, rel=0.02)


def test_some_layers_are_sent_and_the_others_stay() -> None:
    """Megatron-Core's `cpu_offloading_num_layers`: 12 of 48 layers send a quarter; never more than all but two."""
    plain, quarter, most, all_but_two = (
        trained(replace(Layout(dp=8, micro_batch=4), offload_activations=n > 0, offload_layers=n or None), batch=64)
        for n in (0, 12, 46, 48)
    )
    kept = float(plain.memory.items["activations"])
    assert float(quarter.memory.host_bytes) == pytest.approx(kept / 4, rel=0.02)
    assert float(quarter.memory.items["activations"]) == pytest.approx(kept * 3 / 4, rel=0.02)
    assert float(most.memory.host_bytes) == float(all_but_two.memory.host_bytes)
    assert dict(quarter.breakdown)["offload"] < dict(most.breakdown)["offload"]
    with pytest.raises(OptionError, match="--offload activations"):
        TrainingSpec(offload_layers=12).layout(load_model("Llama-3.1-8B"))


def test_a_superchip_reaches_its_host_over_a_link_of_its_own() -> None:
    """By hand: NVLink-C2C of GH200 carries 450 GB/s each way, that of GB200 half as much for each of its two GPUs.

    Source: NVIDIA's datasheets of GH200 and GB200 NVL72; TPUs: "How to Scale Your Model" (jax-ml), part 2.
    """
    facts = load_facts()
    by_hand = {"GH200-96": 450, "GB200": 225, "GB300": 225, "H100-SXM-80": 63, "TPU v5p": 16, "TPU v6e": 32}
    for name, gigabytes in by_hand.items():
        rates = cluster(facts.accelerator(name)).rates
        assert host_link_bytes_per_s(rates) == pytest.approx(PINNED_FRAC * gigabytes * 1e9, rel=1e-12)


def test_an_unknown_link_is_a_missing_fact() -> None:
    facts = load_facts()
    unknown = next(a for a in facts.accelerators.values() if not a.host_link_bytes_per_s and a.link_bytes_per_s)
    with pytest.raises(MissingFactError, match="link to the host is not known"):
        trained(Layout(dp=1, offload_optimizer=True), gpu=unknown.name)


def test_the_tree_explains_the_line() -> None:
    away = trained(Layout(dp=8, zero=3, offload_optimizer=True, offload_parameters=True))
    copied = train_figure(trained(Layout(dp=8, offload_activations=True)))
    assert "activations moved per micro-batch" in {f.name for f in walk(copied)}
    assert {"offload", "link to the host, pinned memory", "host memory, of each device"} <= {
        f.name for f in walk(train_figure(away))
    }


def test_parameters_on_the_host_need_a_stage_and_the_message_says_whether_one_was_given() -> None:
    model = load_model("gpt2-xl")
    assert TrainingSpec(offload=("parameters",), fsdp=True).layout(model).zero == 3
    with pytest.raises(SpecError, match=r"need ZeRO 3 or FSDP; no stage is given \(--zero 3, --fsdp\)"):
        TrainingSpec(offload=("parameters",)).layout(model)
    with pytest.raises(SpecError, match="need ZeRO 3 or FSDP, not ZeRO 1"):
        TrainingSpec(offload=("parameters",), zero=1).layout(model)
