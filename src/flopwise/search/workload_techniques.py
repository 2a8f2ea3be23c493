"""The techniques of a workload file in base units."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flopwise.errors import SpecError
from flopwise.serving.technique_request import TechniqueRequest
from flopwise.units import parse_count, parse_whole

if TYPE_CHECKING:
    from flopwise.search.workload import Techniques

SHARES = ("prefix_hit", "kv_keep", "acceptance", "offload_weights")
COUNTS = {"shared_prefix": (1, 10**9), "draft_tokens": (1, 64), "gpu_layers": (0, 100_000)}


def asked_techniques(section: Techniques) -> TechniqueRequest:
    """The section as it is looked up.

    Raises:
        SpecError: a value that cannot be, or one without what it goes with; starts with the key's path.
    """
    given: dict[str, Any] = {name: getattr(section, name) for name in ("draft", "draft_weights", "host")}
    for name in SHARES:
        given[name] = _share(getattr(section, name), f"techniques.{name}")
    for name, (low, high) in COUNTS.items():
        value = getattr(section, name)
        given[name] = None if value is None else parse_whole(value, f"techniques.{name}", low=low, high=high)
    skew = section.expert_skew
    given["expert_skew"] = None if skew is None else parse_count(skew, "techniques.expert_skew")
    asked = TechniqueRequest(**given)
    try:
        asked.check()
    except SpecError as error:
        raise SpecError(f"techniques: {error}") from None
    return asked


def _share(value: Any, what: str) -> float | None:
    """`0.4` or `40%`, from 0 to 1."""
    if value is None:
        return None
    text = str(value).strip()
    share = parse_count(text[:-1], what) / 100 if text.endswith("%") else parse_count(value, what)
    if not 0 <= share <= 1:
        raise SpecError(f"{what}: a share from 0 to 1 (or 0% to 100%), not {value}")
    return share
