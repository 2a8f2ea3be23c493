"""Functions show, document and read the options of the command line, under its names and with its units."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

import click
import pytest

import flopwise
from flopwise import cli
from flopwise.cli.app import app
from flopwise.cli.options import Flag
from flopwise.errors import SpecError
from flopwise.keywords import takes
from flopwise.options import WHOLE
from flopwise.serving.sim.result import Slo
from flopwise.training.spec import DataSpec

FUNCTIONS = ("train", "serve", "memory", "simulate", "io", "roofline")
OTHER_FUNCTIONS = """
    autoscale min_replicas max_replicas min_by_hour target tick cold_start cool_down fallback replace_s
    spot_interruptions queue workers checkpoint_every checkpoint_time deadline spot_price trials vertical replay
"""
OBJECTS = "response_cache cache_price cache_ttl distinct repeated skew"
NOT_KEYWORDS = {
    "train": {"compare", "weak", "explain", "web"},  # another question; how the answer is shown
    "serve": {"sweep", "explain", "web"},
    "memory": {"explain", "web"},
    "io": {"base", "explain"},
    "roofline": {"web"},
    "simulate": {*OTHER_FUNCTIONS.split(), *OBJECTS.split(), "web", "explain"},  # other functions; `cache=`
}
"""Flags that are no keywords: of another function, or of the text alone."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_signature_names_every_option_of_its_command(name: str) -> None:
    shown = inspect.signature(getattr(flopwise, name))
    assert not [p for p in shown.parameters.values() if p.kind is inspect.Parameter.VAR_KEYWORD]
    command = app.get_command(click.Context(app), name)
    assert command is not None
    flags = {p.name for p in command.params if isinstance(p, Flag) and p.name and p.expose_value}
    documented = inspect.getdoc(getattr(flopwise, name)) or ""
    missing = flags - shown.parameters.keys()
    assert missing == NOT_KEYWORDS.get(name, set())
    own = {p for p in flags & shown.parameters.keys() if f"    {p}" not in documented and f"`{p}`" not in documented}
    assert not own


def test_a_flag_is_a_keyword_and_units_are_read() -> None:
    by_flag = flopwise.serve("Llama-3.1-8B", gpu="h100", input="2k", output="100")
    by_field = flopwise.serve("Llama-3.1-8B", gpu="h100", input_tokens=2000, output_tokens=100)
    assert by_flag.to_dict() == by_field.to_dict()
    by_text = flopwise.memory("Llama-3.1-8B", gpu="h100", context="8k", concurrency="4")  # of a context k is 1,024
    assert by_text.to_dict() == flopwise.memory("Llama-3.1-8B", gpu="h100", context=8192, concurrency=4).to_dict()


def test_one_text_is_a_list_of_one_where_the_command_line_takes_several() -> None:
    how: dict[str, Any] = {"task": "train", "seq": 2048, "micro_batch": 1, "zero": 3, "dp": 8, "stack": "fsdp-eager"}
    one = flopwise.memory("Llama-3.1-8B", recompute="selective", recompute_modules="layernorm", **how)
    same = flopwise.memory("Llama-3.1-8B", recompute="selective", recompute_modules=("layernorm",), **how)
    assert one.to_dict() == same.to_dict()


@pytest.mark.parametrize("attention", ["eager", "flash"])
@pytest.mark.parametrize(
    ("module", "kept"), [("layernorm", 2 * 2 * 2048 * 4096), ("activation", 2 * 2048 * 14_336)]
)  # fmt: skip
def test_modules_that_are_computed_again_keep_no_result_whatever_the_attention(
    attention: str, module: str, kept: int
) -> None:
    """Llama-3.1-8B, one sequence of 2,048 in 16 bits: 32 layers of two norms of 4,096 and an activation of 14,336."""
    how: dict[str, Any] = {"task": "train", "seq": 2048, "micro_batch": 1, "zero": 3, "dp": 8, "attention": attention}
    whole = flopwise.memory("Llama-3.1-8B", recompute="none", stack="fsdp-eager", **how)
    part = flopwise.memory("Llama-3.1-8B", recompute="selective", recompute_modules=module, stack="fsdp-eager", **how)
    assert dict(whole.items)["activations"] - dict(part.items)["activations"] == pytest.approx(32 * kept, rel=1e-6)


