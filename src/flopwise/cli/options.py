"""Commands, and their flags made from declared options; how an answer is given."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from flopwise import options, units
from flopwise.aliases import ALIASES, MODEL_ARGUMENTS, MODEL_OPTIONS, as_context
from flopwise.cli import render
from flopwise.cli.app import COMMANDS, LazyGroup
from flopwise.cli.progress import Progress, clear, note
from flopwise.cli.render import Screen, heading, screen, tree, write
from flopwise.cli.settings import GENERAL, read_settings
from flopwise.errors import SpecError
from flopwise.options import FLAG, Option, OptionError, ValueKind, name
from flopwise.results import Result
from flopwise.values import replace

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from flopwise.facts.catalog import Facts
    from flopwise.provenance import Figure

    _ParamType = click.ParamType[Any]  # generic in the types only
else:
    _ParamType = click.ParamType

Function = TypeVar("Function", bound=Callable[..., Any])
V = TypeVar("V")


SET_COMMANDS = tuple(name for section in COMMANDS.values() for name in section)
"""The commands that a file of settings may have a table for."""
FORMS = {
    "json": "One JSON document on stdout, nothing else.",
    "csv": "The main table as CSV, its columns named as in the JSON.",
    "markdown": "The answer in Markdown.",
}
"""Forms of an answer besides text for people, each asked for by an option of its name."""


HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
"""organisation/model."""
CURRENCY = Option(
    flags=("--currency",), kind=name("currency"),
    help="Show amounts in this currency: EUR, at a dated rate; EUR=1.08, at your own. Figures of --json stay in USD.",
)  # fmt: skip


class Value(_ParamType):
    """The click type of a declared kind of value."""

    def __init__(self, kind: ValueKind) -> None:
        """`kind.metavar` stands in the help."""
        self.kind, self.name = kind, kind.metavar

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the value. SpecError names the allowed ones."""
        del ctx
        return self.kind.parse(value, spelling(param))

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The names that begin with, or else contain, the typed text."""
        from click.shell_completion import CompletionItem

        what = param.name if isinstance(param, click.Argument) else self.kind.metavar
        if what == "name":  # of `models`, `gpus`, `instances`
            what = (ctx.command.name or "").removesuffix("s")
        return [CompletionItem(name) for name in self.kind.choices or matching_names(what or "", incomplete)]


COMPLETED: dict[str, Callable[[Facts], Iterable[str]]] = {
    "model": lambda facts: facts.models.names,
    "gpu": lambda facts: facts.accelerators,
    "vendor": lambda facts: (a.vendor for a in facts.accelerators.values()),
    "instance": lambda facts: (offer.instance for offer in facts.offers),
    "provider": lambda facts: (offer.provider for offer in facts.offers),
    "region": lambda facts: (offer.region for offer in facts.offers),
    "engine": lambda facts: facts.engines,
    "stack": lambda facts: facts.stacks,
    "format": lambda facts: facts.weight_formats,
    "currency": lambda facts: facts.currencies,
}
"""Names by what an option's help calls its value, or by the name of an argument."""


def matching_names(what: str, typed: str) -> list[str]:
    """The names of a kind that begin with the typed text, in any case; none of an unknown kind.

    Where none does, those that hold what is typed; a number before an accelerator's name stays (`8xh1`).
    """
    from flopwise.facts.catalog import load_facts
    from flopwise.units import split_count

    if what not in COMPLETED:
        return []
    count, rest = split_count(typed) if what == "gpu" else (None, typed)
    names, part = sorted(dict.fromkeys(COMPLETED[what](load_facts()))), rest.lower()
    matches = [n for n in names if n.lower().startswith(part)] or [n for n in names if part in n.lower()]
    return matches if count is None else [f"{count}x{name}" for name in matches]


class FileValue(Value):
    """A value that goes into a file: it is checked, and quantities with units stay as people write them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Check the value. SpecError names the allowed ones."""
        parsed = super().convert(value, param, ctx)
        if self.kind.metavar == "shares":
            return str(value).strip()
        if self.kind.words != "quantity" and not self.kind.words.startswith("quantity or"):
            return str(parsed) if isinstance(parsed, Path) else parsed
        if self.kind.metavar in ("n", "share", "x"):
            return parsed
        percentile, equals, time = str(value).partition("=")
        return {percentile.strip(): time.strip()} if equals and self.kind.metavar == "time" else str(value).strip()


