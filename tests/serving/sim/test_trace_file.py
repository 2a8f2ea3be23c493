"""A trace file is read as it stands, and what is wrong with it is named by line and column."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwise import simulate
from flopwise.errors import SpecError
from flopwise.serving.sim.trace import _digits_table, read_chained_trace, read_trace_columns, trace

HEADER = "arrival_s,prompt_tokens,output_tokens\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_trace_is_read(tmp_path: Path) -> None:
    found = read_trace_columns(written(tmp_path, HEADER + "0.0,10,5\n0.25,4808,1\n\n7,3,2\n"))
    assert found["arrival_s"].tolist() == [0.0, 0.25, 7.0]
    assert found["prompt_tokens"].tolist() == [10, 4808, 3]
    assert found["output_tokens"].tolist() == [5, 1, 2]
    assert found["prompt_tokens"].dtype == np.int64


def test_columns_may_stand_in_any_order_beside_others_and_prefixes_become_numbers(tmp_path: Path) -> None:
    text = (
        "model,output_tokens,prefix,prompt_tokens,arrival_s,priority,prefix_tokens\n"
        "a,5,system,10,0,2,8\nb,6,,11,1,0,0\nc,7,system,12,2,1,8\nd,7,other,12,2,1,4\n"
    )
    found = read_trace_columns(written(tmp_path, text))
    assert found["prefix"].tolist() == [0, -1, 0, 1]
    assert found["priority"].tolist() == [2, 0, 1, 1]
    assert found["output_tokens"].tolist() == [5, 6, 7, 7]


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(1, 10**5)), min_size=1))
def test_what_is_written_is_what_is_read(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, ...]]) -> None:
    rows.sort()
    text = HEADER + "".join(f"{a / 1000},{p},{o}\n" for a, p, o in rows)
    found = read_trace_columns(written(tmp_path_factory.mktemp("t"), text))
    assert [round(a * 1000) for a in found["arrival_s"]] == [r[0] for r in rows]
    assert found["prompt_tokens"].tolist() == [r[1] for r in rows]
    assert found["output_tokens"].tolist() == [r[2] for r in rows]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("", "no requests"),
        ("0,10,5\n1,ten,5\n", r"line 3, column prompt_tokens: got 'ten'"),
        ("0,10,5\n1,,5\n", r"line 3, column prompt_tokens: got ''"),
        ("0,10,5\n-1,10,5\n", r"line 3, column arrival_s: got '-1'"),
        ("0,10,5\n2,10,5\n1,10,5\n", r"line 4, column arrival_s: 1 comes after 2"),
        ("0,10,5\nnan,10,5\n", r"line 3, column arrival_s: got 'nan'"),
        ("0,10,5\ninf,10,5\n", r"line 3, column arrival_s"),
        ("0,10,0\n", r"line 2, column output_tokens: got '0'"),
        ("0,1.5,5\n", r"line 2, column prompt_tokens: got '1.5'; allowed: a whole number"),
        ("0,10,5\n1,10\n", "line 3: 2 cells"),
        ('0,10,5\n1,"10\n', "broken CSV"),
        ("0,1e12,5\n", "column prompt_tokens"),
        ("0,2147483648,5\n", "line 2, column prompt_tokens.* to 2,147,483,647"),
        ("0,10,5\n4000001,10,5\n", "line 3, column arrival_s.* to 4,000,000"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, body: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        read_trace_columns(written(tmp_path, HEADER + body))


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="lacks the column output_tokens"):
        read_trace_columns(written(tmp_path, "arrival_s,prompt_tokens\n0,1\n"))


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no file"):
        read_trace_columns(tmp_path / "missing.csv")


def test_the_largest_numbers_that_a_file_may_hold_make_a_trace(tmp_path: Path) -> None:
    columns = read_trace_columns(written(tmp_path, HEADER + "0,2147483647,5\n4000000,1,2147483647\n"))
    assert trace(**columns).duration_s == 4e6


@pytest.mark.parametrize("column", ["prefix", "prefix_tokens"])
def test_a_prefix_without_its_other_half_is_refused(tmp_path: Path, column: str) -> None:
    with pytest.raises(SpecError, match="go together"):
        read_trace_columns(written(tmp_path, f"{HEADER.strip()},{column}\n0,10,5,3\n"))


NUMBER = st.one_of(
    st.integers(0, 10**8 - 1).map(str),
    st.from_regex(r"[0-9]{1,8}\.[0-9]{1,8}", fullmatch=True),
)


@given(rows=st.lists(st.tuples(NUMBER, NUMBER, NUMBER), min_size=1, max_size=20), ends=st.booleans())
def test_digits_are_read_as_the_numbers_that_they_are(rows: list[tuple[str, ...]], ends: bool) -> None:
    """Of any length up to eight digits on each side of the point, to the last bit."""
    body = "\n".join(",".join(row) for row in rows) + "\n" * ends
    table = _digits_table(body, 3)
    if table is not None:  # what has 16 digits is left to the reader of any number
        np.testing.assert_array_equal(table, [[float(cell) for cell in row] for row in rows])
    else:
        assert any(len(cell.replace(".", "")) > 15 for row in rows for cell in row)


@pytest.mark.parametrize(
    "body",
    ["1,2\n3,4,5,6\n", "1,2,3\n4,5\n", "1,,3\n", "a,2,3\n", "1.2.3,2,3\n", "1.,2,3\n", ".5,2,3\n", "123456789,2,3\n",
     "-1,2,3\n", "1,2,3\n\n4,5,6\n", "1,2,3\r\n", "1e3,2,3\n", '"1",2,3\n', "1 ,2,3\n", "٣,2,3\n"],
)  # fmt: skip
def test_what_is_more_than_digits_is_left_to_the_reader_of_any_number(body: str) -> None:
    assert _digits_table(body, 3) is None


GOOD: dict[str, object] = {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [1, 2]}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("timestamp", -5), ("timestamp", float("nan")), ("timestamp", 1e300), ("timestamp", True), ("input_length", 0),
        ("input_length", 100.7), ("input_length", "12"), ("input_length", 10**400), ("output_length", None),
        ("output_length", -1), ("hash_ids", "12"), ("hash_ids", [1.5]), ("hash_ids", 7), ("hash_ids", ["a"]),
    ],
)  # fmt: skip
def test_a_wrong_cell_of_a_chained_trace_is_named(key: str, value: object, tmp_path: Path) -> None:
    """It was cut to a whole number, or named by a row of columns that the file does not have."""
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(json.dumps(one) for one in (GOOD, GOOD | {key: value})), encoding="utf-8")
    with pytest.raises(SpecError, match=f"line 2, {key}: got "):
        read_chained_trace(path)


def test_a_chained_trace_finds_what_earlier_prompts_left(tmp_path: Path) -> None:
    """Blocks that an endless cache has of a prompt: those of the longest chain that came before."""
    rng, chains, seen, found, path = np.random.default_rng(3), [[0, 1]], set[tuple[int, ...]](), 0, tmp_path / "t.jsonl"
    lines = []
    for place in range(400):
        old = chains[int(rng.integers(len(chains)))]
        chain = old[: int(rng.integers(1, len(old) + 1))] + [10_000 + 50 * place + k for k in range(rng.integers(1, 9))]
        chains.append(chain)
        known = [n for n in range(len(chain) + 1) if tuple(chain[:n]) in seen]
        found += 512 * max(known, default=0)
        seen |= {tuple(chain[: n + 1]) for n in range(len(chain))}
        lines.append(GOOD | {"timestamp": 4000 * place, "input_length": 512 * len(chain), "hash_ids": chain})
    path.write_text("\n".join(json.dumps(one) for one in lines), encoding="utf-8")
    run = simulate("Llama-3.1-8B", gpu="h100", trace=str(path), kv_stores="host=100TB").simulated
    assert run.reused_tokens == found
    alone = simulate("Llama-3.1-8B", gpu="h100", trace=str(path), prefix_cache=False).simulated
    assert alone.reused_tokens == 0
    assert np.nanmean(run.ttft_s) < np.nanmean(alone.ttft_s)