def test_names_of_other_tools_are_read_as_on_the_command_line() -> None:
    names: dict[str, Any] = {"max_model_len": "32k", "tensor_parallel_size": 1}  # no stub has them
    by_alias = flopwise.serve("Llama-3.1-8B", gpu="h100", **names)
    assert by_alias.to_dict() == flopwise.serve("Llama-3.1-8B", gpu="h100", input=32768, tp=1).to_dict()
    by_own = flopwise.memory("Llama-3.1-8B", gpu="h100", max_model_len="32k")  # type: ignore[arg-type] # as above
    assert by_own.to_dict() == flopwise.memory("Llama-3.1-8B", gpu="h100", context=32768).to_dict()
    assert flopwise.gpus(min_memory="100GB") == flopwise.gpus(min_hbm_bytes=100e9)
    assert flopwise.instances(gpu="t4", max_price="$1") == flopwise.instances(gpu="t4", max_usd_per_hour=1.0)
    timed = flopwise.simulate("gpt2", gpu="l4", requests=50, ttft="p95=20ms", seed=3, qps=2)  # type: ignore[arg-type]
    same = flopwise.simulate("gpt2", gpu="l4", rate=2, requests=50, slo=Slo(ttft_s=0.02), seed=3)
    assert timed.to_dict() == same.to_dict()


def test_a_comparison_takes_the_options_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    command = app.get_command(click.Context(app), "compare")
    assert command is not None
    known = {*inspect.signature(flopwise.compare).parameters, *flopwise.compare.spelled}  # type: ignore[attr-defined]
    flags = [p for p in command.params if isinstance(p, Flag) and p.expose_value]
    assert {max(p.opts, key=len)[2:].replace("-", "_") for p in flags} <= known
    line = "compare Llama-3.1-8B --tokens-per-month 4B/1B --way api --way finetune --lora 8 --provider aws"
    assert cli.main([*line.split(), "--ttft", "p95=2s", "--no-simulate", "--growth", "5%", "--json"]) == 0
    found = flopwise.compare(
        "Llama-3.1-8B", tokens_per_month="4B/1B", way=("api", "finetune"), lora=8, provider="aws", simulate=False,
        ttft="p95=2s", growth="5%",
    )  # fmt: skip
    assert json.loads(capsys.readouterr().out) == found.to_dict()
    assert found.verdict.startswith("Cheapest: ")
    low, high = found.decision.saves_usd_low, found.decision.saves_usd_high
    assert low is not None
    assert high is not None
    assert low <= (found.decision.saves_usd or 0.0) <= high
    assert list(found.to_frame()["name"]) == [way.name for way in found.ways]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: flopwise.simulate("gpt2", gpu="l4", rate=1, ttft="1s", slo=Slo()), "^slo: "),
        (lambda: flopwise.compare("gpt2", tokens_per_month="4/5/6"), "^tokens per month: "),
        (lambda: flopwise.compare("gpt2"), "^tokens per month: give "),
        (
            lambda: flopwise.compare("gpt2", tokens_per_month="1M", gpuz="l4"),  # type: ignore[arg-type]
            "unknown argument 'gpuz'; nearest: gpu",
        ),
        (
            lambda: flopwise.memory("Llama-3.1-8B", gpuu="h100"),  # type: ignore[arg-type]
            r"unknown argument 'gpuu'; nearest: gpu\. help\(flopwise.memory\) lists all$",
        ),
        (lambda: flopwise.serve("Llama-3.1-8B", input=1, input_tokens=2), "input and input_tokens are the same"),
        (lambda: flopwise.memory("Llama-3.1-8B", context="8 potatoes"), "^context: unknown unit 'potatoes'"),
        (lambda: flopwise.train("Llama-3.1-8B", gpu="h100", gpus="many"), "^gpus: "),
        (lambda: flopwise.train("Llama-3.1-8B", gpu="h100", tokens="1 potato"), "^tokens: "),
        (lambda: flopwise.roofline("Llama-3.1-8B", gpu="h100", batch=0), "^batch: "),
    ],
)
def test_an_error_names_the_argument(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        call()


def test_a_function_keeps_what_it_declares_itself() -> None:
    @takes(DataSpec, count=WHOLE)
    def asked(model: str, *, count: int = 1, seq: int = 7, **options: Any) -> tuple[Any, ...]:
        return model, count, seq, options

    assert asked("m", count="2k") == ("m", 2000, 7, {})  # type: ignore[arg-type] # text is read
    shown = inspect.signature(asked).parameters
    assert list(shown)[:3] == ["model", "count", "seq"]
    assert shown["seq"].default == 7
    assert shown["count"].annotation == "int | str"
