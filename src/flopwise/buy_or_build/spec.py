"""The options of `compare`: the traffic, the alternatives, and what is paid besides machines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flopwise import options, units
from flopwise.buy_or_build.alternatives import KINDS, MONTHLY_GROWTH, Kind, MonthlyTraffic, require_ranges
from flopwise.errors import SpecError
from flopwise.facts.architecture import Model
from flopwise.options import OptionError, Spec, ValueKind, option, same
from flopwise.search.spec import ConstraintsSpec, TargetsSpec
from flopwise.serving.estimate import request_tokens
from flopwise.serving.sim.source import Traffic
from flopwise.serving.spec import DEFAULT_INPUT, DEFAULT_OUTPUT, RequestSpec, mean_tokens
from flopwise.training.spec import TrainingSpec
from flopwise.values import dataclass


def _numbers(parse: Callable[[object, str], float]) -> Callable[[object, str], tuple[float, ...]]:
    """A reader of one number, or of two with a slash between, none of them negative."""

    def parse_numbers(value: object, what: str) -> tuple[float, ...]:
        parts = [*value] if isinstance(value, tuple | list) else str(value).split("/")
        text = "/".join(map(str, parts))
        if len(parts) > 2:
            divided = "give input and output, divided by one slash"
            raise SpecError(f"{what}: {text[:60]!r} has {len(parts)} parts; {divided}")
        numbers = tuple(parse(part.strip() if isinstance(part, str) else part, what) for part in parts)
        if min(numbers) < 0 or sum(numbers) <= 0:
            raise SpecError(f"{what}: {text[:60]} is out of range; allowed: above 0")
        return numbers

    return parse_numbers


def _prices(value: object, what: str) -> tuple[float, ...]:
    prices = _numbers(units.parse_usd)(value, what)
    if len(prices) != 2:
        raise SpecError(f"{what}: {str(value)[:60]!r} is one price; give input and output, such as 0.15/0.60")
    return prices


def _pretrain_tokens(value: object, what: str) -> float | None:
    return None if str(value).lower() == "auto" else options.COUNT.parse(value, what)


PAIR = {"type": ["number", "string", "array"]}
VOLUME = ValueKind("volume", _numbers(units.parse_count), "quantity", PAIR)
API_PRICE = ValueKind("in/out", _prices, "quantity", PAIR)
PRETRAIN = ValueKind("tokens", _pretrain_tokens, "quantity")
GROWTH = options.quantity("share", units.parse_share, low=MONTHLY_GROWTH[0], high=MONTHLY_GROWTH[1], closed=True)
PLACE = "Where it may run"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonSpec(Spec):
    """Options of a comparison: alternatives and traffic. None: the default."""

    tokens_per_month: tuple[float, ...] | None = option(
        "--tokens-per-month", VOLUME, "Tokens of the first month, prompts and answers: 500M, or apart as 400M/100M."
    )
    input_tokens: int | str | None = same(RequestSpec, "input_tokens", section="")
    output_tokens: int | str | None = same(RequestSpec, "output_tokens", section="")
    growth_frac: float = option(
        "--growth", GROWTH, "Traffic that each month adds, such as 5%; from -0.99 to 1.", default=0.0
    )
    peak: float | None = same(Traffic, "peak", section="")
    months: int = option("--months", options.whole(high=120), "Months to compare.", default=12)
    ways: tuple[Kind, ...] = option("--way", options.choice(*KINDS), "Only this way.", repeated=True)
    apis: tuple[str, ...] = option(
        "--api", options.name("api"), "A hosted model: groq/Llama-3.1-8B, or a name alone for its cheapest host.",
        repeated=True,
    )  # fmt: skip
    api_prices: tuple[tuple[float, float], ...] = option(
        "--api-price", API_PRICE, "A price of your own, USD a million tokens: 0.15/0.60.", repeated=True
    )
    finetune_tokens: float = option("--finetune-tokens", options.COUNT, "Tokens of fine-tuning.", default=50e6)
    pretrain_tokens: float | None = option(
        "--pretrain-tokens", PRETRAIN,
        "Tokens of training from scratch, or auto (default): the compute-optimal number.",
    )  # fmt: skip
    pretrain_model: str | None = option(
        "--pretrain-model", options.name("model"), "Train this model from scratch instead, such as 1B."
    )
    runs: int = option("--runs", options.whole(high=10_000), "Training runs paid for.", default=1)
    upkeep_usd_per_month: float = option(
        "--upkeep", options.USD_OR_ZERO, "USD a month for people and storage of a self-hosted service.", default=0.0
    )
    purchase: tuple[str, ...] = same(ConstraintsSpec, "purchase")
    train_purchase: tuple[str, ...] = option(
        "--train-purchase", options.options_of(ConstraintsSpec)["purchase"].kind,
        "Purchase option of training, as --purchase.", section=PLACE, repeated=True,
    )  # fmt: skip

    def traffic(self, model: Model) -> MonthlyTraffic:
        """Tokens a month, of a prompt and of an answer; the mix follows from IN/OUT where it is given so.

        Lengths that are not given are the usual ones, as far as the context of `model` goes.

        Raises: OptionError: no volume, or a mix that is given twice.
        """
        if self.tokens_per_month is None:
            raise OptionError("tokens_per_month", "give the tokens of the first month, such as 500M")
        lengths = (self.input_tokens, self.output_tokens)
        prompt, answer = (None if length is None else mean_tokens(length) for length in lengths)
        volume = sum(self.tokens_per_month)
        if len(self.tokens_per_month) == 2:
            read, written = self.tokens_per_month
            if min(read, written) <= 0:
                raise OptionError("tokens_per_month", "both sides of IN/OUT are above 0")
            if prompt is not None and answer is not None:
                follows = "follows from the length of a prompt and the IN/OUT of the volume; leave one of them out"
                raise OptionError("output_tokens", follows)
            if answer is not None:
                prompt = max(1, round(answer * read / written))
            else:
                most = (model.max_position or math.inf) * read / volume
                prompt = prompt or max(1, math.floor(min(DEFAULT_INPUT, most)))
                answer = max(1, round(prompt * written / read))
        elif model.stacks and None in (prompt, answer):
            prompt, usual, _ = request_tokens(
                model, RequestSpec(input_tokens=prompt, output_tokens=answer), encode=False
            )
            answer = answer or usual  # 0 of a model that writes none
        return MonthlyTraffic(
            tokens_per_month=volume, input_tokens=prompt or DEFAULT_INPUT,
            output_tokens=DEFAULT_OUTPUT if answer is None else answer,
            growth_frac=self.growth_frac, peak=self.peak or 1.0,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRequest:
    """A comparison with its `options`, checked; models are names as the user wrote them."""

    model: str
    options: ComparisonSpec
    traffic: MonthlyTraffic
    method: Mapping[str, Any]
    targets: Mapping[str, Any]
    constraints: Mapping[str, Any]
    software: Sequence[str]
    simulate: bool
    assume_family: str | None

    def __post_init__(self) -> None:
        """Refuse values out of range, and options of an alternative that is not compared."""
        own = self.options
        require_ranges(
            months=(own.months, 1, 120), runs=(own.runs, 1, 10_000), finetune_tokens=(own.finetune_tokens, 1, 1e18),
            pretrain_tokens=(own.pretrain_tokens, 1, 1e18), upkeep_usd_per_month=(own.upkeep_usd_per_month, 0, 1e12),
        )  # fmt: skip
        alternatives: dict[Kind, object] = {
            "api": own.apis or own.api_prices, "finetune": self.method,
            "pretrain": own.pretrain_tokens or own.pretrain_model,
        }  # fmt: skip
        for kind, given in alternatives.items():
            if given and kind not in self.kinds:
                raise SpecError(
                    f"{kind}: options were given for this alternative, which is not compared; add it, or leave them out"
                )

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The alternatives that are compared, in order."""
        return tuple(kind for kind in KINDS if kind in (self.options.ways or KINDS))


