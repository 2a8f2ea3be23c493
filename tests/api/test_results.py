"""Results as people meet them in Python: a sentence, plain data equal to `--json`, a frame, a notebook's table."""

from __future__ import annotations

import json
import pickle
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flopwise
from flopwise import cli
from flopwise.errors import SpecError
from flopwise.results import LONG_CHARS, Result, json_text, plain
from flopwise.serving.sim.autoscale import Autoscaling

ROOT = Path(__file__).parents[2]
VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
DOCUMENTS = st.recursive(VALUES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)
CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "memory": (
        lambda: flopwise.memory("Llama-3.1-8B", gpu="2xl40s", context="4k", weights="fp8"),
        "memory Llama-3.1-8B --gpu 2xl40s --context 4k --weights fp8",
    ),
    "memory of training": (
        lambda: flopwise.memory("gpt2", gpu="h100", seq=512, lora=8), "memory gpt2 --gpu h100 --seq 512 --lora 8",
    ),
    "fit": (
        lambda: flopwise.fit("Llama-3.1-8B", gpu="rtx4090", context="4k"),
        "fit Llama-3.1-8B --gpu rtx4090 --context 4k",
    ),
    "serve": (
        lambda: flopwise.serve("Llama-3.1-8B", gpu="l40s", rate="2/s"), "serve Llama-3.1-8B --gpu l40s --rate 2",
    ),
    "train": (
        lambda: flopwise.train("gpt2", gpu="2xh100", seq="1k", global_batch=64, tokens="1B"),
        "train gpt2 --gpu 2xh100 --seq 1k --global-batch 64 --tokens 1B",
    ),
    "roofline": (
        lambda: flopwise.roofline(flops=1e15, bytes=2e12, gpu="4xh100"),
        "roofline --flops 1e15 --bytes 2TB --gpu 4xh100",
    ),
    "simulate": (
        lambda: flopwise.simulate("Llama-3.1-8B", gpu="h100", rate=2, requests=20),
        "simulate Llama-3.1-8B --gpu h100 --rate 2 --requests 20",
    ),
    "autoscaling": (
        lambda: flopwise.autoscale(
            "Llama-3.1-8B", rule=Autoscaling(measure="concurrency", target=4), gpu="l4", rate=1, duration_s="5min",
        ),
        "simulate Llama-3.1-8B --gpu l4 --rate 1 --duration 5min --autoscale concurrency --target 4",
    ),
    "queue": (
        lambda: flopwise.batch("Llama-3.2-1B", 100_000, gpu="l4", workers=2, deadline="6h", provider="aws"),
        "simulate Llama-3.2-1B --gpu l4 --queue 100000 --workers 2 --deadline 6h --provider aws",
    ),
    "sweep of serving": (
        lambda: flopwise.serve_sweep("gpt2", "concurrency", values=None, gpu="l4"),
        "serve gpt2 --gpu l4 --sweep concurrency",
    ),
    "sweep": (
        lambda: flopwise.sweep(str(ROOT / "examples" / "sweep.yaml")),
        f"plan {shlex.quote(str(ROOT / 'examples' / 'sweep.yaml'))} --engine inline",
    ),
    "io": (lambda: flopwise.io("cosmoflow", gpu="8xv100"), "io cosmoflow --gpu 8xv100"),
    "plan": (
        lambda: flopwise.plan("gpt2", task="pretrain", tokens="10M", gpu="2xa100-80gb"),
        "plan gpt2 --task pretrain --tokens 10M --gpu 2xa100-80gb",
    ),
}  # fmt: skip


@pytest.fixture(params=CASES)
def found(request: pytest.FixtureRequest) -> tuple[Any, str]:
    question, line = CASES[request.param]
    return question(), line


