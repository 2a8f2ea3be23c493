"""What is left of a long run: closed forms, a Monte Carlo of the process, published runs, and what cannot be."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwise.training.goodput import (
    DEFAULT_RELIABILITY,
    Reliability,
    daly_interval_s,
    goodput,
    goodput_frac,
    interruptions_per_s,
    waiting_frac,
    write_rate_bytes_per_s,
)

DAY = 86400.0


def simulated(interval_s: float, stall_s: float, mtbf_s: float, restart_s: float, segments: int) -> float:
    """Share of progress of a job that is interrupted at random: played through, failure by failure."""
    random = np.random.default_rng(7)
    clock, done, until = 0.0, 0, random.exponential(mtbf_s)
    pending = 0.0  # what has to pass before the next segment may start
    while done < segments:
        need = pending + interval_s + stall_s
        if until >= need:
            clock, until, pending, done = clock + need, until - need, 0.0, done + 1
        else:
            clock, until, pending = clock + until, random.exponential(mtbf_s), restart_s
    return segments * interval_s / clock


@pytest.mark.parametrize(
    ("stall_s", "mtbf_s", "restart_s"), [(10.0, 3600.0, 120.0), (60.0, 900.0, 300.0), (2.0, 11000.0, 600.0)]
)
def test_goodput_is_what_playing_the_failures_through_gives(stall_s: float, mtbf_s: float, restart_s: float) -> None:
    # one GPU; restart includes reading the checkpoint back, as long as writing it
    held = Reliability(
        mtbf_gpu_s=mtbf_s, detect_s=restart_s - stall_s, reschedule_s=0.0, warmup_s=0.0, write_bytes_per_s_per_gpu=1e9
    )
    found = goodput(1, stall_s * 1e9, held)
    assert found.restart_s == pytest.approx(restart_s)
    played = simulated(float(found.interval_s), stall_s, mtbf_s, restart_s, 120_000)
    assert found.frac == pytest.approx(played, rel=0.01)


@pytest.mark.parametrize(("stall_s", "mtbf_s"), [(10.0, 3600.0), (60.0, 900.0), (300.0, 900.0), (5.0, 86400.0)])
def test_no_interval_is_better_than_dalys_by_more_than_a_thousandth(stall_s: float, mtbf_s: float) -> None:
    def at(interval_s: float) -> float:
        held = Reliability(mtbf_gpu_s=mtbf_s, write_bytes_per_s_per_gpu=1.0, interval_s=interval_s)
        return float(goodput_frac(1, stall_s, held))

    best = max(at(float(t)) for t in np.geomspace(stall_s / 20, mtbf_s * 20, 4000))
    daly = at(float(daly_interval_s(stall_s, mtbf_s)))
    assert best * (1 + 1e-6) >= daly >= best * 0.999
    assert daly >= at(sqrt(2 * stall_s * mtbf_s)) - 1e-12  # Young 1974


def test_intervals_agree_with_their_closed_forms() -> None:
    # Daly, equation 37, by hand: 1000 * (1 + 0.05 / 3 + 0.0025 / 9) - 50
    assert daly_interval_s(50.0, 10_000.0) == pytest.approx(1000 * (1 + 0.05 / 3 + 0.0025 / 9) - 50)
    assert daly_interval_s(500.0, 100.0) == 100.0
    # the first order is the limit for short stalls
    assert daly_interval_s(1e-4, 1e6) == pytest.approx(sqrt(2 * 1e-4 * 1e6), rel=1e-4)


def test_llama_3_keeps_its_published_ninety_percent() -> None:
    # 16,384 GPUs, 405 billion parameters in bf16 with fp32 master weights and two states, 2 TB/s of sustained storage
    found = goodput(16_384, 405e9 * 14, Reliability(write_bytes_per_s=2e12))
    assert found.mtbf_s == pytest.approx(54 * DAY / 419, rel=1e-12)  # about 3 h
    assert 0.90 < found.frac < 0.97


def test_the_job_waits_for_nodes_as_erlang_says() -> None:
    # B(1, a) = a / (1 + a); B(2, 1) = 1/5; B(5, 3) = 0.11005 (Erlang tables)
    assert waiting_frac(1, 1e-5, 1e5, 0) == pytest.approx(0.5)
    assert waiting_frac(10, 1e-6, 1e5, 1) == pytest.approx(0.2)
    assert waiting_frac(3, 1e-5, 1e5, 4) == pytest.approx(0.11005, abs=5e-6)
    none, one, two = (goodput(1024, 1e12, Reliability(repair_s=DAY, spares=k)).up_frac for k in (0, 1, 2))
    assert none < one < two < 1


def test_nodes_in_repair_played_through() -> None:
    random, nodes, rate, repair_s, spares = np.random.default_rng(3), 64, 2e-7, DAY, 1
    clock = down = 0.0
    away: list[float] = []  # when each node is back
    while clock < 4e10:
        fails = random.exponential(1 / (nodes * rate))
        clock += fails
        away = [t for t in away if t > clock] + [clock + random.exponential(repair_s)]
        if len(away) > spares:  # waits for the first to come back; nothing fails meanwhile
            back = min(away)
            down += back - clock
            clock = back
    assert down / clock == pytest.approx(float(waiting_frac(nodes, rate, repair_s, spares)), rel=0.05)


def test_rates_add_up_and_the_narrowest_writes() -> None:
    held = Reliability(mtbf_gpu_s=1e6, mtbf_node_s=1e7, interruptions_per_s=1e-8, gpus_per_node=8)
    assert interruptions_per_s(20, held) == pytest.approx(20 / 1e6 + 3 / 1e7 + 3 * 1e-8)
    held = Reliability(
        write_bytes_per_s_per_gpu=1e9, write_bytes_per_s_per_node=3e9, write_bytes_per_s=50e9, gpus_per_node=8
    )
    rates = np.asarray(write_rate_bytes_per_s(np.array([1, 8, 64, 1024]), held))
    assert rates.tolist() == [1e9, 3e9, 24e9, 50e9]


def test_asynchronous_checkpoints_stall_for_the_copy_and_count_when_written() -> None:
    plain = goodput(64, 1e12, Reliability(write_bytes_per_s=1e9))
    behind = goodput(64, 1e12, Reliability(write_bytes_per_s=1e9, asynchronous=True))
    assert behind.stall_s == pytest.approx(1e12 / (64 * 10e9))
    assert behind.interval_s >= behind.write_s == plain.write_s == pytest.approx(1000.0)
    assert behind.frac > plain.frac


CASES: dict[str, Any] = {
    "gpus": st.integers(1, 100_000),
    "nbytes": st.floats(1e6, 1e14),
    "mtbf_gpu_s": st.floats(1e5, 1e10),
    "rate": st.floats(1e7, 1e11),
    "node_s": st.floats(1e5, 1e10),
    "repair_s": st.floats(0, 1e6),
    "spares": st.integers(0, 20),
    "asynchronous": st.booleans(),
}


@settings(max_examples=150, deadline=None)
@given(**CASES, worse=st.floats(1.0, 10.0))
def test_goodput_is_a_share_and_nothing_bad_helps(
    gpus: int, nbytes: float, mtbf_gpu_s: float, rate: float, node_s: float, repair_s: float, spares: int,
    asynchronous: bool, worse: float,
) -> None:  # fmt: skip
    def at(
        gpus: int = gpus, mtbf: float = mtbf_gpu_s, node: float = node_s, rate: float = rate, spares: int = spares,
        restart: float = 100.0,
    ) -> float:  # fmt: skip
        held = Reliability(
            mtbf_gpu_s=mtbf, mtbf_node_s=node, write_bytes_per_s_per_gpu=rate, repair_s=repair_s, spares=spares,
            asynchronous=asynchronous, detect_s=restart,
        )  # fmt: skip
        return float(goodput_frac(gpus, nbytes, held))

    found, room = at(), 1e-3  # Daly's interval is within a thousandth of the best
    assert 0 <= found <= 1
    assert at(mtbf=mtbf_gpu_s / worse) <= found + room
    assert at(node=node_s / worse) <= found + room
    assert at(rate=rate * worse) >= found - room
    assert at(spares=spares + 1) >= found - 1e-12
    assert at(restart=100.0 * worse) <= found + 1e-12


def test_a_column_is_its_entries() -> None:
    gpus = np.array([1, 8, 1000, 16384])
    column = np.asarray(goodput_frac(gpus, 1e12, DEFAULT_RELIABILITY))
    assert column.tolist() == [float(goodput_frac(int(n), 1e12)) for n in gpus]
