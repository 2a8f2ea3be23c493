"""The solver of fleets writes nothing where the answer goes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

EXISTING = Path(__file__).parents[2] / "examples" / "existing.yaml"


def test_standard_output_of_a_solved_fleet_is_its_json_alone() -> None:
    """In a process of its own: HiGHS prints its banner once a process, past Python."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "flopwise", "check", str(EXISTING), "--json"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert json.loads(done.stdout)["verdict"]
