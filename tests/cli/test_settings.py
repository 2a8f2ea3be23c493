"""`flopwise.toml`: what it sets, which file says more, and what it may never say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from flopwise import cli
from flopwise.cli.app import COMMANDS, app
from flopwise.cli.options import SET_COMMANDS, Flag
from flopwise.cli.settings import GENERAL, SETTABLE, VARIABLE, read_settings
from flopwise.errors import SpecError

Run = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a folder inside, where the commands run, and a home without settings."""
    monkeypatch.delenv(VARIABLE)
    monkeypatch.delenv("FLOPWISE_FACTS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    project = tmp_path / "project"
    (project / "inside").mkdir(parents=True)
    monkeypatch.chdir(project / "inside")
    return project


def _write(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "flopwise.toml").write_text(text, encoding="utf-8")


def test_settings_hold_where_the_line_says_nothing_and_are_named(here: Path, run: Run) -> None:
    _write(here, '[defaults]\ngpu = "a100-80gb"\nregion = "us-*"\n[train]\nstack = "fsdp-compile"\n')
    code, out, err = run("train gpt2 --json")
    said = run("train gpt2 --gpu a100-80gb --region us-* --stack fsdp-compile --json")
    assert (code, out) == (0, said[1])
    assert err == f"note: {here / 'flopwise.toml'}: --gpu a100-80gb, --stack fsdp-compile, --region us-*\n"
    assert said[2] == ""
    _, out, err = run("train gpt2 --gpu h100 --json")
    assert json.loads(out)["gpu"] == "H100-SXM-80"
    assert "--gpu" not in err
    assert run("gpus --vendor AMD")[2] == "", "it has none of these options"


def test_a_project_says_more_than_its_user_and_a_command_more_than_all(here: Path) -> None:
    _write(here.parent / "home" / "flopwise", '[defaults]\ngpu = "l4"\nprice = 2\n[serve]\ngpu = "l40s"\n')
    _write(here, '[defaults]\ngpu = "h100"\nkv_dtype = "fp8"\n[plan]\nprovider = ["aws", "gcp"]\n')
    found = read_settings(SET_COMMANDS)
    assert {n: s.value for n, s in found.of("train").items()} == {"gpu": "h100", "price": 2, "kv-dtype": "fp8"}
    assert found.of("serve")["gpu"].value == "l40s"
    assert found.of("plan")["provider"].value == ["aws", "gcp"]
    assert found.of("train")["price"].file == str(here.parent / "home" / "flopwise" / "flopwise.toml")


def test_the_variable_names_the_only_file_or_none(here: Path, tmp_path: Path) -> None:
    _write(here, '[defaults]\ngpu = "h100"\n')
    other = tmp_path / "other.toml"
    other.write_text('[defaults]\nengine = "sglang"\n')
    assert read_settings(SET_COMMANDS, {VARIABLE: ""}).tables == {}
    assert list(read_settings(SET_COMMANDS, {VARIABLE: str(other)}).tables[GENERAL]) == ["engine"]
    with pytest.raises(SpecError, match=r"nowhere\.toml: cannot be read"):
        read_settings(SET_COMMANDS, {VARIABLE: str(tmp_path / "nowhere.toml")})


def test_a_folder_of_facts_counts_from_the_file_and_below_its_variable(here: Path) -> None:
    _write(here, '[defaults]\nfacts = "own"\ngpu = "h100"\n')
    assert read_settings(SET_COMMANDS).of("train")["facts"].value == str(here / "own")
    assert "facts" not in read_settings(
        SET_COMMANDS, {VARIABLE: str(here / "flopwise.toml"), "FLOPWISE_FACTS": "x"}
    ).of("train")


def test_a_plan_of_a_model_follows_them_and_a_workload_file_stands_alone(here: Path, run: Run) -> None:
    _write(here, '[defaults]\nprovider = ["aws"]\n')
    line = "plan Llama-3.1-8B --task serve --rate 1/s --json"
    assert {plan["provider"] for plan in json.loads(run(line)[1])["plans"]} == {"aws"}
    (here / "inside" / "w.yaml").write_text("model: Llama-3.1-8B\ntask: serve\ntraffic: {requests_per_s: 1}\n")
    code, out, err = run("plan w.yaml --json")
    assert code == 0
    assert {plan["provider"] for plan in json.loads(out)["plans"]} != {"aws"}
    assert "flopwise.toml" not in err


def test_a_list_is_for_options_that_may_be_given_several_times(here: Path, run: Run) -> None:
    _write(here, '[defaults]\nprovider = ["aws", "gcp"]\n')
    assert "--provider" not in run("train gpt2 --gpu h100 --json")[2], "of one provider: it decides by itself"
    _write(here, '[train]\nprovider = ["aws", "gcp"]\n')
    code, _, err = run("train gpt2 --gpu h100")
    assert code == 2
    assert "[train] --provider: it takes one value, not a list" in err


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[defaults\n", "not TOML"),
        ("gpu = 'h100'\n", "gpu stands outside of a table; write it below [defaults]"),
        ("plan = 3\n", "plan stands outside of a table"),
        ("[trian]\ngpu = 'h100'\n", "unknown table [trian]; nearest: train"),
        ("[defaults]\ngpus = 3\n", "not an option that a settings file may set; nearest: gpu"),
        ("[watch]\nexec-on-budget = 'rm -rf /'\n", "not an option that a settings file may set"),
        ("[defaults]\ngpu = {a = 1}\n", "give text, a number, true or false"),
        ("[train]\nmarketplace = 'yes'\n", "--marketplace: true or false, not 'yes'"),
        ("[train]\ngpu = true\n", "--gpu: a value, not True"),
        ("[train]\nprice = 'cheap'\n", "--price: 'cheap' is not a quantity"),
        ("[defaults]\ncurrency = 'EUR=zero'\n", "'zero' is not a rate; write US dollars for one, such as EUR=1.08"),
        ("[train]\ncurrency = 'DOGE'\n", "unknown currency 'DOGE'"),
    ],
)
def test_what_cannot_be_is_named_with_its_place(here: Path, run: Run, text: str, why: str) -> None:
    _write(here, text)
    code, out, err = run("train gpt2 --gpu h100")
    assert (code, out) == (2, "")
    assert why in err
    assert "flopwise.toml" in err


