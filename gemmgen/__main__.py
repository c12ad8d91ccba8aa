"""The command ``gemmgen``, also as ``python -m gemmgen``, and its handling of interrupts before and after a command runs.

Modules take a part of a second to import. An interrupt during that time ends the command without a traceback.
"""

import gc
import os
from types import FrameType

INTERRUPTED = 130  # as in gemmgen.cli.exit_codes, which is not imported yet
try:
    import signal  # takes a millisecond, for its enumerations
except KeyboardInterrupt:
    raise SystemExit(INTERRUPTED) from None
_OBJECTS_BETWEEN_COLLECTIONS = 50_000
"""New objects after which Python looks for garbage: its default of 700 visits the objects of imports again and again."""


def main() -> None:
    """Runs the command line; an interrupt ends it quietly whenever it comes."""
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    # A shell starts background commands with interrupts ignored; this setting is kept.
    handles = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if handles:
        signal.signal(signal.SIGINT, _leave)
    from gemmgen.cli import main as run

    try:
        if handles:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    finally:
        if handles:
            signal.signal(signal.SIGINT, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    """Ends the process at once; there is nothing to finish."""
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
