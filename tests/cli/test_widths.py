"""What every command prints fits terminals of 80, 100, 120 and 200 columns, and nothing of it is cut."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from bad_inputs import BASES, GOOD_FILES, Case

from flopwise import cli
from flopwise.cli import options, progress, render, run

WIDTHS = (80, 100, 120, 200)
assert vars(run)["screen"] is vars(progress)["screen"] is render.screen, "loaded before a test replaces it"

QUESTIONS = (
    "models",
    "models qwen3",
    "models Llama-3.1-8B --batch 2 --seq 4k",
    "gpus h100",
    "gpus MI300X",
    "instances p5.48xlarge",
    "instances --provider gcp",
    "prices own",
    "prices own B200",
    "fit Llama-3.3-70B --gpu 2xa100-80gb --context 32k",
    "fit Llama-3.1-405B --gpu 2xa100-80gb --context 32k",
    "memory Llama-3.3-70B --gpu 2xa100-80gb --context 32k",
    "memory Llama-3.1-8B --gpu a100-80gb --task train",
    "train Llama-3.1-8B --gpu 64xh100 --tokens 1T",
    "train Llama-3.1-8B --gpu a6000 --qlora 16 --tokens 50M",
    "train Mixtral-8x7B --gpu 16xh100 --compare",
    "train resnet50 --gpu 8xa100 --samples 1.28M --epochs 90",
    "serve Llama-3.1-8B --gpu l40s --rate 2",
    "serve Llama-3.3-70B --gpu 2xa100-80gb --input 30k --output 2k",
    "serve Llama-3.1-70B --gpu 4xh100 --weights fp8 --concurrency 64",
    "serve Llama-3.1-8B --gpu h100 --sweep concurrency",
    "serve bge-m3 --gpu l4",
    "simulate Llama-3.1-8B --gpu h100 --rate 20 --requests 300 --autoscale concurrency --max-replicas 4",
    "simulate Llama-3.1-8B --gpu h100 --queue 1000 --spot-interruptions 1/day",
    "io Llama-3.1-70B --gpu 1024xh100 --checkpoint-interval 30min",
    "io resnet50 --gpu 8xa100 --cache 500GB --dataset 150GB",
    "roofline Llama-3.1-8B --gpu h100 --batch 8",
    "explain serve Llama-3.1-8B --gpu h100",
    "explain train Llama-3.1-8B --gpu 8xh100",
    "explain memory Llama-3.1-8B --gpu l4 --context 8k",
    "explain Llama-3.1-8B --gpu h100",
    "plan Llama-3.1-8B --task finetune --lora 16 --tokens 50M --gpu a6000 --gpu l40s --gpu h100",
    "plan 7B --task pretrain --tokens 1T --gpu h100 --max-gpus 64",
    "plan Llama-3.1-8B --task serve --rate 2 --ttft 1s --gpu l4 --gpu l40s",
    "plan Llama-3.1-8B --task serve --rate 2 --ttft 1ms --gpu l4 --max-gpus 1",
    "export --list",
    "calibrate --list",
    "backtest weights rows.csv",
    "runs list",
    "watch --rules",
)
"""Questions with models and machines as people have them; what is wide there is not in the small ones of `BASES`."""


def printed(
    line: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> dict[int, str]:
    """The text of a command by the width of the terminal; the question is answered once where that is possible."""
    by_width: dict[int, str] = {}
    width = WIDTHS[0]
    answer = options.answer

    def at_every_width(*args: Any, **keywords: Any) -> None:
        nonlocal width
        for width in WIDTHS:
            answer(*args, **keywords)
            by_width[width] = capsys.readouterr().out

    for module in ("flopwise.cli.render", "flopwise.cli.options"):
        monkeypatch.setattr(f"{module}.screen", lambda *_: render.Screen(width=width))
    monkeypatch.setattr(options, "answer", at_every_width)
    for width in WIDTHS:
        assert cli.main(list(line)) in (0, 1)
        rest = capsys.readouterr().out
        if by_width:  # all of it came from one answer
            assert not rest
            break
        by_width[width] = rest
    return by_width


@pytest.mark.parametrize(
    "line",
    [
        *(BASES[name] for name in BASES if name not in {"web", "completion"}),
        *(tuple(shlex.split(q)) for q in QUESTIONS),
    ],
    ids=" ".join,
)  # `web` writes JSON, `completion` a script
def test_no_line_is_longer_than_the_terminal_and_nothing_is_cut(
    line: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Case("", line, GOOD_FILES).write(tmp_path)
    by_width = printed(line, monkeypatch, capsys)
    assert [*by_width] == [*WIDTHS]
    for width, text in by_width.items():
        long = [one for one in text.split("\n") if len(one) > width and not one.lstrip().startswith("flopwise ")]
        assert long == []
        assert text.strip()
        assert "…" not in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_the_same_on_a_narrow_terminal(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrapped line would be another command of the shell."""
    assert cli.main(["completion", shell]) == 0
    piped = capsys.readouterr().out
    for module in ("flopwise.cli.render", "flopwise.cli.options"):
        monkeypatch.setattr(f"{module}.screen", lambda *_: render.Screen(width=40))
    assert cli.main(["completion", shell]) == 0
    assert capsys.readouterr().out == piped
