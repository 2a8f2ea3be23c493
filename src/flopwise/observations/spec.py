"""The options of `observe`."""

from __future__ import annotations

from pathlib import Path

from flopwise import options
from flopwise.ops.spec import SharedSpec
from flopwise.options import Spec, option, same
from flopwise.values import dataclass


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveSpec(Spec):
    """Options of an observation: duration, interval between readings, and the file of the load generator."""

    seconds: float = option("--for", options.SECONDS, "How long to observe the engine.", default=60.0)
    interval_s: float = option("--every", options.SECONDS, "Time between two readings of its metrics.", default=1.0)
    load: Path | None = option("--load", options.FILE,
        "Result of a load generator with a record of each request: guidellm, vLLM's bench serve, AIPerf, genai-perf.")
    seed: int = same(SharedSpec, "seed", default=0)
    # fmt: on
