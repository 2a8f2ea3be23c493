"""Recording runs while they go on: a callback for each training library, a plain context manager, and serving.

Importing the package loads none of the libraries: each comes with the first use of what needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "record": "loop",
    "TrainingRecorder": "recorder",
    "BudgetReachedError": "recorder",
    "RecordingSpec": "settings",
    "FlopwiseCallback": "trainer",
    "FlopwiseLightningCallback": "lightning",
    "RecordingMiddleware": "asgi",
    "EngineRecorder": "engine",
    "find_batch_size": "batch_size",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use.

    Raises: SpecError: the library that it needs is not installed; says how to install it.
    """
    if name not in _HOMES:
        raise AttributeError(f"module 'flopwise.callbacks' has no attribute {name!r}; it has {', '.join(_HOMES)}")
    value = getattr(import_module(f"flopwise.callbacks.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted(__all__)
