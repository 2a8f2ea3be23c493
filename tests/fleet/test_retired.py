"""Retired machines: out of assessments unless asked for, judged where they run, and a risk where they are taken."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from flopwise.cli.commands.check import blocks
from flopwise.cli.render import Screen
from flopwise.facts.catalog import load_facts
from flopwise.fleet.assess import assess
from flopwise.fleet.check import check
from flopwise.fleet.read import fleet_from
from flopwise.report.content import document
from flopwise.report.pages import markdown
from flopwise.report.write import check_document

sys.path.insert(0, str(Path(__file__).parent))
from small import CHAT, DESKS, TODAY, catalog

ON_GOOGLE: dict[str, Any] = DESKS | {"constraints": {"providers": ["gcp", "aws"]}}


def test_a_policy_lets_them_in_and_the_risk_has_their_day() -> None:
    """Two T4 from Google alone, which ends them on 2027-08-01."""
    policies: dict[str, Any] = {"providers": {"gcp": "100%"}, "purchase": ["on_demand"], "include_retired": True}
    taken = assess(fleet_from({"name": "f", "workloads": [DESKS], "policies": policies}), catalog(), today=TODAY)
    found = taken.assessment
    (row,) = [row for row in found.allocation if row.role == "primary"]
    assert (row.provider, row.gpu, row.retires_on) == ("gcp", "T4", "2027-08-01")
    (risk,) = [risk for risk in found.risks if risk.kind == "retirement"]
    assert risk.evidence == "gcp stops 2 x n1-standard-4+1xT4 on 2027-08-01"
    assert (risk.probability, risk.impact) == (1.0, 1.0)
    assert found.price_notes.count("gcp n1-standard-4+1xT4 in us-central1: retirement date 2027-08-01") == 1
    assert "retirement date 2027-08-01" in markdown(document(found))


def test_without_it_another_provider_has_them() -> None:
    found = assess(fleet_from({"name": "f", "workloads": [ON_GOOGLE]}), catalog(), today=TODAY).assessment
    assert {row.provider for row in found.allocation} == {"aws"}
    assert not [risk for risk in found.risks if risk.kind == "retirement"]


def test_who_names_the_instance_of_one_workload_asks_for_it() -> None:
    named = ON_GOOGLE | {"constraints": {"instances": ["n1-standard-4 + T4"]}}
    found = assess(fleet_from({"name": "f", "workloads": [named]}), catalog(), today=TODAY).assessment
    assert {row.retires_on for row in found.allocation} == {"2027-08-01"}


def test_what_runs_on_them_is_judged_with_their_day() -> None:
    """Policies that leave them out are no reason against what is there, and the proposal is another machine."""
    job = CHAT | {"existing": [{"instance": "NC24s_v3", "provider": "azure", "region": "eastus", "count": 8}]}
    found = check(fleet_from({"name": "f", "workloads": [job]}), load_facts(None), today=TODAY)
    (row,) = found.workloads
    assert row.notes == ["8 x azure Standard_NC24s_v3: retirement date 2025-09-30"]
    assert not any("retire" in reason for reason in row.reasons)
    assert "Standard_NC24s_v3" not in row.proposed
    assert "retirement date 2025-09-30" in "\n".join(blocks(found, Screen(width=200)))
    assert "retirement date 2025-09-30" in markdown(check_document(found))
