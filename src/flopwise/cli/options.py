"""Arguments and options that several commands share, and the types of what people write there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flopwise import units
from flopwise.cli.render import Screen, screen, write
from flopwise.errors import SpecError, UnknownNameError

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]  # generic in the types only
    _Choice = click.Choice[str]
else:
    _ParamType, _Choice = click.ParamType, click.Choice

Parse = Callable[[object, str], float]


class Quantity(_ParamType):
    """A number above `low` and up to `high`, written with a unit as `parse` of `flopwise.units` reads it."""

    def __init__(self, name: str, parse: Parse, *, low: float = 0.0, high: float = 1e24, zero: bool = False) -> None:
        """`zero` allows `low` itself; `name` stands in the help."""
        self.name, self._parse, self._low, self._high, self._zero = name, parse, low, high, zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the number in base units; SpecError says what is allowed."""
        del ctx
        what = spelling(param)
        number = self._parse(value, what)
        fits = self._low < number <= self._high or (self._zero and number == self._low)
        if not (math.isfinite(number) and fits):
            above = f"{self._low:g} or more" if self._zero else f"above {self._low:g}"
            raise SpecError(f"{what}: {str(value)[:60]} is out of range; allowed: {above}, up to {self._high:g}")
        return number


class Change(_ParamType):
    """A share that something grows by, `5%` or `-0.02`; what takes it says which are allowed."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the number and its sign; SpecError where it is none."""
        del ctx
        return _fraction(value, spelling(param))


class Whole(_ParamType):
    """A whole number within [low, high]; `8k` and `1e6` are fine."""

    name = "n"

    def __init__(self, low: int = 1, high: int = 10**9) -> None:
        """The range is part of the message when a value is outside it."""
        self._low, self._high = low, high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the number; SpecError says what is allowed."""
        del ctx
        return units.parse_whole(value, spelling(param), low=self._low, high=self._high)


class Wholes(_ParamType):
    """Whole numbers above 0, separated by commas."""

    name = "n,n,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Read the numbers; SpecError says what is allowed."""
        del ctx
        return tuple(units.parse_whole(part.strip(), spelling(param), high=10**6) for part in str(value).split(","))


class Name(_ParamType):
    """A name of something known; it is looked up by the function that uses it."""

    def __init__(self, name: str) -> None:
        """`name` stands in the help."""
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Take any text that is not blank; SpecError otherwise."""
        del ctx
        text = str(value).strip()
        if not text or "\0" in text:
            raise SpecError(f"{spelling(param)}: {str(value)[:60]!r} is no name")
        return text


class Choice(_Choice):
    """One of a few names; another one is answered with the nearest, as unknown names are everywhere."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name itself; UnknownNameError says what is allowed."""
        if value not in self.choices:
            raise UnknownNameError(spelling(param), str(value), self.choices, f"allowed: {', '.join(self.choices)}")
        return super().convert(value, param, ctx)


def spelling(param: click.Parameter | None) -> str:
    """How the user writes the parameter: `--seq`, `MODEL`."""
    if param is None:
        return "value"
    return max(param.opts, key=len) if isinstance(param, click.Option) else (param.name or "argument").upper()


def _fraction(value: object, what: str) -> float:
    """A share: `0.4` or `40%`."""
    text = str(value).strip()
    return units.parse_count(text[:-1], what) / 100 if text.endswith("%") else units.parse_count(value, what)


COUNT = Quantity("count", units.parse_count)
COUNT_OR_ZERO = Quantity("count", units.parse_count, zero=True)
HOUR = Quantity("hour", units.parse_count, high=24.0, zero=True)
FLOPS = Quantity("flop", units.parse_count, high=1e36)
BYTES = Quantity("bytes", units.parse_bytes, high=1e21)
SECONDS = Quantity("time", units.parse_seconds, high=1e12)
SECONDS_OR_ZERO = Quantity("time", units.parse_seconds, high=1e12, zero=True)
RATE = Quantity("rate", units.parse_rate, high=1e12)
RATE_OR_ZERO = Quantity("rate", units.parse_rate, high=1e12, zero=True)
BANDWIDTH = Quantity("bandwidth", units.parse_bytes_per_s, high=1e18)
WATTS = Quantity("power", units.parse_watts, high=1e6)
USD = Quantity("usd", units.parse_usd, high=1e15)
USD_OR_ZERO = Quantity("usd", units.parse_usd, high=1e15, zero=True)
FRACTION = Quantity("share", _fraction, high=1.0)
FRACTION_OR_ZERO = Quantity("share", _fraction, high=1.0, zero=True)
CHANGE = Change()
WHOLE = Whole()
WHOLE_OR_ZERO = Whole(low=0)
BATCH = Whole(high=10**7)
TOKENS = Whole(high=10**8)
DEGREE = Whole(high=10**6)

