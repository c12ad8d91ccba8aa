"""PTX text: syntax tree, lexer, parser."""

from gemmgen.emulator.ptx.parser import parse

__all__ = ["parse"]
