"""What a service does: its engine's metrics and its load generator's requests, and the same traffic replayed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import load_facts
from flopwise.facts.spec import SourceSpec
from flopwise.keywords import takes
from flopwise.observations.comparison import Replay, compare
from flopwise.observations.observation import TRACE_FILE, Observation, observation, read_observation, write_observation
from flopwise.observations.requests import read_requests
from flopwise.observations.spec import ObserveSpec
from flopwise.options import COUNT, DEGREE, FRACTION, WHOLE_OR_ZERO, take
from flopwise.serving.sim.request import ResponseCache
from flopwise.serving.sim.result import Slo
from flopwise.serving.spec import Scheduling, ServingSpec, TechniqueRequest


@takes(ObserveSpec)
def observe(
    url: str | None = None,
    *,
    out: Path | str | None = None,
    facts: Path | str | None = None,
    progress: Callable[[float, float], None] | None = None,
    **keywords: Any,
) -> Observation:
    """Watch a running engine: latencies, load, cache, and its traffic as a trace.

    Args:
        url: address of vLLM, SGLang, TensorRT-LLM, TGI or llama.cpp; None reads the file of a load generator
            (`load`) alone.
        out: folder for `observation.json` and `trace.csv`, which `replay` simulates.
        facts: folder of rows that override the shipped ones.
        progress: called with (seconds done, seconds in all).
        **keywords: how long and how often, and the load generator's file.

    Raises:
        SpecError: nobody answers, no engine that is known answers, no request was answered, or a file cannot be
            read.

    Examples:
        >>> import flopwise
        >>> seen = flopwise.observe(load="examples/guidellm.json")
        >>> seen.requests > 0
        True
    """
    from flopwise.observations.watching import watch_engine

    (how,) = take(keywords, ObserveSpec)
    if url is None and how.load is None:
        raise SpecError("nothing to observe: give an engine's address, or --load with a load generator's file")
    load = None if how.load is None else read_requests(how.load)
    watched = None
    if url is not None:
        watched = watch_engine(url, how.seconds, load_facts(facts), interval_s=how.interval_s, progress=progress)
    watched_window, trace = observation(watched, load, seed=how.seed)
    if out is not None:
        write_observation(Path(out), watched_window, trace)
    return watched_window


@takes(
    Scheduling, ServingSpec, TechniqueRequest, MachineSpec, SourceSpec,
    replicas=DEGREE, scale=COUNT, seed=WHOLE_OR_ZERO, attain=FRACTION,
)  # fmt: skip
def replay(
    model: Model | str,
    folder: Path | str,
    *,
    replicas: int = 1,
    scale: float = 1.0,
    seed: int = 0,
    slo: Slo | None = None,
    cache: ResponseCache | None = None,
    attain: float = 0.99,
    on_compile: Callable[[], None] | None = None,
    **keywords: Any,
) -> Replay:
    """Simulate the traffic of an observation and compare it with the measurements.

    Args:
        model: a catalog name, a hub id, a folder, a config.json, a size such as "7B".
        folder: what `observe` wrote.
        replicas: behind the balancer.
        scale: speed of the replay; 2 is twice as fast.
        seed: random seed of what is drawn.
        slo: what a request must hold to count into the goodput.
        cache: answers that are given again.
        attain: share of requests in time that decides how many replicas a cache saves.
        on_compile: called before the simulator is compiled for the first time.
        **keywords: options of the deployment.

    Raises:
        SpecError: no such observation, or as `simulate`.
        InfeasibleError, MissingFactError: as `simulate`.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.replay("Llama-3.1-8B", "examples/observed", gpu="l40s")
        >>> answer.answer.summary.completed > 0
        True
    """
    from flopwise.api.simulate import simulate

    seen = read_observation(Path(folder))
    answer = simulate(
        model, trace=Path(folder) / TRACE_FILE, replicas=replicas, scale=scale, seed=seed, slo=slo, cache=cache,
        attain=attain, on_compile=on_compile, **keywords,
    )  # fmt: skip
    medians = {name: ends["p50"] for name, ends in answer.intervals.items() if "p50" in ends}
    compared = compare(seen, answer.simulated, answer.job, medians)
    return Replay(answer=answer, observation=seen, comparison=compared)
