"""Actions on alerts: posting to a webhook, and running a stop command once. Their failure never ends `watch`.

A file keeps the start time of the job and whether its command has run, across restarts of `watch`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import queue
import shlex
import shutil
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flopwise.errors import SpecError
from flopwise.files import write_whole

TIMEOUT_S = 5.0
TRIES = 3
WAIT_S = 0.5
"""Delay before the second attempt, in seconds; doubled before each further one."""
MOST_WAITING = 1000
CLAIM_S = 60.0
"""Age after which an unfinished claim of the stop command belongs to a watch that was killed."""
Say = Callable[[str], None]


class Webhook:
    """Posts JSON from its own thread, in order; each outage is reported once."""

    def __init__(self, url: str, say: Say, *, timeout_s: float = TIMEOUT_S, wait_s: float = WAIT_S) -> None:
        """`say` receives messages; they name only the host of the address, which may contain a secret.

        Raises: SpecError: not an http or https address.
        """
        try:
            parts = urllib.parse.urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or parts.scheme not in ("http", "https"):
            raise SpecError("--webhook: give an http:// or https:// address")
        self.place = f"{parts.scheme}://{host}{f':{port}' if port else ''}"
        self._url, self._say, self._timeout_s, self._wait_s = url, say, timeout_s, wait_s
        self._waiting: queue.Queue[bytes | None] = queue.Queue(MOST_WAITING)
        self._out = False
        self._thread = threading.Thread(target=self._work, daemon=True, name="flopwise-webhook")
        self._thread.start()

    def post(self, document: Mapping[str, Any]) -> None:
        """Queue a document for posting; it is dropped if the queue is full."""
        try:
            self._waiting.put_nowait(json.dumps(document).encode())
        except queue.Full:
            self._fail("too many alerts are waiting to be posted")

    def close(self, seconds: float = 10.0) -> None:
        """Post queued documents, for at most `seconds`."""
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(seconds)

    def _work(self) -> None:
        while (body := self._waiting.get()) is not None:
            why = ""
            for attempt in range(TRIES):
                if attempt:
                    time.sleep(self._wait_s * 2 ** (attempt - 1))
                why, again = self._attempt(body)
                if not again:
                    break
            if why:
                self._fail(why)
            else:
                self._out = False

    def _attempt(self, body: bytes) -> tuple[str, bool]:
        """(reason of the failure, empty on success; whether to try again)."""
        import urllib.error  # noqa: PLC0415 - a watcher without a webhook does without
        import urllib.request  # noqa: PLC0415 - same

        from flopwise.pages import answer_within  # noqa: PLC0415 - same

        headers = {"Content-Type": "application/json", "User-Agent": "flopwise"}
        try:
            request = urllib.request.Request(self._url, data=body, headers=headers)  # noqa: S310 - http and https alone
            with answer_within(request, self._timeout_s):
                return "", False
        except urllib.error.HTTPError as error:
            return f"it answered {error.code}", error.code >= 500 or error.code == 429
        except OSError as error:
            return str(getattr(error, "reason", "") or type(error).__name__), True
        except Exception as error:  # noqa: BLE001 - no fault of the server ends the watch
            return type(error).__name__, False

    def _fail(self, why: str) -> None:
        if not self._out:
            self._out = True
            self._say(f"webhook {self.place}: {why}; alerts are not posted until it answers")


class KeptState:
    """The start time of a job and whether its stop command has run, in a file that survives restarts."""

    def __init__(self, path: Path, *, anew: bool = False) -> None:
        """`anew`: discard the file."""
        self.path = path
        self._ran = path.with_name(f"{path.name}.ran")
        if anew:
            self.path.unlink(missing_ok=True)
            self._ran.unlink(missing_ok=True)

    @classmethod
    def of_job(cls, identity: Sequence[str], *, anew: bool = False) -> KeptState:
        """State in the user's data folder, in a file named by a hash of the job's identity."""
        from platformdirs import user_data_path  # noqa: PLC0415 - a named file does without

        name = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:16]
        return cls(user_data_path("flopwise", appauthor=False) / "watch" / f"{name}.json", anew=anew)

    def started_at_s(self) -> float | None:
        """Start time of the job; None if there is no file. Raises SpecError: the file is not a state file."""
        try:
            data: Any = json.loads(self.path.read_text(encoding="utf-8"))
            return float(data["started_at_s"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            raise SpecError(
                f"--state: {self.path} is not a state file of watch; give another file, or --anew to replace it"
            ) from None

    def start(self, at_s: float) -> None:
        """Write the start time of the job. Raises SpecError if it cannot be written."""
        try:
            write_whole(self.path, (json.dumps({"started_at_s": at_s}) + "\n").encode())
        except SpecError as fault:
            raise SpecError(f"--state: {fault}") from None

    def claim_run(self) -> bool:
        """Claim the single run of the command; False if another watch has it. Raises SpecError."""
        try:
            self._ran.parent.mkdir(parents=True, exist_ok=True)
            if (
                self._ran.exists()
                and not self._ran.stat().st_size
                and time.time() - self._ran.stat().st_mtime > CLAIM_S
            ):
                self._ran.unlink(missing_ok=True)  # of a watch that was killed before the command began
            with self._ran.open("x", encoding="utf-8"):
                return True
        except FileExistsError:
            return False
        except OSError as error:
            raise SpecError(f"--state: {self._ran} cannot be written ({error.strerror or error})") from None

    def note_run(self, *, begun: bool) -> None:
        """Record whether the claimed command began; if it did not, it may be tried again."""
        with contextlib.suppress(OSError):
            if begun:
                self._ran.write_text(f"{time.time()}\n", encoding="utf-8")
            else:
                self._ran.unlink(missing_ok=True)


class BudgetCommand:
    """A command that runs once when the budget is spent, without a shell and in the background."""

    def __init__(self, text: str, state: KeptState | None, say: Say) -> None:
        """`state`: of the job; None: the command runs once per watch, since jobs cannot be told apart.

        Raises: SpecError: the text cannot be split into words, or there is no such program.
        """
        try:
            self._words = shlex.split(text)
        except ValueError as error:
            raise SpecError(f"--exec-on-budget: {error}: {text[:80]!r}") from None
        if not self._words or shutil.which(self._words[0]) is None:
            raise SpecError(f"--exec-on-budget: there is no program {' '.join(self._words[:1])!r}; give its path")
        self._state, self._say = state, say
        self._process: subprocess.Popen[bytes] | None = None
        self._is_done, self._failure = False, ""

    def run(self) -> None:
        """Start the command, unless this or another watch of the job did; a failed start is tried again next time."""
        if self._is_done:
            return
        try:
            if self._state is not None and not self._state.claim_run():
                self._is_done = True
                return
        except SpecError as error:  # running it twice is better than never
            self._fail(str(error))
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the user's own words
                self._words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._fail(f"{self._words[0]} could not be started: {error.strerror or error}; it will be tried again")
            if self._state is not None:
                self._state.note_run(begun=False)
            return
        self._is_done = True
        self._say(f"the budget is spent: running {shlex.join(self._words)}")
        if self._state is not None:
            self._state.note_run(begun=True)

    def _fail(self, why: str) -> None:
        """Report a failure once."""
        if why != self._failure:
            self._failure = why
            self._say(why)

    def check(self) -> None:
        """Report the exit code after the command has ended."""
        if self._process is not None and (code := self._process.poll()) is not None:
            self._process = None
            self._say(f"{self._words[0]} ended with exit code {code}")
