"""What a deployment does besides running the model as it is, as people say it, and where it starts from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flopwise.errors import SpecError
from flopwise.serving.asked import Asked, Place

if TYPE_CHECKING:
    from flopwise.api.memory import Deployment
    from flopwise.facts.accelerators import Accelerator
    from flopwise.facts.architecture import Model
    from flopwise.facts.storage import Storage
    from flopwise.serving.techniques import Techniques


@dataclass(frozen=True, slots=True, kw_only=True)
class Features(Asked):
    """Techniques of serving, and what a replica is started from; None: not used, or the usual."""

    storage: str | None = None  # kind that weights are read from at a cold start
    storage_bytes_per_s: float | None = None  # measured by the user instead
    image_bytes: float | None = None  # container image, where it must be pulled
    image_bytes_per_s: float | None = None

    def techniques(
        self, model: Model, asked: Deployment, chip: Accelerator, facts: Path | str | None = None, *,
        assume_family: str | None = None, offline: bool = False,
    ) -> Techniques:  # fmt: skip
        """The same, looked up; the last three as `flopwise.api.machines.loaded` takes them.

        Raises:
            SpecError: a value that cannot be, or one that goes with another that is not given.
            UnknownNameError: no such draft model or processor.
        """
        from flopwise.api.machines import loaded

        self.check_start()
        folder = None if facts is None else Path(facts)
        place = Place(tp=asked.tp, weights=asked.weights, engine=asked.engine, chip=chip, facts=folder)
        return self.looked_up(
            model, place, lambda name: loaded(name, assume_family=assume_family, offline=offline, facts=facts)
        )

    def check_start(self) -> None:
        """Refuse what a replica cannot be started from.

        Raises:
            SpecError: says which value, and what goes with it.
        """
        if (self.image_bytes is None) != (self.image_bytes_per_s is None):
            raise SpecError("the image's size and bandwidth go together")
        for name in ("storage_bytes_per_s", "image_bytes", "image_bytes_per_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise SpecError(f"{name} {value} is out of range; give a finite number above 0")

    def kind_of_storage(self, facts: Path | None) -> Storage:
        """Where weights are read from at a start.

        Raises:
            UnknownNameError: no such kind.
        """
        from flopwise.facts.storage import Storage, storage
        from flopwise.serving.startup import DEFAULT_STORAGE

        if self.storage_bytes_per_s is None:
            return storage(self.storage or DEFAULT_STORAGE, facts)
        if self.storage is not None:
            raise SpecError("a kind of storage and a bandwidth are both given; give one")
        return Storage(name="given", read_bytes_per_s=self.storage_bytes_per_s, source="given", date="")
