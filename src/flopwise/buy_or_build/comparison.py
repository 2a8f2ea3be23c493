"""All alternatives for the same traffic, cheapest first, with the decision between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from flopwise import units
from flopwise.buy_or_build.alternatives import (
    Alternative,
    ApiBreakEven,
    CostComparison,
    Decision,
    MonthlyTraffic,
    ServingOffer,
    TippingPoint,
    with_ends,
)
from flopwise.buy_or_build.self_hosted import (
    LONGEST_MONTHS,
    SelfHosted,
    SelfHostedPlans,
    cumulative_usd,
    monthly_volumes,
)
from flopwise.buy_or_build.spec import ComparisonRequest
from flopwise.cost.intervals import ErrorBand
from flopwise.errors import InfeasibleError, SpecError, UnknownNameError
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.price_book import HostedPrice
from flopwise.fleet.prices import api_usd
from flopwise.ops.tensors import active_parameters
from flopwise.ops.types import Array
from flopwise.units import format_number
from flopwise.values import dataclass

GIVEN = "given by the user"
RESERVED_MONTHS = {"reserved_1y": 12, "reserved_3y": 36}


def compare_alternatives(
    request: ComparisonRequest, facts: Facts, advance: Callable[[int, int], None] | None = None
) -> CostComparison:
    """The cost of each alternative, and the month and volume from which own machines cost less than an API.

    Raises:
        SpecError, UnknownNameError: the model has no layers, or a name is not known.
        InfeasibleError: no alternative is feasible; the reasons of each.
    """
    facts = facts.with_custom(map(str, request.constraints.get("gpus", ())))
    plans = SelfHostedPlans(request, facts, advance)
    traffic = request.traffic
    prices = _api_prices(request, plans.model, facts) if "api" in request.kinds else {}
    assumptions = _assumptions(request, plans)
    if "api" in request.kinds and not prices:
        assumptions.append(f"no API: no price of {plans.model.name} is known; name a similar model, or give a price")
    alternatives = [_api_alternative(request, name, price) for name, price in prices.items()]
    planned = [plans.alternative(kind) for kind in request.kinds if kind != "api"]
    own = {each.name: each for each in planned if isinstance(each, SelfHosted)}
    alternatives += [each.alternative() if isinstance(each, SelfHosted) else each for each in planned]
    if not any(each.feasible for each in alternatives):
        reasons = [f"{each.name}: {reason}" for each in alternatives for reason in each.reasons]
        raise InfeasibleError("no option of this comparison is feasible", reasons or assumptions[-1:])
    alternatives.sort(key=lambda each: (each.total_usd is None, each.total_usd or 0.0))
    break_evens = [
        each.break_even(name, _usd_per_token(price, traffic)) for each in own.values() for name, price in prices.items()
    ]
    parts = [part for each in alternatives for part in (each.training, each.serving) if part is not None]
    devices = [part.gpu for part in parts if part.gpu is not None]
    requests = traffic.requests_per_month
    return CostComparison(
        model=plans.model.name, months=request.options.months, growth_frac=traffic.growth_frac, ways=alternatives,
        tokens_per_month={"input": requests * traffic.input_tokens, "output": requests * traffic.output_tokens},
        requests_per_month=requests, input_tokens=traffic.input_tokens, output_tokens=traffic.output_tokens,
        break_even=break_evens, cheapest=alternatives[0].name,
        decision=_decision(alternatives, break_evens, own, request),
        assumptions=[*assumptions, *_late_notes(alternatives), *facts.grade_remarks(devices)],
    )  # fmt: skip


def _usd_per_token(price: HostedPrice, traffic: MonthlyTraffic) -> float:
    """USD a token of the mix."""
    return float(api_usd(price, float(traffic.input_tokens), float(traffic.output_tokens))) / traffic.tokens_per_request


def _api_prices(request: ComparisonRequest, model: Model, facts: Facts) -> dict[str, HostedPrice]:
    """The price of each API that is named or given, by name; without either, of the cheapest host of the model."""

    def usd(price: HostedPrice) -> float:
        return _usd_per_token(price, request.traffic)

    prices = [min(_hosts(name, facts), key=usd) for name in request.options.apis]
    if not request.options.apis and not request.options.api_prices:
        prices = sorted(facts.hosted_for(model.name), key=usd)[:1]
    for number, (usd_in, usd_out) in enumerate(request.options.api_prices, 1):
        for value in (usd_in, usd_out):
            if not 0 <= value < 1e6:
                raise SpecError(f"api price: {value:g} is out of range; allowed: 0 to 1e6 USD a million tokens")
        if usd_in + usd_out <= 0:
            raise SpecError("api price: nothing is free of charge; give the USD of a million input and output tokens")
        label = "as given" if len(request.options.api_prices) == 1 else f"as given, {number}"
        price = HostedPrice(
            provider="api", name=label, input_usd_per_mtok=usd_in, output_usd_per_mtok=usd_out, source=GIVEN, date=""
        )
        prices.append(price)
    return {f"API {'' if p.source == GIVEN else p.provider + ' '}{p.model or p.name}": p for p in prices}


def _hosts(name: str, facts: Facts) -> Sequence[HostedPrice]:
    """The hosts of a model, or the one of `provider/model`.

    Raises: UnknownNameError: no known provider hosts it.
    """
    prices = facts.hosted_for(name)
    if not prices:
        provider, slash, rest = name.partition("/")
        prices = tuple(p for p in facts.hosted_for(rest) if slash and p.provider == provider.lower())
    if not prices:
        known = [(p.provider, p.model or p.name) for p in facts.hosted_prices]
        names = dict.fromkeys([*(model for _, model in known), *(f"{host}/{model}" for host, model in known)])
        raise UnknownNameError("hosted model", name, names, "Its price can be given instead")
    return prices


def _api_alternative(request: ComparisonRequest, name: str, price: HostedPrice) -> Alternative:
    """The cost of an API; a price list has no error, so both ends are the value."""
    traffic, usd_per_token = request.traffic, _usd_per_token(price, request.traffic)
    monthly = monthly_volumes(traffic.tokens_per_month, traffic.growth_frac, request.options.months) * usd_per_token
    cumulative, each = cumulative_usd(0.0, monthly), (1e6 * usd_per_token,) * 3
    return Alternative(
        name=name, kind="api", model=price.model or price.name, feasible=True,
        serving=ServingOffer(
            provider=price.provider, what=price.name, num_instances=None, gpu=None, purchase=None,
            price_date=price.date, price_notes=[price.notes] if price.notes else [],
            **with_ends(usd_per_million_tokens=each),
        ),
        **with_ends(
            upfront_usd=(0.0,) * 3, usd_per_month=(float(monthly[0]),) * 3,
            last_usd_per_month=(float(monthly[-1]),) * 3, total_usd=(float(cumulative[-1]),) * 3,
            usd_per_million_tokens=each, cumulative_usd=(cumulative.tolist(),) * 3,
        ),
    )  # fmt: skip


def _assumptions(request: ComparisonRequest, plans: SelfHostedPlans) -> list[str]:
    """Assumptions of the comparison."""
    own = [kind for kind in request.kinds if kind != "api"]
    notes = [
        "all options are assumed to give good enough answers; only their cost is compared",
        "self-hosted models run on whole machines, all month",
        "80 % intervals come from the measured errors of training and serving; prices are as listed",
    ]
    if "api" in request.kinds:
        notes.append("API prices include no discounts for batches, volume or cached prompts")
    if set(own) - {"open"}:
        notes.append(
            f"{units.format_items(request.options.runs, 'training run')} paid; data, evaluation and people do not count"
        )
    if own and any(RESERVED_MONTHS.get(purchase, 0) > request.options.months for purchase in request.options.purchase):
        notes.append(
            f"a reservation outlasts the {request.options.months} months compared; "
            "the rest of its term is not in the sums"
        )
    if any(purchase.startswith("reserved") for purchase in request.options.train_purchase):
        notes.append("a reservation is paid for the months that a training run takes; what is left of its term is not")
    if "pretrain" in own:
        ratio = plans.pretrain_tokens / float(active_parameters(plans.scratch))
        notes.append(
            f"from scratch on {units.format_count(plans.pretrain_tokens)} tokens, {format_number(ratio)} a parameter; "
            "published weights of the same size have often seen many times that, and give better answers"
        )
    if own and not request.options.upkeep_usd_per_month:
        notes.append("staff and storage of a self-hosted service are not counted (--upkeep adds them)")
    return notes


def _late_notes(alternatives: Iterable[Alternative]) -> Iterator[str]:
    """That the months of what has to be trained for long begin when it is: what answers until then is not paid here."""
    for each in alternatives:
        seconds = each.training.seconds * each.training.runs if each.training is not None else 0.0
        if seconds > units.HOURS_PER_MONTH * units.HOUR_S:
            yield (
                f"the months of '{each.name}' begin after {units.format_seconds(seconds)} of training; what answers "
                "until then is not in its sum"
            )


# Which alternative is the cheapest, how sure that is, and how far each input would have to move to change it

QUANTILES = (np.arange(25) + 0.5) / 25
SURE = 0.9
"""A decision that holds in so many cases is settled: the measured errors do not change it."""
FARTHEST = 1000.0
"""Inputs that would have to move by more than this factor do not change the decision."""


@dataclass(frozen=True, slots=True)
class TotalCost:
    """The cost of a self-hosted alternative over a horizon, with the errors of its parts; USD.

    `upfront` is paid once, `fixed` whatever is rented (upkeep), `served` are the machines where they carry a factor of
    their estimate. `training_band` and `throughput_band` are the measured errors of the training and of what machines
    carry.
    """

    upfront: float
    fixed: float
    served: Callable[[float], float]
    training_band: ErrorBand | None
    throughput_band: ErrorBand

    def total(self, factor: float = 1.0) -> float:
        """All of it, where machines carry `factor` times their estimate."""
        return self.upfront + self.fixed + self.served(factor)


def _decision(
    alternatives: Sequence[Alternative],
    break_evens: Sequence[ApiBreakEven],
    own: Mapping[str, SelfHosted],
    request: ComparisonRequest,
) -> Decision:
    """The decision between alternatives, cheapest first and the feasible before the others; `own` is by name."""
    feasible = [each for each in alternatives if each.feasible]
    first = feasible[0]
    other = next((each for each in feasible if (each.kind == "api") != (first.kind == "api")), None)
    if other is None:
        return _decision_of_one_kind(feasible, request)
    mine, api = (other, first) if first.kind == "api" else (first, other)
    cost = _total_cost(own[mine.name])
    assert api.total_usd is not None
    assert mine.total_usd is not None
    chance = chance_at_most(cost, api.total_usd)
    chance = chance if first is mine else 1.0 - chance
    sign = 1.0 if first is mine else -1.0
    ends = sorted(sign * (api.total_usd - (end or 0.0)) for end in (mine.total_usd_low, mine.total_usd_high))
    [break_even] = [b for b in break_evens if (b.way, b.against) == (mine.name, api.name)]
    return Decision(
        cheapest=first.name, against=other.name, saves_usd=sign * (api.total_usd - mine.total_usd),
        saves_usd_low=ends[0], saves_usd_high=ends[1], chance=chance, settled=chance >= SURE,
        because=[_explanation(first, request), _explanation(other, request)],
        turns=nearest_first(_tipping_points(mine, api, break_even, cost, request)),
    )  # fmt: skip


def chance_at_most(own: TotalCost, other_usd: float) -> float:
    """Probability that own machines cost no more than `other_usd`.

    Source: both errors taken at the middle of 25 equal parts of their distributions, each with each.
    Assumes: training and serving err independently; a run that takes longer costs as much more.
    """
    served = np.array([own.served(own.throughput_band.quantile(q)) for q in QUANTILES])
    longer: Array = np.ones(1)
    if own.training_band is not None:
        longer = np.array([1.0 / own.training_band.quantile(q) for q in QUANTILES])
    totals = own.upfront * longer[:, None] + own.fixed + served[None, :]
    return float(np.mean(totals <= other_usd * (1 + 1e-9)))


def tipping_throughput(own: TotalCost, other_usd: float) -> float | None:
    """The factor on the machines' throughput at which both cost the same; None: none within FARTHEST.

    Source: bisection: machines that carry more never cost more.
    """
    few, many = 1.0 / FARTHEST, FARTHEST
    if own.total(many) > other_usd or own.total(few) <= other_usd:
        return None
    while many / few > 1 + 1e-6:
        middle = math.sqrt(few * many)
        few, many = (few, middle) if own.total(middle) <= other_usd else (middle, many)
    return many


def tipping_machine_price(own: TotalCost, other_usd: float) -> float | None:
    """The factor on the price of all machines at which both cost the same; None: they would have to be free.

    Source: arithmetic. Assumes: training and serving are paid at prices that move together.
    """
    paid = own.upfront + own.served(1.0)
    left = other_usd - own.fixed
    return left / paid if paid > 0 and left > 0 else None


def nearest_first(points: list[TippingPoint]) -> list[TippingPoint]:
    """Sort tipping points by the distance of each input from today's value."""
    return sorted(points, key=lambda point: math.inf if point.times is None else abs(math.log(point.times)))


