"""Progress of a training run as Prometheus metrics: tokens trained, and when the last checkpoint was written.

The process of rank 0 holds one `RunProgress` and says what is done; it answers at http://MACHINE:9401/metrics. With a
Trainer of Hugging Face, `Trainer(..., callbacks=[callback(tokens_per_step)])` does it.
"""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PORT = 9401
PAGE = """\
# TYPE flopwise_run_tokens_total counter
flopwise_run_tokens_total {tokens}
# TYPE flopwise_run_checkpoint_timestamp_seconds gauge
flopwise_run_checkpoint_timestamp_seconds {saved}
"""


class RunProgress:
    """The progress of a run, and the server that reports it."""

    def __init__(self, port: int = PORT, host: str = "") -> None:
        """Start the server; the age of a checkpoint counts from now."""
        self.tokens, self.saved = 0, time.time()
        progress = self

        class Page(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = PAGE.format(tokens=progress.tokens, saved=progress.saved).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing: the run's log is for the run."""

        self.server = ThreadingHTTPServer((host, port), Page)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def step(self, tokens: int) -> None:
        """Count `tokens` more trained tokens."""
        self.tokens += tokens

    def checkpoint(self) -> None:
        """One is written."""
        self.saved = time.time()


def callback(tokens_per_step: int, port: int = PORT) -> Any:
    """A callback for transformers.Trainer that tells its progress from rank 0."""
    from transformers import TrainerCallback  # noqa: PLC0415 - only where a Trainer is

    class ProgressCallback(TrainerCallback):
        progress: RunProgress | None = None

        def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            if state.is_world_process_zero:
                self.progress = RunProgress(port)

        def on_step_end(self, *_args: Any, **_: Any) -> None:
            if self.progress:
                self.progress.step(tokens_per_step)

        def on_save(self, *_args: Any, **_: Any) -> None:
            if self.progress:
                self.progress.checkpoint()

    return ProgressCallback()
