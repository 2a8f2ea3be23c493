"""The heading of a plan states the question: task, tokens or traffic, targets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from flopwise.cli import main
from flopwise.cli.plan_text import title
from flopwise.search.answer import Plan


@pytest.mark.parametrize(("task", "stated", "heading"), [
    ("finetune", {"method": {"kind": "lora"}, "data": {"tokens": 5e7}, "targets": {"budget": 100}},
     "finetune with LoRA on 50.0 M tokens; targets: budget $100"),
    ("serve", {"traffic": {"requests_per_s": "20/s", "input_tokens": "1k", "output_tokens": 250},
               "targets": {"ttft": {"p95": "1s"}}},
     "serve 20 requests/s, 1,000 tokens in, 250 tokens out; targets: TTFT p95 1s"),
    ("serve", {"traffic": {"requests_per_s": 1, "turns": "2:8"}}, "serve 1 session/s"),
    ("serve", {"traffic": {"concurrency": 8, "input_tokens": "200:800"}},
     "serve 8 requests in flight, 200:800 tokens in"),
    ("serve", {"traffic": {"trace": "logs/day.csv"}}, "serve the requests of day.csv"),
    ("batch", {"traffic": {"requests": "1M"}}, "batch 1,000,000 requests"),
])  # fmt: skip
def test_the_heading_is_the_question(task: str, stated: dict[str, Any], heading: str) -> None:
    plan = cast("Plan", SimpleNamespace(task=task, workload={"model": "Llama-3.1-8B", **stated}))
    assert title(plan) == f"Llama-3.1-8B: {heading}"


def test_a_name_goes_before_the_model() -> None:
    stated = {"name": "chat", "model": "Llama-3.1-8B", "traffic": {"requests_per_s": 2}}
    plan = cast("Plan", SimpleNamespace(task="serve", workload=stated))
    assert title(plan) == "chat: serve Llama-3.1-8B, 2 requests/s"


def test_the_share_of_what_a_plan_sustains_is_told_apart_from_the_time_in_engine_steps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One is of the requests that it could answer, the other of the time: a few requests keep an engine in steps."""
    asked = "plan Llama-7B --task serve --rate 2 --input 256 --output 64 --gpu l40s --provider aws --top 1"
    assert main(asked.split()) == 0
    out = capsys.readouterr().out
    share = next(line for line in out.splitlines() if line.startswith("share of what it sustains"))
    busy = next(line for line in out.splitlines() if line.startswith("  busy"))
    assert "of the time in engine steps, cache at most" in busy
    assert float(share.split()[-2]) < float(busy.split()[1])


@pytest.mark.parametrize(("seq", "assumed"), [([], " with the sequence length assumed below"), (["--seq", "2048"], "")])
def test_a_chance_to_fit_says_which_inputs_are_assumed(
    seq: list[str], assumed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Longer samples, which nobody rules out, take more: `memory` and `train` count them in, the plan has a length."""
    words = ["plan", "Llama-3.1-8B", "--task", "finetune", "--lora", "16", "--tokens", "50M", "--gpu", "rtx6000ada"]
    assert main([*words, *seq]) == 0
    out = capsys.readouterr().out
    [line] = [line for line in out.splitlines() if line.startswith("fits in memory")]
    assert line.endswith(f"chance{assumed}")
    assert ("sequence length not stated" in out) == bool(assumed)
