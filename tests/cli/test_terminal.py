"""A real terminal (a pty): progress, colour and width; and that none of it appears where there is no terminal."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from bad_inputs import GOOD_FILES, Case

from flopwise import cli
from flopwise.cli.commands import plan
from flopwise.cli.progress import SHOWN_AFTER_S, Progress, announce_compilation
from flopwise.serving.sim import machine_code


def in_terminal(argv: list[str], *, columns: int = 100, **env: str) -> str:
    """What `argv` shows on a terminal of that width; stdout and stderr both."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    clean = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "COLUMNS", "LINES", "TERM", "CI"}}
    running = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env=clean | {"TERM": "xterm"} | env)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert running.wait(timeout=30) == 0
    return shown.decode()


FLOPWISE = [sys.executable, "-m", "flopwise"]
WORK = """
import time
from flopwise.cli.commands import plan
from flopwise.cli.progress import SHOWN_AFTER_S, Progress
with Progress("searching") as progress:
    for done in range(8):
        progress(done, 8, "layouts")
        time.sleep({pause})
print("done")
"""


def test_colour_and_width_follow_the_terminal() -> None:
    shown = in_terminal([*FLOPWISE, "gpus", "--vendor", "AMD"], columns=90)
    assert "\x1b[1m" in shown
    plain = shown.replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[0m", "").replace("\r", "")
    assert "\x1b" not in plain
    rows = plain.split("\n\n", 1)[1].splitlines()  # the table, below the sentence
    assert rows[1].startswith("─")
    assert len({len(row) for row in rows[1:2]}) == 1
    assert "…" in plain or max(map(len, rows)) <= 90


def test_no_color_is_honoured() -> None:
    assert "\x1b" not in in_terminal([*FLOPWISE, "gpus", "h100"], NO_COLOR="1")
    assert "\x1b" not in in_terminal([*FLOPWISE, "gpus", "h100"], TERM="dumb")


def test_a_pipe_gets_no_control_byte() -> None:
    ended = subprocess.run([*FLOPWISE, "gpus"], capture_output=True, check=True)
    assert ended.stderr == b""
    assert not set(ended.stdout) & ({*range(32), 127} - {10})


def test_a_plan_draws_its_front_within_the_terminal(tmp_path: Path) -> None:
    Case("", (), GOOD_FILES).write(tmp_path)
    argv = [*FLOPWISE, "plan", str(tmp_path / "train.yaml")]
    model = str(tmp_path / "config.json").encode()
    (tmp_path / "train.yaml").write_bytes(GOOD_FILES["train.yaml"].replace(b"config.json", model))
    shown = in_terminal(argv, columns=110, NO_COLOR="1").replace("\r\n", "\n")
    frame = [line for line in shown.splitlines() if "│" in line]
    assert len(frame) >= 10
    assert max(map(len, frame)) <= 110
    assert "└──" in shown
    piped = subprocess.run(argv, capture_output=True, check=True)
    assert not set(piped.stdout + piped.stderr) & ({*range(32), 127} - {10})


def test_progress_shows_on_a_terminal_when_work_takes_long_and_leaves_no_trace() -> None:
    shown = in_terminal([sys.executable, "-c", WORK.format(pause=0.12)])
    assert "\r\x1b[Ksearching" in shown
    assert "layouts" in shown
    assert shown.endswith("\r\x1b[Kdone\r\n")


def test_quick_work_shows_no_progress() -> None:
    assert in_terminal([sys.executable, "-c", WORK.format(pause=0.0)]) == "done\r\n"


def test_progress_is_silent_without_a_terminal() -> None:
    ended = subprocess.run([sys.executable, "-c", WORK.format(pause=0.08)], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("done\n", "")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_waits_a_moment_and_redraws_at_most_ten_times_a_second() -> None:
    now = 0.0
    stream = _Terminal()
    with Progress("work", stream, lambda: now) as progress:
        for tick in range(100):
            now = tick * 0.02
            progress(tick, 100)
            if now < SHOWN_AFTER_S:
                assert stream.getvalue() == ""
    assert 14 <= stream.getvalue().count("work") <= 19
    assert SHOWN_AFTER_S <= 0.2  # with the start of a process within 0.3 s of the question


SILENT = """
import time
from flopwise.cli.progress import Progress, note
with Progress("planning"):
    {within}
    for _ in range(60):
        time.sleep(0.02)
    note("prices are old")
    time.sleep(0.3)
print("done")
"""


@pytest.mark.parametrize(("within", "line"), [("pass", "planning"), ("Progress('searching').__enter__()", "searching")])
def test_work_that_reports_nothing_shows_its_line_until_something_is_written(within: str, line: str) -> None:
    shown = in_terminal([sys.executable, "-c", SILENT.format(within=within)])
    assert shown == f"\r\x1b[K{line} ...\r\x1b[Knote: prices are old\r\ndone\r\n"


def test_every_command_that_reports_progress_shows_a_line_from_its_start() -> None:
    for file in sorted(Path(plan.__file__).parent.glob("*.py")):
        if "with Progress(" in file.read_text() and file.stem not in ("observe", "probe"):  # which wait by design
            assert 'work="' in file.read_text(), file.stem


@pytest.mark.parametrize("command", ["models someorg/some-model", "fit someorg/some-model --gpu h100"])
def test_a_model_of_the_hub_is_waited_for_with_a_line(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(_: object) -> str:
        time.sleep(4 * SHOWN_AFTER_S)
        raise TimeoutError

    monkeypatch.setattr("flopwise.facts.models.catalog._in_time", slow)
    stream = _Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    assert cli.main(command.split()) == 2
    assert "\r\x1b[Kasking the hub for the model ...\r\x1b[K" in stream.getvalue()
    assert "the hub cannot be reached" in stream.getvalue()


class _LooksEmpty(type(Path())):  # type: ignore[misc] # the platform's class
    """A folder in which no compiled code is seen; it is found all the same, and the test takes no 30 s."""

    def rglob(self, *_args: object, **_how: object) -> Iterator[Path]:
        return iter(())


@pytest.mark.parametrize("command", ["--rate 1 --requests 5", "--rate 1 --requests 5 --autoscale queue"])
def test_a_first_simulation_says_on_a_terminal_that_it_compiles(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, folder = _Terminal(), machine_code.cache_folder
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(machine_code, "cache_folder", lambda **how: _LooksEmpty(folder(**how) or os.devnull))
    machine_code.core.cache_clear()
    try:
        assert cli.main(["simulate", "Llama-3.1-8B", "--gpu", "h100", *command.split()]) == 0
    finally:
        machine_code.core.cache_clear()
    assert stream.getvalue().count("compiling the simulator") == 1


@pytest.mark.parametrize(
    ("folder", "says"), [(Path("kept"), "once after each update"), (None, "at each start, as no folder can be written")]
)
def test_a_compilation_says_whether_it_is_the_last(
    folder: Path | None, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container that is read-only each start compiles: it said that only the first does."""
    stream = _Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(machine_code, "cache_folder", lambda **_: folder)
    announce_compilation()
    assert f"compiling the simulator; {says}" in stream.getvalue()
