"""What this machine sustains, measured on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flopwise.facts.spec import SourceSpec
from flopwise.keywords import takes
from flopwise.options import take
from flopwise.probes.spec import ProbeSpec

if TYPE_CHECKING:
    from flopwise.probes.file import Probe


@takes(ProbeSpec, SourceSpec)
def probe(progress: Callable[[float, float, str], object] | None = None, **options: Any) -> Probe:
    """Measure this machine: through PyTorch where it is installed, else the processor through NumPy.

    An operation that fails is an entry with its reason.

    Args:
        progress: called with (seconds done, seconds in all, what comes next).

    Raises:
        SpecError: there is no such device, or a value cannot be.
        InfeasibleError: nothing could be measured.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.probe(quick=True, only=["launch"], device=["cpu"])
        >>> len(answer.measurements) > 0
        True
    """
    from flopwise.probes import measure

    spec, source = take(options, ProbeSpec, SourceSpec)
    return measure.probe(spec, source.catalog, progress or (lambda *_: None))
