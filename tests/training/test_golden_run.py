"""Utilisation, and the whole run with its failures, money and energy, by hand from the papers' formulas."""

from __future__ import annotations

from dataclasses import replace
from math import exp, sqrt
from typing import Any

import pytest
from lossless import (
    FFN,
    H100,
    HEAD,
    HEADS,
    KV,
    LAYERS,
    MATRICES,
    NETWORK,
    NVLINK,
    PARAMS,
    PEAK,
    VOCAB,
    WIDTH,
    job,
    lines,
    machine,
)
from test_golden_training_step import ATTENTION, BATCH, EMBEDDING, FORWARD, LIGHT, LOSS, MEGATRON, SEQ

from flopwise.training.estimate import TrainEstimate, estimate
from flopwise.training.frozen import Frozen
from flopwise.training.goodput import Reliability, daly_interval_s, goodput
from flopwise.training.job import Conditions
from flopwise.training.layout import Lora
from flopwise.training.run import StepRun
from named import lora_with

TOKENS = 1e9
DAY = 86_400.0
PRODUCTS_FLOP = 2 * BATCH * SEQ * (LAYERS * MATRICES + VOCAB * WIDTH)
CAUSAL = LAYERS * BATCH * 4 * HEADS * HEAD * SEQ * (SEQ + 1) / 2
FULL = LAYERS * BATCH * 4 * HEADS * HEAD * SEQ * SEQ


def exactly(value: float) -> Any:
    return pytest.approx(value, rel=1e-9)


def estimated(
    conditions: Conditions | None = None, recipe: dict[str, Any] | None = None, **layout: Any
) -> TrainEstimate:
    asked = replace(job(recipe, **layout), tokens=TOKENS)
    return estimate(asked if conditions is None else replace(asked, conditions=conditions))


def run_of(conditions: Conditions | None = None, recipe: dict[str, Any] | None = None, **layout: Any) -> StepRun:
    run = estimated(conditions, recipe, **layout).run
    assert run is not None
    return run


@pytest.mark.parametrize(
    ("recipe", "passes"),
    [
        ({}, 3.0),  # forward, and backward twice that (Chowdhery 2022, appendix B)
        ({"lora": Lora(rank=16)}, 2.0),  # the base has no gradients of weights
        ({"lora": lora_with(rank=16, base="nf4")}, 2.0),
    ],
)
def test_utilisation(recipe: dict[str, Any], passes: float) -> None:
    found = estimated(None, recipe, dp=4)
    available = found.step_s * 4 * PEAK
    assert found.mfu_frac == exactly(passes * (PRODUCTS_FLOP + CAUSAL) / available)
    assert found.mfu_full_attention_frac == exactly(passes * (PRODUCTS_FLOP + FULL) / available)
    assert found.hfu_frac == found.mfu_frac
    assert found.tokens_per_s == exactly(BATCH * SEQ / found.step_s)
    assert found.tokens_per_s_per_gpu == exactly(BATCH * SEQ / found.step_s / 4)


def test_utilisation_with_frozen_layers() -> None:
    """Frozen products cost no gradient of weights, and below the first that is trained nothing is undone."""
    layer = 2 * BATCH * SEQ * MATRICES + CAUSAL / LAYERS
    head = 2 * BATCH * SEQ * VOCAB * WIDTH
    found = estimated(None, {"frozen": Frozen(first=2, embedding=True)})
    assert found.mfu_frac == exactly((2 * layer + 3 * (6 * layer + head)) / (found.step_s * PEAK))
    passed = estimated(None, {"frozen": Frozen(first=2)})  # down to the embedding, which is trained
    frozen = 2 * (2 * 2 * BATCH * SEQ * MATRICES + 3 * CAUSAL / LAYERS)
    assert passed.mfu_frac == exactly((frozen + 3 * (6 * layer + head)) / (passed.step_s * PEAK))


def test_hardware_utilisation_counts_what_runs_again() -> None:
    """Korthikanti 2022, section 6.3: layers once more; attention once more under selective recompute."""
    for mode, again in ((2, 2 * BATCH * SEQ * LAYERS * MATRICES + CAUSAL), (1, CAUSAL)):
        found = estimated(recompute=mode)
        assert found.hfu_frac == exactly((3 * (PRODUCTS_FLOP + CAUSAL) + again) / (found.step_s * PEAK))