def test_every_option_that_may_be_set_is_one_of_several_commands_and_writes_nothing() -> None:
    import click

    context = click.Context(app)
    takers: dict[str, set[str]] = {}
    for name in (name for section in COMMANDS.values() for name in section):
        command = app.get_command(context, name)
        assert command is not None
        for param in command.params:
            if isinstance(param, Flag):
                takers.setdefault(max(param.opts, key=len).removeprefix("--"), set()).add(name)
    assert [option for option in SETTABLE if not takers.get(option)] == []
    forbidden = {
        "output",
        "exec-on-budget",
        "webhook",
        "to",
        "force",
        "remove",
        "serve",
        "host",
        "listen",
        "token",
        "state",
    }
    assert not forbidden & {*SETTABLE}
    assert forbidden <= takers.keys() | {"force"}


def test_the_process_of_pages_answers_as_the_line_where_it_was_started(here: Path) -> None:
    from flopwise.cli.settings import FIXED

    _write(here, '[defaults]\ngpu = "h100"\n')
    token = FIXED.set(read_settings(SET_COMMANDS))
    try:
        _write(here, '[defaults]\ngpu = "l4"\n')
        assert read_settings(SET_COMMANDS).of("train")["gpu"].value == "h100"
    finally:
        FIXED.reset(token)
    assert cli.main(["train", "gpt2"]) in (0, 1)


def test_amounts_have_the_rate_of_the_facts_that_are_named(here: Path, run: Run) -> None:
    """Two dollars for one euro in a folder of one's own: on the command line, before or after, or in the settings."""
    rows = "name,per_euro,source,date\nUSD,2,ours,2026-11-01\nEUR,1,ours,2026-11-01\n"
    (here / "rates").mkdir()
    (here / "rates" / "currencies.csv").write_text(rows, encoding="utf-8")
    line, folder = "roofline --flops 1e15 --gpu h100 --price 3", here / "rates"
    for stated in (f"--currency EUR --facts {folder}", f"--facts={folder} --currency EUR"):
        assert "1 EUR = 2 USD (ours, 2026-11-01)" in run(f"{line} {stated}")[1], stated
    assert "1 EUR = 2 USD" not in run(f"{line} --currency EUR")[1]
    _write(here, '[defaults]\nfacts = "rates"\ncurrency = "EUR"\n')
    assert "1 EUR = 2 USD (ours, 2026-11-01)" in run(line)[1]
