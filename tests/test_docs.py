"""The documentation cannot lie: it is compared with the commands, and its examples run."""

from __future__ import annotations

import html
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from flopwise import cli
from flopwise.cli.app import COMMANDS, app
from flopwise.fleet import spec
from flopwise.records.model import Run, Sample
from flopwise.records.store import open_store

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
ABBREVIATION = re.compile(r"(?<![\w./-])(?:[A-Z][A-Z0-9]*[A-Z0-9]s?|[a-z]{2,4}\d{1,2}|tp|pp|dp|ep|cp|sp)(?![\w/-])")
"""TTFT, FLOPs, bf16, tp ..."""
NAMES = {"AMD", "NVIDIA"}
"""Of companies: no abbreviations to explain."""
COMMAND_FILES = ROOT / "src" / "flopwise" / "cli" / "commands"


def _blocks(language: str) -> Iterator[tuple[str, str, str]]:
    """(page, what stands after the language, text) of each block in that language; `test_extending` has its own."""
    for page in PAGES:
        if page.name == "extending.md":
            continue
        for found in re.finditer(
            rf"^```{language}([^\n]*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        ):
            yield page.name, found[1].strip(), found[2]


def _examples() -> list[tuple[str, str, int, str]]:
    """(page, command line, exit code, expected output) of each flopwise line in a console block; ```console exit=1.

    A line that stands on several pages is run once, for one of those that show its output.
    """
    found: dict[str, tuple[str, str, int, str]] = {}
    for page, line, code, output in _lines():
        if line not in found or output.strip():
            found[line] = (page, line, code, output)
    return list(found.values())


def _lines() -> Iterator[tuple[str, str, int, str]]:
    """As `_examples`, each as often as it stands somewhere.

    The tutorial's are run when it is made; the platform's assessment in `test_platform`, which reads its report.
    """
    for page, said, text in _blocks("console"):
        if page == "tutorial.md":
            continue
        code = int(said.removeprefix("exit=")) if said else 0
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            line, _, output = part.partition("\n")
            if line.startswith("flopwise ") and not line.startswith("flopwise assess examples/textnlp.yaml"):
                yield page, line, code, output


def test_the_reference_is_what_the_commands_say() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "generate.py"))["page"]()
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == made, "run: python docs/generate.py"


def test_the_list_of_targets_is_what_they_say() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    assert made["TARGETS_PAGE"].read_text(encoding="utf-8") == made["targets_page"](), "run: python docs/generate.py"


def test_the_rules_and_metrics_of_watch_are_on_its_page() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "watch_page.py"))
    assert made["PAGE"].read_text(encoding="utf-8") == made["page"](), "run: python docs/generate.py"


def test_the_stub_has_the_signatures_that_the_functions_have() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "stub.py"))
    assert made["PAGE"].read_text(encoding="utf-8") == made["page"](), "run: python docs/generate.py"


def test_the_tutorial_shows_what_its_commands_print() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "tutorial_page.py"))
    assert made["PAGE"].read_text(encoding="utf-8") == made["page"](), "run: python docs/generate.py"


def test_the_six_questions_are_answered_by_who_reads_the_tutorial_alone() -> None:
    """Each question's command stands below it, and the first line that it prints is the answer."""
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    found = re.findall(r"^## \d\. (.+)\n(?:.*\n)*?```console\n\$ (flopwise \w+).*\n(.+)$", page, re.MULTILINE)
    answers = {question: (command, first) for question, command, first in found}
    assert len(answers) == 6
    for question, words in {
        "Does it fit?": "holds? [\\d,]+ request",
        "What takes the memory, and what would make it fit?": "GiB of .* chance .* would fit with",
        "How fast does it answer?": "TTFT .* TPOT .* per million output tokens",
        "How long does the training take, and what does it cost?": r"days .* and \$",
        "Which machines are the cheapest for it?": r"\d+ x .*: \$.* chance to meet every target",
        "Fine-tune, train from scratch, or call an API?": r"Cheapest: .* less than .* chance",
    }.items():
        assert re.search(words, answers[question][1]), (question, answers[question])


