"""Limits on quantities, with durations; an alert fires once and clears once per episode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from flopwise.facts.device_limits import HARDWARE_XIDS, THROTTLE_BITS, THROTTLE_FOR_S
from flopwise.telemetry.history import MOST_GAP_S, History, over
from flopwise.telemetry.money import Spend
from flopwise.telemetry.readings import WHOLE_JOB
from flopwise.units import format_number, format_percent, format_seconds, format_usd
from flopwise.values import dataclass

CLEAR_S = 60.0
"""Time within the limit after which an alert clears, so that noise around a limit is one episode."""
XID_FOR_S = 900.0
"""Time for which an error of a device is shown, in seconds."""
LOST_FOR_S = 30.0
GONE_S = 900.0
"""Time after which alerts of a device end if readings name it neither as present nor as lost."""
BY_CLOCK = ("source_lost", "cost_usd_per_day", "cost_usd_per_run", "cost_usd_per_month")
"""Quantities that grow without new readings."""


@dataclass(frozen=True, slots=True)
class Look:
    """The values that limits are compared with: readings, cost, and figures of the plan."""

    history: History
    requests_per_s: float | None  # what the replicas can do
    mfu_per_token_rate: float | None
    boost_clock_hz: float | None
    spend: Spend
    clock_s: float | None = None  # time, if there is no new reading and only BY_CLOCK quantities are compared
    source_lost_s: float = 0.0


PerDevice = Mapping[str, float]


def _each(name: str, look: Look) -> PerDevice:
    return {d: v[name] for d, v in look.history.latest.devices.items() if name in v}


def _share(part: str, whole: str, look: Look, _: str) -> PerDevice:
    by_device = {d: over(v, part, whole) for d, v in look.history.latest.devices.items()}
    return {d: v for d, v in by_device.items() if v is not None}


def _job(name: str, look: Look, _: str = "") -> PerDevice:
    job = look.history.latest.job
    return {WHOLE_JOB: job[name]} if name in job else {}


def _above_limit(part: str, whole: str, look: Look, _: str) -> PerDevice:
    return {d: v[part] - v[whole] for d, v in look.history.latest.devices.items() if part in v and v.get(whole)}


def _spend(name: str, look: Look, _: str) -> PerDevice:
    value: float | None = getattr(look.spend, name)
    return {} if value is None else {WHOLE_JOB: value}


def _busy(look: Look, _: str) -> PerDevice:
    values = [v["busy_frac"] for v in look.history.latest.devices.values() if "busy_frac" in v]
    return {WHOLE_JOB: sum(values) / len(values)} if values else {}


def _busy_service(look: Look, key: str) -> PerDevice:
    """As `_busy`, but empty for a run with tokens, which is planned to be busy all the time."""
    job = look.history.latest.job
    return {} if "tokens_per_s" in job and "requests_running" not in job else _busy(look, key)


def _busy_in_vain(look: Look, key: str) -> PerDevice:
    """As `_busy`, if a run processes no tokens; empty for services, or if tokens are not measured."""
    job = look.history.latest.job
    rate = None if "requests_running" in job else job.get("tokens_per_s")
    return {WHOLE_JOB: 0.0} if rate else {} if rate is None else _busy(look, key)


def _latency(name: str, look: Look, percent: str) -> PerDevice:
    return _job(f"{name}_p{percent}_s", look)


def _load(look: Look, _: str) -> PerDevice:
    rate, capacity = look.history.latest.job.get("requests_per_s"), look.requests_per_s
    return {} if rate is None or not capacity else {WHOLE_JOB: rate / capacity}


def _mfu(look: Look, _: str) -> PerDevice:
    job, each = look.history.latest.job, look.mfu_per_token_rate
    if "mfu_frac" in job:
        return {WHOLE_JOB: job["mfu_frac"]}
    return {WHOLE_JOB: job["tokens_per_s"] * each} if each and "tokens_per_s" in job else {}


def _tensor(look: Look, _: str) -> PerDevice:
    """Mean share of cycles in which tensor cores work, times the clock over the datasheet's boost clock."""
    devices = look.history.latest.devices.values()
    active = [v["tensor_active_frac"] for v in devices if "tensor_active_frac" in v]
    if not active:
        return {}
    boost = look.boost_clock_hz
    clocks = [v["sm_clock_hz"] for v in devices if "sm_clock_hz" in v]
    scale = sum(clocks) / len(clocks) / boost if boost and clocks else 1.0
    return {WHOLE_JOB: scale * sum(active) / len(active)}