def _decision_of_one_kind(feasible: list[Alternative], request: ComparisonRequest) -> Decision:
    """The decision where all are APIs, or none is: no machines to weigh against tokens."""
    first, second = feasible[0], feasible[1] if len(feasible) > 1 else None
    saves = None if second is None else (second.total_usd or 0.0) - (first.total_usd or 0.0)
    certain = saves if first.kind == "api" else None  # price lists do not err
    return Decision(
        cheapest=first.name, against=None if second is None else second.name, saves_usd=saves, saves_usd_low=certain,
        saves_usd_high=certain, chance=None, settled=None,
        because=[_explanation(each, request) for each in feasible[:2]], turns=[],
    )  # fmt: skip


def _total_cost(own: SelfHosted) -> TotalCost:
    """The parts of the total of an alternative, and their errors."""
    months, rentable = own.request.options.months, own.units
    upkeep = own.request.options.upkeep_usd_per_month * months
    index, _ = rentable.cheapest(float(own.volumes(1)[0]))
    size = len(rentable.usd_per_month)

    def served_usd(factor: float) -> float:
        return float(own.monthly_usd(months, np.full(size, factor)).sum()) - upkeep

    return TotalCost(own.training.ends[0], upkeep, served_usd, own.training.band, rentable.bands[index])


