"""Every file of every target stands before the strictest reader of its kind; a kind without one fails."""

from __future__ import annotations

import ast
import json
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml
from dashboards import grafana
from export_samples import expressible, sample_export
from tools import RefusedError
from validators import alertmanager, kubernetes, promtool_config, promtool_rules, promtool_test, shell, terraform

from flopwise.exports.targets import TARGETS

# targets share files, and samples too: each text is read once
shell, terraform, kubernetes = cache(shell), cache(terraform), cache(kubernetes)
PLAIN = {"", ".md", ".txt", ".csv", ".tmpl", ".conf"}
"""Suffixes of files for people, and of those whose readers are in no registry."""
YAML_KINDS: Mapping[str, Callable[[Path], object]] = {
    "groups": promtool_rules, "scrape_configs": lambda path: promtool_config(path, rules_elsewhere=True),
    "receivers": alertmanager, "rule_files": promtool_test,
}  # fmt: skip
"""What reads a YAML document that has a key; a configuration of Prometheus has that of its tests, too."""


def written(files: Mapping[str, str], folder: Path) -> Path:
    """The folder with the files in it."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


def faults(files: Mapping[str, str], folder: Path) -> Iterator[str]:
    """What the readers of files complain of; the files lie in `folder`."""
    for path in sorted(files):
        try:
            _read(folder / path, files[path])
        except RefusedError as error:
            yield f"{path}: {error}"
    modules = defaultdict[PurePosixPath, list[str]](list)
    for path, text in files.items():
        if path.endswith(".tf"):
            modules[PurePosixPath(path).parent].append(text)
    for place, texts in sorted(modules.items()):
        try:
            terraform("\n".join(texts))
        except RefusedError as error:
            yield f"{place}: {error}"


def _read(path: Path, text: str) -> None:
    readers: Mapping[str, Callable[[str], object]] = {
        ".sh": shell, ".sbatch": shell, ".py": ast.parse, ".toml": tomllib.loads, ".json": _json, ".jsonl": _lines,
        ".tf": str, ".example": terraform,  # the first by folders
    }  # fmt: skip
    if path.name == "Makefile":
        subprocess.run(["make", "-n", "-f", path], cwd=path.parent, check=True, capture_output=True)  # noqa: S607
    elif path.suffix in {".yaml", ".yml"}:
        _yaml(path, text)
    elif path.suffix not in PLAIN:
        if path.suffix not in readers:
            raise RefusedError(f"nothing reads {path.suffix}")
        readers[path.suffix](text)


@cache
def _json(text: str) -> None:
    document = json.loads(text)
    if isinstance(document, dict) and "panels" in document:
        grafana(document)


def _lines(text: str) -> None:
    for line in text.splitlines():
        json.loads(line)


def _yaml(path: Path, text: str) -> None:
    documents: list[Any] = list(yaml.load_all(text, Loader=yaml.CSafeLoader))
    keys = set[str]().union(*(document for document in documents if isinstance(document, dict)))
    if {"apiVersion", "kind"} <= keys:
        kubernetes(text)
    else:
        reader = next((YAML_KINDS[key] for key in sorted(keys & YAML_KINDS.keys(), key=list(YAML_KINDS).index)), None)
        if reader is not None:
            reader(path)


@pytest.mark.parametrize("target", TARGETS)
def test_what_a_target_exports(target: str, tmp_path: Path) -> None:
    for sample in expressible(target):
        files = sample_export(target, sample).files
        assert not list(faults(files, written(files, tmp_path / sample)))


@pytest.mark.parametrize(
    ("path", "text", "complaint"),
    [
        ("a/run.sh", "cd $1\n", "shellcheck"),
        ("main.tf", "a = var.b\n", "undeclared"),
        ("pod.yaml", "apiVersion: v1\nkind: Pod\n", "metadata"),
        ("rules.yml", "groups: [{name: a, rules: [{record: b, expr: up(}]}]\n", "promtool"),
        ("board.json", '{"panels": []}', "no panels"),
        ("program.exe", "", "nothing reads"),
    ],
)
def test_files_that_are_refused(path: str, text: str, complaint: str, tmp_path: Path) -> None:
    files = {path: text}
    (fault,) = faults(files, written(files, tmp_path))
    assert complaint in fault
