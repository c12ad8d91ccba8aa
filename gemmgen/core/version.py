"""The version of gemmgen, for everything that is generated to name."""

__version__ = "0.1.0"