def _tipping_points(
    mine: Alternative, api: Alternative, break_even: ApiBreakEven, cost: TotalCost, request: ComparisonRequest
) -> list[TippingPoint]:
    """The change of each input from which the other alternative is the cheaper one."""
    assert api.total_usd is not None
    assert mine.total_usd is not None
    assert api.usd_per_million_tokens is not None
    own_is_cheaper = mine.total_usd <= api.total_usd
    then = api.name if own_is_cheaper else mine.name
    each = api.usd_per_million_tokens
    prices = [each * (usd or 0.0) / api.total_usd for usd in (mine.total_usd, mine.total_usd_low, mine.total_usd_high)]
    band, factor = cost.throughput_band, tipping_throughput(cost, api.total_usd)
    measured = f"measured: {format_number(band.low, 2)} to {format_number(band.high, 2)} times the estimate"
    if factor is None:
        measured = f"the machines {'stay cheaper' if own_is_cheaper else 'cost more'} however fast they are"
    price = tipping_machine_price(cost, api.total_usd)
    point = partial(TippingPoint, then=then)
    volumes = (break_even.tokens_per_month, break_even.tokens_per_month_low, break_even.tokens_per_month_high)
    points = [
        point(
            input="tokens a month, steady", unit="tokens", now=request.traffic.tokens_per_month, at=volumes[0],
            low=volumes[1], high=volumes[2], why=break_even.why if volumes[0] is None else "",
        ),
        point(
            input="price of the API per million tokens of this mix", unit="USD", now=each, at=prices[0], low=prices[1],
            high=prices[2],
        ),
        point(
            input="throughput of a machine, relative to the estimate", unit="times", now=1.0, at=factor, why=measured
        ),
        point(
            input="price of the machines, relative to today's", unit="times", now=1.0, at=price,
            why="" if price is not None else "the upkeep alone costs more",
        ),
    ]  # fmt: skip
    if cost.upfront > 0:
        months = (break_even.month, break_even.month_low, break_even.month_high)
        at, low, high = (None if month is None else float(month) for month in months)
        why = "" if at is not None else f"not within {LONGEST_MONTHS} months at this traffic"
        points.append(
            point(input="months", unit="months", now=float(request.options.months), at=at, low=low, high=high, why=why)
        )
    return points


