"""SI quantities: what people write (`80GB`, `2T`, `500ms`) to base units and back.

Inside the package every quantity is in base units (s, byte, FLOP, W, J, USD); these functions stand at its edge.
Decimal and binary prefixes differ: `80GB` is 80e9 bytes, `80GiB` is 80 * 2**30.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from decimal import Decimal
from typing import Any

from flopwise.errors import SpecError
from flopwise.values import dataclass

GIB = 2**30
HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
HOURS_PER_MONTH = 730.0

_NUMBER = re.compile(
    r"^\s*([+-]?(?:\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d*)?|\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\d\s].*)?$"
)
"""A number, its thousands set apart by commas (1,000,000) or underscores, and a unit."""
_DECIMAL = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15, "e": 1e18}
_BINARY = {"ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40, "pi": 2.0**50}
_SECONDS = {
    "": 1.0, "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0,
    "m": 60.0, "min": 60.0, "minute": 60.0, "minutes": 60.0, "h": 3600.0, "hr": 3600.0, "hour": 3600.0,
    "hours": 3600.0, "d": 86400.0, "day": 86400.0, "days": 86400.0, "w": 604800.0, "week": 604800.0,
    "weeks": 604800.0, "y": 31_536_000.0, "yr": 31_536_000.0, "year": 31_536_000.0, "years": 31_536_000.0,
}  # fmt: skip
_COUNT = {"": 1.0, "k": 1e3, "m": 1e6, "mil": 1e6, "b": 1e9, "bn": 1e9, "g": 1e9, "t": 1e12, "tn": 1e12, "q": 1e15, "p": 1e15, "e": 1e18}  # fmt: skip  # noqa: E501
_COUNTED_NAME = re.compile(r"\s*(\d{1,7})\s*x\s*(?=\S)", re.IGNORECASE)
_RATE_SUFFIX = re.compile(
    r"\s*(?:(?:req|requests?)?\s*(?:/|per)\s*(s|sec|second|m|min|minute|h|hr|hour|d|day|w|week)|[rq]ps)$", re.IGNORECASE
)


def _number_and_unit(value: object, what: str, example: str) -> tuple[float, str]:
    """The number and the unit text of `value`; SpecError when there is no finite number in it."""
    if isinstance(value, bool) or value is None:
        raise SpecError(f"{what}: {value!r} is not a quantity; write for example {example}")
    if isinstance(value, int | float):
        number, unit = float(value), ""
    else:
        text = str(value)
        match = _NUMBER.match(text) if len(text) < 100 else None
        if match is None:
            raise SpecError(f"{what}: {text[:60]!r} is not a quantity; write for example {example}")
        if match[2] and match[2].startswith(","):
            raise SpecError(f"{what}: {text[:60]!r} is more than one number; give one, for example {example}")
        number, unit = float(match[1].replace(",", "").replace("_", "")), (match[2] or "").strip()
    if not math.isfinite(number):
        raise SpecError(f"{what}: {value!r} is not finite; write for example {example}")
    return number, unit


def _scaled_value(value: object, scales: dict[str, float], what: str, example: str) -> float:
    number, unit = _number_and_unit(value, what, example)
    scale = scales.get(unit) or scales.get(unit.lower())
    if scale is None:
        allowed = ", ".join(u for u in scales if u)
        raise SpecError(f"{what}: unknown unit {unit[:30]!r} in {str(value)[:60]!r}; allowed: {allowed}")
    return number * scale


def parse_count(value: object, what: str = "count") -> float:
    """A number of things: `7B`, `2T`, `1.5e9`, `300k`, `40_000`, `32Ki`.

    Raises: SpecError: not a finite number with a known suffix.
    """
    return _scaled_value(value, _COUNT | _BINARY, what, "2T, 7B or 300k")


def parse_whole(value: object, what: str = "count", *, low: int = 1, high: int = 10**15, k: int = 1000) -> int:
    """A whole number within [low, high]; takes the suffixes of `parse_count`.

    With a `k` of 1,024, and `m` its square, as context lengths are named: `32k` is 32,768 tokens.

    Raises: SpecError: not whole, or out of range.
    """
    if k == 1000:
        number = parse_count(value, what)
    else:
        number = _scaled_value(value, {**_COUNT, **_BINARY, "k": float(k), "m": float(k) ** 2}, what, "8192 or 32k")
    if number != int(number):
        raise SpecError(f"{what}: {value} is not a whole number")
    if not low <= number <= high:
        raise SpecError(f"{what}: {value} is out of range; allowed: {low} to {high:,}")
    return int(number)


def parse_bytes(value: object, what: str = "size") -> float:
    """Bytes: `80GB` (decimal), `80GiB` (binary), a bare number is bytes.

    Raises: SpecError: not a finite number with a known unit.
    """
    scales = {f"{p}b": s for p, s in (_DECIMAL | _BINARY).items()} | {"": 1.0, "bytes": 1.0, "byte": 1.0}
    return _scaled_value(value, scales, what, "80GB or 80GiB")


def parse_seconds(value: object, what: str = "time") -> float:
    """Seconds: `500ms`, `30s`, `5min`, `12h`, `30d`; a bare number is seconds.

    Raises: SpecError: not a finite number with a known unit.
    """
    return _scaled_value(value, _SECONDS, what, "500ms, 12h or 30d")


def parse_rate(value: object, what: str = "rate") -> float:
    """Events per second: `20`, `20/s`, `20 rps`, `10k requests/hour`.

    Raises: SpecError: not a finite number with a known suffix and unit of time.
    """
    if isinstance(value, str) and len(value) < 100 and (match := _RATE_SUFFIX.search(value.strip())):
        return parse_count(value.strip()[: match.start()], what) / _SECONDS[(match[1] or "s").lower()]
    try:
        return parse_count(value, what)
    except SpecError as wrong:
        raise SpecError(f"{wrong}; a rate is per second, or such as 500/min, 10k/hour, 20 rps") from None


def parse_bytes_per_s(value: object, what: str = "bandwidth") -> float:
    """Bytes per second: `400Gbps` and `400Gbit/s` are bits, `50GB/s` bytes; a bare number is bytes per second.

    Raises: SpecError: not a finite number with a known unit.
    """
    scales = {"": 1.0}
    for prefix, scale in (_DECIMAL | _BINARY).items():
        scales |= {f"{prefix}bps": scale / 8, f"{prefix}bit/s": scale / 8, f"{prefix}b/s": scale}
    if isinstance(value, str):
        value = value.replace("Bps", "B/s").replace("bit/s", "bps")
    return _scaled_value(value, scales, what, "400Gbps or 50GB/s")


def parse_watts(value: object, what: str = "power") -> float:
    """Watts: `500W`, `0.7kW`; a bare number is watts. Raises SpecError: not a finite number with a known unit."""
    return _scaled_value(value, {"": 1.0, "w": 1.0, "kw": 1e3}, what, "500W or 0.7kW")


def parse_usd(value: object, what: str = "amount") -> float:
    """US dollars: `$12.50`, `5k`, `1.2M USD`, and amounts in the currency that text shows: `€500`, `500 EUR`.

    Raises: SpecError: not a finite number with a known suffix, or in a currency that text does not show.
    """
    if not isinstance(value, str):
        return parse_count(value, what)
    text = value.strip()
    if (shown := _shown_amount(text)) is not None:
        return parse_count(shown, what) / CURRENCY.get().per_usd
    if re.match("[€£]", text) or re.search("(EUR|GBP)$", text):
        raise SpecError(f"{what}: {value[:60]!r}: amounts are US dollars; give --currency EUR to give them in euros")
    return parse_count(re.sub(r"\s*(usd|dollars?)\s*$", "", text.removeprefix("$"), flags=re.IGNORECASE), what)


def _shown_amount(text: str) -> str | None:
    """The amount that `text` gives in the currency that text shows, without its sign; None: it does not, or dollars."""
    own = CURRENCY.get()
    sign = own.symbol.strip()
    if own.per_usd == 1 or not (text.startswith(sign) or text.endswith(own.code)):
        return None
    return text.removeprefix(sign).removesuffix(own.code).strip()


def in_dollars(data: Any) -> Any:
    """Plain data as files keep them: amounts in the currency that text shows are US dollars, other values as given."""
    if isinstance(data, dict):
        return {key: in_dollars(value) for key, value in data.items()}
    if isinstance(data, list):
        return [in_dollars(value) for value in data]
    if not isinstance(data, str) or _shown_amount(data.strip()) is None:
        return data
    try:
        return parse_usd(data)
    except SpecError:  # another text with the sign of the currency
        return data


def parse_share(value: object, what: str = "share") -> float:
    """A share: `0.4` or `40%`. Raises SpecError: not a finite number, with or without a percent sign."""
    text = str(value).strip()
    return parse_count(text[:-1], what) / 100 if text.endswith("%") else parse_count(value, what)


def parse_flops(value: object, what: str = "operations") -> float:
    """Floating-point operations, or as many a second: `35T`, `35TFLOP/s`, `247Gi` (base 2).

    Raises: SpecError: not a finite number with a known suffix.
    """
    if not isinstance(value, str):
        return parse_count(value, what)
    text = re.sub(r"\s*flops?(/s)?$", "", value.strip(), flags=re.IGNORECASE)
    scale = _BINARY.get(text[-2:].lower(), 1.0)
    return parse_count(text if scale == 1.0 else text[:-2], what) * scale


def split_count(name: str) -> tuple[int | None, str]:
    """The count in a name, and the name: 2 and `a100-80gb` of `2xa100-80gb`; None where it has no count.

    Raises: SpecError: none at all.
    """
    match = _COUNTED_NAME.match(name)
    if match is None:
        return None, name
    if (count := int(match[1])) < 1:
        raise SpecError(f"{name[:60]!r} is a count of 0; give 1 or more")
    return count, name[match.end() :]


def _three_digits(value: float) -> str:
    """`value` to about three significant digits, without an exponent."""
    size = abs(value)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2
    return f"{value:,.{digits}f}"


def _with_prefix(value: float, unit: str, prefixes: str, base: float) -> str:
    """`value` with the largest prefix that leaves at least one whole unit."""
    size, step = abs(value), 0
    while size >= base * 0.9995 and step < len(prefixes) - 1:
        size, step = size / base, step + 1
    return f"{_three_digits(value / base**step)} {prefixes[step].strip()}{unit}"


def format_bytes(value: float) -> str:
    """Memory as people read it: binary prefixes, `79.6 GiB`."""
    size, step = abs(value), 0
    while size >= 1023.5 and step < 5:
        size, step = size / 1024, step + 1
    return f"{_three_digits(value / 1024**step)} {('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB')[step]}"


def format_gib(value: float) -> str:
    """Memory in GiB, for columns that are read downwards; what would be next to nothing there, in smaller units."""
    return format_bytes(value) if 0 < abs(value) < 0.05 * GIB else f"{value / GIB:,.2f} GiB"


def format_rate(value: float, unit: str = "B/s") -> str:
    """A rate with decimal prefixes: `3.35 TB/s`, `989 TFLOP/s`."""
    return _with_prefix(value, unit, " kMGTPEZY", 1000.0)


def format_items(number: int, noun: str) -> str:
    """A number of things with their noun: `1 replica`, `2,000 replicas`."""
    return f"{number:,} {noun}{'s'[: number != 1]}"


def format_count(value: float) -> str:
    """A count with the field's suffixes: `8.03 B`, `15.0 T`."""
    return _with_prefix(value, "", (" kMBTPE"), 1000.0).rstrip()