def test_a_result_is_the_document_of_the_command_line(
    found: tuple[Any, str], capsys: pytest.CaptureFixture[str]
) -> None:
    result, line = found
    assert cli.main([*shlex.split(line), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    mine = result.to_dict()
    for document in (printed, mine):
        document.pop("elapsed_s", None)
        for planned in document.get("planned", ()):
            planned["plan"].pop("elapsed_s")
    assert mine == printed
    assert json.loads(result.to_json())["verdict"] == result.verdict == printed["verdict"]


def test_a_result_shows_in_a_few_lines_and_as_a_table(found: tuple[Any, str]) -> None:
    result, _ = found
    assert isinstance(result, Result)
    lines = repr(result).split("\n")
    assert lines[0] == f"<{type(result).__name__}> {result.verdict}"
    assert len(lines) <= 12
    page = result._repr_html_()  # what a notebook calls
    assert page.startswith("<p><strong>")
    assert page.count("<tr>") == page.count("</tr>") == len(result.to_frame()) + 1
    frame = result.to_frame()
    assert len(frame) > 0
    assert list(frame.columns) == list(frame.to_dict("records")[0])


def test_a_table_escapes_what_data_says() -> None:
    class Odd(Result):
        table = "rows"
        verdict = "a < b"

        def document(self) -> dict[str, Any]:
            return {"rows": [{"name": "<script>", "value": 1234.5678, "none": None, "inner": {"a": 1}}]}

    assert Odd()._repr_html_() == (
        "<p><strong>a &lt; b</strong></p>\n<table><tr><th>name</th><th>value</th><th>none</th></tr>"
        "<tr><td>&lt;script&gt;</td><td>1,235</td><td>-</td></tr></table>"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (9.894e14, "989,400,000,000,000"), (12_345.6, "12,350"), (1234.5678, "1,235"), (123.44, "123.4"), (0.5, "0.5"),
        (7.1617e-5, "0.00007162"), (-3665.4, "-3,665"), (0.0, "0"), (2e-12, "2e-12"), (float("inf"), "-"), (3, "3"),
    ],
)  # fmt: skip
def test_a_cell_of_a_notebook_has_no_exponent(value: float, text: str) -> None:
    class One(Result):
        table = "rows"
        verdict = "one"

        def document(self) -> dict[str, Any]:
            return {"rows": [{"value": value}]}

    assert f"<td>{text}</td>" in One()._repr_html_()


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("flopwise.results.import_module", without)
    with pytest.raises(SpecError, match="to_frame needs pandas: pip install pandas"):
        flopwise.fit("gpt2", gpu="t4").to_frame()


def test_plans_take_the_options_of_the_command_line_as_keywords() -> None:
    said = flopwise.plan(
        "Llama-3.1-8B", task="finetune", lora=8, tokens="50M", gpu=["l40s", "a100-80gb"], providers="aws"
    )
    assert said.workload == {
        "model": "Llama-3.1-8B", "task": "finetune", "data": {"tokens": "50M"}, "method": {"kind": "lora", "rank": 8},
        "constraints": {"gpus": ["l40s", "a100-80gb"], "providers": ["aws"]},
    }  # fmt: skip
    assert {plan.provider for plan in said.plans} == {"aws"}
    same = flopwise.plan(said.workload, gpu="l40s")
    assert {plan.gpu for plan in same.plans} == {"L40S"}
    with pytest.raises(SpecError, match="unknown argument 'tokns'; nearest: tokens"):
        flopwise.plan("gpt2", task="pretrain", tokns="10M")  # type: ignore[arg-type] # on purpose


def test_plain_data_is_what_json_holds() -> None:
    assert plain({"a": (1, float("inf")), "b": {2}}) == {"a": [1, None], "b": [2]}


def test_lists_are_asked_by_name() -> None:
    assert [a.name for a in flopwise.gpus("h100")] == ["H100-SXM-80"]
    assert [a.name for a in flopwise.gpus("8xH100")] == ["H100-SXM-80"]
    assert {a.vendor for a in flopwise.gpus("rtx")} == {"NVIDIA"}
    assert [row["name"] for row in flopwise.models("Llama-3.1-8B")] == ["Llama-3.1-8B"]
    assert {row["name"] for row in flopwise.models("llama-3.2")} >= {"Llama-3.2-1B", "Llama-3.2-3B"}
    for question in (flopwise.gpus, flopwise.models):
        with pytest.raises(flopwise.UnknownNameError):
            question("zzz")


def test_facts_show_in_a_line_and_are_tuples() -> None:
    found = flopwise.gpus(vendor="AMD")
    assert repr(found).startswith(f"<{len(found)} accelerators: MI100, ")
    assert repr(flopwise.gpus("h200")) == "<1 accelerator: H200-SXM-141>"
    assert len(repr(flopwise.instances())) < 300
    assert repr(flopwise.models("Llama-3.1-8B")) == "<1 model: Llama-3.1-8B>"
    assert found == tuple(found)
    assert pickle.loads(pickle.dumps(found)) == found  # noqa: S301 - made in this line
    assert found._repr_html_().count("<tr>") == len(found) + 1
    assert [row["name"] for row in found.to_dict()] == [device.name for device in found]
    frame = pytest.importorskip("pandas")
    assert isinstance(found.to_frame(), frame.DataFrame)
    assert list(found.to_frame()["name"]) == [device.name for device in found]


@given(DOCUMENTS)
def test_long_documents_are_indented_as_the_standard_library_does(document: Any) -> None:
    for whole in (document, [document, "x" * LONG_CHARS, {"half a pair": "\ud800"}], [document, "x" * LONG_CHARS]):
        assert json_text(whole) == json.dumps(whole, indent=2)