def test_every_command_is_shown_in_a_terminal_of_four_widths() -> None:
    picture = runpy.run_path(str(ROOT / "docs" / "picture.py"))
    assert picture["PAGE"].read_text(encoding="utf-8") == picture["page"]()
    shown = {command.split()[0] for command in picture["SHOTS"].values()}
    needy = {"check", "probe", "observe", "runs", "calibrate", "backtest", "web", "completion"}
    """Commands about files or a machine of the user, and those that print a script or start a server."""
    assert shown == {name for section in COMMANDS.values() for name in section} - needy
    for name in picture["SHOTS"]:
        for columns in picture["WIDTHS"]:
            drawn = (picture["IMAGES"] / "terminal" / f"{name}-{columns}.svg").read_text(encoding="utf-8")
            for x, text in re.findall(r'<text x="([\d.]+)[^"]*"[^>]*>([^<]*)</text>', drawn):
                end = (float(x) - picture["PAD"]) / picture["CHAR"] + len(html.unescape(text))
                assert end <= columns + 0.5 or "flopwise " in text, (name, columns, text)


def test_the_accuracy_page_has_the_figures_of_the_report_and_other_tools_those_of_the_page() -> None:
    """`make accuracy` writes both; a row of the report is a row of the page, figure for figure."""
    report, page, peers = (
        (ROOT / name).read_text(encoding="utf-8")
        for name in ("benchmarks/accuracy/REPORT.md", "docs/accuracy.md", "docs/peers.md")
    )
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    first = report.split("## ", 1)[0]
    reported = [[cell.strip() for cell in line.split("|")[1:-1]] for line in first.splitlines() if line.startswith("|")]
    by_key = {(row[0], row[1]): row for row in reported if len(row) == 10}
    assert len(rows) > 10
    for kind, quantity, number, median, p90, bias, _, inside, thumb, _ in rows[2:]:
        known = by_key[kind, quantity]
        assert [known[3], known[4], known[5], known[6], known[7]] == [
            number.replace(",", ""),
            median,
            p90,
            bias,
            inside,
        ]
        assert known[9].startswith(thumb)
    figures = {(row[0], row[1]): row for row in rows}
    training, memory = figures["training", "tokens/s/GPU"], figures["memory", "bytes/GPU"]
    said = [training[8], training[6], memory[8], memory[3], figures["kernels", "s"][3]]
    assert [figure for figure in said if figure not in peers] == []


def test_the_rules_of_thumb_are_computed_by_this_version() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "rules.py"))["page"]()
    assert (ROOT / "docs" / "rules-of-thumb.md").read_text(encoding="utf-8") == made, "run: python docs/generate.py"


def test_every_key_of_a_fleet_is_on_its_page_and_says_what_it_is() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "file_keys.py"))
    page = (ROOT / "docs" / "fleet-file.md").read_text(encoding="utf-8")
    assert page == made["page"](), "run: python docs/generate.py"
    listed = [(title, key, text) for title, _, rows in made["sections"]() for key, _, _, text in rows]
    assert not [(title, key) for title, key, text in listed if not text]
    on_page, schemas = {key for _, key, _ in listed}, [spec.schema()]
    while schemas:  # every key that the schema has, however deep
        schema = schemas.pop()
        named = schema.get("properties", {})
        assert set(named) <= on_page, sorted(set(named) - on_page)
        inner = [schema.get("items"), schema.get("additionalProperties"), *named.values()]
        schemas += [part for part in inner if isinstance(part, dict)]


def test_every_command_file_is_registered_and_every_command_has_its_file() -> None:
    files = {path.stem for path in COMMAND_FILES.glob("*.py")} - {"__init__"}
    assert files == {name for section in COMMANDS.values() for name in section}


def _commands(command: click.Command, context: click.Context) -> Iterator[click.Command]:
    """The command, its members and its forms."""
    yield command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            member = command.get_command(context, name)
            assert member is not None
            yield from _commands(member, context)
    yield from getattr(command, "forms", ())


