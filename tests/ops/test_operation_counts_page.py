"""The page on operation counts says what is so."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operation-counts.md").read_text()


def test_its_example_runs() -> None:
    [block] = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(block, "operation-counts.md", "exec"), {})  # noqa: S102 - our own page


def test_its_figures_are_those_of_the_records() -> None:
    flops = json.loads((ROOT / "tests" / "oracle" / "flops.json").read_text())["cases"]
    kinds = {case["config"]["model_type"] for case in flops.values()}
    assert f"{len(flops)}\nconfigurations of {len(kinds)} model types" in PAGE
    kept = json.loads((ROOT / "tests" / "oracle" / "activations.json").read_text())
    assert f"for {len(kept['configs'])} families" in PAGE
    assert f"{len(kept['rows'])} cases" in PAGE
