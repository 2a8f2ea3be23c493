"""What does not fit has memory and a price, but no rate or latency: in text, CSV, notebooks and origins."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

import pytest

import flopwise
from flopwise import cli
from flopwise.errors import SpecError
from flopwise.provenance import walk

QUESTION = ("Llama-3.1-70B", "--gpu", "h100", "--concurrency", "8")
HAVING: dict[str, Any] = {"gpu": "h100", "concurrency": 8}
SPEED = re.compile(r"TTFT|TPOT|whole request|throughput|requests per second|step|MFU|per million|energy|datasheet")
RATES = re.compile(r"tokens/s|requests/s|first token|per million|of capacity|faster|J/token")


def printed(capsys: pytest.CaptureFixture[str], *words: str, code: int) -> str:
    """What a command prints on stdout, with that exit code."""
    capsys.readouterr()
    assert cli.main(list(words)) == code
    return capsys.readouterr().out


def test_the_table_of_what_does_not_fit_is_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["name"]: row["value"] for row in csv.DictReader(io.StringIO(
        printed(capsys, "serve", *QUESTION, "--csv", code=1)
    ))}  # fmt: skip
    assert rows["fits"] == "false"
    assert rows["max_concurrency"] == "0"
    assert float(rows["usd_per_hour"]) > 0
    speeds = {name for name in rows if name.startswith(("ttft", "tpot", "e2e", "requests_per_s", "output_tokens"))}
    assert len(speeds) > 10
    assert {rows[name] for name in speeds} == {""}
    page = flopwise.serve(QUESTION[0], **HAVING)._repr_html_()
    assert page.index("Does not fit") < page.index("max_concurrency")


def test_the_origins_of_what_does_not_fit_have_no_rate(capsys: pytest.CaptureFixture[str]) -> None:
    for replicas in (1, 2):
        found = flopwise.explain("serve", QUESTION[0], gpus=replicas, **HAVING)
        names = {one.name for one in walk(found.figure)}
        assert not {name for name in names if SPEED.search(name) and not name.endswith(("by the rule", "estimated"))}
        assert {"memory per GPU", "weights", "cost per hour", "cold start", "maximum concurrency"} <= names
    text = printed(capsys, "explain", "serve", *QUESTION, code=0)
    assert not RATES.search(text)
    assert "memory per GPU" in text
    assert not RATES.search(printed(capsys, "serve", *QUESTION, "--explain", code=1))


def test_changes_of_what_does_not_fit_say_whether_they_help() -> None:
    """Those that fit come first, and are the ones that a service with that change confirms."""
    found = flopwise.explain("serve", QUESTION[0], **HAVING)
    notes = [one.note for one in found.sensitivities]
    assert notes == sorted(notes, key=["fits", "does not fit"].index)
    assert {"fits", "does not fit"} == set(notes)
    helps = {one.change for one in found.sensitivities if one.note == "fits"}
    assert helps >= {"tp 2", "weights in awq"}
    each: dict[str, dict[str, Any]] = {"tp 2": {"tp": 2}, "KV cache in fp8": {"kv_dtype": "fp8"}}
    for change, how in each.items():
        assert flopwise.serve(QUESTION[0], **HAVING, **how).fits == (change in helps)
    assert all(effect is None for one in found.sensitivities for effect in one.effects.values())
    assert not any("%" in one.change for one in found.sensitivities)  # no rate makes it fit
    with pytest.raises(SpecError, match="nothing to plot"):
        found.picture()


def test_a_change_after_which_it_does_not_fit_has_no_effects() -> None:
    """16 GiB of weights on a card of 24 GB hold no long context twice as long."""
    found = flopwise.explain("serve", "Llama-3.1-8B", gpu="l4", concurrency=1, input_tokens=26_000)
    assert found.answer.fits
    longer = next(one for one in found.sensitivities if one.change == "input tokens x 2")
    assert longer.note == "does not fit"
    assert set(longer.effects.values()) == {None}
    other = next(one for one in found.sensitivities if one.change == "weights in fp8")
    assert other.note == ""
    assert (other.effects["TPOT"] or 1.0) < 1.0
