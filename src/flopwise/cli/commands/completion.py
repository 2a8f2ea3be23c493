"""`flopwise completion`: names and options at the press of Tab."""

from __future__ import annotations

import click

from flopwise.cli import options
from flopwise.options import choice

SHELLS = {
    "bash": ("~/.bashrc", 'eval "$(flopwise completion bash)"'),
    "zsh": ("~/.zshrc", 'eval "$(flopwise completion zsh)"'),
    "fish": ("~/.config/fish/completions/flopwise.fish", "flopwise completion fish | source"),
}
"""Where each shell reads at its start, and the line that belongs there."""


@options.command("completion", "flopwise completion bash", "flopwise completion zsh --json")
@options.argument("shell", choice(*SHELLS))
def command(*, shell: str) -> None:
    """The script that completes commands, options and names of models, GPUs, instances and providers.

    Add the line that the script begins with to the file that your shell reads at its start.
    """
    from click.shell_completion import get_completion_class

    completes = get_completion_class(shell)
    assert completes is not None
    script = completes(click.get_current_context().find_root().command, {}, "flopwise", "_FLOPWISE_COMPLETE").source()
    file, line = SHELLS[shell]
    document = {"shell": shell, "file": file, "line": line, "script": script}
    options.answer(document, lambda *_: [f"# in {file}: {line}\n{script.strip()}"])
