"""What caches hold of sessions in closed form: by hand, and against the simulator."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from flopwise.serving.sessions import Found, SessionTraffic

FOUR = SessionTraffic(turns=4, input_tokens=512, output_tokens=128, think_s=20.0)
TWO = SessionTraffic(turns=2, input_tokens=60, output_tokens=40, think_s=10.0)


def test_prompts_hold_all_turns_before_them() -> None:
    """Prompts of 512, 1,152, 1,792 and 2,432 tokens, of which 0, 640, 1,280 and 1,920 are history."""
    assert FOUR.mean_turns == 4
    assert FOUR.prompt_tokens == pytest.approx((512 + 1152 + 1792 + 2432) / 4)
    assert FOUR.history_tokens == pytest.approx((640 + 1280 + 1920) / 4)


def test_drawn_numbers_of_turns_count_by_their_turns() -> None:
    """One or three turns, alike often, of 10 in and 0 of note out: 10, and 10, 21, 32 over four turns in two sessions;
    two turns as likely as those: 10, 21. Of six turns in three sessions (10 + 10 + 21 + 32 + 10 + 21) / 6."""
    drawn = SessionTraffic(turns="1:3", input_tokens=10, output_tokens=1)
    assert drawn.mean_turns == pytest.approx(2.0, rel=0.01)
    assert drawn.prompt_tokens == pytest.approx((10 + 10 + 21 + 32 + 10 + 21) / 6, rel=0.01)


def test_a_cache_without_end_finds_all_but_the_last_block() -> None:
    """Three of four turns have a history, whose last block of 16 is computed again: 8.5 tokens on average."""
    found = Found.of(FOUR, 0.8, 1.0, [1e15], block_tokens=16)
    assert float(np.asarray(found.device_frac)) == pytest.approx((960 - 0.75 * 8.5) / 1472, rel=1e-6)


def test_what_is_kept_fills_the_cache() -> None:
    """A session a second leaves 100 tokens after its first turn and 200 after its last. What is kept for ten seconds is
    100 x 10 (1 - 1/e) of the former and 200 x 10 of the latter; a pause of ten on average is over by then in 1 - 1/e of
    all cases. Half of the turns have a history of 100, of whose blocks of one token the last is computed again."""
    room = 100 * 10 * (1 - math.exp(-1)) + 200 * 10
    found = Found.of(TWO, 2.0, 0.0, [room])
    assert float(np.asarray(found.device_frac)) == pytest.approx(0.5 * 99 / 110 * (1 - math.exp(-1)), rel=1e-6)


def test_answers_under_way_take_their_room_first() -> None:
    """300 tokens a second for three seconds: what is left is as much as in the case above."""
    room = 300 * 3 + 100 * 10 * (1 - math.exp(-1)) + 200 * 10
    found = Found.of(TWO, 2.0, 3.0, [room])
    assert float(np.asarray(found.device_frac)) == pytest.approx(0.5 * 99 / 110 * (1 - math.exp(-1)), rel=1e-6)
    full = Found.of(TWO, 2.0, 10.0, [300 * 3.0])
    assert float(np.asarray(full.whole_frac)) == pytest.approx(0.0, abs=1e-3)


def test_stores_have_what_the_cache_above_evicts() -> None:
    """Together they are one cache of their size."""
    small = 100 * 10 * (1 - math.exp(-0.5)) + 200 * 5
    large = 100 * 10 * (1 - math.exp(-1)) + 200 * 10
    found = Found.of(TWO, 2.0, 0.0, [small, large - small])
    history = 0.5 * 99 / 110
    assert float(np.asarray(found.device_frac)) == pytest.approx(history * (1 - math.exp(-0.5)), rel=1e-6)
    assert float(np.asarray(found.store_fracs[0])) == pytest.approx(history * (math.exp(-0.5) - math.exp(-1)), rel=1e-5)


def test_tools_come_back_sooner_than_people() -> None:
    """Kept for ten seconds: of pauses of 10 s on average 1 - 1/e, of those of 1 s nearly all."""
    both = replace(TWO, tool_share=0.5, tool_pause_s=1.0)
    stays = 0.5 * 10 * (1 - math.exp(-1)) + 0.5 * 1 * (1 - math.exp(-10))
    found = Found.of(both, 2.0, 0.0, [100 * stays + 200 * 10])
    back = 0.5 * (1 - math.exp(-1)) + 0.5 * (1 - math.exp(-10))
    assert float(np.asarray(found.device_frac)) == pytest.approx(0.5 * 99 / 110 * back, rel=1e-6)


def test_columns_are_as_each_alone() -> None:
    rooms, rates = np.array([1e3, 1e4, 1e5]), np.array([1.0, 2.0, 3.0])
    whole = Found.of(TWO, rates, 0.5, [rooms])
    each = [float(np.asarray(Found.of(TWO, r, 0.5, [c]).device_frac)) for r, c in zip(rates, rooms, strict=True)]
    assert np.asarray(whole.device_frac).tolist() == pytest.approx(each)
    assert sorted(each) == each, "more room for each session finds more"


def test_what_all_sessions_share_is_there_once_and_always() -> None:
    """Of prompts of 60 and 160 tokens 20 are found at any rate, and of the second 80 more if the first turn's context
    of 100 is still there. A session a second leaves 80 of its own after its first turn, 180 after its last: kept for
    ten seconds that is 80 x 10 (1 - 1/e) + 180 x 10, beside the 20."""
    shared = replace(TWO, shared_tokens=20)
    room = 20 + 80 * 10 * (1 - math.exp(-1)) + 180 * 10
    found = Found.of(shared, 2.0, 0.0, [room])
    assert float(np.asarray(found.device_frac)) == pytest.approx(
        (20 + 0.5 * (100 - 20 - 1) * (1 - math.exp(-1))) / 110, rel=1e-6
    )
    assert float(np.asarray(Found.of(shared, 2.0, 0.0, [20.0]).device_frac)) == pytest.approx(20 / 110, rel=1e-3)


def test_whole_blocks_of_what_all_share_are_found() -> None:
    """Of 20 tokens one block of 16."""
    found = Found.of(replace(TWO, shared_tokens=20), 2.0, 0.0, [16.0], block_tokens=16)
    assert float(np.asarray(found.device_frac)) == pytest.approx(16 / 110, rel=1e-3)


def test_instances_for_prompts_lack_the_latest_answer() -> None:
    """They keep 60 tokens of the first turn's prompt, and 160 of the second; of a history of 100 they find 60."""
    room = 60 * 10 * (1 - math.exp(-1)) + 160 * 10
    found = Found.of(TWO, 2.0, 0.0, [room], prompts_only=True)
    assert float(np.asarray(found.device_frac)) == pytest.approx(0.5 * 59 / 110 * (1 - math.exp(-1)), rel=1e-6)
