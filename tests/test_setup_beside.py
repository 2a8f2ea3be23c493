"""Tests wait for what make installs beside them, and no longer."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import setup_beside


def test_a_test_waits_until_make_is_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    monkeypatch.setattr(setup_beside, "_STATE", str(state))
    waiting = threading.Thread(target=setup_beside.wait_for_setup, daemon=True)
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    assert setup_beside.setup_state() == "running"
    state.write_text("done\n")
    waiting.join(30)
    assert not waiting.is_alive()


def test_what_failed_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    state.write_text("failed\n")
    monkeypatch.setattr(setup_beside, "_STATE", str(state))
    with pytest.raises(pytest.fail.Exception, match="beside the tests has failed"):
        setup_beside.wait_for_setup()


def test_where_nobody_installs_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_beside, "_STATE", None)
    assert setup_beside.setup_state() == "done"
