"""`flopwise explain MODEL`: keys, table, JSON and Python alike, bad input in one line, the examples of its help."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

import flopwise
from flopwise.cli.commands.explain import shapes

Run = Callable[..., tuple[int, str, str]]
KEYS = {"operations", "advice", "fine", "ridge_flops_per_byte", "memory_bound_frac", "pass_s", "kernels_s", "stacks"}


def test_the_document_says_what_python_says(run: Run) -> None:
    code, out, _ = run("explain gpt2-xl --gpu a100-80gb --batch 8 --json")
    found = json.loads(out)
    assert code == 0
    assert found.keys() >= KEYS
    same = flopwise.advise("gpt2-xl", gpu="a100-80gb", batch=8)
    assert found["advice"] == [
        {n: getattr(a, n) for n in ("what", "now", "better", "why", "gain_s", "gain_frac", "needed")}
        for a in same.advice
    ]
    assert len(found["operations"]) == len(same.operations)
    first = found["operations"][0]
    assert first.keys() >= {"name", "m", "n", "k", "intensity_flops_per_byte", "bound", "achieved_frac", "tiling"}
    other = flopwise.explain("gpt2-xl", gpu="a100-80gb", batch=8)
    assert (other.pass_s, other.advice) == (same.pass_s, same.advice)


def test_the_table_leads_with_operations_then_advice_then_what_is_fine(run: Run) -> None:
    code, out, _ = run("explain gpt2-xl --gpu a100-80gb --batch 8")
    assert code == 0
    change = out.index("What to change")
    parts = [out.index("Operations on one rank"), change, out.index("50,304", change), out.index("Fine as it is")]
    assert parts == sorted(parts)
    assert "mlp/up_proj (wgrad)" in out


@pytest.mark.parametrize("line", shapes.examples)
def test_examples_of_the_help_run(run: Run, line: str) -> None:
    code, out, err = run(line.removeprefix("flopwise "))
    assert (code, err) == (0, "")
    assert out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("explain gpt2", "--gpu"),
        ("explain gpt3000 --gpu h100", "gpt3000"),
        ("explain gpt2 --gpu h101", "nearest"),
        ("explain gpt2 --gpu h100 --tp 0", "--tp"),
        ("explain gpt2 --gpu h100 --task serve --stack hf", "--stack: does not go with --task serve"),
        ("explain gpt2 --gpu h100 --weights fp8", "--weights: does not go with --task train"),
        ("explain gpt2 --gpu v100 --precision fp8", "no fp8 rate"),
        ("explain gpt2 --gpu h100 --ep 2", "no experts"),
        ("explain gpt2 --gpu h100 --depth 2", "--depth"),
        ("explain resnet50 --gpu h100", "roofline"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(run: Run, line: str, said: str) -> None:
    code, out, err = run(line)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert said in err


@pytest.mark.parametrize(
    ("line", "whole"),
    [
        ("gpt2-xl --gpu a100-80gb --batch 8", "train gpt2-xl --gpu a100-80gb --micro-batch 8"),
        ("Llama-3.1-70B --gpu 8xh100 --tp 8 --seq 2k", "train Llama-3.1-70B --gpu 8xh100 --tp 8 --seq 2048"),
        ("Llama-3.1-70B --gpu h100 --tp 4", "train Llama-3.1-70B --gpu 4xh100 --tp 4"),
        (
            "Qwen3-30B-A3B --gpu h100 --task serve --batch 16 --seq 1k",
            "serve Qwen3-30B-A3B --gpu h100 --input 1024 --concurrency 16",
        ),
    ],
)
def test_the_last_line_asks_for_the_whole_step_with_the_same_shapes(run: Run, line: str, whole: str) -> None:
    last = run(f"explain {line}")[1].rstrip().split("\n")[-1].removeprefix("  flopwise ")
    words, expected = last.split(), whole.split()
    assert words[:2] == expected[:2]
    assert dict(zip(words[2::2], words[3::2], strict=True)) == dict(zip(expected[2::2], expected[3::2], strict=True))
    assert run(last)[0] in (0, 1)  # 1: it does not fit


def test_ranks_that_do_not_divide_are_advice_however_many(run: Run) -> None:
    code, out, _ = run("explain gpt2 --gpu h100 --tp 100000 --json")
    assert code == 0
    assert json.loads(out)["advice"][0]["needed"] is True
    assert run("explain Mamba-2.8B --gpu h100 --tp 1024")[0] == 0


def test_the_answer_comes_at_once(run: Run) -> None:
    line = "explain DeepSeek-V3 --gpu h100 --tp 8 --json"
    run(line)
    start = time.process_time()  # what a neighbour takes of the core is not ours
    run(line)
    assert time.process_time() - start < 0.5  # 0.1 s
