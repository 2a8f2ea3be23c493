from __future__ import annotations

import copy
from typing import Any

import pytest
from dashboards import grafana
from tools import RefusedError

QUERY = 'rate(vllm:request_success_total{job="$job"}[$__rate_interval])'
STEPS = [{"color": "green", "value": None}, {"color": "red", "value": 0.9}]
SOURCE = {"type": "prometheus", "uid": "${source}"}


def _panel(number: int, x: int, **other: Any) -> dict[str, Any]:
    return {
        "id": number, "title": f"Panel {number}", "type": "timeseries", "datasource": SOURCE,
        "gridPos": {"x": x, "y": 0, "w": 12, "h": 8},
        "targets": [{"refId": "A", "expr": QUERY, "legendFormat": "x"}],
        "fieldConfig": {
            "defaults": {
                "unit": "percentunit", "min": 0, "custom": {"thresholdsStyle": {"mode": "line"}},
                "thresholds": {"mode": "absolute", "steps": STEPS},
            },
            "overrides": [],
        },
    } | other  # fmt: skip


BOARD: dict[str, Any] = {
    "uid": "flopwise-chat", "title": "chat", "schemaVersion": 41, "timezone": "utc", "refresh": "30s",
    "tags": ["flopwise"], "time": {"from": "now-6h", "to": "now"},
    "templating": {
        "list": [
            {"name": "source", "type": "datasource", "query": "prometheus"},
            {"name": "job", "type": "query", "query": "label_values(job)", "datasource": SOURCE},
        ]
    },
    "panels": [_panel(1, 0), _panel(2, 12, type="stat")],
}  # fmt: skip


def test_a_dashboard() -> None:
    grafana(BOARD)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("panel", [], "not known"),
        ("title", 5, "title"),
        ("uid", "a b", "uid"),
        ("schemaVersion", "41", "schema_version"),
        ("panels", [], "no panels"),
        ("panels.0.titel", "x", "not known"),
        ("panels.0.id", 2, "ids of their own"),
        ("panels.0.gridPos", {"x": 13, "y": 0, "w": 12, "h": 8}, "no place"),
        ("panels.0.gridPos", {"x": 4, "y": 7, "w": 12, "h": 8}, "overlap"),
        ("panels.0.fieldConfig.defaults.unit", 5, "unit"),
        ("panels.0.fieldConfig.defaults.custom", {"thresholdStyle": {}}, "not known"),
        ("panels.0.fieldConfig.defaults.thresholds.steps.0.value", 1, "rise"),
        ("panels.0.fieldConfig.defaults.thresholds.mode", "relative", "mode"),
        ("panels.0.targets.0.expression", "up", "not known"),
        ("panels.0.targets.0.expr", "rate(up)", "expected type range vector"),
        ("panels.0.targets.0.expr", "up{", "parse error"),
        ("panels.0.targets.0.expr", "up > $threshold", "no variable"),
        ("panels.0.targets", [], "no query"),
        ("panels.0.targets", [{"expr": "up"}], "refId"),
        ("templating.list.0.type", "source", "type"),
    ],
)
def test_dashboards_that_are_refused(path: str, value: Any, message: str) -> None:
    board = copy.deepcopy(BOARD)
    *parents, last = path.split(".")
    part: Any = board
    for name in parents:
        part = part[int(name)] if isinstance(part, list) else part[name]
    part[last] = value
    with pytest.raises(RefusedError) as refused:
        grafana(board)
    assert message in str(refused.value)
