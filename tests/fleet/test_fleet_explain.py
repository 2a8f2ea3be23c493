"""The bill of a fleet says where it comes from: machines, hours, and prices with their source and date."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flopwise.fleet.explain import BILL, allotment_name, assessment_figure
from flopwise.provenance import walk
from formulas import is_arithmetic, recomputed

sys.path.insert(0, str(Path(__file__).parent))
from small import answer


def test_every_set_up_of_a_bill_is_explained_and_they_sum_to_it() -> None:
    found = answer()
    tree = assessment_figure(found.assessment, found.plans)
    figures = list(walk(tree))
    for figure in filter(is_arithmetic, figures):
        assert recomputed(figure) == pytest.approx(float(figure.value or 0.0), rel=1e-6, abs=1e-9), figure.formula
    named, cost = {one.name: one for one in figures}, found.assessment.usd_per_month
    assert named[BILL].value == pytest.approx(cost.total)
    assert found.assessment.allocation
    for one in found.assessment.allocation:
        row = named[allotment_name(one)]
        assert row.value == pytest.approx(one.usd_per_month)
        if one.usd_per_hour is not None:
            price = next(below for below in row.inputs if below.unit == "USD/h")
            assert price.value == one.usd_per_hour
            assert price.source if one.price_date else price.kind == "given"
            assert price.date == one.price_date
    assert {f"bill if {one.name}" for one in found.assessment.whatif if one.usd_per_month is not None} <= named.keys()
    for other in found.assessment.whatif:
        if other.change_usd is not None:
            assert named[f"change if {other.name}"].value == other.change_usd
    assert found.assessment.risks
    for risk in found.assessment.risks:
        what = f"{risk.kind}, {risk.workload or 'the fleet'}: {risk.evidence}"
        assert (named[f"risk of {what}"].value, named[f"impact of {what}"].value) == (risk.probability, risk.impact)
    assert {f"saving by {one.what}, {one.workload}" for one in found.assessment.savings} <= named.keys()