def _explanation(alternative: Alternative, request: ComparisonRequest) -> str:
    """The composition of an alternative's total, in one sentence."""
    serving = alternative.serving
    assert serving is not None
    month = units.format_usd(alternative.usd_per_month or 0.0)
    total = f"{units.format_usd(alternative.total_usd or 0.0)} in {request.options.months} months"
    rate = f"{month} a month"
    if request.traffic.growth_frac:
        rate = f"{month} in the first month, {units.format_usd(alternative.last_usd_per_month or 0.0)} in the last"
    if alternative.kind == "api":
        each = f"{units.format_usd(serving.usd_per_million_tokens)} a million tokens of this mix"
        return f"{alternative.name}: {each}, {rate}: {total}"
    bought = (serving.purchase or "").replace("_", " ")
    text = (
        f"{alternative.name}: {serving.num_instances} x {serving.provider} {serving.what} at "
        f"{units.format_usd(serving.usd_per_hour or 0.0)} an hour ({bought}), all month at a utilisation of "
        f"{units.format_percent(serving.filled_frac or 0.0)}, {rate}"
    )
    run = alternative.training
    if run is not None:
        upfront = units.format_usd(alternative.upfront_usd or 0.0)
        text += f"; {upfront} of training first ({units.format_seconds(run.seconds)})"
    return f"{text}: {total}"
