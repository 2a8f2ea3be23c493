"""What goes into the program for each way."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from flopwise.fleet.allocate import with_carbon

sys.path.insert(0, str(Path(__file__).parent))
from options import option


def test_unknown_power_is_no_cleaner_than_what_is_known() -> None:
    kilograms = [(0, 100.0), (0, 10.0), (0, None), (1, None), (2, 50.0)]
    options = [replace(option(workload, "aws", 1.0, 2), kg=kg) for workload, kg in kilograms]
    weighed = [made.kg_each for made in with_carbon(options)]
    assert weighed == pytest.approx([50.0, 5.0, 50.0, 0.0, 25.0]), "of two instances each; nothing of 1 is known"
