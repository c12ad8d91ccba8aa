"""``python -m gemmgen``: the command line, where the command itself is not on the path."""

from gemmgen.cli import main

main()