def _throttle_flags(look: Look, _: str) -> PerDevice:
    mask = sum(THROTTLE_BITS)
    return {d: float(bool(int(v) & mask)) for d, v in _each("throttle_bits", look).items()}


def _hardware_xid(look: Look, _: str) -> PerDevice:
    return {d: v if v in HARDWARE_XIDS else 0.0 for d, v in _each("xid", look).items()}


def _new_xid(look: Look, _: str) -> PerDevice:
    """Number of an Xid error that appeared in the last 15 minutes of watching; 0 without one."""
    history = look.history
    since_s = history.latest.at_s - XID_FOR_S
    new = {device: xid for device, (at_s, xid) in history.new_xids.items() if at_s >= since_s}
    return dict.fromkeys(history.xids, 0.0) | new


def _lost_devices(look: Look, _: str) -> PerDevice:
    reading = look.history.latest
    return dict.fromkeys(reading.devices, 0.0) | dict.fromkeys(reading.lost, 1.0)


QUANTITIES: dict[str, Callable[[Look, str], PerDevice]] = {
    "device_busy_ratio": _busy_service, "busy_without_tokens": _busy_in_vain, "load_ratio": _load,
    "memory_ratio": partial(_share, "memory_used_bytes", "memory_total_bytes"),
    "cache_ratio": partial(_job, "cache_frac"), "preemptions": partial(_job, "preemptions_per_s"),
    "time_to_first_token_seconds": partial(_latency, "ttft"), "time_per_token_seconds": partial(_latency, "tpot"),
    "latency_seconds": partial(_latency, "latency"), "tokens_per_second": partial(_job, "tokens_per_s"),
    "output_tokens_per_second": partial(_job, "output_tokens_per_s"),
    "requests_per_second": partial(_job, "requests_per_s"), "requests_waiting": partial(_job, "requests_waiting"),
    "cost_usd_per_day": partial(_spend, "day_usd"), "cost_usd_per_run": partial(_spend, "total_usd"),
    "cost_usd_per_month": partial(_spend, "total_usd"),
    "temperature_celsius": partial(_above_limit, "temperature_c", "temperature_limit_c"),
    "memory_temperature_celsius": partial(_above_limit, "memory_temperature_c", "memory_temperature_limit_c"),
    "power_ratio": partial(_share, "power_w", "power_limit_w"), "mfu_ratio": _mfu, "tensor_ratio": _tensor,
    "throttle_reasons": _throttle_flags, "xid_hardware": _hardware_xid, "xid": _new_xid,
    "checkpoint_age_seconds": partial(_job, "checkpoint_age_s"), "device_lost": _lost_devices,
    "source_lost": lambda look, _: {WHOLE_JOB: look.source_lost_s},
}  # fmt: skip
"""Quantities of limits, by the names of the exported recording rules and a few further names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A threshold that a quantity may not exceed for longer than `for_s`; `key`: percentile of a latency."""

    name: str
    quantity: str
    threshold: float
    summary: str
    why: str
    action: str
    above: bool = True
    for_s: float = 0.0
    severity: str = "warning"
    key: str = ""

    def value_text(self, value: float) -> str:
        """A value with its unit."""
        if self.quantity.endswith("_ratio") or self.quantity == "busy_without_tokens":
            return format_percent(value, 0)
        if self.quantity.startswith("cost_usd"):
            return format_usd(value)
        return format_seconds(value) if self.quantity.endswith(("_seconds", "source_lost")) else format_number(value, 4)


