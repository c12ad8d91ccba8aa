"""The group of all commands: imports them lazily, and turns every error into its message and exit code."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, TextIO

import click

from gemmgen.cli import exit_codes
from gemmgen.cli.help_text import HelpContext
from gemmgen.core.errors import GemmgenError
from gemmgen.core.text import printable

_MACHINE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.EFBIG}

_NO_ROOM = "failed to map segment from shared object"
"""Words of the dynamic linker where a library does not fit into a limit on memory."""


class Application(click.Group):
    """A group whose commands are the attributes ``command`` of modules in ``gemmgen.cli.commands``."""

    def __init__(self, *args: Any, command_summaries: Mapping[str, str], **more: Any) -> None:
        """``command_summaries`` maps every command to its line in the help."""
        super().__init__(*args, **more)
        self.command_summaries = command_summaries

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.command_summaries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.command_summaries:
            return None
        module_command: click.Command = import_module(f"gemmgen.cli.commands.{cmd_name.replace('-', '_')}").command
        for command in (module_command, *(module_command.commands.values() if isinstance(module_command, click.Group) else ())):
            command.context_class = HelpContext
        return module_command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.command_summaries and not args[0].startswith("-"):
            raise click.UsageError(f"no such command {args[0]!r}; {self._meant(ctx, args)}", ctx)
        return super().resolve_command(ctx, args)

    def _meant(self, ctx: click.Context, args: Sequence[str]) -> str:
        """Commands that words which begin with none may stand for."""
        if args[0] == "help":
            return (
                f"did you mean 'gemmgen {args[1]} --help'?"
                if args[1:] and args[1] in self.command_summaries
                else "'gemmgen --help' shows it"
            )
        if close := get_close_matches(args[0], self.command_summaries, n=1):
            return f"did you mean {close[0]!r}?"
        groups = {name: self.get_command(ctx, name) for name in self.command_summaries}
        below = [f"{name} {args[0]}" for name, group in groups.items() if isinstance(group, click.Group) and args[0] in group.commands]
        return f"did you mean {' or '.join(map(repr, below))}?" if below else f"there are: {', '.join(self.command_summaries)}"

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.command_summaries.items()))

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: object,
    ) -> Any:
        """Runs the command and exits: 0 done, 1 a kernel failed, 2 the user's mistake, 70 a bug of gemmgen's."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            sys.exit(self._run(args, prog_name, complete_var, extra))

    def _run(self, args: Sequence[str] | None, prog_name: str | None, complete_var: str | None, extra: dict[str, object]) -> int:
        # A process may be started without them; its output is discarded.
        sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
        try:
            # A name that the terminal's encoding cannot show must not stop the work.
            if (reconfigure := getattr(sys.stdout, "reconfigure", None)) is not None:
                reconfigure(errors="backslashreplace")
            code = super().main(args, prog_name, complete_var, False, **_colours(), **extra)
            sys.stdout.flush()
            return code if isinstance(code, int) else 0
        except click.Abort:
            return exit_codes.INTERRUPTED
        except click.ClickException as error:
            shown = io.StringIO()
            error.show(shown)
            click.echo(printable(shown.getvalue()), err=True, nl=False)
            return exit_codes.USAGE
        except GemmgenError as error:
            print_error(str(error))
            return error.exit_code
        except BrokenPipeError:
            _silence(sys.stdout)
            return exit_codes.FAILED
        except OSError as error:
            if error.errno not in _MACHINE_ERRORS:
                return _report_bug()
            print_error(": ".join(str(part) for part in (error.filename, error.strerror) if part))
            _silence(sys.stdout)
            return exit_codes.USAGE
        except (MemoryError, ImportError) as error:
            if isinstance(error, ImportError) and _NO_ROOM not in str(error):
                return _report_bug()
            print_error("not enough memory: ulimit -v, or the limit of a container, allows this process too little")
            _silence(sys.stdout)
            return exit_codes.USAGE
        except UserWarning as error:  # gemmgen warns where it continues; with -W error it stops instead
            print_error(f"{error} (warnings are errors: -W or PYTHONWARNINGS)")
            return exit_codes.USAGE
        except Exception:
            return _report_bug()


def _colours() -> dict[str, bool]:
    """Setting of click's context by NO_COLOR (no-color.org) and FORCE_COLOR (force-color.org); empty: terminals get colours, files none."""
    if os.environ.get("NO_COLOR"):
        return {"color": False}
    return {"color": True} if os.environ.get("FORCE_COLOR") else {}


def print_error(message: str) -> None:
    """One message on standard error."""
    click.echo(f"{click.style('Error:', fg='red', bold=True)} {printable(message)}", err=True)


def _report_bug() -> int:
    import traceback

    with contextlib.suppress(OSError):
        click.echo(printable(traceback.format_exc()), err=True, nl=False)
        print_error("this is a bug in gemmgen, not a mistake of yours; please report it with the lines above")
    return exit_codes.BUG


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
) -> None:
    click.echo(f"{click.style('Warning:', fg='yellow')} {printable(str(message))}", err=True)


def _silence(stream: TextIO) -> None:
    """Discards the rest of the buffer of a stream that nobody reads, so that no error is printed at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
