"""What holds of every target: it is registered, documented, careful with names, and the same each time."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from export_samples import WORKLOADS, expressible, sample_deployment, sample_export
from plans import PRETRAIN, SERVE, plan_of

from flopwise.errors import InfeasibleError
from flopwise.exports.emit import json_text, yaml_text
from flopwise.exports.spec import PLACEHOLDERS, ExportSettings
from flopwise.exports.targets import TARGETS, exported_plan
from flopwise.options import options_of
from flopwise.search.answer import to_json
from flopwise.search.spec import SERVING, TRAINING

ROOT = Path(__file__).parents[2]
MODULES = ROOT / "src" / "flopwise" / "exports" / "targets"
PAGES = ROOT / "docs" / "export"
HOSTILE = (
    "$(rm -rf /)", "`id`", "a: b", "- x", "*anchor", "&anchor", "!tag", "two\nlines", "'single' \"double\"", "\\",
    "{{ x }}", "${x}", "%{ x }", "#comment", "yes", "1e3", "0x1f", "null", "~", "two  blanks", "tab\there",
    "\u00fcml\u00e4ut \u6f22\u5b57 \U0001f600", "line\u2028separator", "bell\x07", "x" * 4000, "../../etc/passwd",
    "-rf", "<script>", "a\r\nb", "EOF", "---",
)  # fmt: skip
"""Titles that mean something to a shell, to YAML, HCL or a template."""
OF_TARGETS = (
    """a: b, - x *anchor &anchor !tag 'single' "double" \\ {{ x }} ${x} %{ x } $(rm -rf /) `id` <script> #comment""",
    "two\nlines\r\n---\nEOF\n- x", "../../etc/passwd", "-rf", "- *anchor", "!tag", "null", "1e3", "x" * 4000,
    "two  blanks \u00fcml\u00e4ut \u6f22\u5b57 \U0001f600 line\u2028separator bell\x07 tab\there",
)  # fmt: skip
"""The same, those together that mean something wherever they stand: what a target writes by itself breaks at one."""


def test_a_target_is_a_module_a_line_and_a_page() -> None:
    modules = {path.stem.replace("_", "-") for path in MODULES.glob("*.py")} - {"--init--"}
    pages = {path.stem for path in PAGES.glob("*.md")} - {"index"}
    assert modules == set(TARGETS) == pages


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_says_what_it_can_express_and_who_checks_it(name: str) -> None:
    target = TARGETS[name]
    assert set(target.tasks) <= {*TRAINING, *SERVING}
    assert all([target.tasks, target.summary, target.expresses, target.files, target.validator, target.version])


def test_every_setting_that_has_a_placeholder_is_an_option() -> None:
    assert set(PLACEHOLDERS) == set(options_of(ExportSettings)) - {"name"}
    assert len(set(PLACEHOLDERS.values())) == len(PLACEHOLDERS)


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_expresses_something_and_refuses_with_reasons(name: str) -> None:
    fits = expressible(name)
    assert fits, "no sample plan"
    for sample in set(WORKLOADS) - set(fits):
        with pytest.raises(InfeasibleError) as refused:
            sample_export(name, sample)
        assert refused.value.reasons
        assert all(reason.strip() for reason in refused.value.reasons)


@pytest.mark.parametrize("name", TARGETS)
def test_the_files_are_the_same_each_time_and_lie_below_the_folder(name: str) -> None:
    for sample in expressible(name):
        one, two = sample_export(name, sample), exported_plan(name, sample_deployment(sample))
        assert one == two
        assert one.files
        for path, text in one.files.items():
            assert not path.startswith("/")
            assert ".." not in path.split("/")
            assert text.endswith("\n"), path
        placeholders = {fill.text for fill in one.to_fill}
        for setting, text in PLACEHOLDERS.items():
            there = any(text in content for content in one.files.values())
            assert there == (text in placeholders), setting


def test_hostile_text_stays_text() -> None:
    """In each format that targets write with."""
    document = {"title": list(HOSTILE), **dict.fromkeys(HOSTILE, 1)}
    for text in (*HOSTILE, *OF_TARGETS):
        assert list(yaml.safe_load_all(yaml_text({"title": text}, [text]))) == [{"title": text}, [text]]
    assert yaml.safe_load(yaml_text(document)) == json.loads(json_text(document)) == document


def test_yaml_is_what_it_was_made_from() -> None:
    """Numbers of every size, blocks in lists, keys that are too long to stand beside their value."""
    numbers = [0, -7, 1e-9, 1.5e300, 1e22, math.inf, -math.inf, True, None]
    nested = [[1, [2, []], {"a": {}}], {"on": "a\nb\n", "b": ["c\nd", {"e": "f\n\n"}]}, [1, "é\u2028😀\x00"]]
    document = {"numbers": numbers, "nested": nested, "k" * 122: 1, "k " * 600: {"l": nested}}
    assert yaml.safe_load(yaml_text(document)) == document


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_names_stay_text(name: str) -> None:
    files = sample_export(name, expressible(name)[0], name="Harmless one").files
    parsed = [_parsed(path, text) for path, text in files.items()]
    harmless = [(_shape(values), "Harmless one" in set(_texts(values))) for values in parsed]
    for title in OF_TARGETS:
        hostile = exported_plan(name, sample_deployment(expressible(name)[0], name=title))
        for (path, text), (shape, named) in zip(hostile.files.items(), harmless, strict=True):
            assert ".." not in path.split("/")
            if text == files.get(path) and not named:  # has been read
                continue
            after = _parsed(path, text)
            assert _shape(after) == shape, (path, title)
            assert not named or title in set(_texts(after)), (path, title)


def _parsed(path: str, text: str) -> list[object] | None:
    """The values of a structured file; None of others."""
    if path.endswith((".yaml", ".yml")):
        return list(yaml.load_all(text, Loader=yaml.CSafeLoader))
    if path.endswith(".json"):
        return [json.loads(text)]
    if path.endswith(".toml"):
        return [tomllib.loads(text)]
    return None


def _shape(value: object) -> object:
    """Keys and types of a value, whatever its texts."""
    if isinstance(value, dict):
        return sorted((type(part).__name__, repr(_shape(part))) for part in value.values())
    if isinstance(value, list):
        return [_shape(part) for part in value]
    return type(value).__name__


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize(("target", "document"), [("vllm", SERVE), ("torchrun", PRETRAIN)])
def test_an_export_of_scripts_loads_neither_the_search_nor_yaml(
    target: str, document: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "plan.json").write_bytes(to_json(plan_of(document)))
    argv = ["export", target, str(tmp_path / "plan.json"), "-o", str(tmp_path / "files")]
    code = f"import sys\nfrom flopwise.cli import main\nmain({argv!r})\nsys.stderr.write(' '.join(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(ended.stderr.split()) & {
        "yaml", "flopwise.search.workload_file", "flopwise.search.layout_search", "flopwise.search.space",
        "flopwise.search.rank", "flopwise.training.estimate", "flopwise.serving.estimate",
    }  # fmt: skip
