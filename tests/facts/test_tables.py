"""The tables of facts as a whole: each column is used, each can be overlaid, and the page of facts lists them all."""

from __future__ import annotations

import ast
import csv
import json
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from flopwise.data import DATA
from flopwise.errors import SpecError
from flopwise.facts.accelerators import DTYPES
from flopwise.facts.catalog import folder_files, load_facts, tables
from flopwise.facts.software import Engine, TrainingStack
from flopwise.facts.tables import LIKE, FactTable, Lazy
from named import FACTS

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "flopwise"
PEAKS = {f"{dtype}_flops_per_s" for dtype in DTYPES}
"""Columns that become one field, the peaks by dtype."""


@cache
def attributes() -> frozenset[str]:
    """Every attribute that the code reads, by its own name or as a text."""
    found = set[str]()
    for path in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add(node.attr)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
                found |= {a.value for a in node.args[1:2] if isinstance(a, ast.Constant) and isinstance(a.value, str)}
    return frozenset(found)


def in_file(table: FactTable[Any]) -> set[str]:
    """The columns that the shipped file of a table has."""
    path = DATA / table.file
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            return set(next(csv.reader(file)))
    found = set[str]()
    for record in json.loads(path.read_text(encoding="utf-8")).values():
        for section, values in record.items():
            found |= set(values) - {"source", "date"} if isinstance(values, dict) else {section}
    return found - {LIKE}


@pytest.mark.parametrize("table", tables(), ids=lambda table: table.file)
def test_every_column_of_every_table_is_used(table: FactTable[Any]) -> None:
    assert in_file(table) <= set(table.columns)
    unused = in_file(table) - PEAKS - attributes()
    assert not unused, f"{table.file}: no code reads {', '.join(sorted(unused))}"


@pytest.mark.parametrize("table", tables(), ids=lambda table: table.file)
def test_every_table_is_overlaid_by_a_file_of_the_same_name(table: FactTable[Any], tmp_path: Path) -> None:
    """A folder with the shipped file itself changes nothing; one with a row that is none is refused."""
    shipped = (DATA / table.file).read_text(encoding="utf-8")
    (tmp_path / table.file).write_text(shipped, encoding="utf-8")
    facts = load_facts(tmp_path)
    assert list(facts.rows(table).values()) == list(FACTS.rows(table).values())
    if table.file.endswith(".csv"):
        (tmp_path / table.file).write_text(f"{shipped.splitlines()[0]}\nx\n", encoding="utf-8")
    else:
        (tmp_path / table.file).write_text('{"mine": {"facts": {"colour": 1}}}', encoding="utf-8")
    with pytest.raises(SpecError, match=table.file):
        load_facts(tmp_path)


@pytest.mark.parametrize("table", tables(), ids=lambda table: table.file)
def test_shipped_rows_that_are_made_when_asked_for_are_those_of_the_whole_file(table: FactTable[Any]) -> None:
    path = DATA / table.file
    assert dict(table.shipped_records(path)) == table.overlay({}, path)


def test_a_row_is_made_once_and_when_it_is_asked_for() -> None:
    made: list[str] = []

    def upper(key: str) -> str:
        made.append(key)
        return key.upper()

    rows = Lazy(["a", "b"], upper)
    assert ("a" in rows, "c" in rows, len(rows), list(rows), made) == (True, False, 2, ["a", "b"], [])
    assert (rows["b"], rows["b"], rows.get("c"), made) == ("B", "B", None, ["b"])
    assert list(rows.items()) == [("a", "A"), ("b", "B")]
    with pytest.raises(KeyError):
        rows["c"]


def test_a_row_that_is_shipped_twice_is_named(tmp_path: Path) -> None:
    table = next(table for table in tables() if table.file == "marketplaces.csv")
    lines = (DATA / table.file).read_text(encoding="utf-8").splitlines()
    twice = tmp_path / table.file
    twice.write_text("\n".join([*lines, lines[-1]]), encoding="utf-8")
    with pytest.raises(SpecError, match=rf"row {len(lines) + 1}, .*appears twice"):
        table.shipped_records(twice)


def test_the_page_of_facts_lists_every_file_that_a_folder_may_hold() -> None:
    page = (ROOT / "docs" / "facts.md").read_text(encoding="utf-8")
    rows = {line.split("|")[1].strip(" `"): line for line in page.splitlines() if line.startswith("| `")}
    assert set(rows) == {*folder_files(), "calibration/*.json"}
    for table in tables():
        assert table.meaning in rows[table.file], table.file
        assert all(f"`{name}`" in rows[table.file] for name in table.group or table.key), table.file


def test_fitted_values_stand_apart_from_what_is_documented() -> None:
    for file, fitted in (("stacks.json", TrainingStack.fitted_columns()), ("engines.json", Engine.fitted_columns())):
        for name, record in json.loads((DATA / file).read_text(encoding="utf-8")).items():
            sections = {s: v for s, v in record.items() if isinstance(v, dict)}
            assert set(sections.get("fitted", {})) <= {"source", "date", *fitted}, name
            assert not {c for s, v in sections.items() if s != "fitted" for c in v} & fitted.keys(), name