class Flag(click.Option):
    """A flag of the command line, with the option that it was made from."""

    def __init__(self, *args: Any, declared: Option, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.declared = declared


def spelling(param: click.Parameter | None) -> str:
    """The spelling of a parameter for the user: `--seq`, `MODEL`."""
    if param is None:
        return "value"
    return max(param.opts, key=len) if isinstance(param, click.Option) else (param.name or "argument").upper()


def flag(
    field: str, declared: Option, default: Any = None, *, required: bool = False, for_file: bool = False
) -> Callable[[Function], Function]:
    """The flag of an option, whose value is the parameter `field` of the command; `for_file`: as files say it."""
    kind = declared.kind
    value = FileValue(kind) if for_file else Value(kind)
    if isinstance(default, float) and default.is_integer():
        default = int(default)  # as the help shows it
    no_default = default is options.NEEDED or default == ()
    typed: dict[str, Any] = {"is_flag": True} if kind.is_flag else {"type": value, "multiple": declared.repeated}
    if not required:  # click takes a default of None for a value that was given
        typed["default"] = None if no_default else default
    return click.option(
        *declared.flags, field, cls=Flag, declared=declared, required=required,
        show_default=not no_default and default is not None and not isinstance(default, bool),
        metavar=declared.metavar or (f"[{kind.metavar}]" if kind.choices else None),
        help=declared.help + (" May be given several times." if declared.repeated else ""), **typed,
    )  # fmt: skip


def add(
    names: str, kind: ValueKind, text: str, *, field: str = "", default: Any = None, required: bool = False, **more: Any
) -> Callable[[Function], Function]:
    """A flag that only one command has, by default of the parameter of its name; `more` is of the `Option`."""
    declared = Option(flags=tuple(names.split()), kind=kind, help=text, **more)
    longest = max(declared.flags, key=len).partition("/")[0]
    return flag(field or longest.lstrip("-").replace("-", "_"), declared, default, required=required)


def flags(
    spec: type, names: str = "", *, without: str = "", for_file: bool = False, **changes: Any
) -> Callable[[Function], Function]:
    """The flags of a spec, in the order of its fields: those of `names`, or all but those `without`.

    `for_file`: with values as a file would say them. `changes` are of the declarations: another section ...
    """
    declared, defaults = options.options_of(spec), options.defaults_of(spec)
    chosen = names.split() or [one for one in declared if declared[one].flags and one not in without.split()]

    def decorate(function: Function) -> Function:
        for one in reversed(chosen):
            function = flag(one, replace(declared[one], **changes), defaults[one], for_file=for_file)(function)
        return function

    return decorate


MOST_USED = "Most used"
"""The heading above the options that a command's answer depends on most."""


def by_section(params: Sequence[click.Parameter], most_used: Sequence[str] = ()) -> dict[str, list[click.Option]]:
    """The options among `params` under their headings: the `most_used` in their order, then those without a heading."""
    options = {param.name: param for param in params if isinstance(param, click.Option)}
    sections: dict[str, list[click.Option]] = (
        {MOST_USED: [options.pop(name) for name in most_used]} if most_used else {}
    )
    sections[""] = []
    for param in options.values():
        sections.setdefault(param.declared.section if isinstance(param, Flag) else "", []).append(param)
    return sections


class QuestionCommand(click.Command):
    """A command with examples in its help and `--json` among its options."""

    def __init__(
        self, *args: Any, examples: Sequence[str] = (), most_used: Sequence[str] = (), work: str = "", **kwargs: Any
    ) -> None:
        """`examples` are whole command lines; the tests run each. `most_used`: names of options, first in the help.

        `work`: what it does that may take longer than a second, as its line of progress says it.
        """
        super().__init__(*args, **kwargs)
        self.examples, self.most_used, self.work = tuple(examples), tuple(most_used), work
        self.forms: tuple[
            QuestionCommand, ...
        ] = ()  # what else its first argument may make of it, with options of their own
        for form, text in FORMS.items():
            self.params.append(
                click.Option([f"--{form}"], is_flag=True, expose_value=False, callback=_note_form, help=text)
            )
        self.params.append(
            Flag(["--currency"], declared=CURRENCY, type=Value(CURRENCY.kind), metavar=CURRENCY.metavar, is_eager=True,
                 expose_value=False, callback=_use_currency, help=CURRENCY.help)
        )  # fmt: skip

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments, with aliases replaced; `--qlora 16` is `--qlora --lora 16`."""
        own = [name for param in self.params for name in param.opts]
        arguments = {param.name for param in self.params if isinstance(param, click.Argument)}
        read = [*with_own_names(args, own, takes_model=not arguments.isdisjoint(MODEL_ARGUMENTS))]
        for meant, alias in read:
            if alias is not None:
                option, _, value = meant.partition("=")
                what = option if option.startswith("--") else f"the argument {meant}"
                note(f"{alias} is read as {what}{f' {value}' if value.endswith('Ki') else ''}")
        args = [meant for meant, _ in read]
        ctx.meta["flopwise.args"] = [*args]
        for place in reversed([i for i, arg in enumerate(args[:-1]) if arg == "--qlora"]):
            if args[place + 1].isdecimal():
                args[place + 1 : place + 1] = ["--lora"]
        settings = self.file_settings(ctx)
        ctx.default_map = {name: value for name, (value, _) in settings.items()}
        left = super().parse_args(ctx, args)
        source = click.core.ParameterSource.DEFAULT_MAP
        ctx.meta["flopwise.settings"] = {
            p.name: (settings[p.name][1], f"{spelling(p)} {_value_text(ctx.params.get(p.name, settings[p.name][0]))}")
            for p in self.params if p.name in settings and ctx.get_parameter_source(p.name) == source
        }  # fmt: skip
        return left

    def file_settings(self, ctx: click.Context) -> dict[str, tuple[Any, str]]:
        """Values of the command's options in files of settings, by parameter, each with its file."""
        above = ctx.parent.command.name if ctx.parent else None
        settings = read_settings(SET_COMMANDS).of(next((n for n in (self.name, above) if n in SET_COMMANDS), ""))
        values_by_key: dict[str, tuple[Any, str]] = {}
        if not settings:
            return values_by_key
        for param in self.params:
            setting = settings.get(max(param.opts, key=len).removeprefix("--")) if isinstance(param, Flag) else None
            if setting is None or not isinstance(param, Flag) or param.name is None:
                continue
            value, kind = setting.value, param.declared.kind
            if isinstance(value, list) and not param.multiple:
                if setting.table == GENERAL:  # a command that takes one of them decides by itself
                    continue
                raise SpecError(f"{setting.where} {spelling(param)}: it takes one value, not a list")
            if kind.is_flag != isinstance(value, bool):
                raise SpecError(f"{setting.where} {spelling(param)}: {'true or false' if kind.is_flag else 'a value'}, "
                                f"not {value!r}")  # fmt: skip
            several = value if isinstance(value, list) else [value]
            for one in [] if kind.is_flag else several:
                kind.parse(one, f"{setting.where} {spelling(param)}")
            values_by_key[param.name] = several if param.multiple else value, setting.file
        return values_by_key

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; options that do not go together are named as they are spelled."""
        try:
            work = self.work or ("asking the hub for the model" if _is_on_hub(ctx) else "")
            with Progress(work) if work else nullcontext():
                return super().invoke(ctx)
        except OptionError as error:
            named = next((spelling(p) for p in self.params if p.name == error.name), error.name)
            raise SpecError(f"{named}: {error.reason}") from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the most used options first, those without a heading, then those of each heading."""
        for section, rows in by_section(self.get_params(ctx), self.most_used).items():
            records = [param.get_help_record(ctx) for param in rows]
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


def _is_on_hub(ctx: click.Context) -> bool:
    """True if the command's model is named as on the Hugging Face hub, so that its configuration may be fetched."""
    names = (ctx.params.get(param.name or "") for param in ctx.command.params if isinstance(param, click.Argument))
    return any(isinstance(name, str) and HUB_ID.fullmatch(name) and not Path(name).exists() for name in names)


def with_own_names(
    args: Sequence[str], own: Iterable[str], *, takes_model: bool = False
) -> Iterator[tuple[str, str | None]]:
    """The arguments with options of `own` in place of aliases, and the replaced aliases; None where there are none.

    `--name=value` and underscores for dashes are understood; an option that the command has is never an alias. A
    context length in thousands becomes `--name=value`, since its k is 1,024. Where an argument `takes_model`, so does
    `--model`.
    """
    known, taken = set(own), -1
    for place, arg in enumerate(args):
        if place == taken:
            continue
        if arg == "--":
            yield from ((rest, None) for rest in args[place:])
            return
        name, equals, value = arg.partition("=")
        dashed = name.replace("_", "-")
        if not name.startswith("--") or name in known:
            yield arg, None
            continue
        if takes_model and dashed in MODEL_OPTIONS and (equals or place + 1 < len(args)):
            taken = place if equals else place + 1
            yield value if equals else args[taken], name
            continue
        meant = dashed if dashed in known else next((o for o in ALIASES.get(dashed, ()) if o in known), None)
        if meant == "--input" and not equals and place + 1 < len(args):
            following = as_context(dashed, args[place + 1])
            if following != args[place + 1]:
                equals, value, taken = "=", following, place + 1
        elif meant == "--input":
            value = as_context(dashed, value)
        yield (arg, None) if meant is None else (f"{meant}{equals}{value}", name)


class QuestionGroup(LazyGroup, QuestionCommand):
    """A group of commands; its first is the default."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments as the group and its command take them."""
        if {*args} <= {f"--{form}" for form in FORMS}:
            args = [self.list_commands(ctx)[0], *args]
        return super().parse_args(ctx, args)


def _note_form(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Remember the form that was asked for: `answer` and the end of the run look there."""
    if not value:
        return
    form, before = param.name, ctx.meta.get("flopwise.form")
    if before not in (None, form):
        raise click.UsageError(f"--{before} and --{form}: an answer has one form; give one of them", ctx)
    ctx.meta["flopwise.form"] = form


def _stated_facts(ctx: click.Context) -> str | None:
    """The folder of facts on the command line, or of a file of settings, before it is read as an option."""
    words: list[str] = ctx.meta["flopwise.args"]
    stated = [after for word, after in pairwise([*words, ""]) if word == "--facts"]
    stated += [word.partition("=")[2] for word in words if word.startswith("--facts=")]
    setting: str | None = (ctx.default_map or {}).get("facts")
    return stated[-1] if stated else setting


def _use_currency(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Show amounts in the currency as long as the command runs."""
    if value is None:
        return
    from flopwise.api.currency import amounts_in

    try:
        ctx.with_resource(amounts_in(value, facts=_stated_facts(ctx)))
    except SpecError as error:
        name, command = param.name or "", ctx.command
        from_file = ctx.get_parameter_source(name) == click.core.ParameterSource.DEFAULT_MAP
        if not from_file or not isinstance(command, QuestionCommand):
            raise
        raise SpecError(f"{command.file_settings(ctx)[name][1]}: {error}") from None


def output_form() -> str | None:
    """The output form of `FORMS` on the running command line; None: text."""
    form: str | None = click.get_current_context().meta.get("flopwise.form")
    return form


def command(
    title: str, *examples: str, most_used: str = "", work: str = ""
) -> Callable[[Callable[..., None]], QuestionCommand]:
    """Make a function the command `title`, with `examples` of whole command lines in its help.

    `most_used`: names of the options that stand first in it, blanks between them. `work`: what may take longer than a
    second.
    """
    return click.command(title, cls=QuestionCommand, examples=examples, most_used=most_used.split(), work=work)


def argument(
    title: str, kind: ValueKind | None = None, *, required: bool = True, **changes: Any
) -> Callable[[Function], Function]:
    """An argument, a name where no other kind is given; `changes` are of click's."""
    return click.argument(title, type=Value(kind or name(title, 4096)), required=required, **changes)


explain_flag = add("--explain", FLAG, "Show where each figure comes from, as a tree.", default=False)
to_flag = add(
    "--to", name("target"), "Export to this target, too: kubernetes, skypilot ... (`flopwise export --list`).",
    repeated=True,
)  # fmt: skip
web_flag = add(
    "--web", FLAG, "Show the same question in a browser instead, as a page of `flopwise web`.", default=False
)
page_flag = add("-o --output", options.FILE, "Write it as one HTML page, too.")
force_flag = add("--force", FLAG, "Replace existing exported files.", default=False)


def spellings(context: click.Context, *, settings: bool = False) -> dict[str, str]:
    """The options on the command line, with their spellings, by the names of their parameters.

    With `settings` those of `flopwise.toml`, too.
    """
    source = click.core.ParameterSource
    sources = {source.COMMANDLINE, *([source.DEFAULT_MAP] if settings else [])}
    params = [p for p in context.command.params if isinstance(p, Flag)]
    return {p.name: spelling(p) for p in params if p.name and context.get_parameter_source(p.name) in sources}


def ignore_settings(*, but: Iterable[str]) -> None:
    """Ignore the settings of `flopwise.toml`, except those of these parameters."""
    used = click.get_current_context().meta["flopwise.settings"]
    for field in used.keys() - {*but}:
        del used[field]


def _value_text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _say_settings(context: click.Context) -> None:
    """Say on stderr which options are those of a file of settings."""
    used = context.meta.get("flopwise.settings", {}).values()
    for file in dict.fromkeys(file for file, _ in used):
        note(f"{file}: {', '.join(text for one, text in used if one == file)}")


def refuse(names: Iterable[str], why: str) -> None:
    """Refuse options on the command line, by the names of their parameters.

    Raises: SpecError: names them, and says `why`.
    """
    spelled = spellings(click.get_current_context())
    if strays := sorted(spelled[name] for name in names if name in spelled):
        raise usage_error(f"{', '.join(strays)}: {why}")


def values(parameters: Mapping[str, Any], *specs: type) -> dict[str, Any]:
    """The parameters that have a value; with `specs` those of their fields alone."""
    wanted = {field for spec in specs for field in options.defaults_of(spec)} if specs else parameters
    return {name: parameters[name] for name in parameters if name in wanted and parameters[name] is not None}


def usage_error(message: str) -> SpecError:
    """The error for options of a command that exclude each other."""
    context = click.get_current_context()
    return SpecError(f"{message.rstrip('.')}. See `{context.command_path} --help`")


def answer(
    value: V,
    text: Callable[[V, Screen], Iterable[str]],
    document: Callable[[V], Any] | None = None,
    figure: Callable[[V], Figure] | None = None,
    *,
    verdict: Callable[[V], str] | None = None,
    further: Mapping[str, str] | None = None,
    main: str | None = "",
) -> None:
    """Print the answer of the running command: blocks of `text`, or the output form of the command line.

    `document` makes the JSON, else the `value` is it, or its own document. `figure`: where the figures come from, shown
    at the end. `verdict`: the answer in one sentence, which comes first, where it is not that of a `Result`. `further`:
    lines that go deeper, by what they answer. `main`: the key of the document whose rows are the main table; None: its
    plain figures are.
    """
    context, form = click.get_current_context(), output_form()
    clear()
    _say_settings(context)
    if isinstance(value, Result):
        verdict, document = verdict or (lambda _: value.verdict), document or (lambda _: value.document())
        main = value.table if main == "" else main
    if form in ("json", "csv"):
        plain: Any = value if document is None else document(value)
        from flopwise.cli.output import write_document

        if form == "csv":
            write_document(plain, table=True, main=main)
            return
        if figure is not None:
            from flopwise.provenance import to_json

            plain = {**plain, "provenance": [to_json(figure(value))]}
        write_document(plain if verdict is None else {"verdict": verdict(value), **plain})
        context.meta["flopwise.emitted"] = True
        return
    paper = replace(screen(), width=None, color=False, markdown=True) if form == "markdown" else screen()
    blocks = [] if verdict is None else [render.verdict(verdict(value), paper)]
    blocks += text(value, paper)
    if figure is not None:
        blocks += [heading("Where the figures come from", paper), tree(figure(value), paper)]
    shown = units.CURRENCY.get()
    if any(shown.symbol in block for block in blocks) and shown != units.US_DOLLAR:
        blocks.append(f"Amounts in {shown.code}: {shown.source}.")
    blocks += [f"{question}:\n{paper.verbatim(f'  {line}')}" for question, line in (further or {}).items()]
    write(*blocks, to=paper)


def command_line(*words: str, without: Sequence[str] = ()) -> str:
    """The command line of `words` (`explain`, `train`) with the arguments of the running command.

    `without`: flags that it leaves out, as are those of the form of the answer.
    """
    forms = {f"--{form}" for form in FORMS} | set(without)
    arguments = [arg for arg in click.get_current_context().meta["flopwise.args"] if arg not in forms]
    return shlex.join(["flopwise", *words, *arguments])


def say_age(notes: Sequence[str]) -> None:
    """Print a note on stderr that prices are old; the answer itself has no age and is the same every day."""
    if notes:
        more = f" (and {len(notes) - 1} more)" if len(notes) > 1 else ""
        note(f"{notes[0]}{more}")
