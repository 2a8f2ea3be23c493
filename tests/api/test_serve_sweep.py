"""A sweep is the single estimates side by side, and says where more load stops paying."""

import json
from typing import Any

import pytest

from flopwise import cli
from flopwise.api.serve import serve, serve_sweep
from flopwise.errors import SpecError, UnknownNameError
from flopwise.serving.load_curve import SATURATED_FRAC

HOW: dict[str, Any] = {"gpu": "h100", "input_tokens": 512, "output_tokens": 128, "memory_fraction": 0.9}


def test_points_are_the_single_estimates() -> None:
    swept = serve_sweep("Llama-3.1-8B", "concurrency", values=(1, 24), **HOW)
    for point in swept.points:
        alone = serve("Llama-3.1-8B", concurrency=point.value, **HOW).estimate
        assert alone.tpot_s is not None
        assert alone.output_tokens_per_s is not None
        assert (point.ttft_s, point.tpot_s) == (alone.ttft_s.value, alone.tpot_s.value)
        assert point.tokens_per_s == alone.output_tokens_per_s.value
        assert point.mfu_frac == alone.mfu_frac


def test_more_in_flight_is_more_throughput_and_longer_waits_and_saturates_where_it_says() -> None:
    swept = serve_sweep("Llama-3.1-8B", "concurrency", **HOW)
    rates = [p.tokens_per_s for p in swept.points]
    assert rates[:-1] == sorted(rates[:-1])
    assert rates[-1] > 0.99 * max(rates)  # as many as memory holds at all give way to one another at times
    assert [p.tpot_s for p in swept.points] == sorted(p.tpot_s or 0.0 for p in swept.points)
    assert swept.saturation is not None
    before = [p for p in swept.points if p.value < swept.saturation.value]
    assert before
    assert all(p.tokens_per_s < SATURATED_FRAC * max(rates) for p in before)
    assert all(0 < p.mfu_frac < 1 and 0 < p.roofline_frac <= 1 for p in swept.points)


def test_degrees_divide_the_heads_and_need_not_fit() -> None:
    swept = serve_sweep("Llama-3.1-70B", "tp", concurrency=8, **HOW)
    assert [p.value for p in swept.points] == [1, 2, 4, 8]
    assert [p.fits for p in swept.points] == [False, True, True, True]
    assert swept.points[3].tpot_s < swept.points[1].tpot_s  # type: ignore[operator]  # a model that generates has one


def test_a_batch_is_fixed() -> None:
    point = serve_sweep("Llama-3.1-8B", "batch", values=(8,), **HOW).points[0]
    alone = serve("Llama-3.1-8B", concurrency=8, static=True, **HOW).estimate
    assert point.ttft_s == alone.ttft_s.value


def test_encoders_have_a_latency_curve() -> None:
    swept = serve_sweep("bert-base-uncased", "batch", gpu="h100", values=(1, 64))
    assert all(p.tpot_s is None for p in swept.points)
    assert swept.points[1].tokens_per_s > swept.points[0].tokens_per_s


def test_what_cannot_be_swept_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="concurrency, batch, tp"):
        serve_sweep("Llama-3.1-8B", "tpp", **HOW)
    with pytest.raises(SpecError, match="leave the rate out"):
        serve_sweep("Llama-3.1-8B", "tp", rate=3.0, **HOW)
    with pytest.raises(SpecError, match="leave the concurrency out"):
        serve_sweep("Llama-3.1-8B", "batch", concurrency=3, **HOW)


@pytest.mark.parametrize("axis", ["concurrency", "batch", "tp"])
def test_the_command_draws_and_writes_json(axis: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = ["serve", "Llama-3.1-8B", "--gpu", "h100", "--sweep", axis]
    assert cli.main(said) == 0
    assert "per user" in capsys.readouterr().out
    assert cli.main([*said, "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["axis"] == axis
    assert len(plain["points"]) >= 4
    assert plain["saturation"] in [p["value"] for p in plain["points"]]


def test_a_fixed_batch_has_no_arrivals() -> None:
    with pytest.raises(SpecError, match="start together"):
        serve("Llama-3.1-8B", rate=2.0, static=True, **HOW)
