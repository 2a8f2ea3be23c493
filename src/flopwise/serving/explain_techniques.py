"""Where the figures of techniques and of cold starts come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.origin import COUNTED, total
from flopwise.provenance import Figure, derived, fact, given
from flopwise.serving.techniques import prefix_tokens, tokens_a_round

if TYPE_CHECKING:
    from flopwise.serving.job import ServeJob
    from flopwise.serving.startup import ColdStart


def tokens_figure(job: ServeJob) -> Figure | None:
    """Tokens that one step brings a sequence; None without speculation."""
    how = job.techniques.speculation
    if how is None:
        return None
    return derived(
        "tokens a step",
        tokens_a_round(job),
        "tokens",
        "(1 - acceptance^(proposals + 1)) / (1 - acceptance)",
        given("acceptance", how.acceptance),
        given("proposals", how.tokens, "tokens"),
        source="Leviathan et al. 2023 (arXiv:2211.17192) equation 1",
    )


def technique_figures(job: ServeJob) -> list[Figure]:
    """What stands beside latencies where techniques are used."""
    how, figures = job.techniques, []
    tokens = tokens_figure(job)
    if tokens is not None:
        figures.append(tokens)
    if prefix_tokens(job):
        said = given("shared prefix", how.shared_tokens, "tokens") if how.shared_tokens else given("hits", how.hit_frac)
        figures.append(
            derived("prompt tokens not computed", prefix_tokens(job), "tokens", f"{COUNTED}: found in the cache", said)
        )
    return figures


def cold_start_figure(start: ColdStart) -> Figure:
    """The parts of a cold start, each with its source."""
    storage, engine = start.sources
    parts = [
        fact(name, seconds, "s", source=storage if name == "weights" and start.weights_bound == "storage" else engine)
        for name, seconds in start.parts
    ]
    return total("cold start", "s", parts, note=f"weights from {start.storage}, bound by the {start.weights_bound}")
