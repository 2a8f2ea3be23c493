"""All alternatives for the same traffic, cheapest first, with the verdict on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flopwise.buy_or_build.alternatives import (
    Alternative,
    ComparisonRequest,
    CostComparison,
    MonthlyTraffic,
    ServingOffer,
    with_ends,
)
from flopwise.buy_or_build.rentable import cumulative_usd, monthly_volumes
from flopwise.buy_or_build.self_hosted import SelfHosted, SelfHostedPlans
from flopwise.buy_or_build.verdict import verdict
from flopwise.errors import InfeasibleError, SpecError, UnknownNameError
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.price_book import HostedPrice
from flopwise.fleet.hosted import api_usd
from flopwise.ops.tensors import active_parameters

GIVEN = "given by the user"
RESERVED_MONTHS = {"reserved_1y": 12, "reserved_3y": 36}


def compare_alternatives(
    request: ComparisonRequest, facts: Facts, advance: Callable[[int, int], None] | None = None
) -> CostComparison:
    """What each alternative costs, and from which month and volume own machines cost less than an API.

    Raises:
        SpecError, UnknownNameError: the model has no layers, or a name is not known.
        InfeasibleError: no alternative is feasible; the reasons of each.
    """
    plans = SelfHostedPlans(request, facts, advance)
    traffic = request.traffic
    prices = _api_prices(request, plans.model, facts) if "api" in request.kinds else {}
    assumptions = _assumptions(request, plans)
    if "api" in request.kinds and not prices:
        assumptions.append(f"no API: nobody's price of {plans.model.name} is known; name one like it, or give a price")
    alternatives = [_api_alternative(request, name, price) for name, price in prices.items()]
    planned = [plans.planned(kind) for kind in request.kinds if kind != "api"]
    own = {each.name: each for each in planned if isinstance(each, SelfHosted)}
    alternatives += [each.alternative() if isinstance(each, SelfHosted) else each for each in planned]
    if not any(each.feasible for each in alternatives):
        reasons = [f"{each.name}: {reason}" for each in alternatives for reason in each.reasons]
        raise InfeasibleError("no way of this comparison is feasible", reasons or assumptions[-1:])
    alternatives.sort(key=lambda each: (each.total_usd is None, each.total_usd or 0.0))
    break_evens = [
        each.break_even(name, _usd_per_token(price, traffic)) for each in own.values() for name, price in prices.items()
    ]
    parts = [part for each in alternatives for part in (each.training, each.serving) if part is not None]
    devices = [part.gpu for part in parts if part.gpu is not None]
    requests = traffic.requests_per_month
    return CostComparison(
        model=plans.model.name,
        months=request.months,
        tokens_per_month={"input": requests * traffic.input_tokens, "output": requests * traffic.output_tokens},
        growth_frac=traffic.growth_frac,
        ways=alternatives,
        break_even=break_evens,
        cheapest=alternatives[0].name,
        verdict=verdict(alternatives, break_evens, own, request),
        assumptions=[*assumptions, *facts.grade_remarks(devices)],
    )


def _usd_per_token(price: HostedPrice, traffic: MonthlyTraffic) -> float:
    """USD a token of the mix."""
    return float(api_usd(price, float(traffic.input_tokens), float(traffic.output_tokens))) / traffic.tokens_per_request


def _api_prices(request: ComparisonRequest, model: Model, facts: Facts) -> dict[str, HostedPrice]:
    """The price of each API that is named or given, by name; without either, of the cheapest host of the model."""

    def usd(price: HostedPrice) -> float:
        return _usd_per_token(price, request.traffic)

    prices = [min(_hosts(name, facts), key=usd) for name in request.apis]
    if not request.apis and not request.api_prices:
        prices = sorted(facts.hosted_for(model.name), key=usd)[:1]
    for number, (usd_in, usd_out) in enumerate(request.api_prices, 1):
        for value in (usd_in, usd_out):
            if not 0 <= value < 1e6:
                raise SpecError(f"api price: {value:g} is out of range; allowed: 0 to 1e6 USD a million tokens")
        if usd_in + usd_out <= 0:
            raise SpecError("api price: nothing is free of charge; give the USD of a million input and output tokens")
        label = "as given" if len(request.api_prices) == 1 else f"as given, {number}"
        prices.append(
            HostedPrice(
                provider="api", name=label, input_usd_per_mtok=usd_in, output_usd_per_mtok=usd_out,
                source=GIVEN, date="",
            )
        )  # fmt: skip
    return {f"API {'' if p.source == GIVEN else p.provider + ' '}{p.model or p.name}": p for p in prices}


def _hosts(name: str, facts: Facts) -> Sequence[HostedPrice]:
    """The hosts of a model, or the one of `provider/model`.

    Raises:
        UnknownNameError: no known provider hosts it.
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
    """What an API costs; a price list has no error, so both ends are the value."""
    traffic, usd_per_token = request.traffic, _usd_per_token(price, request.traffic)
    monthly = monthly_volumes(traffic.tokens_per_month, traffic.growth_frac, request.months) * usd_per_token
    cumulative = cumulative_usd(0.0, monthly)
    each = 1e6 * usd_per_token
    return Alternative(
        name=name,
        kind="api",
        model=price.model or price.name,
        feasible=True,
        serving=ServingOffer(
            provider=price.provider, what=price.name, num_instances=None, gpu=None, purchase=None,
            price_date=price.date, price_notes=[price.notes] if price.notes else [],
            **with_ends(usd_per_million_tokens=(each,) * 3),
        ),
        **with_ends(
            upfront_usd=(0.0,) * 3,
            usd_per_month=(float(monthly[0]),) * 3,
            last_usd_per_month=(float(monthly[-1]),) * 3,
            total_usd=(float(cumulative[-1]),) * 3,
            usd_per_million_tokens=(each,) * 3,
            cumulative_usd=(cumulative.tolist(),) * 3,
        ),
    )  # fmt: skip


def _assumptions(request: ComparisonRequest, plans: SelfHostedPlans) -> list[str]:
    """What the comparison takes for granted."""
    own = [kind for kind in request.kinds if kind != "api"]
    notes = [
        "every way answers well enough; only cost is compared",
        "machines that serve are on all month, whole",
        "an interval holds 80 % of cases by the measured errors of training and serving; prices are as listed",
    ]
    if "api" in request.kinds:
        notes.append("API prices without discounts for batches, volume or cached prompts")
    if set(own) - {"open"}:
        notes.append(f"{request.runs} training run(s) paid, without data, evaluation and people")
    if own and any(RESERVED_MONTHS.get(purchase, 0) > request.months for purchase in request.purchase):
        notes.append(
            f"a reservation outlasts the {request.months} months compared; the rest of its term is not in the sums"
        )
    if any(purchase.startswith("reserved") for purchase in request.train_purchase):
        notes.append("a reservation is paid for the months that a training run takes; what is left of its term is not")
    if "pretrain" in own:
        ratio = plans.pretrain_tokens / float(active_parameters(plans.scratch))
        notes.append(
            f"from scratch on {plans.pretrain_tokens:,.3g} tokens, {ratio:.3g} a parameter; published weights of the "
            "same size have often seen many times that, and answer better for it"
        )
    if own and not request.upkeep_usd_per_month:
        notes.append("no upkeep: people and storage of a service of one's own are not counted (--upkeep)")
    return notes
