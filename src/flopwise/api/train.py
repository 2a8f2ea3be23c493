"""How fast does it train: one step and the whole run on given accelerators, laid out as given or as best."""

from __future__ import annotations

from typing import Any

from flopwise.facts.spec import ModelName
from flopwise.keywords import takes
from flopwise.options import DEGREE, take
from flopwise.search import training_question
from flopwise.search.training_question import TRAINED
from flopwise.training.answer import TrainAnswer
from flopwise.training.sampled_answer import SampledTrainAnswer


@takes(*TRAINED, gpus=DEGREE)
def train(model: ModelName, *, gpus: int | None = None, **options: Any) -> TrainAnswer | SampledTrainAnswer:
    """Step time, throughput, memory, time and cost of training a model.

    Times are in seconds, rates per second, money in US dollars. Without any degree the best layout that fits is
    found; a layout that does not fit is estimated all the same: `fits` says so, and what certainly cannot run shows no
    speed (`can_run`). Of a network without token layers, such as ResNet-50, the answer is a `SampledTrainAnswer`:
    samples per second of data-parallel replicas.

    Args:
        gpus: number of accelerators (default: one).

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: a fact that the answer needs is not known.
        InfeasibleError: no offer satisfies what was asked, or the GPUs cannot be used at all.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.train("Llama-3.1-8B", gpu="64xh100", tokens="1T", seq="8k")
        >>> answer.estimate.low < answer.estimate.high
        True
    """
    return training_question.train(model, gpus, *take(options, *TRAINED))
