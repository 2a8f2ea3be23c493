"""Models that the simulator does not run are refused with the command that answers, and that command answers."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

import flopwise
from flopwise import cli
from flopwise.errors import SpecError

SINGLE = "BGE-M3 answers in one pass, and the simulator runs models that generate; `"
WITH_ENCODER = "has an encoder besides its decoder, and the simulator runs decoders alone; `"


def answering_line(text: str) -> list[str]:
    """The words of the command that a message names, without the program."""
    (line,) = re.findall("`(flopwise .*?)`", text)
    return shlex.split(line)[1:]


@pytest.mark.parametrize(
    ("model", "load", "words", "shown"),
    [
        ("Whisper-large-v3", {"rate": 2}, WITH_ENCODER, "p95"), ("t5-base", {"users": 4}, WITH_ENCODER, "TPOT"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_command_that_answers(
    model: str, load: dict[str, Any], words: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SpecError) as refused:
        flopwise.simulate(model, gpu="h100", **load)
    assert words in str(refused.value)
    line = answering_line(str(refused.value))
    value = next(iter(load.values()))
    assert line[-2:] == ["--rate" if "rate" in load else "--concurrency", str(value)]
    assert cli.main(line) == 0
    assert shown in capsys.readouterr().out


@pytest.mark.parametrize("how", [{"simulate": True}, {"requests": 100}])
def test_serve_says_what_the_simulator_does_not_run(how: dict[str, Any]) -> None:
    """Whisper generates: it is its encoder that is not simulated."""
    with pytest.raises(SpecError, match=WITH_ENCODER) as refused:
        flopwise.serve("Whisper-large-v3", gpu="h100", rate=2.0, tp=2, gpus=2, **how)
    line = answering_line(str(refused.value))
    assert line[line.index("--tp") + 1] == "2"
    assert "one pass" not in str(refused.value)


def test_an_autoscaler_is_of_models_that_generate() -> None:
    with pytest.raises(SpecError) as refused:
        flopwise.autoscale("bge-m3", gpu="h100", rate=50.0)
    assert SINGLE in str(refused.value)


def test_a_queue_is_of_models_that_generate(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", "bge-m3", "--gpu", "h100", "--queue", "1000"]) == 2
    text = " ".join(capsys.readouterr().err.split())
    assert SINGLE in text
    assert cli.main(answering_line(text)) == 0
    line = "simulate Whisper-large-v3 --gpu h100 --queue 1000 --spot-interruptions 0 --spot-price 1 --price 2"
    assert cli.main(shlex.split(line)) == 0  # worked off in closed form
