"""One option has one meaning in every command: adapters, and global batches in tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from flopwise import cli

PLAN = "plan 7B --task finetune --tokens 10M --gpu a10g --max-gpus 1 --top 1"
TRAIN = "train 7B --gpu a10g --tokens 10M"


@pytest.fixture
def document(capsys: pytest.CaptureFixture[str]) -> Any:
    def of(line: str) -> Any:
        code = cli.main([*line.split(), "--json"])
        out, err = capsys.readouterr()
        assert code in {0, 1}, err
        return json.loads(out)

    return of


@pytest.mark.parametrize("options", ["--qlora", "--qlora 16", "--qlora --lora 16", "--lora 16 --qlora"])
def test_qlora_is_a_flag_and_lora_the_rank_in_plans_and_estimates(document: Any, options: str) -> None:
    plan, estimate = document(f"{PLAN} {options}"), document(f"{TRAIN} {options}")
    assert plan["workload"]["method"] == {"kind": "qlora"}  # of rank 16, the default
    assert "QLoRA (nf4) rank 16" in dict(estimate["settings"])["recipe"]


def test_a_flag_takes_nothing_that_follows(document: Any) -> None:
    assert document("train --qlora 7B --gpu a10g")["model"] == "7B"
    assert document("plan --qlora 7B --task finetune --tokens 10M --gpu a10g --lora 8")["workload"]["method"] == {
        "kind": "qlora",
        "rank": 8,
    }


def test_adapters_take_their_targets_in_plans_and_estimates(document: Any) -> None:
    named = "--lora 8 --lora-targets q,v"
    assert document(f"{PLAN} {named}")["workload"]["method"] == {"kind": "lora", "rank": 8, "targets": ["q", "v"]}
    assert "rank 8 on q, v" in dict(document(f"{TRAIN} {named}")["settings"])["recipe"]


def test_targets_without_adapters_are_refused_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    for line in (PLAN, TRAIN, "memory 7B"):
        assert cli.main([*line.split(), "--lora-targets", "q"]) == 2
        assert "argets" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tokens", "sequences"),
    [("1966080", 480), ("4M", 1024)],  # 480 x 4,096 exactly; 976.6 sequences of 4,096: 977 is prime
)
def test_a_global_batch_in_tokens_is_the_same_number_of_sequences(document: Any, tokens: str, sequences: int) -> None:
    shape = f"--seq 4096 --global-batch-tokens {tokens}"
    plan = document(f"plan 1B --task pretrain --tokens 1G --gpu h100 --max-gpus 8 --top 1 {shape}")
    assert plan["plans"][0]["layout"]["global_batch"] == sequences
    assert document(f"train 1B --gpu h100 --gpus 8 {shape}")["global_batch"] == sequences
