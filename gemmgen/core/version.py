"""The version of gemmgen, which all generated files name."""

__version__ = "0.1.0"
