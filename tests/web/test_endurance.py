"""The load benchmark fails where a server leaks, hangs, or answers with a defect: with a server that does not, too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from on_page import served

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
web_speed = pytest.importorskip("web_speed")
MIB = 2**20


def test_a_server_endures_mixed_requests() -> None:
    with served() as address:
        ends = web_speed.afternoon(address, 40)
        assert sum(ends.values()) == 40
        assert {"200", "400", "aborted", "slow"} == set(ends)
        assert web_speed.endured(address, ends, 300 * MIB, 301 * MIB) == []


def test_what_a_server_does_not_endure_is_said() -> None:
    ends = {"200": 7, "503": 2, "no answer in time (ReadTimeout)": 1}
    with served() as address:
        found = web_speed.endured(address, ends, 300 * MIB, 400 * MIB)
    assert found == [
        "2 requests ended with 503",
        "1 requests ended with no answer in time (ReadTimeout)",
        "its memory grew by 100 MiB, more than 64: what leaks?",
    ]
    (silent,) = web_speed.endured(address, {"200": 7}, 0, 0)  # it has ended
    assert silent.startswith("it does not answer any more")


def test_a_server_that_is_not_there_has_no_answer() -> None:
    with served() as address:
        pass
    ends = web_speed.afternoon(address, 6)
    assert set(ends) <= {"no answer (ConnectError)", "no answer (ConnectionRefusedError)"}
    assert len(web_speed.endured(address, ends, 0, 0)) == 1 + len(ends)
