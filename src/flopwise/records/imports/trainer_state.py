"""`trainer_state.json` of the Hugging Face Trainer.

Source: transformers 5.19, `TrainerState`, `Trainer.log`, `speed_metrics`. A line has a time (`train_runtime`, seconds
since training began) only if the number of input tokens is logged; otherwise only the last line has a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flopwise.records.imports.raw import RawRun, Source, mapping_of, number_of, objects_of, step_of
from flopwise.records.model import Event

PARTIAL_FRAC = 0.1
"""Share by which incomplete batches at the ends of epochs may lower the mean number of sequences per step."""
_NOT_METRICS = {"step", "train_runtime", "total_flos", "train_loss"}


def recognises(source: Source) -> bool:
    """True if the file has this format."""
    return "log_history" in mapping_of(source.document) and "global_step" in source.document


def read_runs(source: Source) -> list[RawRun]:
    """Its run, which ends at the modification time of the file."""
    state, lines = source.document, objects_of(source.document["log_history"])
    run = RawRun(name=_name(source), task="train", ended_at_s=source.changed_at_s)
    runtimes = [(place, value) for place, line in enumerate(lines) if (value := number_of(line.get("train_runtime")))]
    summary = next((line for line in lines if "train_steps_per_second" in line), None)
    length_s = max((value for _, value in runtimes), default=None)
    run.started_at_s = source.changed_at_s - (length_s or 0.0)
    timed = len([place for place, _ in runtimes if lines[place] is not summary]) > 1
    run.notes.append("the file has no dates: the run ends when the file was written")
    for line in lines:
        since_s = number_of(line.get("train_runtime"))
        at_s = run.started_at_s + since_s if timed and since_s is not None and line is not summary else None
        step = step_of(line.get("step"))
        for name, value in line.items():
            if name not in _NOT_METRICS and not (line is summary and name.startswith("train_")):
                run.add(name, value, at_s, step)
    run.finished = step_of(state.get("global_step")) == step_of(state.get("max_steps"))
    if micro := step_of(state.get("train_batch_size")):
        run.settings["micro_batch"] = micro
    if summary is not None and (sequences := _step_sequences(summary, micro or 1)):
        run.settings["global_batch"] = sequences
    _whole_run(run, lines, summary, timed=timed)
    return [run]


def _step_sequences(summary: Mapping[str, Any], micro: int) -> int | None:
    """Sequences of an optimizer step, a multiple of the micro-batch; None if the last line does not determine them.

    Source: transformers, `speed_metrics`: samples of the whole training over its time, rounded to 0.001 a second.
    Assumes: most steps have whole batches. A resumed run counts all samples but only its own steps: None.
    """
    names = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "step")
    seconds, samples, steps, last = (number_of(summary.get(name)) or 0.0 for name in names)
    if not last or not samples or abs(steps * seconds - last) > 0.02 * last + 0.0005 * seconds + 0.5:
        return None
    mean = samples * seconds / last
    sequences = micro * round(mean / micro)
    return sequences if sequences and abs(mean / sequences - 1) < PARTIAL_FRAC else None


def _whole_run(run: RawRun, lines: list[Mapping[str, Any]], summary: object, *, timed: bool) -> None:
    """If lines have no times, the mean step time of the whole run without evaluations whose time is stated."""
    evaluations = [(step_of(line.get("step")), number_of(line.get("eval_runtime"))) for line in lines]
    stated = [(step, seconds) for step, seconds in evaluations if seconds]
    assert run.started_at_s is not None
    since = {line.get("step"): number_of(line.get("train_runtime")) or 0.0 for line in lines if "train_runtime" in line}
    for step, seconds in stated:
        text = f"evaluation of {seconds:.1f} s"
        run.events.append(Event(run.started_at_s + since.get(step, 0.0), "evaluation", text, step))
    if timed or not isinstance(summary, dict):
        if not timed:
            run.notes.append("no line has a time, and the last line is missing, so step times are not known")
        return
    whole_s, rate = number_of(summary.get("train_runtime")), number_of(summary.get("train_steps_per_second"))
    steps = whole_s * rate if whole_s and rate else 0.0  # of this session: a resumed run counts its own alone
    last = step_of(summary.get("step"))
    if not steps or whole_s is None:
        return
    if last and abs(steps - last) < 0.02 * last + 0.5:
        steps = float(last)
    run.add("step_s", (whole_s - sum(seconds for _, seconds in stated)) / steps, run.started_at_s + whole_s, last)
    run.notes.append(
        "lines have no times (include_num_input_tokens_seen adds them): the step time is the mean of the whole run, "
        "without evaluations but with warm-up and checkpoints"
    )


def _name(source: Source) -> str:
    folder = source.path.resolve().parent
    return f"{folder.parent.name}/{folder.name}" if folder.name.startswith("checkpoint-") else folder.name
