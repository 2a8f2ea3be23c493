"""The estimate of a training run, from an answer of `train` or from a plan file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from flopwise import __version__
from flopwise.errors import SpecError
from flopwise.records.explanation import FIRST, FURTHER
from flopwise.records.model import Expectation, ranged_figures
from flopwise.values import dataclass, replace

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.search.answer import Plan
    from flopwise.serving.answer import ServeAnswer
    from flopwise.training.answer import TrainAnswer
    from flopwise.training.estimate import TrainEstimate
    from flopwise.training.sampled_answer import SampledTrainAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedTraining:
    """The estimate of a training run: its figures, and the settings for its `Run`."""

    expected: Expectation
    settings: Mapping[str, object]
    model: str
    task: str
    gpu: str
    gpus: int
    precision: str
    price_usd_per_hour: float | None
    seq: int
    tokens_per_step: float
    total_tokens: float | None

    @classmethod
    def of_answer(cls, answer: TrainAnswer | SampledTrainAnswer, question: str, settings: Mapping[str, object]) -> Self:
        """The estimate from an answer of `train`; `settings`: the keywords of the question.

        Raises: SpecError: the answer is for a network without token layers.
        """
        from flopwise.training.answer import TrainAnswer  # noqa: PLC0415 - as the rest of training

        if not isinstance(answer, TrainAnswer):
            raise SpecError("only runs of models with token layers have an estimate; leave out the question")
        job = answer.estimate.job
        each, gpus = job.cluster.usd_per_gpu_hour, answer.estimate.num_gpus
        return cls(
            expected=_expectation(answer, question), settings=settings, model=job.model.name,
            task="pretrain" if job.recipe.lora is None and not settings.get("finetune") else "finetune",
            gpu=job.cluster.accelerator.name, gpus=gpus, precision=job.recipe.precision,
            price_usd_per_hour=None if each is None else each * gpus, total_tokens=job.tokens,
            seq=int(job.recipe.seq_len), tokens_per_step=float(job.recipe.global_batch) * float(job.recipe.seq_len),
        )  # fmt: skip

    @classmethod
    def of_plan(cls, plan: Plan, rank: int, facts: Facts, where: str | Path = "the plan") -> Self:
        """The estimate of plan number `rank` of a plan file, in full as by `train`.

        Raises: SpecError: no such plan, a plan for serving, or its machines are no longer in the facts.
        """
        from flopwise.search.run_job import candidate_job  # noqa: PLC0415
        from flopwise.search.spec import TRAINING  # noqa: PLC0415 - as the rest of the search
        from flopwise.search.workload_file import workload_from  # noqa: PLC0415
        from flopwise.training.answer import train_answer  # noqa: PLC0415

        if plan.task not in TRAINING:
            raise SpecError(f"{where}: a plan for the task {plan.task}; give a plan for training")
        rows = plan.plans or plan.misses
        if not 1 <= rank <= len(rows):
            raise SpecError(f"{where}: no plan {rank}; it has {len(rows)}")
        chosen, workload = rows[rank - 1], workload_from(plan.workload)
        facts = facts.at(workload.limits.software_month).with_custom(workload.limits.gpus)
        offer = facts.offers_by_key.get(chosen.offer_key)
        if offer is None:
            raise SpecError(f"{where}: {' '.join(chosen.offer_key)} is not in the facts of this flopwise; plan again")
        job = candidate_job(workload, facts.model(workload.model), facts, offer, chosen)
        answer = train_answer(job, facts, "planned", (), workload.data.epochs)
        settings: dict[str, Any] = {**chosen.layout, "gpus": chosen.num_gpus, "gpu": chosen.gpu}
        settings["seq"] = settings.pop("seq_len")
        one = cls.of_answer(answer, chosen.reproduce or f"flopwise plan --from {where}", settings)
        return replace(one, model=workload.model, task=workload.task, price_usd_per_hour=chosen.usd_per_hour)


def _expectation(answer: TrainAnswer, question: str) -> Expectation:
    """The figures of an answer of `train`, with 80 % intervals; `question`: the command that reproduces it.

    The intervals of times are the inverse of the throughput's; MFU has the interval of the throughput.
    """
    estimate, memory = answer.estimate, answer.memory
    slow, fast = estimate.low / estimate.tokens_per_s_per_gpu, estimate.high / estimate.tokens_per_s_per_gpu
    figures = {"peak_memory_bytes": (memory.per_gpu_bytes, memory.low_bytes, memory.high_bytes)}
    for name, value in (("tokens_per_s", estimate.tokens_per_s), ("mfu_frac", estimate.mfu_frac)):
        figures[name] = (value, value * slow, value * fast)
    run = estimate.run
    longer: dict[str, float | None] = {"step_s": estimate.step_s}
    if run is not None:  # of what a recorder sees: accelerators while they train, not their start, hosts and cooling
        cost = None if run.cost_usd is None else run.cost_usd - (run.start_usd or 0.0)
        longer |= {"cost_usd": cost, "energy_joules": _device_joules(estimate, run.seconds)}
    for name, seconds in longer.items():
        if seconds is not None:
            figures[name] = (seconds, seconds / fast, seconds / slow)
    return Expectation(
        figures=ranged_figures(figures),
        terms=dict(estimate.breakdown), question=question, version=__version__,
    )  # fmt: skip


def _device_joules(estimate: TrainEstimate, seconds: float) -> float | None:
    """Energy of the accelerators in so many seconds of steps, in J; None where their power is not known."""
    from flopwise.training.estimate import job_watts  # noqa: PLC0415 - as the rest of training

    job = estimate.job
    if job.cluster.accelerator.tdp_w is None:
        return None
    return job_watts(job, dict(estimate.breakdown), estimate.table) * estimate.num_gpus * seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedService:
    """The estimate of a service, for its recorded `Run`."""

    expected: Expectation
    price_usd_per_hour: float | None  # of all accelerators

    @classmethod
    def of_answer(cls, answer: ServeAnswer, question: str) -> Self:
        """Latencies of a request and rates of all replicas, with intervals; `question`: the command of the answer.

        Under a rate the latencies are those of the mean request under that load, where replicas keep up; their
        intervals are as wide as those without. A request's terms are its first token and the further ones.
        """
        estimate, load = answer.estimate, answer.under_load
        figures: dict[str, tuple[float, float, float]] = {}
        first = estimate.ttft_s
        figures["ttft_s"] = first.value, first.low, first.high
        if (further := estimate.further_token_s) is not None:
            figures["itl_s"] = further.value, further.low, further.high
        figures["e2e_s"] = estimate.e2e_s, estimate.e2e_low, estimate.e2e_high
        if load is None:
            rates = {"requests_per_s": estimate.throughput, "tokens_per_s": estimate.output_tokens_per_s}
            for name, rate in rates.items():
                if rate is not None:
                    figures[name] = (
                        rate.value * answer.replicas,
                        rate.low * answer.replicas,
                        rate.high * answer.replicas,
                    )
        terms = {FIRST: first.value}
        if estimate.e2e_s > first.value:
            terms[FURTHER] = estimate.e2e_s - first.value
        each = estimate.job.cluster.usd_per_gpu_hour
        return cls(
            expected=Expectation(
                figures=ranged_figures(figures), terms=terms, question=question, version=__version__
            ),
            price_usd_per_hour=None if each is None else each * answer.num_gpus,
        )  # fmt: skip
