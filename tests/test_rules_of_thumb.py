"""Verdicts of docs/rules-of-thumb.md: figures by hand, and a verdict that follows from them."""

from __future__ import annotations

import runpy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@cache
def rules() -> dict[str, Any]:
    """The script behind the page."""
    return runpy.run_path(str(ROOT / "docs" / "rules.py"))


@cache
def claims() -> dict[str, Any]:
    """Every claim by what it says."""
    names = ("_memory_claims", "_speed_claims", "_scaling_claims", "_storage_claims", "_money_claims")
    return {claim.what: claim for name in names for claim in rules()[name]()}


@pytest.mark.parametrize(
    ("what", "by_hand", "near"),
    [
        ("13B in FP16 at 900 GB/s, a token takes at least", 13.0e9 * 2 / 900e9 * 1e3, 0.03),  # bytes over bandwidth
        ("4 times the work for 5 times the price pays; a unit of work costs", 5 / 4, 1e-6),
        ("and, at 120 ms each and batch 1, takes", 1 / 0.12, 1e-6),
        ("ResNet-50 reads on 8 V100", 8 * 0.573, 0.01),
        ("1.4e13 FLOP at 60 % of 70 TFLOP/s take", 1e3 * 1.4e13 / (0.6 * 70e12), 1e-6),
        ("data-parallel ranks exchange gradients in each epoch", 100e6 / (16 * 1024), 1e-9),
        ("ResNet-50 reads on a V100 at 130 TFLOP/s", 573.0, 0.002),
        ("and would then read", 2.21, 0.003),  # 63.3 GB/s a PFLOP/s
        ("Tiramisu reads on a node of six V100", 6 * 0.189, 0.003),
        ("and on 1,024 such nodes", 6144 * 0.189e-3, 0.003),
        ("tensor cores speed products up by", 32.09, 0.01),  # Jetson AGX Thor: 2,070 / 8 over 2 x 2,560 x 1.575e-3
        ("states of 1T parameters at 16 bytes", 16e12 / 1024**4, 1e-6),
        ("Tiramisu reads at 20.93 TFLOP/s", 283.0, 0.01),  # 56.6 MB for each 4.188 TFLOP
        ("switched off but for 8 h of 22 days saves 60 to 70 %, so", 75.9, 0.001),
        ("fine-tuning needs FP32, so each weight of a 7B model takes", 2.0, 0.02),  # bf16
        ("forward, backward and optimizer take of the operations of a forward pass", 3.0, 0.01),  # 2 mnk, three times
        ("ResNet-50 reads on an A100 at its datasheet's rate", 2385 * 0.1468, 0.01),  # images/s of its layers
        ("14 GB at 900 GB/s take", 14e9 / 900e9 * 1e3, 0.001),
        ("10,000 tokens of training a 7B model take", 6 * 6.74e9 * 1e4 / 1e12, 0.05),  # and attention
        ("70B in FP16 take parameters x bytes / memory, of GPUs with 80 GB", 2.0, 1e-9),
        ("100M tokens of GPT-2, at those 2,500 tokens/s, take", 1e8 / 23_950 / 3600, 0.01),
        ("data, tensor and pipeline ranks combine to all GPUs, 1,024 of", 32.0 * 4 * 8, 1e-9),
        (
            "tiers by size of model: a small one trains cheapest on the smallest GPU; GPT-2 on a T4 costs at most",
            (312e12 / 65e12) / (21.957642 / 8 / 0.526),
            0.3,  # of FP16 peaks; the T4 comes less near to its own
        ),
        ("a product of matrices of 1,024 times the elements is more work by", 32.0**3, 1e-9),
    ],
)
def test_computed_figures_are_those_by_hand(what: str, by_hand: float, near: float) -> None:
    assert claims()[what].ours == pytest.approx(by_hand, rel=near)


def test_verdicts_follow_from_the_figures() -> None:
    within = rules()["WITHIN"]
    for claim in claims().values():
        assert (claim.verdict == "right") == (abs(claim.said / claim.ours - 1) <= within), claim.what
        assert claim.why
    assert {claim.verdict for claim in claims().values()} == {"right", "outdated", "wrong"}


def test_every_claim_stands_on_the_page() -> None:
    page = (ROOT / "docs" / "rules-of-thumb.md").read_text(encoding="utf-8")
    for claim in claims().values():
        line = next(line for line in page.splitlines() if line.startswith(f"| {claim.what}: "))
        assert f"**{claim.verdict}**" in line


