"""Degrees of parallelism: how they are said, and what a model allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flopwise import options, units
from flopwise.errors import SpecError
from flopwise.options import Spec, option

if TYPE_CHECKING:
    from flopwise.facts.architecture import Model


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class DegreesSpec(Spec):
    """What training and serving share. Source: the field's terms. Assumes: nothing."""

    tp: int | None = option("--tp", options.DEGREE, "Tensor-parallel degree.", section="Layout")
    pp: int | None = option("--pp", options.DEGREE, "Pipeline stages.", section="Layout")
    ep: int | None = option(
        "--ep", options.DEGREE, "Expert-parallel degree (within dp x cp in training, tp x dp in serving).",
        section="Layout",
    )
    dp: int | None = option(
        "--dp", options.DEGREE, "Data-parallel replicas; in serving, attention replicas that share the experts.",
        section="Layout",
    )
    expert_skew: float | None = option(
        "--expert-skew", options.quantity("x", units.parse_count, low=1.0, closed=True),
        "Tokens of the most popular expert over the mean of all (1 + MaxVio; default: 1, balanced).",
    )
# fmt: on


def heads_and_experts(model: Model) -> tuple[int | None, int | None]:
    """Attention heads and routed experts of the model's first stack; None where it has none.

    Source: the model's configuration. Assumes: all layers of the stack are alike.
    """
    from flopwise.facts.architecture import Attend, Experts

    items = [item for kind in model.stacks[0].kinds for item in kind.items]
    heads = min((i.heads for i in items if isinstance(i, Attend)), default=None)
    return heads, max((i.experts for i in items if isinstance(i, Experts)), default=None)


def divisors(number: int) -> str:
    """The numbers that divide `number`, for messages: the small ones, and itself.

    Source: arithmetic. Assumes: nothing.
    """
    found = [d for d in range(1, min(number, 256) + 1) if number % d == 0]
    return ", ".join(map(str, found if found[-1] == number else [*found, number]))


def check_degrees(model: Model, tp: int, pp: int, ep: int) -> None:
    """Refuse degrees that the model's heads, layers and experts do not allow.

    Source: how frameworks cut a layer: whole heads and whole experts to a rank, whole layers to a stage.
    Assumes: degrees are at least 1.

    Raises:
        SpecError: says which degree, and what would do.
    """
    heads, experts = heads_and_experts(model)
    if heads is not None and heads % tp:
        raise SpecError(f"tp {tp} does not divide the {heads} attention heads of {model.name}; use {divisors(heads)}")
    if ep > 1 and experts is None:
        raise SpecError(f"ep {ep}: {model.name} has no experts; leave expert parallelism out")
    if experts is not None and experts % ep:
        raise SpecError(f"ep {ep} does not divide the {experts} experts of {model.name}; use {divisors(experts)}")
    check_stages_fit(model, pp)


def check_stages_fit(model: Model, pp: int) -> None:
    """Refuse more pipeline stages than layers. Source: a stage has a layer at least. Assumes: nothing.

    Raises:
        SpecError: says how many there can be.
    """
    layers = model.stacks[0].num_layers
    if pp > layers:
        raise SpecError(f"pp {pp} is more than the {layers} layers of {model.name}; use at most {layers}")


def check_expert_ranks(ep: int, ranks: int, named: str) -> None:
    """Refuse expert-parallel degrees that do not divide the `ranks` which experts are spread over (`named` dp x cp ...).

    Source: how frameworks form expert-parallel groups. Assumes: nothing.

    Raises:
        SpecError: says what the degree has to divide.
    """
    if ranks % ep:
        raise SpecError(f"ep {ep} does not divide {named} = {ranks}, the ranks that experts are spread over")
