"""The step after which all ranks of a run end together."""

from __future__ import annotations

import sys
from typing import Any

ASK_EVERY = 10
"""Steps after which a rank asks whether the run is to end; ranks are never as many steps apart."""


class Agreement:
    """All ranks end after the same step: one that stopped alone would leave the others waiting for it for ever.

    Rank 0 writes the number of a step that none has reached into the store that ranks met at; every rank asks for it
    now and then. That costs a message of the host, and no GPU waits.
    """

    _made = 0

    def __init__(self, num_ranks: int, rank: int) -> None:
        """Alone, a rank agrees with itself at once."""
        self._num_ranks, self._rank = num_ranks, rank
        Agreement._made += 1  # alike on all ranks, which make theirs in the same order
        self._key = f"flopwise/last_step/{Agreement._made}"
        self.last_step: int | None = None
        """Of all ranks, once they have agreed."""

    def _store(self) -> Any | None:
        """Where the ranks met; None where they do not talk to one another."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return None
        return torch.distributed.distributed_c10d._get_default_store()  # noqa: SLF001 - there is no other way to it

    def agree(self, step: int, *, wants_end: bool) -> None:
        """After `step`: rank 0 names the last step where it wants the end, the others hear of it now and then."""
        if self.last_step is not None:
            return
        if self._rank == 0 and wants_end:
            store = self._store() if self._num_ranks > 1 else None
            if store is None:
                self.last_step = step
            else:
                self.last_step = (step // ASK_EVERY + 2) * ASK_EVERY
                store.set(self._key, str(self.last_step))
        elif self._rank and step % ASK_EVERY == 0:
            store = self._store()
            if store is not None and store.check([self._key]):
                self.last_step = int(store.get(self._key))