def format_number(value: float, digits: int = 3) -> str:
    """A number in `digits` significant digits, never with a power of ten: `0.123`, `10,480`, `1.00 B`."""
    if not math.isfinite(value):
        return f"{value:g}"
    return format_count(value) if abs(value) >= 1e9 else f"{Decimal(f'{value:.{digits}g}'):,f}"


def format_flops(value: float) -> str:
    """Floating-point operations with decimal prefixes: `1.21 PFLOP`."""
    return _with_prefix(value, "FLOP", " kMGTPEZY", 1000.0)


def format_seconds(value: float) -> str:
    """A time in the unit that suits it: `12.3 ms`, `4.20 s`, `3.1 h`, `21.4 days`."""
    if not math.isfinite(value):
        return "unbounded"
    size = abs(value)
    for limit, scale, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (120.0, 1.0, "s"), (7200.0, 1 / 60, "min")):
        if size < limit:
            return f"{_three_digits(value * scale)} {unit}"
    return f"{_three_digits(value / HOUR_S)} h" if size < 2 * DAY_S else f"{_three_digits(value / DAY_S)} days"


@dataclass(frozen=True, slots=True)
class Currency:
    """The currency of amounts in text: `symbol` stands before them; `source` gives the origin and date of its rate."""

    code: str
    symbol: str
    per_usd: float = 1.0
    source: str = ""


