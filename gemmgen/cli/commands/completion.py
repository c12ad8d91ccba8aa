"""``gemmgen completion``: completion of commands, specs and architectures in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the script that completes gemmgen's commands in a shell.

    \b
    bash:  gemmgen completion bash >> ~/.bashrc
    zsh:   gemmgen completion zsh >> ~/.zshrc
    fish:  gemmgen completion fish > ~/.config/fish/completions/gemmgen.fish
    """
    completion = get_completion_class(shell)
    assert completion is not None
    click.echo(completion(context.find_root().command, {}, "gemmgen", "_GEMMGEN_COMPLETE").source())
