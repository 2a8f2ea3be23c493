"""A process that answers questions one after the other, as the command line would: `flopwise web` starts a few.

Each message, on stdin and stdout, is four bytes of length and JSON. A question names the words of a command line and
the files that it may read; they lie in a folder of their own, made for it and removed after it, and no other file of a
person is opened while it is answered. An interrupt ends the question, not the process.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import signal
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

from flopwise.cli.app import app
from flopwise.cli.options import SET_COMMANDS
from flopwise.cli.output import FOR_PROGRAMS
from flopwise.cli.progress import FIRST_PLANS, LISTENER, RANKING
from flopwise.cli.run import EXIT_BAD_INPUT, Ending, ending
from flopwise.cli.settings import FIXED, read_settings

LENGTH = struct.Struct(">I")
MOST_MEMORY_BYTES = 3 * 2**30
"""Of a process, so that no question takes the machine's."""
OBJECTS_BEFORE_COLLECTION = 200_000
"""With Python's own threshold a search of a second spends a sixth of it on looking for cycles."""
IMPORTING_S = 0.005
"""After which an interrupt that came within an import is tried again."""
RESULTS = "results"
"""The folder, below that of the question, whose files are sent back."""
WARM_UP = ("memory", "Llama-3.1-8B", "--gpu", "h100", "--json")
"""A question that loads facts and modules before the first one is asked."""
SYSTEM = (
    "/dev/null", "/dev/urandom", "/etc/hosts", "/etc/localtime", "/etc/nsswitch.conf", "/etc/os-release",
    "/etc/resolv.conf", "/etc/ssl", "/lib", "/proc/cpuinfo", "/proc/meminfo", "/proc/self/maps", "/proc/self/status",
    "/sys", "/usr/lib", "/usr/local/lib", "/usr/share/zoneinfo",
)  # fmt: skip
"""Places that libraries read."""


def readable_places() -> tuple[str, ...]:
    """Folders and files that may be opened while a question is answered: programs, facts, caches; none with secrets."""
    from flopwise.facts.price_files import prices_folder
    from flopwise.serving.sim.machine_code import cache_folder

    named = [os.environ.get(name) for name in ("FLOPWISE_FACTS", "FLOPWISE_CALIBRATIONS", "NUMBA_CACHE_DIR")]
    compiled = (cache_folder(), cache_folder(shared=True))
    places = [*named, prices_folder(), *compiled, f"{_hub()}/hub", sys.prefix, sys.base_prefix, *sys.path]
    own = [os.path.realpath(os.path.expanduser(place)) for place in places if place]  # noqa: PTH111 - text and paths
    return (*SYSTEM, *(place for place in own if place not in ("/", str(Path.home()))))


def run_files() -> tuple[str, ...]:
    """The file of recorded runs, with those that SQLite keeps beside it; none where a server has them."""
    from flopwise.records.database import store_address

    store = store_address(None)
    return tuple(f"{store}{end}" for end in ("", "-wal", "-shm", "-journal")) if isinstance(store, Path) else ()


def _hub() -> str:
    """The folder of the hub's client."""
    return os.environ.get("HF_HOME") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"


def _keep_hub_token() -> None:
    """Read the hub's token now, for the client alone: its file is none that a question may read."""
    path = Path(os.environ.get("HF_TOKEN_PATH") or f"{_hub()}/token").expanduser()
    with contextlib.suppress(OSError, ValueError):
        os.environ.setdefault("HF_TOKEN", path.read_text("utf-8").strip())