US_DOLLAR = Currency("USD", "$")
CURRENCY: ContextVar[Currency] = ContextVar("currency", default=US_DOLLAR)
"""In which text shows amounts. What is computed, and figures in files and JSON, are US dollars."""


def in_currency(usd: float) -> float:
    """US dollars in the currency that text shows."""
    return usd * CURRENCY.get().per_usd


def format_usd(value: float, digits: int | None = None) -> str:
    """US dollars in the currency that text shows: cents below 1,000, whole above: `$3.06`, `$12,340`, `-€12.50`.

    `digits`: so many behind the point.
    """
    amount = in_currency(value)
    size = abs(amount)
    if digits is None:
        digits = 4 if 0 < size < 0.1 else 2 if size < 1000 else 0
    return f"{'-' if amount < 0 else ''}{CURRENCY.get().symbol}{size:,.{digits}f}"


def format_price(usd_per_gpu_hour: float | None, source: str) -> str:
    """The price of an accelerator-hour with its origin and date; `unknown` for None."""
    return "unknown" if usd_per_gpu_hour is None else f"{format_usd(usd_per_gpu_hour)} per accelerator-hour ({source})"


def format_joules(value: float) -> str:
    """Energy as bills state it, in watt-hours: `12.3 kWh`."""
    return _with_prefix(value / HOUR_S, "Wh", " kMGT", 1000.0)


