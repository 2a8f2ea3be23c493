"""One option has one declaration and one meaning in every command."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import click
import pytest

from flopwise import cli
from flopwise.cli.app import app
from flopwise.cli.options import Flag
from flopwise.options import Option

PLAN = "plan 7B --task finetune --tokens 10M --gpu a10g --max-gpus 1 --top 1"
TRAIN = "train 7B --gpu a10g --tokens 10M"


@pytest.fixture
def document(capsys: pytest.CaptureFixture[str]) -> Any:
    def of(line: str) -> Any:
        code = cli.main([*line.split(), "--json"])
        out, err = capsys.readouterr()
        assert code in {0, 1}, err
        return json.loads(out)

    return of


@pytest.mark.parametrize("options", ["--qlora", "--qlora 16", "--qlora --lora 16", "--lora 16 --qlora"])
def test_qlora_is_a_flag_and_lora_the_rank_in_plans_and_estimates(document: Any, options: str) -> None:
    plan, estimate = document(f"{PLAN} {options}"), document(f"{TRAIN} {options}")
    assert plan["workload"]["method"] == {"kind": "qlora"}  # of rank 16, the default
    assert "QLoRA (nf4) rank 16" in dict(estimate["settings"])["recipe"]


def test_a_flag_takes_nothing_that_follows(document: Any) -> None:
    assert document("train --qlora 7B --gpu a10g")["model"] == "7B"
    assert document("plan --qlora 7B --task finetune --tokens 10M --gpu a10g --lora 8")["workload"]["method"] == {
        "kind": "qlora",
        "rank": 8,
    }


def test_adapters_take_their_targets_in_plans_and_estimates(document: Any) -> None:
    named = "--lora 8 --lora-targets q,v"
    assert document(f"{PLAN} {named}")["workload"]["method"] == {"kind": "lora", "rank": 8, "targets": ["q", "v"]}
    assert "rank 8 on q, v" in dict(document(f"{TRAIN} {named}")["settings"])["recipe"]


def test_targets_without_adapters_are_refused_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    for line in (PLAN, TRAIN, "memory 7B"):
        assert cli.main([*line.split(), "--lora-targets", "q"]) == 2
        assert "argets" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tokens", "sequences"),
    [("1966080", 480), ("4M", 1024)],  # 480 x 4,096 exactly; 976.6 sequences of 4,096: 977 is prime
)
def test_a_global_batch_in_tokens_is_the_same_number_of_sequences(document: Any, tokens: str, sequences: int) -> None:
    shape = f"--seq 4096 --global-batch-tokens {tokens}"
    plan = document(f"plan 1B --task pretrain --tokens 1G --gpu h100 --max-gpus 8 --top 1 {shape}")
    assert plan["plans"][0]["layout"]["global_batch"] == sequences
    assert document(f"train 1B --gpu h100 --gpus 8 {shape}")["global_batch"] == sequences


def declarations() -> Iterator[tuple[str, Option]]:
    """Every flag of every command, as it is spelled, with its declaration."""

    def of(command: click.Command) -> Iterator[tuple[str, Option]]:
        for form in (command, *getattr(command, "forms", ())):
            for flag in form.params:
                if isinstance(flag, Flag):
                    yield from ((spelling, flag.declared) for spelling in flag.opts if spelling.startswith("--"))
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                yield from of(inner)

    yield from of(app)


SEVERAL_SUBJECTS = {
    # a file, folder or page that the answer is written to (-o); tokens of an answer; where an exported job writes
    "--output": 9,
    "--batch": 3,  # sequences of a training pass (--micro-batch); samples a step of storage; sequences of any pass
    "--budget": 2,  # of a plan; of the job that is watched
    "--compare": 3,  # layouts; a plan, or a report, written before
    "--concurrency": 2,  # sequences in the cache; requests in flight
    "--context": 2,  # of a request with its answer; of a sequence in the cache
    "--format": 2,  # of imported and of exported runs
    "--gpu": 2,  # one accelerator; those among which a plan chooses
    "--host": 2,  # a processor; an address
    "--kind": 2,  # of model; of device
    "--list": 2,  # targets; profiles
    "--model": 3,  # of a deployment; of a run; a part of the name of a run's
    "--name": 4,  # of prices; of a deployment; of a profile; of a run
    "--precision": 3,  # of training; of a storage benchmark's products; of a plan, which may try all
    "--price": 2,  # of an accelerator; of all machines
    "--prometheus": 2,  # that is read; that scalers query
    "--queue": 2,  # of requests; of jobs
    "--rank": 3,  # whose figures are shown; that is exported; whose figures are expected
    "--replace": 2,  # an instance; runs
    "--micro-batch": 2,  # in `memory` with --batch beside it
    "--simulate": 2,  # one answer, off; the best plans, on
    "--task": 5,  # of memory; of a pass; of a workload; of runs to list; of a run to import
    "--users": 2,  # of simulated traffic; of an observed one
    "--utilisation": 2,  # hours in use; its limit
    "--vendor": 2,  # one that a list is of; those among which a plan chooses
    "--workers": 2,  # spot replicas; processes
}
"""Flags with several declarations, how many, and what each is about."""


def test_an_option_is_declared_once_but_for_what_is_about_another_subject() -> None:
    """One declaration has one help, one kind and one spelling; a default or a heading may be a command's own."""
    known = dict[str, set[tuple[object, ...]]]()
    for spelling, one in declarations():
        known.setdefault(spelling, set()).add((one.flags, one.kind.metavar, one.help, one.metavar))
    assert {spelling: len(ways) for spelling, ways in known.items() if len(ways) > 1} == SEVERAL_SUBJECTS
    texts = [(spelling, text) for spelling, ways in known.items() for _, _, text, _ in ways]
    same = {spelling for (spelling, _), times in Counter(texts).items() if times > 1}
    assert same == {"--micro-batch", "--precision"}, "the same words are one declaration: here with an alias, with any"
