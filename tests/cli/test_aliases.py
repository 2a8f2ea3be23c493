"""Spellings of other tools, parts of names, and what a shell completes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from flopwise.aliases import ALIASES, CONTEXT_LENGTHS
from flopwise.cli.app import COMMANDS, app
from flopwise.cli.options import matching_names, with_own_names

Run = Callable[..., tuple[int, str, str]]


def options_of_all_commands() -> dict[str, set[str]]:
    context = click.Context(app)
    found = {}
    for name in (name for section in COMMANDS.values() for name in section):
        command = app.get_command(context, name)
        assert command is not None
        found[name] = {option for param in command.params for option in param.opts}
    return found


def test_every_alias_means_an_option_that_some_command_has_and_none_is_one_everywhere() -> None:
    known = options_of_all_commands()
    for alias, meant in ALIASES.items():
        for option in meant:
            assert any(option in own for own in known.values()), f"{alias}: no command has {option}"
        assert any(alias not in own and own & set(meant) for own in known.values()), f"{alias} is never needed"


def test_aliases_are_read_as_the_first_option_that_the_command_has() -> None:
    own = ["--seq", "--tp", "--batch"]
    args = ["M", "--max-model-len", "32k", "--tensor_parallel_size=4", "--batch", "2", "--unknown", "--", "--tp"]
    read = [*with_own_names(args, own)]
    assert [word for word, _ in read] == ["M", "--seq", "32k", "--tp=4", "--batch", "2", "--unknown", "--", "--tp"]
    assert [alias for _, alias in read if alias] == ["--max-model-len", "--tensor_parallel_size"]


def test_a_model_by_option_is_the_argument_where_there_is_one(run: Run) -> None:
    """vLLM, SGLang and load generators take `--model`; a command with an option of that name keeps it."""
    read = [*with_own_names(["--model", "M", "--tp", "2"], ["--tp"], takes_model=True)]
    assert read == [("M", "--model"), ("--tp", None), ("2", None)]
    assert [*with_own_names(["--model", "M"], ["--model"], takes_model=True)] == [("--model", None), ("M", None)]
    assert [*with_own_names(["--model", "M"], ["--tp"])] == [("--model", None), ("M", None)]
    _, _, err = run("memory --model gpt2 --gpu h100")
    assert err == "note: --model is read as the argument gpt2\n"
    assert "No such option '--model'" in run("gpus --model gpt2")[2]


@pytest.mark.parametrize("args", [["--max-model-len", "32k"], ["--context=32k"], ["--context", "32Ki"]])
def test_the_k_of_a_context_length_is_1024_where_the_option_counts_in_thousands(args: list[str], run: Run) -> None:
    assert ALIASES.keys() >= CONTEXT_LENGTHS
    code, out, err = run(f"serve Llama-3.1-8B --gpu h100 {' '.join(args)}")
    assert code == 0
    assert "32,768 tokens in" in out
    assert f"note: {args[0].partition('=')[0]} is read as --input" in err
    assert ("--input 32Ki" in err) == ("32k" in "".join(args))
    assert "32,000 tokens in" in run("serve Llama-3.1-8B --gpu h100 --input 32k")[1]


def test_an_option_of_other_commands_names_them(run: Run) -> None:
    code, _, err = run("serve Llama-3.1-8B --gpu h100 --ttft p95=1s")
    assert code == 2
    assert "No such option '--ttft'; it is one of `flopwise simulate`, `flopwise plan` and `flopwise compare`" in err
    assert "See `flopwise serve --help`" in err
    _, _, err = run("serve Llama-3.1-8B --gpu h100 --outputs 3")
    assert "--output" in err, "a slip is answered with the nearest"


@pytest.mark.parametrize(
    ("line", "plain", "notes"),
    [
        (
            "serve Llama-3.1-8B --gpu h100 --tensor-parallel-size 2 --max-num-seqs 64 --isl 1000 --osl 100 --dtype fp8",
            "serve Llama-3.1-8B --gpu h100 --tp 2 --max-batch 64 --input 1000 --output 100 --weights fp8", 5,
        ),
        ("memory Llama-3.1-8B --gpu h100 --max-model-len 8k", "memory Llama-3.1-8B --gpu h100 --context 8k", 1),
        (
            "simulate Llama-3.1-8B --gpu h100 --concurrency 2 --requests 4",
            "simulate Llama-3.1-8B --gpu h100 --users 2 --requests 4", 1,
        ),
        (
            "train gpt2 --num-gpus 2 --gpu h100 --batch 2 --seq-len 512 --global-batch 64",
            "train gpt2 --gpus 2 --gpu h100 --micro-batch 2 --seq 512 --global-batch 64", 3,
        ),
        ("memory --model gpt2 --gpu h100", "memory gpt2 --gpu h100", 1),
        ("fit --gpu h100 --model-path=gpt2 --context 1k", "fit gpt2 --gpu h100 --context 1k", 1),
    ],
)  # fmt: skip
def test_a_line_with_aliases_answers_as_the_plain_one_and_says_what_it_read(
    run: Run, line: str, plain: str, notes: int
) -> None:
    code, out, err = run(f"{line} --json")
    assert (code, out) == run(f"{plain} --json")[:2]
    assert err.count("note: --") == err.count("\n") == notes


def test_a_part_of_a_name_lists_all_that_have_it(run: Run) -> None:
    rows: list[dict[str, Any]] = json.loads(run("models llama-3.2 --json")[1])
    assert {row["name"] for row in rows} >= {"Llama-3.2-1B", "Llama-3.2-3B"}
    assert all("llama-3.2" in f"{row['name']} {row['hf_id']}".lower() for row in rows)
    assert re.match(r"\d+ models have llama-3.2 in the name or type; no model has", run("models llama-3.2")[1])
    assert {row["vendor"] for row in json.loads(run("gpus rtx --json")[1])} == {"NVIDIA"}
    offers = json.loads(run("instances p5e --json")[1])
    assert {offer["instance"] for offer in offers} == {"p5e.48xlarge", "p5en.48xlarge"}
    assert json.loads(run("models Llama-3.2-1B --json")[1])["name"] == "Llama-3.2-1B"
    for line in ("models zzz", "gpus zzz", "instances zzz", "instances p5e --provider nobody"):
        assert run(line)[0] == 2


def test_completion_knows_names_by_what_is_asked() -> None:
    assert "Llama-3.1-8B" in matching_names("model", "llama-3.1")
    assert matching_names("gpu", "8xh100") == [f"8x{name}" for name in matching_names("gpu", "H100")]
    assert matching_names("provider", "aw") == ["aws"]
    assert "RTX 4090" in matching_names("gpu", "4090")
    assert "p5.48xlarge" in matching_names("instance", "p5.")
    assert matching_names("nothing of the kind", "a") == []


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (("serve", "gpt2", "--engine", "vl"), "vllm"), (("gpus", "H100-S"), "H100-SXM-80"),
        (("train", "gpt2", "--recompute", ""), "selective"), (("memory", "gpt2", "--wei"), "--weights"),
        (("com",), "compare"),
    ],
)  # fmt: skip
def test_a_shell_is_offered_names_options_and_commands(typed: tuple[str, ...], offered: str) -> None:
    words = ["flopwise", *typed]
    environment = {
        **os.environ, "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1),
        "_FLOPWISE_COMPLETE": "bash_complete",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "flopwise"], env=environment, capture_output=True, text=True, check=False
    )
    assert f"plain,{offered}" in done.stdout.split("\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_that_the_shell_takes(run: Run, shell: str, tmp_path: Path) -> None:
    code, out, _ = run(f"completion {shell}")
    assert code == 0
    assert out.startswith("# in ~/.")
    assert "_FLOPWISE_COMPLETE" in out
    document = json.loads(run(f"completion {shell} --json")[1])
    assert document["line"] in out
    if (program := shutil.which(shell)) is None:
        pytest.skip(f"no {shell} on this machine to read the script")
    script = tmp_path / "script"
    script.write_text(out)
    assert subprocess.run([program, "-n", script], capture_output=True, check=False).returncode == 0