def format_percent(fraction: float, digits: int = 1) -> str:
    """A fraction as a percentage: 0.413 is `41.3 %`."""
    return f"{100 * fraction:.{digits}f} %"


def format_multiple(ratio: float) -> str:
    """A ratio to something, before its name: `85.0 % of what`, from twice on `3.2 times what`."""
    return (
        f"{format_percent(ratio)} of what"
        if ratio < 2
        else f"{ratio:,.0f} times what"
        if ratio >= 10
        else f"{ratio:.1f} times what"
    )


def format_times(ratio: float) -> str:
    """A ratio in three digits, whole from a hundred on: `3.24 times`, `14,312 times`."""
    return f"{ratio:,.0f} times" if ratio >= 99.95 else f"{format_number(ratio)} times"


def format_chance(probability: float) -> str:
    """A probability as a whole percentage; one that only rounds to 0 or 100 % is `<1 %` or `>99 %`."""
    percent = round(100 * probability)
    return "<1 %" if percent < 1 else ">99 %" if percent > 99 else f"{percent} %"


def format_change(ratio: float, digits: int = 0) -> str:
    """A ratio as a signed percentage: 1.25 is `+25 %`, and what rounds to nothing `+0 %`."""
    return f"{100 * (ratio - 1):+z,.{digits}f} %"


def format_alternatives(words: Sequence[str]) -> str:
    """One of several things: `a`, `a or b`, `a, b or c`."""
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def format_interval(low: float, high: float, text: Callable[[float], str]) -> str:
    """The ends of an interval, in parentheses."""
    return f"(80 % interval: {text(low)} to {text(high)})"


def format_arrivals(per_s: float, noun: str = "request") -> str:
    """A rate with its unit: `1 request/s`, `2.5 requests/s`."""
    return f"{format_number(per_s, 6)} {noun}{'' if per_s == 1 else 's'}/s"


def format_cost(value: float | None) -> str | None:
    """US dollars, or nothing where they are not known; small amounts to three digits."""
    if value is None:
        return None
    amount = in_currency(value)
    return format_usd(value, 2 - math.floor(math.log10(amount)) if 0 < amount < 0.01 else None)
