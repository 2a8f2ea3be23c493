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
    """Shell completion of commands, options and names of models, GPUs, instances and providers.

    Add the first line of the script to the file that your shell reads at its start.
    """
    from click.shell_completion import get_completion_class

    completes = get_completion_class(shell)
    assert completes is not None
    script = completes(click.get_current_context().find_root().command, {}, "flopwise", "_FLOPWISE_COMPLETE").source()
    file, line = SHELLS[shell]
    document = {"shell": shell, "file": file, "line": line, "script": script}
    if options.output_form() is None:
        click.echo(f"# in {file}: {line}\n{script.strip()}")  # a script is never wrapped
        return
    options.answer(document, lambda *_: [script])
