"""Degrees of parallelism that a model's layers allow."""

from __future__ import annotations

from flopwise.errors import SpecError
from flopwise.facts.architecture import Model


def heads_and_experts(model: Model) -> tuple[int | None, int | None]:
    """Attention heads and routed experts of the model's first stack; None where it has none.

    Source: the model's layers. Assumes: layers with fewer heads than others decide.
    """
    stack = model.stacks[0]
    return stack.fewest_heads, None if stack.largest_experts is None else stack.largest_experts.experts


def check_tensor_parallel(model: Model, tp: int) -> None:
    """Refuse `tp` ranks that cannot share the model's attention heads.

    Source: Megatron-LM (arXiv:1909.08053) section 3: whole heads. Assumes: key-value heads may be replicated.
    Raises: SpecError: says which degrees divide the heads.
    """
    heads, _ = heads_and_experts(model)
    if heads is not None and heads % tp:
        allowed = divisor_list(heads)
        raise SpecError(f"tp {tp} does not divide the {heads} attention heads of {model.name}; use {allowed}")


def check_expert_parallel(model: Model, ep: int, redundant: int = 0) -> None:
    """Refuse `ep` ranks that cannot share the model's experts, and `redundant` copies of them.

    Source: Megatron-LM and vLLM: whole experts, as many on each rank; SGLang, --ep-num-redundant-experts.
    Assumes: copies are of any experts.
    Raises: SpecError: says which degrees divide the experts.
    """
    _, experts = heads_and_experts(model)
    if ep > 1 and experts is None:
        raise SpecError(f"ep {ep}: {model.name} has no experts; leave expert parallelism out")
    if redundant and (experts is None or ep == 1):
        raise SpecError(f"{redundant} redundant experts go with experts that are spread over ranks (--ep)")
    if experts is not None and (experts + redundant) % ep:
        copies = f" and {redundant} copies" if redundant else ""
        allowed = divisor_list(experts + redundant)
        raise SpecError(f"ep {ep} does not divide the {experts} experts{copies} of {model.name}; use {allowed}")


def check_pipeline(model: Model, pp: int) -> None:
    """Refuse more pipeline stages than layers.

    Source: definition. Assumes: a stage has a layer at least.
    Raises: SpecError: says how many layers there are.
    """
    layers = model.stacks[0].num_layers
    if pp > layers:
        raise SpecError(f"pp {pp} is more than the {layers} layers of {model.name}; use at most {layers}")


def divisor_list(number: int) -> str:
    """The numbers that divide `number`, as text: those up to 256, and itself.

    Source: definition. Assumes: a message needs no more of them.
    """
    divisors = [d for d in range(1, min(number, 256) + 1) if number % d == 0]
    return ", ".join(map(str, divisors if divisors[-1] == number else [*divisors, number]))


def check_expert_ranks(ep: int, ranks: int, named: str) -> None:
    """Refuse expert-parallel degrees that do not divide the `ranks` that experts are spread over (`named` dp x cp ...).

    Source: how frameworks form groups of experts. Assumes: groups are alike.
    Raises: SpecError: says what the degree has to divide.
    """
    if ranks % ep:
        raise SpecError(f"ep {ep} does not divide {named} = {ranks}: experts are spread over these ranks")
