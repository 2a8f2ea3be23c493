"""Commands as nouns of the API: what may be asked of each, and the words of the command line that ask it.

Everything comes from the declarations that the command line is made from, so a new command or option needs no line
here. What the API leaves out, and why, stands in `LEFT_OUT` and `OPTIONS_LEFT_OUT`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import click

from flopwise.aliases import MODEL_ARGUMENTS
from flopwise.errors import SpecError, UnknownNameError
from flopwise.options import FILE, Option
from flopwise.values import dataclass

LEFT_OUT = {
    "backtest": "reads measurement files of the machine it runs on",
    "calibrate": "writes profiles",
    "completion": "is for shells",
    "observe": "connects to servers",
    "prices": "imports and removes files",
    "probe": "measures the machine it runs on",
    "watch": "connects to servers",
    "web": "is this",
}
"""Commands that are no nouns, and why."""
MEMBERS = {"runs": {"runs": "list", "run": "show"}}
"""Groups of commands, and the nouns that are members of them: those that read and nothing else."""
LIVE = tuple(noun for members in MEMBERS.values() for noun in members)
"""Nouns whose answers change by themselves."""
OPTIONS_LEFT_OUT = {
    "plan.address": "connects to a cluster",
    "calibration": "is a file of the server",
    "facts": "is a folder of the server",
    "force": "concerns files that exist already",
    "output": "is asked for by the Accept header",
    "output_file": "is asked for by the Accept header",
    "output_folder": "is asked for by the Accept header",
    "replay": "is a folder",
    "store": "is a file of the server, or another server",
    "to": "is the noun `export`",
    "web": "is this",
    "plan.workers": "concerns the server's processes",
}
"""Options that no noun has, or that a noun has not, by their parameters, and why."""
FACTS = ("gpus", "instances", "models")
"""Nouns that answer with facts: they change with the files behind them alone."""
WRITERS = {"assess": "--output", "check": "--output", "export": "--output-folder"}
"""Nouns that can give files, with the option that names their folder."""
MOST = {"scenarios": 10_000, "top": 1_000, "gpus": 200_000, "duration": 7 * 86_400, "months": 120}
"""The largest numbers that are searched or simulated for the web; the command line takes larger ones."""
LONGEST_TEXT = 4_096


@dataclass(frozen=True, eq=False)
class Question:
    """One question: the words of its command line, and the files that they name."""

    noun: str
    argv: tuple[str, ...]
    files: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Noun:
    """A command as a noun of the API."""

    name: str
    command: click.Command  # whose parameters are taken
    summary: str
    words: tuple[str, ...]  # that ask the command

    @cached_property
    def parameters(self) -> dict[str, click.Parameter]:
        """The parameters by key: the longest spelling of the option, `_` for `-`; an argument by its name."""
        found: dict[str, click.Parameter] = {}
        for param in self.command.params:
            key = param.name or ""
            if isinstance(param, click.Option):
                if param.expose_value and not OPTIONS_LEFT_OUT.keys() & {key, f"{self.name}.{key}"}:
                    found[max(param.opts, key=len).lstrip("-").replace("-", "_")] = param
            else:
                found[key] = param
        return found

    @property
    def wants_files(self) -> bool:
        """True if it needs a file."""
        return any(kind_of(param) is FILE and param.required for param in self.parameters.values())

    def question(self, values: Mapping[str, Any], files: Mapping[str, str] | None = None) -> Question:
        """The question that `values` asks, values by key.

        Raises: SpecError: a key that there is not, a value that is no text or number, or a path.
        """
        words, places = list[str](), list[str]()
        values = {self._own_key(key, values): value for key, value in values.items()}
        for key, value in values.items():
            param = self.parameters.get(key.replace("-", "_"))
            if param is None:
                if why := OPTIONS_LEFT_OUT.get(key) or OPTIONS_LEFT_OUT.get(f"{self.name}.{key}"):
                    raise SpecError(f"{key}: not an option of the web app: it {why}")
                raise UnknownNameError(f"option of {self.name}", key, self.parameters)
            if value is not None and isinstance(param, click.Option):
                words += _option_words(key, param, value)
        for param in self.command.params:
            if isinstance(param, click.Argument) and (value := values.get(param.name or "")) is not None:
                place = _text(param.name or "", value)
                if place.startswith("-"):
                    raise SpecError(f"{param.name}: {place[:60]!r} looks like an option")
                places.append(place)
        return Question(self.name, (*self.words, *places, *words, "--json"), dict(files or {}))

    def _own_key(self, key: str, values: Mapping[str, Any]) -> str:
        """`key`, or that of the argument which takes a model by another name."""
        own = next((name for name in MODEL_ARGUMENTS if name in self.parameters), key)
        return own if key in MODEL_ARGUMENTS and own not in values else key

    def example(self, line: str) -> dict[str, Any] | None:
        """The values of an example, a whole command line, by key; None where it has other options, or files."""
        args = shlex.split(line)[1 + len(self.words) :]
        context = click.Context(self.command, info_name=self.name)
        opts, _, order = self.command.make_parser(context).parse_args(args=args)
        names = {param.name: key for key, param in self.parameters.items()}
        given = {name: value for name, value in opts.items() if name in {p.name for p in order} and _is_plain(value)}
        if not given.keys() <= names.keys() or any(kind_of(self.parameters[names[name]]) is FILE for name in given):
            return None
        return {names[name]: value for name, value in given.items()}


def nouns(group: click.Group) -> dict[str, Noun]:
    """The nouns of a command line, by name."""
    found: dict[str, Noun] = {}
    context = click.Context(group)
    for name in group.list_commands(context):
        if name in LEFT_OUT:
            continue
        _, command, _ = group.resolve_command(context, [name])
        assert command is not None
        if isinstance(command, click.Group):
            for noun, member in MEMBERS[name].items():
                _, one, _ = command.resolve_command(context, [member])
                assert one is not None
                found[noun] = Noun(noun, one, one.get_short_help_str(200), (name, member))
            continue
        forms: Sequence[click.Command] = getattr(command, "forms", ())
        found[name] = Noun(name, forms[0] if forms else command, command.get_short_help_str(200), (name,))
    return found


def declaration(param: click.Parameter) -> Option | None:
    """The declaration of an option."""
    return getattr(param, "declared", None)


def kind_of(param: click.Parameter) -> Any:
    """The kind of value that a parameter takes."""
    option = declaration(param)
    return getattr(param.type, "kind", None) if option is None else option.kind


def _is_plain(value: Any) -> bool:
    """True if it is a value, and not what click has where none was given."""
    return isinstance(value, str | bool | list)


def _option_words(key: str, param: click.Option, value: Any) -> list[str]:
    """The words that say one option."""
    name = max(param.opts, key=len)
    if param.is_flag:
        if isinstance(value, str):
            value = {"true": True, "": True, "false": False}.get(value.lower(), value)
        if not isinstance(value, bool):
            raise SpecError(f"{name}: expected true or false (given: {str(value)[:60]!r})")
        return [name] if value else [*param.secondary_opts[:1]]
    several = value if isinstance(value, list) and param.multiple else [value]
    words = [f"{name}={_text(key, one)}" for one in several]
    if key in MOST:
        for one in several:
            _check_size(name, one, MOST[key], param)
    return words


def _check_size(name: str, value: Any, most: float, param: click.Option) -> None:
    """Refuse a number that would take too long here. Raises: SpecError: says which is the largest."""
    option = declaration(param)
    number = value if option is None else option.kind.parse(value, name)
    if isinstance(number, int | float) and number > most:
        raise SpecError(f"{name}: {str(value)[:40]} is more than the web app takes ({most:,}); use the command line")


def _text(key: str, value: Any) -> str:
    """A value as it stands on a command line. Raises: SpecError: it is neither, or is a path of the server."""
    if isinstance(value, list) and value:
        return ",".join(_text(key, one) for one in value)
    if isinstance(value, dict):
        return ",".join(f"{_text(key, name)}={_text(key, one)}" for name, one in value.items())
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise SpecError(f"{key}: expected text or a number (given: {str(value)[:60]!r})")
    text = str(value)
    if len(text) > LONGEST_TEXT or "\0" in text:
        raise SpecError(f"{key}: expected text of at most {LONGEST_TEXT:,} characters")
    if text.startswith(("/", "~", "\\")) or ".." in text.replace("\\", "/").split("/") or text[1:3] in (":\\", ":/"):
        raise SpecError(
            f"{key}: {text[:60]!r} is a path; the server does not read its own files: send the text among `files`"
        )
    return text
