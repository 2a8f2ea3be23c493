"""`compare`: call an API, serve open weights, fine-tune them or train from scratch, for the same traffic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from flopwise.errors import InfeasibleError, SpecError
from flopwise.fleet.verdict import Verdict
from flopwise.fleet.ways import Crossing, Kind, Way

if TYPE_CHECKING:
    from flopwise.api.own_ways import OwnWays
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.facts.price_book import HostedPrice

Advance = Callable[[int, int], None]
GIVEN = "given by the user"
GROWTH = (-0.99, 1.0)
"""A month, for both the library and the command: from nearly all that goes to twice as much."""
WAYS: tuple[Kind, ...] = ("api", "open", "finetune", "pretrain")


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Tokens of the first month, prompts and answers together, and of a request; each next month has more."""

    tokens_per_month: float
    input_tokens: int = 1024
    output_tokens: int = 256
    growth_frac: float = 0.0
    peak: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        allowed = {
            "tokens_per_month": (1.0, 1e18), "input_tokens": (1.0, 1e8), "output_tokens": (1.0, 1e8),
            "growth_frac": GROWTH, "peak": (1.0, 1e4),
        }  # fmt: skip
        for name, (low, high) in allowed.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise SpecError(f"{name}: {value:g} is out of range; allowed: {low:g} to {high:g}")

    @property
    def tokens_per_request(self) -> int:
        """Prompt and answer."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What is compared, resolved: everything that the ways have in common."""

    spec: str
    model: Model
    scratch_spec: str
    scratch: Model
    traffic: Traffic
    months: int
    runs: int
    upkeep_usd_per_month: float
    finetune_tokens: float
    pretrain_tokens: float
    method: Mapping[str, Any]
    targets: Mapping[str, Any]
    constraints: Mapping[str, Any]
    purchase: tuple[str, ...]
    train_purchase: tuple[str, ...]
    simulate: bool


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The ways in the order of their total, what is not feasible last, and the verdict on them."""

    model: str
    months: int
    tokens_per_month: dict[str, float]
    growth_frac: float
    ways: list[Way]
    break_even: list[Crossing]
    cheapest: str
    verdict: Verdict
    assumptions: list[str]


def compare(
    model: str,
    *,
    traffic: Traffic,
    months: int = 12,
    ways: Sequence[Kind] = WAYS,
    apis: Sequence[str] = (),
    api_prices: Sequence[tuple[float, float]] = (),
    finetune_tokens: float = 50e6,
    pretrain_tokens: float | None = None,
    pretrain_model: str | None = None,
    method: Mapping[str, Any] | None = None,
    runs: int = 1,
    upkeep_usd_per_month: float = 0.0,
    targets: Mapping[str, Any] | None = None,
    constraints: Mapping[str, Any] | None = None,
    purchase: Sequence[str] = (),
    train_purchase: Sequence[str] = (),
    simulate: bool = True,
    facts: str | Path | None = None,
    assume_family: str | None = None,
    advance: Advance | None = None,
) -> Comparison:
    """What each way to answer `traffic` with `model` costs over `months`, and from where on own machines pay.

    `apis` are names of hosted models (`groq/Llama-3.1-8B`, or a name alone for its cheapest host), `api_prices` are
    (input, output) USD a million tokens; without either, whoever hosts `model` at the least. `targets` and
    `constraints` have the keys of a workload file; `purchase` is for serving, `train_purchase` for training.
    `pretrain_tokens` None: the compute-optimal number.

    Raises:
        SpecError, UnknownNameError: a figure out of range, or a name that is not known.
        InfeasibleError: no way is feasible; the reasons of each.
    """
    from flopwise.api.own_ways import OwnWays, assumed
    from flopwise.facts.catalog import load_facts

    known = load_facts(facts)
    held = known.model(model, assume_family=assume_family)
    scratch = known.model(pretrain_model) if pretrain_model else held
    _check(months, runs, upkeep_usd_per_month, finetune_tokens, pretrain_tokens)
    for one in (held, scratch):
        if not one.stacks:
            raise SpecError(f"model: {one.name} has published figures only, no layers to plan")
    goal = Goal(
        spec=model, model=held, scratch_spec=pretrain_model or model, scratch=scratch, traffic=traffic, months=months,
        runs=runs,
        upkeep_usd_per_month=upkeep_usd_per_month, finetune_tokens=finetune_tokens,
        pretrain_tokens=pretrain_tokens or _optimal(scratch), method=method or {}, targets=targets or {},
        constraints=constraints or {}, purchase=tuple(purchase), train_purchase=tuple(train_purchase),
        simulate=simulate,
    )  # fmt: skip
    wanted = [kind for kind in WAYS if kind in ways]
    own = OwnWays(goal, known, [kind for kind in wanted if kind != "api"], assume_family, advance)
    _idle(wanted, {"api": apis or api_prices, "finetune": method, "pretrain": pretrain_tokens or pretrain_model})
    priced, notes = _apis(apis, api_prices, held, traffic, known) if "api" in wanted else ([], [])
    return _answer(goal, priced, own, [*assumed(goal, wanted), *notes])


def _answer(
    goal: Goal, priced: Sequence[tuple[str, HostedPrice, float]], own: OwnWays, assumptions: list[str]
) -> Comparison:
    """All ways, cheapest first, and where own ones meet the APIs."""
    from flopwise.api.ways_verdict import verdict

    found = [*(_api_way(goal, *one) for one in priced), *own.ways()]
    if not any(way.feasible for way in found):
        reasons = [f"{way.name}: {reason}" for way in found for reason in way.reasons] or assumptions[-1:]
        raise InfeasibleError("no way of this comparison is feasible", reasons)
    found.sort(key=lambda way: (way.total_usd is None, way.total_usd or 0.0))
    crossings = own.crossings([(name, usd) for name, _, usd in priced])
    return Comparison(
        model=goal.model.name,
        months=goal.months,
        tokens_per_month=_split(goal.traffic),
        growth_frac=goal.traffic.growth_frac,
        ways=found,
        break_even=crossings,
        cheapest=found[0].name,
        verdict=verdict(found, crossings, own),
        assumptions=[*assumptions, *own.known.grade_remarks(_devices(found))],
    )


def _devices(found: Sequence[Way]) -> list[str]:
    """What the feasible ways train and serve on."""
    parts = [part for way in found for part in (way.training, way.serving) if part is not None]
    return [part.gpu for part in parts if part.gpu is not None]


def _check(months: int, runs: int, upkeep: float, finetune: float, pretrain: float | None) -> None:
    limits: dict[str, tuple[float | None, float, float]] = {
        "months": (months, 1, 120), "runs": (runs, 1, 10_000), "upkeep_usd_per_month": (upkeep, 0, 1e12),
        "finetune_tokens": (finetune, 1, 1e18), "pretrain_tokens": (pretrain, 1, 1e18),
    }  # fmt: skip
    for name, (value, low, high) in limits.items():
        if value is not None and not low <= value <= high:
            raise SpecError(f"{name}: {value:g} is out of range; allowed: {low:g} to {high:g}")


def _idle(wanted: Sequence[Kind], asked: Mapping[Kind, object]) -> None:
    """Refuse what is said of a way that is not compared.

    Raises:
        SpecError: names the way.
    """
    for kind, said in asked.items():
        if said and kind not in wanted:
            raise SpecError(f"{kind}: something is said of this way, which is not compared; add it, or leave that out")


def _optimal(model: Model) -> float:
    from flopwise.ops.tensors import active_parameters
    from flopwise.training.token_rules import optimal_tokens

    return float(optimal_tokens(float(active_parameters(model))))


def _split(traffic: Traffic) -> dict[str, float]:
    """Tokens of the first month by side."""
    requests = traffic.tokens_per_month / traffic.tokens_per_request
    return {"input": requests * traffic.input_tokens, "output": requests * traffic.output_tokens}


def _apis(
    names: Sequence[str], prices: Sequence[tuple[float, float]], model: Model, traffic: Traffic, known: Facts
) -> tuple[list[tuple[str, HostedPrice, float]], list[str]]:
    """(name, price, USD a token of the mix) of each API asked for; what there is to say of them."""
    from flopwise.facts.price_book import HostedPrice
    from flopwise.fleet.hosted import api_usd

    def mean(price: HostedPrice) -> float:
        used = float(api_usd(price, float(traffic.input_tokens), float(traffic.output_tokens)))
        return used / traffic.tokens_per_request

    found = [min(_named(name, known), key=mean) for name in names]
    if not names and not prices:
        found = sorted(known.hosted_for(model.name), key=mean)[:1]
    for number, (paid_in, paid_out) in enumerate(prices, 1):
        for value in (paid_in, paid_out):
            if not 0 <= value < 1e6:
                raise SpecError(f"api price: {value:g} is out of range; allowed: 0 to 1e6 USD a million tokens")
        if paid_in + paid_out <= 0:
            raise SpecError("api price: nothing is free of charge; give the USD of a million input and output tokens")
        label = "as given" if len(prices) == 1 else f"as given, {number}"
        found.append(
            HostedPrice(
                provider="api", name=label, input_usd_per_mtok=paid_in, output_usd_per_mtok=paid_out,
                source=GIVEN, date="",
            )
        )  # fmt: skip
    notes = [] if found else [f"no API: nobody's price of {model.name} is known; name one like it, or give a price"]
    named = {f"{'' if p.source == GIVEN else p.provider + ' '}{p.model or p.name}": p for p in found}
    return [(f"API {name}", price, mean(price)) for name, price in named.items()], notes


def _named(name: str, known: Facts) -> Sequence[HostedPrice]:
    """The hosts of a model, or the one of `provider/model`.

    Raises:
        UnknownNameError: nobody hosts it, as far as is known.
    """
    from flopwise.errors import UnknownNameError

    found = known.hosted_for(name)
    if not found:
        provider, slash, rest = name.partition("/")
        found = tuple(p for p in known.hosted_for(rest) if slash and p.provider == provider.lower())
    if not found:
        whole = known.hosted_prices
        names = dict.fromkeys(
            [*(p.model or p.name for p in whole), *(f"{p.provider}/{p.model or p.name}" for p in whole)]
        )
        raise UnknownNameError("hosted model", name, names, "Its price can be given instead")
    return found


def _api_way(goal: Goal, name: str, price: HostedPrice, usd_per_token: float) -> Way:
    from flopwise.fleet.ways import Serving, Way, cumulative_usd, monthly_volumes

    monthly = monthly_volumes(goal.traffic.tokens_per_month, goal.traffic.growth_frac, goal.months) * usd_per_token
    paid = cumulative_usd(0.0, monthly)
    sums = {
        "upfront_usd": 0.0, "usd_per_month": float(monthly[0]), "last_usd_per_month": float(monthly[-1]),
        "total_usd": float(paid[-1]), "usd_per_million_tokens": 1e6 * usd_per_token, "cumulative_usd": paid.tolist(),
    }  # fmt: skip
    ends = {f"{name}_{end}": value for name, value in sums.items() for end in ("low", "high")}  # a price list errs not
    each = {name: value for name, value in (sums | ends).items() if name.startswith("usd_per_million")}
    return Way(
        name=name,
        kind="api",
        model=price.model or price.name,
        feasible=True,
        serving=Serving(
            provider=price.provider, what=price.name, num_instances=None, gpu=None, purchase=None,
            price_date=price.date, price_notes=[price.notes] if price.notes else [], **each,
        ),
        **sums,
        **ends,
    )  # fmt: skip
