"""Libraries that tests may lack: asked for without importing them, which takes seconds in each worker that collects."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(*names: str) -> pytest.MarkDecorator:
    """A mark that skips tests where a library is not installed."""
    missing = [name for name in names if find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")
