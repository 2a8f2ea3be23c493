"""Amounts in other currencies: rates by hand, what is refused, and text in euros beside figures in dollars."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flopwise import cli, units
from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts.catalog import load_facts
from flopwise.facts.currencies import amounts_in, currency
from flopwise.fleet.read import fleet_from
from flopwise.search.workload import resolve

LINE = ["train", "gpt2", "--gpu", "8xh100", "--tokens", "10B", "--price", "4"]


@pytest.fixture
def euros() -> Iterator[None]:
    """A euro of two dollars."""
    token = units.CURRENCY.set(currency("EUR=2", load_facts(None).currencies))
    yield
    units.CURRENCY.reset(token)


def test_rates_are_those_of_one_day_by_hand() -> None:
    known = load_facts(None).currencies
    assert len({row.date for row in known.values()}) == 1
    # 2026-10-30: a euro is 1.1172 USD and 0.8338 GBP, so a pound is 1.33989 USD
    assert currency("EUR", known).per_usd == pytest.approx(1 / 1.1172)
    assert 1 / currency("gbp", known).per_usd == pytest.approx(1.33989, rel=1e-5)
    assert currency("EUR", known).source.startswith("1 EUR = 1.1172 USD (European Central Bank")
    assert currency("EUR = 1.08", known).per_usd == pytest.approx(1 / 1.08)
    assert currency("USD", known) == units.US_DOLLAR


@pytest.mark.parametrize("text", ["EUR=0", "EUR=-1", "EUR=nan", "EUR=", "EUR=x", "EUR=1e7", "USD=2"])
def test_rates_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(SpecError):
        currency(text, load_facts(None).currencies)


def test_unknown_currencies_are_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="nearest: EUR"):
        currency("EURO", load_facts(None).currencies)


@pytest.mark.usefixtures("euros")
def test_amounts_are_shown_in_it() -> None:
    assert units.format_usd(3.0) == "€1.50"
    assert units.format_usd(-25.0) == "-€12.50"
    assert units.format_usd(24_680) == "€12,340"
    assert units.format_usd(24_680, 2) == "€12,340.00"
    assert units.format_cost(0.00246) == "€0.00123"
    assert units.format_cost(None) is None


@pytest.mark.usefixtures("euros")
@pytest.mark.parametrize(
    ("text", "usd"), [("€500", 1000), ("500 EUR", 1000), ("1.5kEUR", 3000), ("$500", 500), ("500", 500), (7, 7)]
)
def test_amounts_are_said_in_it(text: object, usd: float) -> None:
    assert units.parse_usd(text) == usd


def test_files_keep_amounts_in_dollars() -> None:
    """A plan or a report that was made with amounts in euros is read where nobody says a rate."""
    targets = {"budget": "€500"}
    workload = {"task": "finetune", "model": "gpt2", "data": {"tokens": "10M"}, "targets": targets}
    policies = {"budget_per_month": "1.5kEUR", "carbon_usd_per_kg": 3}
    with amounts_in("EUR=2", load_facts(None).currencies):
        plan_document = resolve(workload).document
        fleet = fleet_from({"name": "€ fleet", "workloads": [{"name": "€ job", **workload}], "policies": policies})
    assert plan_document["targets"] == {"budget": 1000.0}
    assert resolve(plan_document).budget_usd == 1000.0
    assert fleet.written["policies"] == {"budget_per_month": 3000.0, "carbon_usd_per_kg": 3}
    assert fleet.written["name"] == "€ fleet"
    assert fleet.written["workloads"][0]["name"] == "€ job"
    assert fleet_from(dict(fleet.written)).written == fleet.written


@pytest.mark.parametrize("text", ["€500", "500 EUR", "£5k", "3GBP"])
def test_amounts_in_a_currency_that_is_not_shown_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="--currency EUR"):
        units.parse_usd(text)


def test_names_without_a_symbol_stand_before_the_amount() -> None:
    francs = currency("CHF=2", load_facts(None).currencies)
    token = units.CURRENCY.set(francs)
    try:
        assert units.format_usd(3.0) == "CHF\N{NO-BREAK SPACE}1.50"
    finally:
        units.CURRENCY.reset(token)


def test_text_is_in_euros_and_figures_are_in_dollars(capsys: pytest.CaptureFixture[str]) -> None:
    def ask(*more: str) -> str:
        assert cli.main([*LINE, *more]) == 0
        return capsys.readouterr().out

    plain, shown = ask(), ask("--currency", "EUR=2")
    usd = json.loads(ask("--json"))["run"]["cost_usd"]
    assert units.format_usd(usd) in plain
    assert "€" not in plain
    assert f"€{usd / 2:,.2f}" in shown
    assert "$" not in shown.replace("US$", "")
    assert "Amounts in EUR: 1 EUR = 2 USD, as given." in shown
    document = json.loads(ask("--json", "--currency", "EUR=2"))
    assert document["run"]["cost_usd"] == usd
    assert "€" in document["verdict"]
    assert ask() == plain  # the next command starts afresh


def test_a_file_of_settings_sets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "flopwise.toml").write_text('[defaults]\ncurrency = "EUR=2"\n', encoding="utf-8")
    monkeypatch.setenv("FLOPWISE_CONFIG", str(tmp_path / "flopwise.toml"))
    assert cli.main(LINE) == 0
    out, err = capsys.readouterr()
    assert "€" in out
    assert "--currency EUR=2" in err


def test_a_rate_that_is_no_number_says_what_a_rate_is() -> None:
    with pytest.raises(SpecError) as refused:
        currency("EUR=zero", load_facts(None).currencies)
    assert str(refused.value) == (
        "currency 'EUR=zero': 'zero' is not a rate; write US dollars for one, such as EUR=1.08"
    )