def test_bounds_of_the_step() -> None:
    """Below, the FLOP at peak rate; above, everything one after the other, at the slow end of the measured errors."""
    found = estimated(dp=8, tp=2)
    shown, micros = dict(found.breakdown), BATCH / 8
    flops = 3 * PRODUCTS_FLOP / BATCH + (1 + 2.5) * CAUSAL / BATCH
    assert found.lower_bound_s == exactly(micros * flops / 2 / PEAK)
    hidden_states = micros * LAYERS * 2 * 2 * 2 * (1 / 2) * SEQ * WIDTH * 2 / NVLINK
    gradients = (LAYERS * (MATRICES / 2 + 2 * WIDTH) + WIDTH + VOCAB * WIDTH) * 4  # summed in 32 bits
    inside, across = 2 * (3 / 4) * gradients / NVLINK, 2 * (1 / 2) * gradients / 4 / NETWORK  # four a node, two nodes
    launches = micros * 3 * (LAYERS * 14 + 1 + 2) * MEGATRON.launch_s
    alone = hidden_states + inside + across
    serial = shown["forward"] + shown["backward"] + shown["optimizer"] + alone
    assert found.upper_bound_s == exactly((serial + launches) / found.band.low)


def test_daly_interval() -> None:
    """Daly 2006, equation 37; Young 1974, sqrt(2 d M), to first order; M itself for stalls from 2 M on."""
    d, m = 50.0, 10_000.0
    x = d / (2 * m)
    assert daly_interval_s(d, m) == exactly(sqrt(2 * d * m) * (1 + sqrt(x) / 3 + x / 9) - d)
    assert daly_interval_s(1e-4, 1e6) == pytest.approx(sqrt(2 * 1e-4 * 1e6), rel=1e-4)
    assert daly_interval_s(3e4, m) == m


def test_goodput() -> None:
    """Llama 3 (2407.21783, section 3.3.4): 419 failures in 54 days on 16,384 GPUs; Daly's exact time of a segment."""
    gpus, nbytes = 16_384, 14 * 405e9
    mtbf = 54 * DAY / 419
    write = nbytes / 200e9  # the file system of the whole cluster is narrower than 1 GB/s a GPU
    interval = 1800.0
    restart = 120 + 240 + 240 + write  # detect, reschedule, warm up, read back
    found = goodput(gpus, nbytes, Reliability(interval_s=interval))
    assert found.mtbf_s == exactly(mtbf)
    assert found.write_s == found.stall_s == exactly(write)
    assert found.restart_s == exactly(restart)
    # Daly 2006, section 3: M e^(R/M) (e^((t+d)/M) - 1) of wall time for t of work
    segment = mtbf * exp(restart / mtbf) * (exp((interval + write) / mtbf) - 1)
    assert found.frac == exactly(interval / segment)
    assert goodput(64, nbytes, Reliability()).write_s == exactly(nbytes / 64e9)
    assert goodput(64, nbytes, Reliability(write_bytes_per_s_per_node=2e9)).write_s == exactly(nbytes / 16e9)
    best = goodput(gpus, nbytes)
    assert best.interval_s == exactly(float(daly_interval_s(write, mtbf)))


def test_asynchronous_checkpoints() -> None:
    """Training waits for the copy to the host; a restart falls back behind the write that had not ended."""
    gpus, nbytes = 1024, 14 * 70e9
    found = goodput(gpus, nbytes, Reliability(asynchronous=True, interval_s=600.0))
    write, copy = nbytes / 200e9, nbytes / (gpus * 10e9)
    assert found.stall_s == exactly(copy)
    assert found.restart_s == exactly(600 + 2 * write)


def test_interruptions_of_nodes_and_of_spot_machines() -> None:
    """Rates add up: 64 GPUs in 8 nodes, each with a failure every 30 days and a reclaim every 10."""
    gpu = 16_384 * 54 * DAY / 419
    found = goodput(64, 1e12, Reliability(mtbf_node_s=30 * DAY, interruptions_per_s=1 / (10 * DAY)))
    assert found.mtbf_s == exactly(1 / (64 / gpu + 8 / (30 * DAY) + 8 / (10 * DAY)))


def test_waiting_for_nodes() -> None:
    """Erlang's B with one spare: rho^2 / 2 / (1 + rho + rho^2 / 2), rho nodes in repair on average."""
    rate, repair = 1 / (20 * DAY), 2 * DAY
    asked = Reliability(mtbf_gpu_s=float("inf"), mtbf_node_s=1 / rate, repair_s=repair, spares=1)
    rho = 8 * rate * repair
    blocked = rho**2 / 2 / (1 + rho + rho**2 / 2)
    assert goodput(64, 1e12, asked).up_frac == exactly(1 - blocked)


