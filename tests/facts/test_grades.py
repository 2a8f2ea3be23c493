"""What accelerators are made for: the catalog's names fall where their makers sell them, a folder's rows lie over."""

from __future__ import annotations

from pathlib import Path

import pytest

from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from named import FACTS


@pytest.mark.parametrize(
    ("names", "grade"),
    [
        (("H100-SXM-80", "L4", "T4", "L40S", "MI300X", "TPU v6e", "Trainium2", "A10G", "EPYC 9R14"), "datacentre"),
        (("RTX A6000", "RTX 6000 Ada", "RTX 4000 Ada", "RTX PRO 6000 Blackwell", "Arc Pro B60"), "workstation"),
        (("RTX 4090", "RTX 3090", "RTX 5090", "RTX 2080", "GTX 1080", "Apple M4 Max", "GB10"), "consumer"),
        (("RTX PRO 6000 Blackwell Server",), "datacentre"),
    ],
)
def test_names_fall_where_their_makers_sell_them(names: tuple[str, ...], grade: str) -> None:
    known = FACTS.accelerators
    for name in names:
        assert name in known
        assert FACTS.grade(name).grade == grade, name


def test_every_consumer_part_says_what_stands_in_the_way() -> None:
    known = FACTS.accelerators
    for name in known:
        found = FACTS.grade(name)
        assert bool(found.remark) == (found.grade == "consumer"), name
        assert found.source
    for price in FACTS.hardware_prices:
        assert price.grade == FACTS.grade(price.accelerator).grade, "the price book agrees"
    told = FACTS.grade_remarks(["H100-SXM-80", "RTX 4090", "RTX 4090"])
    assert len(told) == 1
    assert "licence" in told[0]


def test_a_folder_lies_over_the_shipped_rows(tmp_path: Path) -> None:
    header = "accelerators,grade,remark,source,date\n"
    (tmp_path / "grades.csv").write_text(header + "RTX 4*,datacentre,unknown,our counsel,2026-01-01\n")
    assert load_facts(tmp_path).grade("RTX 4090").grade == "datacentre"
    assert load_facts(tmp_path).grade_remarks(["RTX 4090"]) == []
    assert load_facts(tmp_path).grade("RTX 5090").grade == "consumer"
    (tmp_path / "grades.csv").write_text(header + "RTX 4*,toy,,s,2026-01-01\n")
    with pytest.raises(SpecError, match="row 2"):
        load_facts(tmp_path).grade("RTX 4090")