def test_an_engine_is_one_record_that_may_be_like_another(tmp_path: Path) -> None:
    record = {"like": "vllm", "facts": {"source": "its documentation", "memory_frac": 0.8}}
    (tmp_path / "engines.json").write_text(json.dumps({"newserve": record}), encoding="utf-8")
    new, like = load_facts(tmp_path).engine("NewServe"), FACTS.engine("vllm")
    assert (new.name, new.memory_frac, new.source) == ("newserve", 0.8, "its documentation")
    assert (new.formats, new.platforms, new.step_s, new.fitted_source) == (
        like.formats, like.platforms, like.step_s, like.fitted_source,
    )  # fmt: skip


def test_other_names_stay_with_the_record_that_a_new_one_is_like(tmp_path: Path) -> None:
    (tmp_path / "stacks.json").write_text('{"ours": {"like": "megatron-te", "meaning": "with our kernels"}}')
    facts = load_facts(tmp_path)
    assert "megatron" in FACTS.stack("megatron-te").aliases
    assert facts.stack("ours").aliases == ()
    assert facts.stack("megatron").name == "megatron-te"


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        ('{"x": 1}', "row x, column : got '1'; an object of sections"),
        ('{"x": {"like": "y"}}', "row x, column like: got 'y'; allowed: a record above it: vllm"),
        ('{"x": {"like": "vllm", "facts": {"memory_frac": 0.5}}}', "column facts: got 'memory_frac'; a section needs"),
        ('{"x": {"like": "vllm", "facts": {"source": "s", "memory_frak": 1}}}', "nearest: memory_frac"),
        ('{"x": {"like": "vllm", "facts": {"source": "s", "memory_frac": -1}}}', "got '-1'; allowed: a number from 0"),
        ('{"x": {"like": "vllm", "facts": {"source": "s", "memory_frac": "much"}}}', "column memory_frac: got 'much'"),
        ('{"x": {"like": "vllm", "facts": {"source": "s", "serial": 2}}}', "allowed: true, false"),
        ('{"x": {"like": "vllm", "facts": {"source": "s", "memory_frac": {"a": 1}}}}', "a text, a number, true, false"),
        ('{"x": {"facts": {"source": "s"}}}', "a row of engines.json needs"),
        ("[1]", "an object is needed"),
        ("{", "not valid JSON"),
    ],
)
def test_a_wrong_record_names_its_place(tmp_path: Path, record: str, complaint: str) -> None:
    (tmp_path / "engines.json").write_text(record, encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load_facts(tmp_path)
    assert complaint in str(caught.value)
    assert str(tmp_path / "engines.json") in str(caught.value)


def test_formats_are_rows_that_a_folder_adds(tmp_path: Path) -> None:
    header = "name,aliases,bits,roles,block_rows,block_columns,scale_bytes,zero_bits,index_bytes,extra_bits,rest_bits"
    row = "ours-3bit,o3,3,linear,1,64,2,0,0,0,16"
    (tmp_path / "weight_formats.csv").write_text(f"{header},first_last,source,date\n{row},true,paper,2026-01-01\n")
    (tmp_path / "cache_formats.csv").write_text("name,elem_bytes,source,date\nours,0.5,paper,2026-01-01\n")
    (tmp_path / "gguf_formats.csv").write_text(
        "name,base,output,embedding,imatrix,keep_v,rules,source,date\n"
        "OURS,Q4_K,Q6_K,Q4_K,false,false,down: first_4 -> Q5_K; up: gqa_4 and not imatrix -> Q3_K,s,2026-01-01\n"
    )
    facts = load_facts(tmp_path)
    assert facts.weight_format("O3").weight_bits == 3 + 16 / 64
    assert facts.cache_format("ours").elem_bytes == 0.5
    assert facts.weight_format("gguf ours").kind == "gguf"
    (tmp_path / "gguf_formats.csv").write_text(
        "name,base,output,embedding,imatrix,keep_v,rules,source,date\n"
        "OURS,Q4_K,Q6_K,Q4_K,false,false,down: sometimes -> Q5_K,s,2026-01-01\n"
    )
    with pytest.raises(SpecError, match="row 2, column rules: got 'down: sometimes"):
        load_facts(tmp_path)


def test_facts_travel_to_other_processes_whole(tmp_path: Path) -> None:
    (tmp_path / "spot.csv").write_text(
        "provider,accelerator,least_frac,most_frac,period,source,date\naws,L4,0.5,0.5,day,logs,2026-01-01\n"
    )
    sent = pickle.dumps(load_facts(tmp_path))
    (tmp_path / "spot.csv").unlink()
    facts = pickle.loads(sent)  # noqa: S301 - our own
    assert facts.spot("aws", "L4").period == "day"
    assert facts.engine("vllm") == FACTS.engine("vllm")