PURCHASE = Choice(["on_demand", "spot", "reserved_1y", "reserved_3y"])
ACCELERATOR_KIND = Choice(["gpu", "tpu", "npu", "soc", "cpu"])


SECTION = "flopwise_section"
"""The attribute of an option that holds its heading in the help."""


def put_under(option: click.Option, section: str) -> None:
    """Give an option its heading in the help."""
    setattr(option, SECTION, section)


def by_section(params: Sequence[click.Parameter]) -> dict[str, list[click.Option]]:
    """The options among `params` under their headings; those without one first, under an empty one."""
    found: dict[str, list[click.Option]] = {"": []}
    for param in params:
        if isinstance(param, click.Option):
            found.setdefault(getattr(param, SECTION, ""), []).append(param)
    return found


class Command(click.Command):
    """A command with examples in its help and `--json` among its options."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        """`examples` are whole command lines; the tests run each."""
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)
        self.forms: tuple[Command, ...] = ()  # what else its first argument may make of it, with options of their own
        self.params.append(
            click.Option(
                ["--json"],
                is_flag=True,
                expose_value=False,
                callback=_note_json,
                help="One JSON document on stdout, nothing else.",
            )
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; `--qlora 16` is `--qlora --lora 16`."""
        for place in reversed([i for i, arg in enumerate(args[:-1]) if arg == "--qlora"]):
            if args[place + 1].isdecimal():
                args[place + 1 : place + 1] = ["--lora"]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write options without a heading first, then those of each heading."""
        for section, found in by_section(self.get_params(ctx)).items():
            records = [param.get_help_record(ctx) for param in found]
            with formatter.section(section or "Options"):
                formatter.write_dl([record for record in records if record is not None])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of other forms, then the examples, each on its line."""
        for form in self.forms:
            records = [p.get_help_record(ctx) for p in form.params if isinstance(p, click.Option)]
            with formatter.section(f"Options with {form.params[0].human_readable_name}"):
                formatter.write_dl([record for record in records if record is not None])
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{' ' * formatter.current_indent}{example}\n")


def _note_json(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Remember that JSON was asked for: `answer` and the end of the run look there."""
    del param
    ctx.meta["flopwise.json"] = value


def command(name: str, *examples: str) -> Callable[[Callable[..., None]], Command]:
    """Make a function the command `name`, with `examples` of whole command lines in its help."""
    return click.command(name, cls=Command, examples=examples)


model_argument = click.argument("model", type=Name("model"))
gpu_option = click.option(
    "--gpu", type=Name("gpu"), required=True, help="Accelerator, in any common spelling: h100, A100-80GB, mi300x."
)
gpus_option = click.option("--gpus", type=DEGREE, default=1, show_default=True, help="Number of accelerators.")
batch_option = click.option("--batch", type=BATCH, default=1, show_default=True, help="Sequences.")
seq_option = click.option("--seq", type=TOKENS, help="Tokens of a sequence.")
purchase_option = click.option(
    "--purchase", type=PURCHASE, default="on_demand", show_default=True, help="Price to use."
)
facts_option = click.option(
    "--facts",
    type=click.Path(path_type=Path),
    help="Folder of your own rows, over the shipped ones (or FLOPWISE_FACTS): a cluster, prices, a model.",
)
family_option = click.option(
    "--assume-family", type=Name("family"), help="Read an unknown model_type as this known family."
)
offline_option = click.option("--offline", is_flag=True, help="Take configurations from the local cache only.")
explain_option = click.option("--explain", is_flag=True, help="Show where each figure comes from, as a tree.")


def answer(document: Callable[[], Any], text: Callable[[Screen], Iterable[str]]) -> None:
    """Give the answer of the running command: `document` as JSON where `--json` asked for it, else blocks of `text`."""
    context = click.get_current_context()
    if context.meta.get("flopwise.json"):
        from flopwise.cli.jsonout import write_json

        write_json(document())
        context.meta["flopwise.emitted"] = True
        return
    paper = screen()
    write(*text(paper), to=paper)


def say_age(notes: Sequence[str]) -> None:
    """Say on stderr that prices are old: the answer is the same today and tomorrow, their age is not."""
    if notes:
        more = f" (and {len(notes) - 1} more)" if len(notes) > 1 else ""
        click.echo(f"note: {notes[0]}{more}", err=True)
