"""What fits may move: constants that the facts have, within their bounds; and written back, all else stays."""

from __future__ import annotations

import json
import shutil
from importlib.resources import files
from pathlib import Path

import pytest

import fit_campaign as campaign
import fit_serving as serving
import fit_training as training
from each import each
from fitting import moved_calibration, start, write_values
from flopwise.facts.catalog import load_facts
from flopwise.fitting import kernels
from flopwise.fitting.deployment import moved_records
from flopwise.fitting.robust import Constant

FACTS = load_facts()
ALL = (*kernels.CONSTANTS, *serving.CONSTANTS, *training.constants(FACTS), campaign.SHARE)
DATA = Path(str(files("flopwise") / "data"))


@each("constant", ALL, label=lambda c: f"{c.name} {c.scopes[0]}")
def test_every_constant_is_in_the_facts_within_its_bounds_and_one_value_for_its_scopes(constant: Constant) -> None:
    if constant.table == "calibration":
        values = {FACTS.calibration.find(constant.name, (scope,)).value for scope in constant.scopes}
    else:
        records = getattr(FACTS, constant.table)
        values = {float(getattr(records[name], constant.name)) for name in constant.scopes}
    assert len(values) == 1
    assert constant.low <= constant.prior <= constant.high
    assert constant.low * (1 - 1e-9) <= values.pop() <= constant.high * (1 + 1e-9)


def test_engines_that_plan_ahead_are_fitted_together_as_the_facts_name_them() -> None:
    assert set(serving.AHEAD) == {name for name in serving.GRAPHS if FACTS.engines[name].plans_ahead}


def test_moved_facts_have_the_values_and_nothing_else_moves() -> None:
    constants = training.constants(FACTS)
    same = dict(zip(constants, [c.present_value(FACTS) for c in constants], strict=True))
    assert moved_records(FACTS.stacks, "stacks", same) == dict(FACTS.stacks)
    assert moved_calibration(FACTS.calibration, same).parameters == FACTS.calibration.parameters
    traffic = next(c for c in constants if c.name == "pointwise_traffic")
    moved = moved_records(FACTS.stacks, "stacks", {traffic: 2.5})
    assert {n for n in moved if moved[n] != FACTS.stacks[n]} == set(traffic.scopes)
    assert start(constants, FACTS, fresh=True)[0] == pytest.approx(-27.449, abs=0.01)  # ln 1.2e-12


def test_values_written_back_keep_units_meanings_and_all_that_was_not_fitted(tmp_path: Path) -> None:
    shutil.copytree(DATA / "calibration", tmp_path / "calibration")
    for table in ("stacks", "engines"):
        shutil.copy(DATA / f"{table}.json", tmp_path)
    moved = {c: 1.01 * c.present_value(FACTS) for c in (*serving.CONSTANTS, *training.constants(FACTS))}
    write_values(tmp_path, moved, "a fit", lambda c: f"rows of {c.name}", "2030-01-01")
    for path in sorted((tmp_path / "calibration").iterdir()):
        before = json.loads((DATA / "calibration" / path.name).read_text(encoding="utf-8"))
        after = json.loads(path.read_text(encoding="utf-8"))
        own = {(c.name, scope): v for c, v in moved.items() if c.table == "calibration" for scope in c.scopes}
        for old, new in zip(before, after, strict=True):
            if (old["name"], old["scope"]) in own:
                value = own[old["name"], old["scope"]]
                assert new["value"] == pytest.approx(value, rel=1e-3)
                assert (new["source"], new["fitted_on"]) == ("a fit", f"rows of {old['name']}")
                assert (new["unit"], new["meaning"]) == (old["unit"], old["meaning"])
            else:
                assert new == old
    for table, constants in (("stacks", training.constants(FACTS)), ("engines", serving.CONSTANTS)):
        before = json.loads((DATA / f"{table}.json").read_text(encoding="utf-8"))
        after = json.loads((tmp_path / f"{table}.json").read_text(encoding="utf-8"))
        assert [{k: v for k, v in r.items() if k != "fitted"} for r in before.values()] == [
            {k: v for k, v in r.items() if k != "fitted"} for r in after.values()
        ]
        names = {name for c in constants if c.table == table for name in c.scopes}
        assert all(after[name].get("fitted", {}).get("source", "a fit") == "a fit" for name in names)


def test_written_values_are_those_that_are_read_again(tmp_path: Path) -> None:
    shutil.copytree(DATA / "calibration", tmp_path / "calibration")
    for table in ("stacks", "engines"):
        shutil.copy(DATA / f"{table}.json", tmp_path)
    moved = {c: 0.99 * c.present_value(FACTS) for c in (*serving.CONSTANTS, *training.constants(FACTS))}
    write_values(tmp_path, moved, "a fit", lambda c: f"rows of {c.name}", "2030-01-01")
    again = load_facts(tmp_path)
    for constant, value in moved.items():
        if constant.table != "calibration":
            for name in constant.scopes:
                assert getattr(getattr(again, constant.table)[name], constant.name) == pytest.approx(value, rel=1e-3)
