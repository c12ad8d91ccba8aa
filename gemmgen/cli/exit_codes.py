"""Codes that commands exit with, besides 0."""

FAILED = 1
"""A kernel failed, or something was found."""
USAGE = 2
"""The user's mistake."""
BUG = 70
"""A bug of gemmgen's: EX_SOFTWARE of sysexits.h."""
INTERRUPTED = 130
"""128 + SIGINT, as shells have it."""