class FileGuard:
    """Refuses to open files that are neither readable places nor below the folder of the question."""

    def __init__(self, places: Sequence[str]) -> None:
        self._places, self._folder, self._also = tuple(places), "", tuple[str, ...]()
        sys.addaudithook(self)

    @contextlib.contextmanager
    def reading_below(self, folder: str, also: Sequence[str] = ()) -> Iterator[None]:
        """While a question is answered whose files lie in `folder`; `also`: further files that may be read."""
        self._also = tuple(map(os.path.realpath, also))
        self._folder = os.path.realpath(folder)
        try:
            yield
        finally:
            self._folder, self._also = "", ()

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Check an audit event, before Python opens a file or starts a program."""
        if not self._folder:
            return
        if event == "subprocess.Popen":
            raise PermissionError(1, "the web server starts no programs", str(arguments[0]))
        if event != "open" or not isinstance(arguments[0], str | bytes):
            return
        file = os.fsdecode(arguments[0])
        path = os.path.realpath(file)
        places = (self._folder, *self._places, *self._also)
        if not any(path == place or path.startswith(f"{place}/") for place in places):
            raise PermissionError(1, "the server does not read its own files; send the file with the question", file)


def main(source: BinaryIO, sink: BinaryIO, places: Sequence[str]) -> None:
    """Answer the questions of `source` until it ends."""

    def send(message: Mapping[str, Any]) -> None:
        data = json.dumps(message).encode()
        sink.write(LENGTH.pack(len(data)) + data)
        sink.flush()

    FIXED.set(read_settings(SET_COMMANDS))
    FOR_PROGRAMS.set(True)
    guard = FileGuard(places)
    _run(WARM_UP, send)
    gc.set_threshold(OBJECTS_BEFORE_COLLECTION)
    gc.freeze()  # modules and facts live as long as the process
    send({"ready": True})
    while (question := _next(source)) is not None:
        send(_answer(question, guard, send))


def _next(source: BinaryIO) -> dict[str, Any] | None:
    """The next question; None at the end. An interrupt that comes between questions is of none."""
    while True:
        try:
            head = source.read(LENGTH.size)
            return json.loads(source.read(LENGTH.unpack(head)[0])) if len(head) == LENGTH.size else None
        except KeyboardInterrupt:
            continue


def _answer(question: Mapping[str, Any], guard: FileGuard, send: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """Exit code, document, message and notes of a question, and the files that it wrote."""
    home = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - memory, not a disk; made 0700
    with tempfile.TemporaryDirectory(prefix="flopwise-web-", dir=home) as folder:
        for name, text in question["files"].items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        os.chdir(folder)
        try:
            with guard.reading_below(folder, run_files() if question["argv"][:1] == ["runs"] else ()):
                reply = _run(command_line(question), send, ranks=question["ranks"])
            results = Path(folder) / RESULTS
            paths = sorted(path for path in results.rglob("*") if path.is_file() and not path.is_symlink())
            reply["files"] = {path.relative_to(results).as_posix(): path.read_text("utf-8") for path in paths}
        finally:
            os.chdir("/")
            with contextlib.suppress(AttributeError):  # an interrupt that still waits is this question's
                signal.setitimer(signal.ITIMER_REAL, 0)
        return reply


def command_line(question: Mapping[str, Any]) -> list[str]:
    """The command line of a question; no service is simulated where that needs a compiler, if `compiles` is false."""
    argv: list[str] = question["argv"]
    if question["compiles"] or "--task=serve" not in argv:
        return argv
    from flopwise.serving.sim.machine_code import cache_folder, is_compiled

    return argv if is_compiled(cache_folder()) else [*argv, "--no-simulate"]


def _run(
    argv: Sequence[str], send: Callable[[Mapping[str, Any]], None], *, ranks: bool = False
) -> dict[str, Any]:  # fmt: skip
    """Run one command line; what it would print, and its exit code. `ranks`: rankings are sent before the answer."""
    out, err = io.StringIO(), io.StringIO()
    token = LISTENER.set(lambda *progress: send({"progress": progress}))
    sender = {name: _plan_sender(name, send) if ranks else None for name in ("first", "ranked")}
    first, ranked = FIRST_PLANS.set(sender["first"]), RANKING.set(sender["ranked"])
    ended = Ending(0)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = app.main(args=list(argv), prog_name="flopwise", standalone_mode=False)
        ended = Ending(code if isinstance(code, int) else 0)
    except SystemExit as leave:
        ended = Ending(leave.code if isinstance(leave.code, int) else 0)
    except MemoryError:
        ended = Ending(EXIT_BAD_INPUT, "error", "it needs more memory than the web server allows; use the command line")
    except BaseException as failure:  # noqa: BLE001 - as in `flopwise.cli.run`: each kind has its exit code
        ended = ending(failure)
    finally:
        FIRST_PLANS.reset(first)
        RANKING.reset(ranked)
        LISTENER.reset(token)
    return {
        "code": ended.code, "document": out.getvalue(), "message": ended.message, "reasons": list(ended.details),
        "notes": err.getvalue().splitlines(), "files": {},
    }  # fmt: skip


def _plan_sender(name: str, send: Callable[[Mapping[str, Any]], None]) -> Callable[[Any], None]:
    """Function that sends a plan as JSON under `name`."""
    return lambda plan: send({name: json.dumps(plan.to_dict())})


def interrupt(_signum: int, frame: FrameType | None) -> None:
    """End the question; within an import only after it: a module imported by half would fail every later question."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            signal.setitimer(signal.ITIMER_REAL, IMPORTING_S)
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def start() -> None:
    """Take stdin and stdout for messages; other output goes to stderr."""
    os.environ.pop("FLOPWISE_DEBUG", None)  # a defect is an answer here
    _keep_hub_token()
    with contextlib.suppress(ImportError, ValueError, OSError):  # not everywhere
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    signal.signal(signal.SIGINT, interrupt)
    with contextlib.suppress(AttributeError):  # not everywhere
        signal.signal(signal.SIGALRM, interrupt)
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):  # one between questions is nobody's
        main(sys.stdin.buffer, sink, readable_places())


if __name__ == "__main__":
    start()
