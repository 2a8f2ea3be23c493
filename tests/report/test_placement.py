"""The picture of which workload runs where: its ways add up to the bill, in HTML as in Markdown."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

import pytest

from flopwise.fleet.assessment import Allotment, ProviderChoice
from flopwise.report.blocks import Bar, Bars, Stream, Streams
from flopwise.report.content import document
from flopwise.report.pages import html, markdown, narrow_bars_svg, streams_svg
from flopwise.report.placement import COLUMNS, streams

sys.path.insert(0, str(Path(__file__).parent))
from samples import assessment, workload

NUMBER = r"-?[\d.]+"


def allotment(name: str, provider: str, usd: float, instance: str = "g6.xlarge", role: str = "primary") -> Allotment:
    return Allotment(
        workload=name, environment="production", provider=provider, region="r", instance=instance, gpu="L4",
        purchase="on_demand", count=1, hours_per_month=730.0, usd_per_hour=1.0, usd_per_hour_effective=1.0,
        usd_per_month=usd, usd_low=usd, usd_high=usd, price_date="2026-07-20", num_gpus=1, role=role,
    )  # fmt: skip


def test_the_ways_add_up_to_what_machines_cost() -> None:
    rows = [allotment("a", "aws", 100.0), allotment("a", "gcp", 50.0), allotment("b", "aws", 25.0, role="backup")]
    found = streams(assessment(allocation=rows, workloads=[workload("a"), workload("b")]))
    assert [(s.nodes[:2], s.value) for s in found] == [
        (("a", "aws"), 100.0), (("a", "gcp"), 50.0), (("b (standby)", "aws"), 25.0),
    ]  # fmt: skip


def test_of_many_workloads_the_costly_ones_are_drawn_and_nothing_is_lost() -> None:
    rows = [allotment(f"w{n}", "aws", float(n + 1)) for n in range(100)]
    found = streams(assessment(allocation=rows))
    assert len(found) == 20
    assert sum(s.value for s in found) == pytest.approx(5050.0)
    assert any(s.nodes[0] == "81 other workloads" for s in found)


def test_ribbons_are_as_wide_as_their_values_and_nodes_do_not_overlap() -> None:
    rows = [Stream(("a", "aws", "x"), 300.0, "$300"), Stream(("b", "aws", "y"), 100.0, "$100")]
    picture = streams_svg(Streams("where", COLUMNS, rows))
    ribbon = re.compile(rf'd="M{NUMBER} ({NUMBER})C.*?V({NUMBER})C.*? ({NUMBER})Z"')
    ends = [tuple(float(v) for v in found) for found in ribbon.findall(picture)]
    assert len(ends) == 4
    left = sorted(low - top for top, _, low in ends[::2])
    # a node has 16 and its share of 190: 300 of 400 is 158.5, 100 of 400 is 63.5
    assert left == pytest.approx([63.5, 158.5], abs=0.2)
    boxes = re.findall(rf'<rect x="({NUMBER})" y="({NUMBER})" width="10" height="({NUMBER})"', picture)
    for column in {x for x, _, _ in boxes}:
        places = sorted((float(y), float(h)) for x, y, h in boxes if x == column)
        assert all(y + h <= other for (y, h), (other, _) in itertools.pairwise(places))
    assert "a → aws → x: $300" in picture


def test_names_stay_text_in_the_picture() -> None:
    rows = [allotment('<b>"x"', "aws", 1.0)]
    page = html(document(assessment(allocation=rows)))
    assert '<b>"x"' not in page
    assert "&lt;b&gt;" in page


def test_the_report_has_both_pictures_and_providers() -> None:
    choices = [
        ProviderChoice(workload="chat", provider="aws", why="the plan", taken=True, region="us-east-1",
                       instance="g6.xlarge", gpu="L4", purchase="on_demand", count=2, usd_per_month=1175.0,
                       change_usd=0.0, price_date="2026-07-20"),
        ProviderChoice(workload="chat", provider="gcp", why="dearer", region="us-central1", instance="g2-standard-4",
                       gpu="L4", purchase="on_demand", count=3, usd_per_month=1548.0, change_usd=373.0,
                       price_date="2026-08-03"),
        ProviderChoice(workload="chat", provider="azure", why="no machine of it is known"),
    ]  # fmt: skip
    made = document(assessment(by_provider=choices))
    text = markdown(made).replace("\\", "")
    assert "| chat | aws | g6.xlarge (L4) | $1,175 |" in text
    assert (
        "| chat | gcp | 3 x g2-standard-4 (L4) | us-central1 | on demand | $1,548 | +$373 | dearer | 2026-08-03 |"
        in text
    )
    assert "no machine of it is known" in text
    assert 'class="t0"' in html(made)


def test_ribbons_share_a_node_by_their_values() -> None:
    # the one workload has 16 and all of 190: three quarters of it are 154.5, one quarter 51.5
    rows = [Stream(("a", "aws", "x"), 300.0, "$300"), Stream(("a", "gcp", "y"), 100.0, "$100")]
    ribbon = re.compile(rf'd="M{NUMBER} ({NUMBER})C.*? ({NUMBER})Z"')
    ends = [tuple(float(v) for v in found) for found in ribbon.findall(streams_svg(Streams("where", COLUMNS, rows)))]
    assert sorted(low - top for top, low in ends[::2]) == pytest.approx([51.5, 154.5], abs=0.2)


def test_long_names_are_whole_in_pictures_and_on_a_phone() -> None:
    """The longest names of instances and of workloads stand in full, with the figure on a line of its own."""
    machines = "Standard_NC24ads_A100_v4 (A100-PCIe-80)"
    picture = streams_svg(Streams("where", COLUMNS, (Stream(("a", "azure", machines), 1.0, "$1"),)))
    name, figure = "train large (Llama-65B)", "12.2 h of 4.35 days (12 %)"
    narrow = narrow_bars_svg(Bars("time", (Bar(name, 1.0, figure), Bar("b", 0.5, "1 h"))))
    for shown in (picture, narrow):
        assert "…" not in shown
    assert f">{machines}</text>" in picture
    levels = [re.search(rf'y="([\d.]+)"[^>]*>{re.escape(text)}<', narrow) for text in (name, figure)]
    assert [float(found[1]) for found in levels if found] == [13.0, 28.0]
