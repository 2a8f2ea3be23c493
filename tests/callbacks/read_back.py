"""What the tests of callbacks share: a store that is read back, and tiny models."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flopwise.records.model import Event, Run
from flopwise.records.store import Store, open_store

SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 500,
    "max_position_embeddings": 256,
}  # fmt: skip
"""Of a model that trains in milliseconds, in the words of transformers."""


@dataclass(frozen=True)
class Recorded:
    """A run as it stands in a store."""

    store: Store
    run: Run

    @classmethod
    def of(cls, path: Path, key: str | None = None) -> Recorded:
        store = open_store(path)
        return cls(store, store.runs()[0] if key is None else store.run(key))

    def values(self, metric: str, device: str = "") -> Any:
        return np.asarray(self.store.samples(self.run.run_id, metric, device).value)

    def steps(self, metric: str) -> list[int]:
        return [int(step) for step in self.store.samples(self.run.run_id, metric).step]

    @property
    def events(self) -> list[Event]:
        return self.store.events(self.run.run_id)

    def texts(self, kind: str) -> list[str]:
        return [event.text for event in self.events if event.kind == kind]


def busy(seconds: float) -> None:
    """Take time."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