def test_the_run() -> None:
    """Steps, stragglers, loader, validation, divided by goodput; 1 replica of 8 GPUs for 1e9 tokens."""
    reliability = Reliability(mtbf_gpu_s=8e5, interval_s=3600.0)
    rate = 0.01
    conditions = Conditions(
        reliability=reliability, validate_every=10, validate_batches=2, loader_samples_per_s=rate, jitter_frac=0.0
    )
    found = run_of(conditions, dp=8)
    shown = lines(job(dp=8))
    step = sum(shown.values())
    validation = (step - shown["optimizer"] - shown["data_parallel"]) * shown["forward"]
    validation *= 2 / 10 / (shown["forward"] + shown["backward"])
    waiting = BATCH / (rate * 8) - step
    steps = TOKENS / (BATCH * SEQ)
    write, mtbf = 14 * PARAMS / 8e9, 1e5
    restart = 600 + write
    frac = 3600 / (mtbf * exp(restart / mtbf) * (exp((3600 + write) / mtbf) - 1))
    work = steps * (step + waiting + validation)
    spent = dict(found.breakdown)
    assert found.steps == exactly(steps)
    assert found.seconds == exactly(work / frac)
    assert found.gpu_hours == exactly(8 * work / frac / 3600)
    assert found.goodput_frac == exactly(steps * step / (work / frac))
    assert found.interruptions == exactly(work / frac / mtbf)
    assert spent["steps"] == exactly(steps * step)
    assert spent["data_loader"] == exactly(steps * waiting)
    assert spent["validation"] == exactly(steps * validation)
    assert spent["checkpoints"] == exactly(work * write / 3600)
    assert spent["restarts"] == exactly(work / frac * (1 - exp(-restart / mtbf)))
    assert spent["lost_work"] == exactly(work / frac - work - spent["checkpoints"] - spent["restarts"])
    assert found.cost_usd == exactly(work / frac / 3600 * 2.0 * 8)
    assert found.checkpoint_bytes_per_s == exactly(8e9)


def test_spare_nodes_are_paid_for() -> None:
    plain, spare = (run_of(Conditions(reliability=Reliability(spares=n)), dp=8) for n in (0, 2))
    assert (plain.cost_usd, spare.cost_usd) == (
        exactly(plain.seconds / 3600 * 2.0 * 8),
        exactly(plain.seconds / 3600 * 2.0 * 24),
    )


def test_stragglers() -> None:
    """Of 16 normal values the largest is 1.76599 above their mean, of 100 2.50759 (Harter 1961, Biometrika 48)."""
    one = job(dp=100)
    one = replace(one, recipe=replace(one.recipe, global_batch=100), tokens=TOKENS)
    for jitter, given in ((0.015, Conditions()), (0.1, Conditions(jitter_frac=0.1))):  # 8 % / 5.4 where nobody says
        found = estimate(replace(one, conditions=given))
        assert found.run is not None
        step, run = dict(found.breakdown), dict(found.run.breakdown)
        waits = jitter * (2.50759 - 1.76599)
        assert run["stragglers"] / run["steps"] == pytest.approx(waits, rel=3e-4)
        assert step["stragglers"] / (found.step_s - step["stragglers"]) == pytest.approx(waits, rel=3e-4)
    assert lines(job(dp=16))["stragglers"] == 0


def test_energy() -> None:
    """0.95 of the limit under products, 0.65 bound by memory, 0.40 in messages, 0.10 idle (Latif 2024, Patel 2023).

    The host draws half the limit again, cooling a fifth of all.
    """
    slow = machine(node=1, network=1e9)
    for pp, dp in ((1, 8), (2, 4)):
        found = estimate(replace(job(cluster=slow, pp=pp, dp=dp), tokens=TOKENS))
        run, shown = found.run, dict(found.breakdown)
        assert run is not None
        # memory-bound: elementwise operations and norms, the embedding, the loss, the optimizer
        forward = FORWARD - ATTENTION - 2 * SEQ * MATRICES / PEAK
        backward = LIGHT * (SEQ * 2 * (3 * (WIDTH + KV) + 5 * FFN + 2 * 8 * WIDTH) + 4 * WIDTH)
        norms = LIGHT * (SEQ * 5 * WIDTH + 2 * WIDTH) * 2
        ends = norms + 2 * LOSS + (2 * EMBEDDING if pp == 1 else 0.0)  # of two stages the second is the busier
        memory = BATCH / dp * (LAYERS / pp * (forward + backward) + ends) + shown["optimizer"]
        busy = shown["forward"] + shown["backward"] + shown["optimizer"] - memory
        messages = shown["data_parallel"] + shown["pipeline_p2p"]
        idle = found.step_s - busy - memory - messages
        assert idle == pytest.approx(shown["pipeline_bubble"] + shown["stage_imbalance"], abs=1e-9)
        tdp = float(H100.tdp_w or 0)
        watts = tdp * (0.95 * busy + 0.65 * memory + 0.40 * messages + 0.10 * idle) / found.step_s
        assert run.energy_joules == exactly(8 * (watts + 0.5 * tdp) * 1.2 * run.seconds)