def test_prices_that_were_never_right_are_wrong_and_old_ones_outdated() -> None:
    verdicts = {figure.what: figure.verdict for figure in rules()["_figures"]()}
    assert verdicts["Standard_NC6s_v3"] == "wrong"
    assert verdicts["n1-standard-8+1xV100-SXM2-16"] == "wrong"
    assert verdicts["p4d.24xlarge"] == "outdated"
    assert verdicts["a2-highgpu-1g"] == "right"


def test_prices_of_retired_machines_say_so() -> None:
    """Nobody can buy an NCv3 or a P3 at that price any more."""
    reasons = {figure.what: figure.why for figure in rules()["_figures"]()}
    assert reasons["Standard_NC6s_v3"].endswith(", retirement date 2025-09-30")
    assert reasons["p3.2xlarge"].endswith(", retirement date 2025-12-20")
    assert "retirement" not in reasons["g4dn.xlarge"]


@cache
def ranges() -> dict[str, Any]:
    """Every range by what it says."""
    names = ("_memory_ranges", "_speed_ranges", "_machine_ranges")
    return {one.what: one for name in names for one in rules()[name]()}


@pytest.mark.parametrize(
    ("what", "by_hand", "near"),
    [
        ("a weight in INT8 takes", 1.0 + 2 * 2 * 32_000 * 4096 / 2 / 6.74e9, 0.01),  # embeddings and head in 16 bits
        ("training takes in optimizer states", 2.0, 1e-6),  # two moments in 4 bytes
        ("twice the sequence takes with flash attention", 2.0, 1e-6),
        ("twice the batch takes in activations", 2.0, 1e-6),
        ("4.2e14 FLOP at 60 % of 300 TFLOP/s take", 4.2e14 / (0.6 * 300e12), 1e-6),
        ("consumer GPUs are better in FP32: an RTX 4090 has", 82.6 / 19.5, 0.01),  # datasheets
        ("NVLink of A100-SXM-80 moves", 12 * 50.0, 1e-6),  # twelve links of 25 GB/s each way
        ("PCIe 4.0 with 16 lanes moves", 2 * 16 * 16e9 * 128 / 130 / 8 / 1e9, 0.01),
        ("CosmoFlow at 50 TFLOP/s reads on a V100", 63.26 * 0.05, 0.001),
        ("and on a node of eight at 35 TFLOP/s", 8 * 63.26 * 0.035, 0.001),
        ("p4d.24xlarge has memory of", 1152.0, 1e-6),
        (
            "small batches belong on a CPU: an encoder of 130M at 2 requests/s costs there",
            0.24344 / 0.42,  # an hour of m8a.xlarge and of g5g.xlarge, one of each
            0.001,
        ),
        (
            "dimensions should be multiples of 8: 50,304 instead of 50,257 columns of GPT-2 XL's head save",
            100 * 0.051 * (1 - 1 / 1.6),  # the head's part of the operations, at the rate of what is aligned
            0.3,
        ),
    ],
)
def test_computed_figures_of_ranges_are_those_by_hand(what: str, by_hand: float, near: float) -> None:
    assert ranges()[what].ours == pytest.approx(by_hand, rel=near)


def test_a_range_is_right_within_its_ends_and_off_by_the_nearer() -> None:
    made = rules()["Range"]
    inside, above, below = (made("x", 2.0, 4.0, ours, "s", "") for ours in (3.0, 8.0, 1.0))
    assert (inside.verdict, inside.off) == ("right", 1.0)
    assert (above.verdict, above.off) == ("wrong", 0.5)
    assert (below.verdict, below.off) == ("wrong", 2.0)
    assert made("x", 2.0, 4.0, 8.0, "s", "", once=True).verdict == "outdated"
    assert made("x", 2.0, float("inf"), 1e9, "s", "").verdict == "right"


def test_training_speeds_lie_in_their_intervals_and_below_what_the_datasheet_allows() -> None:
    """GPT-2 on a T4: 65 TFLOP/s over 6 x 124 M parameters and causal attention, 12 x (12 x 768) x 1,024 / 2 a token."""
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in list(rules()["_training_speeds"]())[2:]]
    assert len(rows) == len(rules()["TRAINED"])
    for model, gpus, speed, interval, fits, most in rows:
        low, high = (float(end.replace(",", "")) for end in interval.split(" to "))
        assert low < float(speed.replace(",", "")) < high < float(most.replace(",", "")), (model, gpus)
        assert fits == "yes" or fits.startswith("no, ")
    assert rows[0][:2] == ["gpt2", "1 x T4"]
    by_hand = 65e12 / (6 * 124.4e6 + 12 * 12 * 768 * 1024 / 2)
    assert float(rows[0][5].replace(",", "")) == pytest.approx(by_hand, rel=0.02)
    assert rows[-1][4].startswith("no, 141 GiB")
