"""What can be said of several subjects alike: degrees of parallelism, the load of experts, deadlines, checkpoints."""

from __future__ import annotations

from flopwise import options, units
from flopwise.options import Spec, option
from flopwise.values import dataclass


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSpec(Spec):
    """Options that several subjects share; each takes those that it has a use for."""

    gpus: int | None = option(
        "--gpus", options.DEGREE,
        "Number of accelerators (default: one; of a service those of one replica, for storage a whole node).")
    batch: int | None = option("--batch", options.BATCH, "Sequences, or samples, of one pass.")
    efficiency: float | None = option(
        "--efficiency", options.FRACTION, "Achieved share of the datasheet's rates: 0.4, 40% (default: estimated).")
    tp: int | None = option("--tp", options.DEGREE, "Tensor-parallel degree.", section="Layout")
    pp: int | None = option("--pp", options.DEGREE, "Pipeline stages.", section="Layout")
    ep: int | None = option(
        "--ep", options.DEGREE, "Expert-parallel degree (within dp x cp in training, tp x dp in serving).",
        section="Layout")
    dp: int | None = option(
        "--dp", options.DEGREE, "Data-parallel replicas; in serving, attention replicas that share the experts.",
        section="Layout")
    expert_skew: float | None = option(
        "--expert-skew", options.quantity("x", units.parse_count, low=1.0, closed=True),
        "Tokens of the most popular expert over the mean of all (1 + MaxVio; default: in training 1, balanced, in "
        "serving as measured).")
    checkpoint_every: float | None = option(
        "--checkpoint-every", options.SECONDS,
        "Time between checkpoints (default: in training the one that loses least, in a queue never).")
    deadline: float | None = option(
        "--deadline", options.SECONDS,
        "Time within which the run (with the start of its machines), or the queue, is done: 6h, 30d.")
    seed: int = option("--seed", options.WHOLE_OR_ZERO, "Random seed: the same seed gives the same run.", default=0)
# fmt: on
