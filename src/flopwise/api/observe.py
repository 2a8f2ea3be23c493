"""What a service does: its engine's metrics and its load generator's requests, and the same traffic replayed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flopwise.cost.spec import MachineSpec
from flopwise.facts.catalog import load_facts
from flopwise.facts.spec import ModelName, SourceSpec
from flopwise.keywords import takes
from flopwise.observations.comparison import Replay
from flopwise.observations.observation import TRACE_FILE, Observation, observed_service, read_observation
from flopwise.observations.spec import ObserveSpec
from flopwise.options import COUNT, DEGREE, FRACTION, WHOLE_OR_ZERO, take
from flopwise.serving.sim.answer import SimulateAnswer
from flopwise.serving.sim.request import ResponseCache, simulation_request
from flopwise.serving.sim.result import Slo
from flopwise.serving.spec import Scheduling, ServingSpec, TechniqueRequest


@takes(ObserveSpec)
def observe(
    url: str | None = None, *, out: Path | str | None = None, facts: Path | str | None = None,
    progress: Callable[[float, float], None] | None = None, **keywords: Any,
) -> Observation:  # fmt: skip
    """Watch a running engine: latencies, load, cache, and its traffic as a trace.

    Args:
        url: address of vLLM, SGLang, TensorRT-LLM, TGI or llama.cpp; None reads the file of a load generator
            (`load`) alone.
        out: folder for `observation.json` and `trace.csv`, which `replay` simulates.
        progress: called with (seconds done, seconds in all).

    Raises:
        SpecError: nobody answers, no engine that is known answers, no request was answered, or a file cannot be
            read.

    Examples:
        >>> import flopwise
        >>> seen = flopwise.observe(load="examples/guidellm.json")
        >>> seen.requests > 0
        True
    """
    (how,) = take(keywords, ObserveSpec)
    return observed_service(url, how, load_facts(facts), out, progress)


@takes(
    Scheduling, ServingSpec, TechniqueRequest, MachineSpec, SourceSpec,
    replicas=DEGREE, scale=COUNT, seed=WHOLE_OR_ZERO, attain=FRACTION,
)  # fmt: skip
def replay(
    model: ModelName, folder: Path | str, *, replicas: int = 1, scale: float = 1.0, seed: int = 0,
    slo: Slo | None = None, cache: ResponseCache | None = None, attain: float = 0.99,
    on_compile: Callable[[], None] | None = None, **keywords: Any,
) -> Replay:  # fmt: skip
    """Simulate the traffic of an observation and compare it with the measurements.

    Args:
        folder: what `observe` wrote.
        scale: speed of the replay; 2 is twice as fast.
        seed: random seed of what is drawn.
        attain: share of requests in time that decides how many replicas a cache saves.

    Raises:
        SpecError: no such observation, or as `simulate`.
        InfeasibleError, MissingFactError: as `simulate`.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.replay("Llama-3.1-8B", "examples/observed", gpu="l40s")
        >>> answer.answer.summary.completed > 0
        True
    """
    seen = read_observation(Path(folder))
    request = simulation_request(
        model, one_pass=True, trace=Path(folder) / TRACE_FILE, scale=scale, seed=seed, **keywords
    ).with_cache(cache)
    answer = SimulateAnswer.of(request, replicas, slo or Slo(), attain, on_compile)
    return Replay.of(seen, answer)
