"""Options that are declared once: how values are read, how specs take keywords and files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwise import options
from flopwise.cost.spec import MachineSpec
from flopwise.errors import FlopwiseError, SpecError
from flopwise.serving.spec import ServingSpec


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (options.BYTES, "80GB", 80e9),
        (options.BYTES, "80GiB", 80 * 2**30),
        (options.COUNT, "2T", 2e12),
        (options.TOKENS, "8k", 8000),
        (options.WHOLE_OR_ZERO, "0", 0),
        (options.SECONDS, "500ms", 0.5),
        (options.SECONDS, "30d", 30 * 86400),
        (options.SECONDS, "5y", 5 * 365 * 24 * 3600),
        (options.RATE, "3600/hour", 1.0),
        (options.BANDWIDTH, "400Gbps", 50e9),
        (options.USD, "$2.50", 2.5),
        (options.FRACTION, "40%", 0.4),
        (options.FRACTION, "1", 1.0),
        (options.FRACTION_OR_ZERO, "0", 0.0),
        (options.name("gpu"), " h100 ", "h100"),
    ],
)
def test_quantities_are_read_with_their_units(kind: Any, text: str, value: float | str) -> None:
    assert kind.parse(text, "--it") == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (options.BYTES, "0"),
        (options.COUNT, "-1"),
        (options.TOKENS, "1.5"),
        (options.TOKENS, "1e12"),
        (options.FRACTION, "0"),
        (options.BANDWIDTH, "1e-300"),
        (options.FRACTION, "101%"),
        (options.FRACTION_OR_ZERO, "-1%"),
        (options.FRACTION, "%"),
        (options.name("gpu"), "a\0b"),
    ],
)
def test_what_is_out_of_range_is_said_with_the_options_name(kind: Any, text: str) -> None:
    with pytest.raises(SpecError, match="--it"):
        kind.parse(text, "--it")


@pytest.mark.parametrize(
    ("kind", "text", "allowed"),
    [
        (options.COUNT, "1e300", "above 0, up to 1e24"),
        (options.COUNT_OR_ZERO, "-1", "0 or more, up to 1e24"),
        (options.FRACTION, "101%", "above 0, up to 1"),
        (options.CAPACITY, "1e-300", "0.01 or more, up to 1,000"),
        (options.CHANGE, "1e10", "above -1,000,000,000, up to 1,000,000,000"),
        (options.SECONDS, "1e13", "above 0, up to 31,688 years"),
        (options.RATE, "1e-13", "above 1 in 31,688 years, up to 1,000,000,000,000/s"),
        (options.BANDWIDTH, "1e-300", "1.00 B/s or more, up to 1.00 EB/s"),
        (options.BYTES, "0", "above 0, up to 1.00 ZB"),
        (options.WATTS, "2000kW", "above 0, up to 1,000,000 W"),
        (options.USD, "1e16", "above 0, up to $1,000,000,000,000,000"),
        (options.FLOPS, "0", "above 0, up to 1,000,000,000,000 YFLOP"),
    ],
)
def test_bounds_are_written_as_people_write_them(kind: Any, text: str, allowed: str) -> None:
    with pytest.raises(SpecError) as refused:
        kind.parse(text, "--it")
    assert str(refused.value).endswith(f"is out of range; allowed: {allowed}")


ANY_KIND = st.sampled_from(
    [options.BYTES, options.COUNT, options.SECONDS, options.RATE, options.BANDWIDTH, options.USD, options.FRACTION,
     options.FLOPS, options.TOKENS, options.WHOLE_OR_ZERO, options.name("x")]
)  # fmt: skip


@given(ANY_KIND, st.one_of(st.text(), st.floats().map(str), st.from_regex(r"[0-9.,_eE+-]{1,12}[a-zA-Z/%$]{0,6}")))
def test_any_text_is_read_or_refused_on_purpose(kind: Any, text: str) -> None:
    value, said = 0.0, "--it"
    try:
        value = kind.parse(text, "--it")
    except FlopwiseError as refused:
        said = str(refused)
    assert "--it" in said
    assert isinstance(value, str) or 0 <= value < float("inf")


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("-2%", -0.02), ("0", 0.0), ("-0.5", -0.5), ("3", 3.0)])
def test_a_change_has_a_sign_and_no_range_of_its_own(text: str, share: float) -> None:
    assert options.CHANGE.parse(text, "--it") == pytest.approx(share)


@pytest.mark.parametrize("text", ["--5%", "much", "", "-"])
def test_a_change_is_a_number(text: str) -> None:
    with pytest.raises(SpecError):
        options.CHANGE.parse(text, "--it")


def test_a_question_takes_whole_specs_and_lays_single_options_over_them() -> None:
    whole = ServingSpec(tp=4, weights="fp8")
    deployment, machines = options.take({"deployment": whole, "tp": 8, "gpu": "h100"}, ServingSpec, MachineSpec)
    assert (deployment.tp, deployment.weights, machines.gpu) == (8, "fp8", "h100")
    assert options.take({"tp": None}, ServingSpec) == (ServingSpec(),)
    assert options.take({"anything": whole}, ServingSpec) == (whole,)
    with pytest.raises(SpecError, match="unknown argument 'weigths'; nearest: weights; there are weights, kv_dtype"):
        options.take({"weigths": "fp8"}, ServingSpec)
    with pytest.raises(SpecError, match="unknown argument 'machines'"):
        options.take({"machines": MachineSpec()}, ServingSpec)


def test_a_key_that_ends_with_a_dot_has_the_name_of_its_field() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Place(options.Spec):
        model: str | None = options.option("", options.name("model"), "What.", key=options.FIELD)
        region: str | None = options.option("", options.name("region"), "Where.", key="constraints.")
        gpu: str | None = options.option("", options.name("gpu"), "On what.", key="constraints.gpus")

    assert [one.key for one in options.options_of(Place).values()] == [
        "model",
        "constraints.region",
        "constraints.gpus",
    ]
