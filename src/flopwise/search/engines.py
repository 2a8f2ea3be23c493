"""Where the workloads of a sweep are planned: in this process, in several, or on a Ray cluster; plans are the same."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple

import msgspec

from flopwise.errors import FlopwiseError, InfeasibleError, SpecError
from flopwise.facts.catalog import Facts
from flopwise.search.plan import plan
from flopwise.search.sweep import Planned, SweptWorkload
from flopwise.search.workload import resolve

Task = Callable[["SentWorkload"], Planned]
ENGINES = ("inline", "processes", "ray")
REACHED_WITHIN_S = 10.0


class SentWorkload(NamedTuple):
    """A workload as it is sent to a worker: JSON, in which defaults are left out."""

    name: str
    varied: dict[str, Any]
    source: bytes


def plan_workload(point: SentWorkload, facts: Facts, assume_family: str | None) -> Planned:
    """Plan one workload of a sweep; errors become its reasons."""
    try:
        workload = resolve(msgspec.json.decode(point.source))
        answer = plan(workload, facts, assume_family=assume_family)
    except InfeasibleError as error:
        return Planned(name=point.name, varied=point.varied, plan=None, reasons=[str(error), *error.reasons])
    except FlopwiseError as error:
        return Planned(name=point.name, varied=point.varied, plan=None, reasons=[str(error)])
    return Planned(name=point.name, varied=point.varied, plan=answer)


def run(
    points: Sequence[SweptWorkload],
    engine: str,
    *,
    facts: Facts,
    assume_family: str | None = None,
    workers: int | None = None,
    address: str | None = None,
) -> Iterator[tuple[int, Planned]]:
    """(number, plan) of every workload, in the order in which they are ready.

    `facts` are sent to the workers. `workers`: processes at once; all cores without it. `address`: of
    the Ray cluster; without it RAY_ADDRESS, or the one that runs on this machine.

    Raises:
        SpecError: no such engine, Ray is not installed, or no cluster answers.
    """
    how: dict[str, Any] = {"facts": facts, "assume_family": assume_family}
    task = partial(plan_workload, **how)
    if address is not None and engine != "ray":
        raise SpecError(f"an address is of a Ray cluster; the engine is {engine}: give --engine ray, or no address")
    sent = [SentWorkload(p.name, p.varied, msgspec.json.encode(p.workload.written)) for p in points]
    if engine == "inline":
        return enumerate(map(task, sent))
    if engine == "processes":
        return _in_processes(sent, task, min(workers or os.cpu_count() or 1, len(points)))
    if engine == "ray":
        return _on_ray(sent, how, address)
    raise SpecError(f"engine {engine!r} is unknown; a sweep runs on {', '.join(ENGINES)}")


def _in_processes(points: Sequence[SentWorkload], task: Task, workers: int) -> Iterator[tuple[int, Planned]]:
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(task, point): number for number, point in enumerate(points)}
        try:
            for done in as_completed(running):
                yield running[done], done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _on_ray(points: Sequence[SentWorkload], how: dict[str, Any], address: str | None) -> Iterator[tuple[int, Planned]]:
    """Assumes: the workers have this version of flopwise installed."""
    ray = _ray()
    own = not ray.is_initialized()
    if own:
        where = address or os.environ.get("RAY_ADDRESS") or "auto"
        try:
            _check_reachable(where)
            ray.init(address=where, log_to_driver=False, logging_level="error", configure_logging=True)
        except (OSError, ValueError, RuntimeError) as error:
            told = str(error).split(". ")[0][:160]
            raise SpecError(
                f"no Ray cluster answers at {where} ({told}); start one with `ray start --head`, or give --address"
            ) from None
    try:
        remote = ray.remote(num_cpus=1)(plan_workload)
        running = {remote.remote(point, **how): number for number, point in enumerate(points)}
        waiting = list(running)
        while waiting:
            (done, *_), waiting = ray.wait(waiting, num_returns=1)
            yield running[done], ray.get(done)
    finally:
        if own:
            ray.shutdown()


def _check_reachable(where: str) -> None:
    """Raise OSError where no one listens: Ray itself tries for minutes."""
    host, colon, port = where.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACHED_WITHIN_S).close()


def _ray() -> Any:
    try:
        import ray  # noqa: PLC0415 - an extra, and slow to import
    except ImportError:
        raise SpecError(
            "the engine ray needs Ray: install flopwise with its extra, `pip install 'flopwise[ray]'`"
        ) from None
    return ray
