"""Runs for tests."""

from __future__ import annotations

import secrets
from typing import Any

from flopwise.records.model import Run


def run_named(name: str, *, at_s: float = 1_700_000_000.0, **how: Any) -> Run:
    """A run of pre-training unless `how` says otherwise."""
    given: dict[str, Any] = {"run_id": secrets.token_hex(16), "name": name, "task": "pretrain", "started_at_s": at_s}
    return Run(**(given | how))
