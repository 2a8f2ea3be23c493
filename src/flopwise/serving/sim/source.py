"""The requests of a simulation: from a trace file, or drawn at a rate with lengths; seeded, so that runs repeat."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from flopwise import options, units
from flopwise.errors import SpecError
from flopwise.ops.spec import SharedSpec
from flopwise.options import Spec, option, same
from flopwise.serving.sim.profiles import PROFILE
from flopwise.serving.spec import ROUNDS, DrawnLengthsSpec, PriorityClass, QueueSpec, RequestSpec, SessionsSpec
from flopwise.values import dataclass

DEFAULT_ARRIVALS = "poisson"
"""How they arrive at a rate."""


_traffic = partial(option, section="Traffic")


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic(Spec):
    """The traffic of a simulation: a `trace` file, a `rate` (requests/s), or `users` who ask again after each answer.

    Users begin together. Lengths that are given as one number vary around it, where requests follow one another.
    `input_tokens`, `output_tokens`: lengths as `flopwise.serving.sim.lengths.Lengths.parse` reads them; `lengths_from`:
    a trace file whose pairs of prompt and answer are drawn instead. `prefixes`: so many system prompts of
    `prefix_tokens` that requests begin with, all alike often.
    """

    trace: Path | None = _traffic(
        "--trace", options.FILE, "A CSV file of requests: arrival_s, prompt_tokens, output_tokens ...; or Mooncake's "
        "JSON lines: timestamp, input_length, output_length, hash_ids.")
    scale: float = _traffic("--scale", options.COUNT,
        "Speed at which the trace is replayed: 2 is twice as fast.", default=1.0)
    rate: float | None = same(RequestSpec, "rate")
    arrivals: str = _traffic("--arrivals", options.choice("poisson", "gamma", "uniform", "diurnal"),
        "How requests arrive: poisson, gamma (bursts), uniform, or diurnal (a daily wave).",
        default=DEFAULT_ARRIVALS)
    duration_s: float | None = _traffic(
        "--duration", options.SECONDS, "Time during which requests arrive (default: 10 min).")
    requests: int | None = same(RequestSpec, "requests")
    burstiness: float | None = _traffic("--burstiness", options.quantity("x", units.parse_count, low=1e-3, high=100.0),
        "For gamma arrivals: standard deviation of the gaps over their mean; 1 is Poisson, 3 is bursty.")
    peak: float | None = _traffic("--peak", options.quantity("x", units.parse_count, low=1.0, high=50.0, closed=True),
        "Peak rate over the mean rate: for diurnal arrivals, and to size the replicas of a plan.")
    peak_hour: float | None = _traffic("--peak-hour", options.HOUR,
        "Hour of the daily peak, for diurnal arrivals (default: 14).")
    weekend: float | None = _traffic(
        "--weekend", options.COUNT_OR_ZERO, "Traffic of a weekend day over that of a weekday, for diurnal arrivals.")
    profile: Any = _traffic("--profile", PROFILE, "Rate by hour of the week: office, daily, a file of hour,rate or a "
    "trace; fleet files may list 24 or 168 rates. The given rate is the week's mean.")
    users: int | None = _traffic("--users", options.whole(high=10**12),
        "Closed loop of this many users, who begin together and send a request after each answer.")
    think_s: float = same(SessionsSpec, "think_s", default=0.0)
    turns: int | str | None = same(SessionsSpec, "turns")
    tool_share: float | None = same(SessionsSpec, "tool_share")
    tool_pause: float | None = same(SessionsSpec, "tool_pause")
    input_tokens: int | str | None = same(RequestSpec, "input_tokens")
    output_tokens: int | str | None = same(RequestSpec, "output_tokens")
    lengths_from: Path | None = same(DrawnLengthsSpec, "lengths_from")
    prefixes: int = _traffic("--prefixes", options.WHOLE_OR_ZERO,
        "Number of shared prefixes that prompts begin with.", default=0)
    prefix_tokens: int | None = _traffic("--prefix-tokens", options.TOKENS,
        "Tokens of each shared prefix, before --input.")
    priorities: tuple[PriorityClass, ...] | None = same(QueueSpec, "priorities", section="Traffic")
    seed: int = same(SharedSpec, "seed", default=0, section="Traffic")
    # fmt: on

    @property
    def num_requests(self) -> int | None:
        """Requests in all, as given or as users send them; None where the duration or a trace says so."""
        return self.requests if self.requests is not None or self.users is None else ROUNDS * self.users

    @property
    def in_turn(self) -> bool:
        """True if several users send several requests each."""
        return self.users is not None and 1 < self.users < (self.num_requests or 0)

    @property
    def varies(self) -> bool:
        """True if lengths that are given as one number vary: equal requests would stay in step.

        Those of users, who end together as they began; and those that a balancer sends to the least loaded of several
        replicas, on which answers begin together that end together, and make it the least loaded again.
        """
        return self.in_turn or (self.rate is not None and self.turns is None)

    def check(self) -> None:
        """Refuse what contradicts itself.

        Raises: SpecError: says what goes with what.
        """
        sources = [self.trace is not None, self.rate is not None, self.users is not None]
        if sum(sources) != 1:
            given = ", ".join(n for n, s in zip(("trace", "rate", "users"), sources, strict=True) if s) or "none"
            raise SpecError(f"give one of --trace, --rate and --users; given: {given}")
        if self.trace is not None and (self.input_tokens or self.output_tokens or self.lengths_from):
            raise SpecError(
                "a trace file gives the lengths of requests; leave out --input, --output and --lengths-from"
            )
        if self.lengths_from is not None and (self.input_tokens or self.output_tokens):
            raise SpecError("--lengths-from gives the lengths of requests; leave out --input and --output")
        self._check_goes_with()
        if self.duration_s is not None and self.requests is not None:
            raise SpecError("--duration and --requests are both given; give one of them")
        if bool(self.prefixes) != (self.prefix_tokens is not None):
            raise SpecError("--prefixes (how many) and --prefix-tokens (how long) go together")
        if self.priorities is not None and self.trace is not None:
            raise SpecError("a trace file has its priorities in the column priority; leave out --priorities")
        if self.prefixes and self.trace is not None:
            raise SpecError("a trace file has its prefixes in the columns prefix and prefix_tokens")

    def _check_goes_with(self) -> None:
        """Refuse what says nothing about traffic of this source."""
        shape = (self.burstiness, self.peak, self.peak_hour, self.weekend)
        if self.rate is None and any(value is not None for value in (self.duration_s, self.profile, *shape)):
            raise SpecError("--duration, --profile, --burstiness, --peak, --peak-hour and --weekend go with --rate")
        if self.profile is not None and (self.arrivals != DEFAULT_ARRIVALS or any(v is not None for v in shape)):
            raise SpecError("--profile already shapes the --rate; leave out --arrivals and its options")
        if self.rate is None and self.arrivals != DEFAULT_ARRIVALS:
            raise SpecError(f"--arrivals {self.arrivals} needs a --rate; give one, or leave it out")
        if self.users is None and self.turns is None and self.think_s:
            raise SpecError(
                "--think is the pause between an answer and the next request of --users, or turn of a session; give "
                "--users or --turns"
            )
        if self.turns is not None and self.rate is None:
            raise SpecError("--turns needs the --rate at which sessions start")
        if self.turns is None and (self.tool_share is not None or self.tool_pause is not None):
            raise SpecError("--tool-share and --tool-pause need the --turns of sessions")
        if bool(self.tool_share) != bool(self.tool_pause):
            raise SpecError("--tool-share (how many turns) and --tool-pause (how long) go together")
        if self.trace is None and self.scale != 1.0:
            raise SpecError("--scale changes the rate of a trace file; with --rate, change the rate itself")
