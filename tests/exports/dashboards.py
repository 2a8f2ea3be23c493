"""What Grafana makes of a dashboard: the model of its Foundation SDK, read strictly, and PromQL by promtool."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import re
import tempfile
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import yaml
from tools import RefusedError, need
from validators import promtool_rules

COLUMNS = 24
"""Width of a dashboard's grid."""
BUILT_IN = {"__rate_interval": "5m", "__interval": "1m", "__range": "1h", "__range_s": "3600", "__interval_ms": "60000"}


def grafana(document: Mapping[str, Any]) -> None:
    """A dashboard of Grafana: every key known and of its type, panels that don't overlap, queries that parse."""
    need(importlib.util.find_spec("grafana_foundation_sdk") is not None, "grafana-foundation-sdk", "make dev")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    try:
        board = Dashboard.from_json(dict(document))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RefusedError(f"no dashboard: {error!r}") from error
    back = json.loads(json.dumps(board, cls=JSONEncoder))
    faults = [*_lost(document, back, "dashboard"), *_mistyped(board, "dashboard"), *_layout_faults(document)]
    if not faults:
        faults += _query_faults(document)
    if faults:
        raise RefusedError("\n".join(faults))


def _lost(given: Any, kept: Any, place: str) -> Iterator[str]:
    """What the model does not know: keys and values that do not come back."""
    if isinstance(given, Mapping) and isinstance(kept, Mapping):
        for key, value in given.items():
            if key not in kept:
                yield f"{place}.{key}: not known"
            else:
                yield from _lost(value, kept[key], f"{place}.{key}")
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for index, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from _lost(one, other, f"{place}.{index}")
    elif given != kept:
        yield f"{place}: {given!r} is read as {kept!r}"


_type_hints: Callable[[type], dict[str, Any]] = functools.cache(typing.get_type_hints)


def _mistyped(value: Any, place: str) -> Iterator[str]:
    for name, hint in _type_hints(type(value)).items():
        part = getattr(value, name)
        if not _is_of(part, hint):
            yield f"{place}.{name}: {part!r} is no {hint}"
        for inner in part if isinstance(part, list) else part.values() if isinstance(part, dict) else [part]:
            if type(inner).__module__.startswith("grafana_foundation_sdk") and not isinstance(inner, Enum):
                yield from _mistyped(inner, f"{place}.{name}")


def _is_of(value: Any, hint: Any) -> bool:
    parts = typing.get_args(hint)
    match typing.get_origin(hint):
        case typing.Union | types.UnionType:
            answer = any(_is_of(value, part) for part in parts)
        case origin if origin is list:
            answer = isinstance(value, list) and all(_is_of(one, parts[0]) for one in value)
        case origin if origin is dict:
            answer = isinstance(value, dict) and all(_is_of(one, parts[1]) for one in value.values())
        case typing.Literal:
            answer = value in parts
        case _:
            answer = hint in {typing.Any, object} or _is_plainly(value, hint)
    return answer


def _is_plainly(value: Any, hint: type) -> bool:
    if issubclass(hint, Enum):
        return value in {member.value for member in hint}
    if hint in {int, float}:
        return isinstance(value, int | hint) and not isinstance(value, bool)
    return isinstance(value, hint)


def _panels(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    rows = document.get("panels", [])
    return [*rows, *(panel for row in rows for panel in row.get("panels", []))]


def _layout_faults(document: Mapping[str, Any]) -> Iterator[str]:
    panels = _panels(document)
    if not (document.get("uid") and re.fullmatch(r"[A-Za-z0-9_-]{1,40}", document["uid"])):
        yield f"uid: {document.get('uid')!r} is none"
    if not document.get("title") or not panels:
        yield "no title, or no panels"
    numbers = [panel.get("id") for panel in panels]
    if None in numbers or len(set(numbers)) < len(numbers):
        yield f"panels need ids of their own: {numbers}"
    for panel in panels:
        place = panel.get("gridPos") or {}
        if place.keys() < {"x", "y", "w", "h"} or not 0 <= place["x"] < place["x"] + place["w"] <= COLUMNS:
            yield f"panel {panel.get('title')!r} has no place in {COLUMNS} columns: {place}"
            return
    for one, other in itertools.combinations(document["panels"], 2):
        if _overlap(one["gridPos"], other["gridPos"]):
            yield f"panels {one['title']!r} and {other['title']!r} overlap"
    for panel in panels:
        yield from _threshold_faults(panel)


def _overlap(one: Mapping[str, int], other: Mapping[str, int]) -> bool:
    return all(one[at] < other[at] + other[size] and other[at] < one[at] + one[size] for at, size in ("xw", "yh"))


def _threshold_faults(panel: Mapping[str, Any]) -> Iterator[str]:
    steps = panel.get("fieldConfig", {}).get("defaults", {}).get("thresholds", {}).get("steps", [])
    values = [step.get("value") for step in steps]
    if steps and (values[0] is not None or values[1:] != sorted(values[1:])):
        yield f"panel {panel.get('title')!r}: thresholds start without a value and rise, not {values}"


def _query_faults(document: Mapping[str, Any]) -> Iterator[str]:
    variables = {one["name"]: one["type"] for one in document.get("templating", {}).get("list", [])}
    rules: list[dict[str, str]] = []
    for panel in _panels(document):
        targets = panel.get("targets", [])
        if panel["type"] not in {"row", "text"} and not targets:
            yield f"panel {panel['title']!r} has no query"
        names = [target.get("refId") for target in targets]
        if None in names or len(set(names)) < len(names):
            yield f"panel {panel['title']!r}: queries need a refId of their own"
        for target in targets:
            expression = _filled_in(target.get("expr", ""), variables)
            rules.append({"record": f"panel:{panel['id']}:{len(rules)}", "expr": expression})
    yield from _promql_faults(rules)


def _filled_in(expression: str, variables: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in BUILT_IN and name not in variables:
            raise RefusedError(f"${name} is no variable of the dashboard: {expression}")
        return BUILT_IN.get(name, "5m" if variables.get(name) == "interval" else "x")

    return re.sub(r"\$(?:\{(\w+)(?::\w+)?\}|(\w+))", value, expression)


def _promql_faults(rules: Sequence[Mapping[str, str]]) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "queries.yml"
        path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": [dict(rule) for rule in rules]}]}))
        try:
            promtool_rules(path)
        except RefusedError as error:
            yield str(error)
