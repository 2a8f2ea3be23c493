"""The tables of docs/questions/watch.md that come from code: rules of the diagnosis, and metrics that are served."""

from __future__ import annotations

import re
from pathlib import Path

from flopwise.telemetry.diagnosis import RULES
from flopwise.telemetry.exposition import SERVED

PAGE = Path(__file__).parent / "questions" / "watch.md"


def page() -> str:
    """The page with its tables as of now."""
    text = PAGE.read_text(encoding="utf-8")
    for name, rows in (("rules", _rules()), ("metrics", _metrics())):
        table = "\n".join(rows)
        mark = rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)"
        text = re.sub(mark, lambda found, table=table: f"{found[1]}\n{table}\n\n{found[2]}", text, flags=re.DOTALL)  # type: ignore[misc]
    return text


def _rules() -> list[str]:
    rows = ["| bound | when | conditions |", "|---|---|---|"]
    for rule in RULES:
        conditions = ", ".join(f"`{c.measure}` {c.sign} {c.threshold:g}" for c in rule.conditions)
        rows.append(f"| {rule.bound} | {rule.name}{'' if rule.certain else ' *(less certain)*'} | {conditions} |")
    return rows


def _metrics() -> list[str]:
    rows = ["| metric | labels | |", "|---|---|---|"]
    return [*rows, *(f"| `{m.name}` | {', '.join(m.labels)} | {m.meaning} |" for m in SERVED)]