@dataclass(frozen=True, slots=True, kw_only=True)
class AlternativesSpec(Spec):
    """Options of the alternatives: how they are trained and where they run, as a workload file states them."""

    lora: int | None = same(TrainingSpec, "lora", section="")
    qlora: bool = same(TrainingSpec, "qlora", section="", default=False)
    lora_targets: tuple[str, ...] = same(TrainingSpec, "lora_targets", section="", default=())
    ttft: Any = same(TargetsSpec, "ttft")
    tpot: Any = same(TargetsSpec, "tpot")
    latency: Any = same(TargetsSpec, "latency")
    providers: tuple[str, ...] = same(ConstraintsSpec, "providers")
    regions: tuple[str, ...] = same(ConstraintsSpec, "regions")
    gpus: tuple[str, ...] = same(ConstraintsSpec, "gpus")
    vendors: tuple[str, ...] = same(ConstraintsSpec, "vendors")
    exclude: tuple[str, ...] = same(ConstraintsSpec, "exclude")
    software: tuple[str, ...] = same(ConstraintsSpec, "software")
    marketplace: bool = same(ConstraintsSpec, "marketplace", default=False)
    include_retired: bool = same(ConstraintsSpec, "include_retired", default=False)
    instances: tuple[str, ...] = same(ConstraintsSpec, "instances")