def test_every_abbreviation_of_the_help_is_in_the_glossary() -> None:
    commands = list(_commands(app, click.Context(app, info_name="flopwise")))
    parameters = [parameter for command in commands for parameter in command.params]
    written = [f"{parameter.name} {parameter.metavar} {parameter.human_readable_name}" for parameter in parameters]
    values = {word for text in written for word in re.findall(r"\w+", text.upper())}
    texts = [command.help or "" for command in commands] + [
        getattr(parameter, "help", None) or "" for parameter in parameters
    ]
    found = {word for text in texts for word in ABBREVIATION.findall(text)}
    assert {"TTFT", "HSDP", "tp", "bf16", "GPU"} <= found
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    entries = re.findall(r"^(?:### (.*)|\| ([^|]+) \| [^|]+ \|)$", page, re.MULTILINE)
    terms = {term for entry in entries for part in entry for term in re.split(r"[ ,]+", part)}
    missing = {word for word in found - values - NAMES if word.removesuffix("s") not in terms and word not in terms}
    assert not missing, f"docs/glossary.md does not explain {sorted(missing)}"


def test_every_term_of_the_glossary_is_explained_once() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    entries = re.findall(r"^### (.*)\n\n((?:.+\n)+)", page, re.MULTILINE)
    assert len(entries) == page.count("\n### ")
    titles = [title for title, _ in entries]
    assert len(set(titles)) == len(titles)
    assert not [title for title, text in entries if len(text.split()) > 60]


def test_every_page_is_reached_and_every_link_leads_somewhere() -> None:
    reached = set()
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
            reached.add((page.parent / target).resolve())
    assert {page for page in PAGES if page.name != "README.md"} <= reached


def _record() -> None:
    """The runs that examples of `runs` name."""
    store = open_store()
    for number, (name, task) in enumerate([("pretrain-tiny", "pretrain"), ("serve-tiny", "serve")]):
        run_id = f"{number:032x}"
        store.add_run(Run(run_id=run_id, name=name, task=task, started_at_s=1.7e9))  # type: ignore[arg-type]
        store.append(run_id, [Sample("step_s", 1.7e9 + step, 0.05, step) for step in range(5)])


@pytest.mark.parametrize("example", _examples(), ids=lambda example: example[1])
def test_examples_run_and_say_what_the_page_shows(
    example: tuple[str, str, int, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page, line, code, output = example
    monkeypatch.chdir(ROOT)
    for name in ("FLOPWISE_FACTS", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    if line.startswith("flopwise runs "):
        _record()
    command, _, filtered = line.partition(" | ")
    assert cli.main(shlex.split(command, comments=True)[1:]) == code, f"{page}: {line}\n{capsys.readouterr().err}"
    shown = capsys.readouterr().out
    if output.strip() and not filtered:
        pattern = re.escape(output.rstrip()).replace(re.escape("..."), ".*")
        assert re.fullmatch(pattern, shown.rstrip(), re.DOTALL), f"{page}: {line} now shows\n{shown}"


@pytest.mark.parametrize(("page", "text"), [(page, text) for page, _, text in _blocks("python")])
def test_python_examples_run(page: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(os, "environ", {k: v for k, v in os.environ.items() if k != "FLOPWISE_FACTS"})
    exec(compile(text, page, "exec"), {})  # noqa: S102 - that the page's code runs is what is tested


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """Strict: a link or an anchor that leads nowhere, a page that no menu names, or a broken docstring ends it."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    made = {path.relative_to(tmp_path / "site").as_posix(): path for path in (tmp_path / "site").rglob("*.html")}
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= made.keys()
    functions = made["python-functions.html"].read_text(encoding="utf-8")
    assert "global_batch" in functions, "keywords are those of the stub"
    assert '<abbr title="Time to first token: ' in made["questions/serve.html"].read_text(encoding="utf-8")
    assert "<math" in made["how-it-works.html"].read_text(encoding="utf-8")
    for name, path in made.items():
        assert "https://fonts" not in (text := path.read_text(encoding="utf-8")), name
        assert not re.search(r'(?:src|href)="https?://(?:cdn|unpkg|fonts)', text), name
