"""Write what documentation is made from code: `python docs/generate.py` (a test compares the pages with it).

docs/cli.md comes from the commands themselves, docs/export/index.md from the targets, docs/rules-of-thumb.md from
docs/rules.py, docs/fleet-file.md and the JSON Schemas from the structs of the files.
"""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from pathlib import Path

import click

from flopwise.cli.app import COMMANDS, app
from flopwise.cli.options import QuestionCommand, QuestionGroup, by_section
from flopwise.exports.targets import GROUPS
from flopwise.fleet.spec import schema as fleet_schema
from flopwise.search.sweep import schema as sweep_schema
from flopwise.search.workload import schema as workload_schema

PAGE = Path(__file__).parent / "cli.md"
TARGETS_PAGE = Path(__file__).parent / "export" / "index.md"
TARGETS_HEAD = """# Export targets

What `flopwise export TARGET PLAN.json -o DIR` writes, for which tasks, and what checks it
([how it is used](../questions/deploy.md)).
This page is generated from the definitions of the targets by `python docs/generate.py`.
"""
HEAD = """# The command line

Every command prints its answer on stdout, and errors and notes on stderr. `--json` prints exactly one JSON document
(for an error, `{"error": {"kind", "message", "exit_code"}}`), `--csv` the main table for a spreadsheet and `--markdown`
the answer for a page or an issue.

Quantities take units: `80GB` (decimal), `80GiB` (binary), `2T` tokens, `500ms`, `30d`, `20/s`, `$5k`. Accelerators and
models can be written in any common spelling; for an unknown name the error lists the nearest known ones. `8xh100`
means eight of them. For a context length `32k` means 32,768 tokens, as in the names of models. Options of vLLM, SGLang,
Megatron and others (`--tensor-parallel-size`, `--max-model-len`, `--isl` ...) are accepted as well, and a note names
the option that flopwise uses.

`eval "$(flopwise completion bash)"` in `~/.bashrc` (or zsh, fish) completes commands, options and names.

| exit code | meaning |
|---|---|
| 0 | answered |
| 1 | a valid question without a feasible answer; the reasons are printed |
| 2 | bad input, or a fact that is not known |
| 70 | a defect of flopwise; `FLOPWISE_DEBUG=1` shows the traceback |

This page is generated from the help of the commands by `python docs/generate.py`.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    context = click.Context(app, info_name="flopwise", **app.context_settings)  # the help option is made once
    for section, summaries in COMMANDS.items():
        parts.append(f"## {section}\n")
        for name in summaries:
            command = app.get_command(context, name)
            assert isinstance(command, QuestionCommand)
            parts.append(_entry(command, context, name))
            if isinstance(command, QuestionGroup):
                parts += _members(command, context, name)
            parts += [_entry(form, context, f"{name} {form.params[0].human_readable_name}") for form in command.forms]
    return "\n".join(parts)


def _members(group: QuestionGroup, above: click.Context, title: str) -> Iterator[str]:
    """The commands of a group."""
    context = click.Context(group, info_name=title, parent=above)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert isinstance(command, QuestionCommand)
        yield _entry(command, context, f"{title} {name}")


def targets_page() -> str:
    """The page that lists the export targets."""
    parts = [TARGETS_HEAD]
    for section, targets in GROUPS.items():
        rows = ["| target | what | for | can express | checked with | version |", "|---|---|---|---|---|---|"]
        for name, target in targets.items():
            cells = (target.summary, ", ".join(target.tasks), target.expresses, target.validator, target.version)
            rows.append(f"| [{name}]({name}.md) | {' | '.join(cells)} |")
        parts.append("\n".join([f"## {section}\n", *rows, ""]))
    return "\n".join(parts)


def _entry(command: QuestionCommand, above: click.Context, title: str) -> str:
    """One command: usage, description, options, examples."""
    context = click.Context(command, info_name=command.name, parent=above)
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    description = "\n".join(line.strip() for line in (command.help or "").splitlines())
    options: list[str] = []
    for section, found in by_section(command.params, command.most_used).items():
        options += [f"| **{section}** | |"] * bool(section) + [_option(p, context) for p in found]
    rows = ["| option | |", "|---|---|", *options]
    examples = ["```console", *(f"$ {example}" for example in command.examples), "```"]
    return "\n".join([f"### {title}\n", f"`{usage}`\n", f"{description.strip()}\n", *rows, "", *examples, ""])


def _option(option: click.Option, context: click.Context) -> str:
    """One row of the table of options."""
    spelling = ", ".join(f"`{opt}`" for opt in [*option.opts, *option.secondary_opts])
    value = "" if option.is_flag else f" {_values(option)}"
    said = (option.help or "").replace("|", "\\|")
    default = option.get_default(context)
    if option.show_default and default is not None:
        said += f" Default: {default}."
    if option.required:
        said += " Required."
    return f"| {spelling}{value} | {said} |"


def _values(option: click.Option) -> str:
    """What stands after the option."""
    if isinstance(option.type, click.Choice):
        return " \\| ".join(str(choice) for choice in option.type.choices)
    return (option.metavar or option.type.name).upper()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    TARGETS_PAGE.write_text(targets_page(), encoding="utf-8")
    rules = runpy.run_path(str(PAGE.parent / "rules.py"))
    rules["PAGE"].write_text(rules["page"](), encoding="utf-8")
    watch = runpy.run_path(str(PAGE.parent / "watch_page.py"))
    watch["PAGE"].write_text(watch["page"](), encoding="utf-8")
    calibration = runpy.run_path(str(PAGE.parent / "calibration_page.py"))
    calibration["PAGE"].write_text(calibration["page"](), encoding="utf-8")
    stub = runpy.run_path(str(PAGE.parent / "stub.py"))
    stub["PAGE"].write_text(stub["page"](), encoding="utf-8")
    tutorial = runpy.run_path(str(PAGE.parent / "tutorial_page.py"))
    tutorial["PAGE"].write_text(tutorial["page"](), encoding="utf-8")
    keys = runpy.run_path(str(PAGE.parent / "file_keys.py"))
    keys["PAGE"].write_text(keys["page"](), encoding="utf-8")
    for kind, schema in {"fleet": fleet_schema, "sweep": sweep_schema, "workload": workload_schema}.items():
        (PAGE.parent / f"{kind}.schema.json").write_text(json.dumps(schema(), indent=2) + "\n", encoding="utf-8")
