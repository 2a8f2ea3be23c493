"""The group of commands. A command is a file in `commands/` and a line in COMMANDS; its module loads when it runs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

import flopwise
from flopwise.errors import InfeasibleError, nearest_names

COMMANDS: dict[str, dict[str, str]] = {
    "Questions": {
        "fit": "Weight formats compared: fit, longest context, requests at once, speed, price.",
        "memory": "Memory per accelerator, item by item, and what would make it fit.",
        "train": "Step time, throughput, utilisation, memory, and the run's cost.",
        "serve": "Latency, throughput, maximum concurrency and cost per token.",
        "simulate": "Latency percentiles of simulated requests, engine step by engine step.",
        "io": "Storage bandwidth per accelerator, node and cluster, and which storage keeps up.",
        "roofline": "Compute time and memory time of any operation, by the roofline.",
        "explain": "Origin of every figure, and the changes that affect it most.",
    },
    "Facts": {
        "models": "Facts about models: parameters, FLOPs, operations.",
        "gpus": "Facts about accelerators: rates, memory, links.",
        "instances": "Cloud offers: hardware and prices.",
        "prices": "Age, import and refresh of prices.",
    },
    "Plans": {
        "plan": "Rank machines, layouts and purchase options for a workload, over all offers.",
        "compare": "Fine-tune, train from scratch, or call an API, for the same traffic.",
        "assess": "Machines for a whole platform: many workloads, one bill.",
        "check": "Assessment of today's machines: targets, cost, and what to change.",
    },
    "Deploy": {"export": "Files of other tools that deploy a plan."},
    "Measurements": {
        "probe": "Measured rates of this machine: products, memory, attention, messages, disk, launches.",
        "calibrate": "Refit constants to your own measurements.",
        "runs": "Recorded runs, compared with their estimates.",
        "observe": "Latencies, load and cache usage of a running engine, and its traffic as a trace.",
        "watch": "Live view of a job: what bounds it, whether it is on plan, its cost, alerts.",
    },
    "Pages": {"web": "The local web app and REST API: planning pages, and the commands over HTTP."},
    "Accuracy": {"backtest": "Predictions for a measurement file: errors and coverage."},
    "Shell": {
        "completion": "Shell completion of commands, options and names of models, GPUs, instances and providers."
    },
}
"""Sections of the help: each command with the first line of its own help."""


QUESTIONS = {
    "Does it fit, with how many users?": "memory Llama-3.1-8B --gpu a100-80gb --context 32768 --concurrency 8",
    "How fast does it answer?": "serve Llama-3.1-8B --gpu l40s --rate 2",
    "How long does the training take, and what does it cost?": "train Llama-3.1-8B --gpu h100 --gpus 64 --tokens 1T",
    "Which machines are the cheapest for it?": "plan Llama-3.1-8B --task serve --rate 2 --ttft 1s",
    "Fine-tune, train from scratch, or call an API?": "compare Llama-3.1-8B --tokens-per-month 500M --no-simulate",
}
"""What `flopwise` alone shows: questions, and the lines that answer them."""


class LazyGroup(click.Group):
    """Lists its commands from their sections and imports one only to run it."""

    def __init__(
        self,
        *args: Any,
        sections: Mapping[str, Mapping[str, str]] = COMMANDS,
        home: str = "flopwise.cli.commands.{}",
        **kwargs: Any,
    ) -> None:
        """`sections` as COMMANDS; `home`: the module of a command, by its name."""
        super().__init__(*args, **kwargs)
        self.sections, self.home = sections, home

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the help."""
        del ctx
        return [name for section in self.sections.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module; None when there is no such command."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = import_module(self.home.format(cmd_name)).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that `args` starts with; an unknown one is answered with the nearest names."""
        name = args[0]
        if not name.startswith("-") and name not in self.list_commands(ctx):
            near = nearest_names(name, self.list_commands(ctx))
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(self.list_commands(ctx))}"
            raise click.UsageError(f"No such command {name[:60]!r}: {hint}", ctx)
        return super().resolve_command(ctx, args)

    def _owners(self, option: str, ctx: click.Context) -> list[str]:
        """The first commands that have an option."""
        every = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        params = {name: command.params for name, command in every.items() if command is not None}
        return [f"`flopwise {name}`" for name, own in params.items() if any(option in p.opts for p in own)][:3]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections, each command with its summary."""
        del ctx
        for section, summaries in self.sections.items():
            with formatter.section(section):
                formatter.write_dl(list(summaries.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; with `--json` the reasons of an infeasible question are a document too."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as gone:
            raise _ReaderGoneError from gone
        except click.NoSuchOption as slip:
            if slip.ctx is not None and slip.ctx is not ctx and (others := self._owners(slip.option_name, ctx)):
                owners = " and ".join(filter(None, [", ".join(others[:-1]), others[-1]]))
                message = f"No such option {slip.option_name!r}; it is one of {owners}"
                raise click.NoSuchOption(slip.option_name, message, ctx=slip.ctx) from None
            raise
        except InfeasibleError as failure:
            if ctx.meta.get("flopwise.form") == "json" and not ctx.meta.get("flopwise.emitted"):
                from flopwise.cli.output import write_document

                write_document({"feasible": False, "message": str(failure), "reasons": list(failure.reasons)})
                ctx.meta["flopwise.emitted"] = True
            raise


class _ReaderGoneError(click.exceptions.Exit):
    """The reader of stdout went away; click would end such a run with the code that means `infeasible` here."""

    def __init__(self) -> None:
        super().__init__(141)


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    name="flopwise",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="Every command takes --json, --csv, --markdown and --help. Exit codes: 0 answered, 1 no feasible answer, "
    "2 bad input. What TTFT, MFU, ZeRO and other words mean: docs/glossary.md.",
)
@click.version_option(flopwise.__version__, "-V", "--version", message="flopwise %(version)s")
@click.pass_context
def app(ctx: click.Context) -> None:
    """Plan the compute of AI workloads: memory, GPUs, layout, speed, cost and energy."""
    if ctx.invoked_subcommand is None:
        click.echo(f"flopwise {flopwise.__version__}: {app.help}\n")
        for question, line in QUESTIONS.items():
            click.echo(f"{question}\n  flopwise {line}\n")
        click.echo("All commands: flopwise --help")
