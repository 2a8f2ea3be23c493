"""Profiles of traffic: 168 rates around their mean, whichever way they are written; requests follow them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flopwise.errors import SpecError
from flopwise.serving.sim.autoscale import Autoscaling
from flopwise.serving.sim.profiles import NAMED, weekly_rates
from flopwise.serving.sim.source import Traffic
from flopwise.serving.sim.trace import PS
from flopwise.serving.sim.traffic import draw_requests

HALF = [1.0] * 12 + [3.0] * 12


@pytest.mark.parametrize("name", NAMED)
def test_named_profiles_have_a_mean_of_one(name: str) -> None:
    rates = weekly_rates(name)
    assert len(rates) == 168
    assert sum(rates) == pytest.approx(168)
    assert max(rates[:24]) == max(rates)


def test_a_day_is_every_day_and_a_mapping_names_its_days() -> None:
    assert weekly_rates(HALF) == (0.5,) * 12 + (1.5,) * 12 + weekly_rates(HALF)[24:]
    week = weekly_rates({"weekdays": [7.0] * 24})
    assert week[0] == pytest.approx(7 / 5)
    assert week[5 * 24] == 0.0


def test_files_of_rates_and_traces(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("hour,rate\n" + "".join(f"{h},{r}\n" for h, r in enumerate(HALF)))
    assert weekly_rates(table) == weekly_rates(HALF)
    requests = tmp_path / "trace.csv"  # two days: three requests in each later hour, one in each earlier
    times = [h * 3600 + 10 * n for h in range(48) for n in range(int(HALF[h % 24]))]
    requests.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{t},5,5\n" for t in times))
    assert weekly_rates(str(requests)) == pytest.approx(weekly_rates(HALF))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [([1.0] * 23, "24 rates"), ([0.0] * 24, "above 0"), ([-1.0] * 24, "0 or more"), ("no such", "not a profile"),
     ({"sundays": [1.0] * 24}, "weekdays"), (["a"] * 24, "24 rates")],
)  # fmt: skip
def test_what_is_no_profile_is_refused(wrong: object, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        weekly_rates(wrong)


def test_a_file_that_is_no_profile_is_refused(tmp_path: Path) -> None:
    short = tmp_path / "short.csv"
    short.write_text("arrival_s\n1\n50\n")
    with pytest.raises(SpecError, match="at least one day"):
        weekly_rates(short)
    short.write_text("hour,rate\n0,1\n0,2\n")
    with pytest.raises(SpecError, match="each once"):
        weekly_rates(short)
    short.write_text("time,rate\n0,1\n")
    with pytest.raises(SpecError, match="needs the columns"):
        weekly_rates(short)


def test_requests_follow_the_profile() -> None:
    """Three times as many in the later half of each day, within the straight lines between the hours."""
    requests = draw_requests(Traffic(rate=2.0, profile=HALF, duration_s=86400.0, input_tokens=8, output_tokens=8))
    hours = np.bincount((requests.arrival_ps / PS // 3600).astype(int), minlength=24)
    assert hours.sum() == pytest.approx(2 * 86400, rel=0.02)
    assert hours[13:22].mean() / hours[1:10].mean() == pytest.approx(3.0, rel=0.05)
    with pytest.raises(SpecError, match="leave out --arrivals"):
        Traffic(rate=1.0, profile="office", peak=2.0).check()
    with pytest.raises(SpecError, match="go with --rate"):
        Traffic(users=2, profile="office").check()


def test_the_fewest_by_the_hour_are_there_a_cold_start_ahead() -> None:
    rule = Autoscaling(least=1, most=4, cold_start_s=120, by_hour=(1, 3) * 12)
    assert [rule.least_at(s) for s in (0, 3479, 3480, 3600, 7199, 7200)] == [1, 1, 3, 3, 3, 1]
    assert rule.least_at(24 * 3600) == 1
    with pytest.raises(SpecError, match="out of range; allowed: 0 to the most replicas, 2"):
        Autoscaling(least=1, most=2, by_hour=(3,) * 24)
    with pytest.raises(SpecError, match="3 numbers; allowed: 24 of a day, or 168 of a week"):
        Autoscaling(least=1, most=4, by_hour=(1, 2, 3))
