from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from flopwise.cli.output import write_document
from flopwise.results import plain


class Bound(Enum):
    MEMORY = "memory"


@dataclass(frozen=True)
class Estimate:
    step_s: float
    peak: object


@pytest.mark.parametrize(
    ("value", "document"),
    [
        (float("nan"), None),
        (float("-inf"), None),
        (np.float32(0.5), 0.5),
        (np.float64("inf"), None),
        (np.int64(2**40), 2**40),
        (np.bool_(1), True),
        (np.array([1.0, np.nan]), [1.0, None]),
        (np.array(3), 3),
        (Bound.MEMORY, "memory"),
        (Path("a/b"), "a/b"),
        (Estimate(1.0, MappingProxyType({"bf16": np.inf})), {"step_s": 1.0, "peak": {"bf16": None}}),
        ({1: (True, None)}, {"1": [True, None]}),
        (frozenset(["x"]), ["x"]),
    ],
)
def test_any_result_is_json(value: object, document: object) -> None:
    assert plain(value) == document
    assert type(plain(value)) is type(document)


def test_exactly_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    write_document({"µ": [1, float("nan")]})
    out = capsys.readouterr().out
    assert json.loads(out) == {"µ": [1, None]}
    assert out.isascii()