DEVICE_LIMITS = (
    Limit(name="XidHardwareError", quantity="xid_hardware", threshold=0.0, severity="critical",
          summary="the driver reports a hardware fault of a GPU", why="errors after which a GPU has to be reset",
          action="drain the machine, save its log (nvidia-bug-report.sh), reset the GPU; replace it if that fails"),
    Limit(name="XidError", quantity="xid", threshold=0.0, summary="the driver reports an error of a GPU",
          why="most are faults of the program, such as 13 and 31",
          action="look the number up in NVIDIA's catalog of Xid errors; restart what ran there"),
    Limit(name="DeviceLost", quantity="device_lost", threshold=0.0, for_s=LOST_FOR_S, severity="critical",
          summary="a GPU has disappeared", why="it answered before, and other GPUs of its machine still do",
          action="look for Xid 79 in the kernel log (dmesg); drain the machine and restart it"),
    Limit(name="SourceLost", quantity="source_lost", threshold=60.0, severity="critical",
          summary="the source does not answer", why="without readings there is no diagnosis",
          action="check that the server, the store or the driver is running"),
    Limit(name="TemperatureHigh", quantity="temperature_celsius", threshold=0.0, for_s=300.0, severity="critical",
          summary="GPU is above its maximum operating temperature", why="the device's own limit",
          action="check fans, airflow and cooling; move the work, or lower the power limit"),
    Limit(name="Throttled", quantity="throttle_reasons", threshold=0.0, for_s=THROTTLE_FOR_S,
          summary="a GPU is throttled",
          why=f"because of {', '.join(THROTTLE_BITS.values())}, not of the power limit",
          action="look at temperature, power supply and fans; move the work to another machine"),
)  # fmt: skip
"""Limits of any device, whatever runs on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertChange:
    """An alert that starts to fire or clears."""

    limit: Limit
    device: str
    value: float
    at_s: float
    since_s: float
    firing: bool


@dataclass(slots=True)
class _Episode:
    since_s: float  # start of exceeding the limit
    seen_s: float  # last comparison
    firing: bool = False
    kept_s: float | None = None  # within the limit since
    value: float = 0.0


class Alarms:
    """The episodes of all limits: each is pending, then fires, then clears."""

    def __init__(self, limits: Sequence[Limit]) -> None:
        self.limits = tuple(limits)
        self._episodes: dict[tuple[str, str], _Episode] = {}
        self._named_s: dict[str, float] = {}  # when a reading last named a device

    def step(self, look: Look) -> list[AlertChange]:
        """Alerts that fire or clear with the latest reading, or by the clock."""
        if look.clock_s is not None:
            compared = (limit for limit in self.limits if limit.quantity in BY_CLOCK)
            return [change for limit in compared for change in self._changes(limit, look, look.clock_s)]
        latest = look.history.latest
        self._named_s |= dict.fromkeys((*latest.devices, *latest.lost), latest.at_s)
        changes = [change for limit in self.limits for change in self._changes(limit, look, latest.at_s)]
        return [*changes, *(self._of_gone_devices(latest.at_s) if latest.devices else ())]

    def _of_gone_devices(self, at_s: float) -> Iterator[AlertChange]:
        """Alerts that clear because their device is gone: a returned machine, a repartitioned slice."""
        limits = {limit.name: limit for limit in self.limits}
        for (name, device), episode in [*self._episodes.items()]:
            if device in self._named_s and at_s - self._named_s[device] >= GONE_S:
                del self._episodes[name, device]
                if episode.firing:
                    episode.firing = False
                    yield self._change(limits[name], device, episode, at_s)

    def _changes(self, limit: Limit, look: Look, at_s: float) -> Iterator[AlertChange]:
        for device, value in QUANTITIES[limit.quantity](look, limit.key).items():
            beyond = value > limit.threshold if limit.above else value < limit.threshold
            episode = self._episodes.get((limit.name, device))
            if episode is not None and not episode.firing and not 0 <= at_s - episode.seen_s <= MOST_GAP_S:
                episode = None  # there were no comparisons in between, or the clock was set
            if episode is None:
                if not beyond:
                    self._episodes.pop((limit.name, device), None)
                    continue
                episode = self._episodes[limit.name, device] = _Episode(at_s, at_s)
            episode.seen_s, episode.value = at_s, value
            if beyond:
                episode.kept_s = None
                if not episode.firing and at_s - episode.since_s >= limit.for_s:
                    episode.firing = True
                    yield self._change(limit, device, episode, at_s)
            elif not episode.firing:
                del self._episodes[limit.name, device]
            else:
                if episode.kept_s is None or at_s < episode.kept_s:
                    episode.kept_s = at_s
                if at_s - episode.kept_s >= CLEAR_S:
                    episode.firing = False
                    del self._episodes[limit.name, device]
                    yield self._change(limit, device, episode, at_s)

    def _change(self, limit: Limit, device: str, episode: _Episode, at_s: float) -> AlertChange:
        return AlertChange(
            limit=limit, device=device, value=episode.value, at_s=at_s, since_s=episode.since_s, firing=episode.firing
        )

    def active(self, *, firing: bool = True) -> list[AlertChange]:
        """Firing alerts; or pending ones, whose limit is exceeded but not yet for long enough."""
        limits = {limit.name: limit for limit in self.limits}
        return [
            self._change(limits[name], device, episode, episode.seen_s)
            for (name, device), episode in self._episodes.items()
            if episode.firing == firing
        ]
