"""The run around the steps: its lines add up, each part does what its closed form says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flopwise
from flopwise.cost.cluster import cluster
from flopwise.errors import InfeasibleError, SpecError
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.ops.tensors import parameters
from flopwise.training.estimate import estimate
from flopwise.training.goodput import Reliability, checkpoint_bytes
from flopwise.training.job import Conditions, TrainJob
from flopwise.training.layer_sums import MemoryTable
from flopwise.training.layout import Layout
from flopwise.training.rules import (
    TokenRules,
    critical_batch_of_loss,
    critical_batch_of_tokens,
    optimal_tokens,
    predicted_loss,
)
from flopwise.training.stragglers import expected_largest, waiting_frac
from named import lora_with, recipe_with

MODEL = load_model("Llama-3.1-8B")
CLUSTER = cluster(load_facts().accelerator("H100-SXM-80"), gpus_per_node=8, usd_per_gpu_hour=2.0)
JOB = TrainJob(
    model=MODEL,
    recipe=recipe_with(seq_len=4096, global_batch=128),
    layout=Layout(dp=64, zero=3),
    cluster=CLUSTER,
    tokens=1e11,
)


def run_of(**conditions: Any) -> Any:
    return estimate(replace(JOB, conditions=Conditions(**conditions))).run


@pytest.mark.parametrize(
    ("count", "mean"), [(1, 0.0), (2, 0.56419), (3, 0.84628), (10, 1.53875), (100, 2.50759), (1000, 3.24144)]
)
def test_the_largest_of_many_normal_values(count: int, mean: float) -> None:
    # tables of normal order statistics: Harter 1961, Biometrika 48
    assert expected_largest(count) == pytest.approx(mean, abs=2e-5)


def test_stragglers_grow_with_scale() -> None:
    waits = [waiting_frac(n, 0.02) for n in (1, 16, 64, 1024, 100_000)]
    assert waits == sorted(waits)
    assert waits[:2] == [0, 0]
    assert waits[3] == pytest.approx(0.02 * (expected_largest(1024) - expected_largest(16)), rel=2e-4)
    usual = 1 + 0.015 * (expected_largest(64) - expected_largest(16))  # 8 % between whiskers, 5.4 deviations apart
    assert run_of().seconds / run_of(jitter_frac=0.0).seconds == pytest.approx(usual, rel=1e-5)


def test_the_lines_of_a_run_add_up_to_its_time() -> None:
    held = Reliability(repair_s=86400.0, spares=1, interruptions_per_s=1e-7, asynchronous=True)
    run = run_of(reliability=held, jitter_frac=0.01, validate_every=100, validate_batches=10, loader_samples_per_s=0.5)
    lines = dict(run.breakdown)
    assert sum(lines.values()) == pytest.approx(run.seconds, rel=1e-9)
    assert all(seconds > 0 for seconds in lines.values())
    assert (lines["steps"] + lines["stragglers"]) / run.seconds == pytest.approx(run.goodput_frac)
    assert lines["restarts"] == pytest.approx(run.interruptions * 603, rel=0.1)


def test_only_what_is_asked_for_is_in_the_run() -> None:
    lines = dict(run_of().breakdown)
    assert [n for n, s in lines.items() if s == 0] == ["data_loader", "validation", "waiting_for_nodes"]


def test_a_slow_loader_sets_the_pace() -> None:
    found = estimate(JOB)
    slow = 128 / (64 * 3 * found.step_s)  # sequences/s of a GPU that make a batch take three steps
    run = run_of(loader_samples_per_s=slow)
    assert found.run is not None
    assert run.seconds == pytest.approx(3 * found.run.seconds, rel=1e-9)
    assert run_of(loader_samples_per_s=1e6).seconds == found.run.seconds


def test_validation_costs_about_a_third_of_a_step_each_batch() -> None:
    plain, checked = run_of(), run_of(validate_every=10, validate_batches=10)
    assert 1.15 < checked.seconds / plain.seconds < 1.45
    assert run_of(validate_every=1000, validate_batches=10).seconds < checked.seconds


def test_more_validation_than_training_is_refused() -> None:
    with pytest.raises(SpecError, match="at most 10"):
        Conditions(validate_every=10, validate_batches=11)


@pytest.mark.parametrize(
    ("stack", "each"), [("megatron", 14), ("fsdp", 12)]
)  # bf16 + fp32 master + two fp32 states; fp32 weights + two states
def test_a_checkpoint_holds_weights_and_states_once(stack: str, each: int) -> None:
    table = MemoryTable(MODEL, recipe_with(seq_len=4096, stack=stack))
    assert checkpoint_bytes(table) == pytest.approx(each * parameters(MODEL))


def test_a_checkpoint_of_adapters_holds_no_base() -> None:
    table = MemoryTable(MODEL, recipe_with(seq_len=4096, lora=lora_with(rank=8), stack="hf-trainer"))
    # q: 4096 + 4096, v: 4096 + 1024, times rank and layers; fp32 and two fp32 states
    assert checkpoint_bytes(table) == pytest.approx(12 * 8 * 32 * (8192 + 5120))


def test_spare_nodes_are_paid_for() -> None:
    plain = run_of(reliability=Reliability(repair_s=3600.0))
    spare = run_of(reliability=Reliability(repair_s=3600.0, spares=2))
    assert plain.cost_usd / plain.seconds == pytest.approx(64 * 2 / 3600)
    assert spare.cost_usd / spare.seconds == pytest.approx(80 * 2 / 3600)
    assert spare.seconds < plain.seconds


@settings(max_examples=25, deadline=None)
@given(mtbf=st.floats(1e5, 1e9), worse=st.floats(1.0, 20.0), jitter=st.floats(0.0, 0.2))
def test_nothing_bad_shortens_a_run(mtbf: float, worse: float, jitter: float) -> None:
    plain = run_of(reliability=Reliability(mtbf_gpu_s=mtbf), jitter_frac=jitter)
    worst = run_of(reliability=Reliability(mtbf_gpu_s=mtbf / worse), jitter_frac=jitter * worse)
    assert 0 < worst.goodput_frac <= plain.goodput_frac * 1.001 <= 1.001


def test_rules_of_tokens_agree_with_their_papers() -> None:
    # Hoffmann 2022: Chinchilla, 70 billion parameters on 1.4 trillion tokens; loss 1.94 by its equation 10
    assert optimal_tokens(70e9) == pytest.approx(1.4e12)
    assert predicted_loss(70e9, 1.4e12) == pytest.approx(1.937, abs=0.001)
    assert critical_batch_of_loss(2.0) == pytest.approx(2e8 / 2**4.8)
    # Zhang 2024: the law in model size, 93.20 N^0.47 at 20 tokens a parameter, is the same law
    n = 302e6
    assert critical_batch_of_tokens(20 * n) == pytest.approx(512 * 93.20 * (n / 1e6) ** 0.47, rel=0.01)


def test_a_batch_beyond_the_critical_one_is_warned_of() -> None:
    small, large = (
        TokenRules.of(replace(JOB, tokens=1e10, recipe=recipe_with(seq_len=4096, global_batch=b))) for b in (64, 4096)
    )
    assert small is not None
    assert large is not None
    assert not any("warning" in note for note in small.notes)
    assert any("critical batch" in note for note in large.notes)
    adapters = replace(JOB, recipe=recipe_with(seq_len=4096, global_batch=64, lora=lora_with()))
    assert TokenRules.of(adapters) is None


def test_samples_and_epochs_are_tokens() -> None:
    asked: dict[str, Any] = {"gpu": "h100", "gpus": 8, "fsdp": True, "seq": 2048, "global_batch": 64}
    by_tokens = flopwise.train("Llama-3.1-8B", **asked, tokens=2048 * 2e5, epochs=3).estimate.run
    by_samples = flopwise.train("Llama-3.1-8B", **asked, samples=2e5, epochs=3).estimate.run
    assert by_tokens is not None
    assert by_tokens == by_samples


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"mtbf": 0}, "above 0"),
        ({"interruptions": -1.0}, "0 or more"),
        ({"spares": 0, "repair": 3600.0}, "1 to"),
        ({"spares": 2}, "repair"),
        ({"mtbf": 1e6, "failures": "rsc-1"}, "one of them"),
        ({"failures": "llama-4"}, "llama-3"),
        ({"validate_batches": 3}, "every"),
        ({"epochs": 0}, "above 0"),
        ({"samples": 10}, "one of them"),
        ({"checkpoint_storage": "lustr"}, "lustre"),
        ({"tokens": None, "jitter": 0.1}, "jitter"),
        ({"tokens": None, "epochs": 2}, "epochs"),
    ],
)
def test_runs_that_cannot_be(said: dict[str, Any], match: str) -> None:
    asked: dict[str, Any] = {"gpu": "h100", "gpus": 8, "fsdp": True, "seq": 2048, "tokens": 1e9}
    with pytest.raises(SpecError, match=match):
        flopwise.train("Llama-3.1-8B", **(asked | said))


def test_spot_interruptions_are_counted_and_named() -> None:
    asked: dict[str, Any] = {"gpus": 8, "fsdp": True, "seq": 2048, "tokens": 1e9, "purchase": "spot"}
    known = flopwise.train("Llama-3.1-8B", gpu="h100", provider="aws", **asked)
    assert any("0 to 20 %" in sentence for sentence in known.assumptions)
    unknown = flopwise.train("Llama-3.1-8B", gpu="h100", **asked)
    assert any("assumed" in sentence and "interruptions" in sentence for sentence in unknown.assumptions)
    never = flopwise.train("Llama-3.1-8B", gpu="h100", interruptions=0, **asked)
    told = flopwise.train("Llama-3.1-8B", gpu="h100", interruptions=1e-4, **asked)
    assert told.estimate.run is not None
    assert unknown.estimate.run is not None
    assert never.estimate.run is not None
    counted = [made.estimate.run.interruptions for made in (never, known, unknown, told) if made.estimate.run]
    assert counted == sorted(counted)
    assert len(set(counted)) == 4


def test_storage_sets_the_time_of_a_checkpoint() -> None:
    asked: dict[str, Any] = {"gpu": "h100", "gpus": 16, "fsdp": True, "seq": 2048, "tokens": 1e9}
    found = flopwise.train("Llama-3.1-8B", checkpoint_storage="lustre", **asked).estimate.run
    assert found is not None
    assert found.checkpoint_write_s == pytest.approx(found.checkpoint_bytes / (2 * 8e9))


def test_checkpoints_of_many_gpus_share_one_file_system() -> None:
    def run_on(gpus: int, **said: Any) -> tuple[object, bool]:
        found = flopwise.train("Llama-3.1-8B", gpu="h100", gpus=gpus, fsdp=True, tokens=1e12, **said)
        assert found.estimate.run is not None
        assumed = any("parallel file system" in told for told in found.assumptions)
        return found.estimate.run.checkpoint_bytes_per_s, assumed

    assert run_on(64) == (pytest.approx(64e9), True)
    assert run_on(1024) == (pytest.approx(200e9), True)
    assert run_on(1024, checkpoint_bandwidth=2e12) == (pytest.approx(2e12), False)
    assert run_on(1024, checkpoint_storage="nvme-gen4") == (pytest.approx(128 * 3.5e9), False)
    assert run_on(1024, checkpoint_storage="azure-blob") == (pytest.approx(3.1e9), False)
    assert run_on(1024, checkpoint_storage="lustre", checkpoint_bandwidth=1e11) == (pytest.approx(1e11), False)
    assert run_on(64, checkpoint_storage="lustre", checkpoint_bandwidth=1e11) == (pytest.approx(8 * 8e9), False)


def test_a_shared_storage_whose_whole_bandwidth_is_unknown_is_said_to_serve_each_node() -> None:
    asked: dict[str, Any] = {"gpu": "h100", "gpus": 16, "fsdp": True, "seq": 2048, "tokens": 1e9}

    def is_said(**storage: Any) -> bool:
        answer = flopwise.train("Llama-3.1-8B", **asked, **storage)
        return any("what it takes of all nodes is not known" in text for text in answer.assumptions)

    assert is_said(checkpoint_storage="nfs")
    assert not is_said(checkpoint_storage="nfs", checkpoint_bandwidth=1e10)
    assert not is_said(checkpoint_storage="lustre")  # of a file system: 200 GB/s
    assert not is_said(checkpoint_storage="nvme-gen4")  # a node's own


@pytest.mark.parametrize("asked", [{"mtbf": "1ms"}, {"mtbf": "10s"}, {"node_mtbf": "1ms"}])
def test_a_run_that_never_ends_is_refused_with_what_undoes_it(asked: dict[str, str]) -> None:
    with pytest.raises(InfeasibleError, match=r"no progress: the job is interrupted every .*, while a restart takes"):
        flopwise.train("gpt2", gpu="8xh100", tokens="1B", **asked)  # type: ignore[arg-type]
    assert flopwise.train("gpt2", gpu="8xh100", tokens="1B", mtbf="2h").estimate.run is not None
