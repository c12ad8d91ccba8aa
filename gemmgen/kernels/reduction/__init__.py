"""Reductions of arrays: sums, extrema, norms, moments, over everything or along an axis."""

from gemmgen.kernels.reduction.family import family

__all__ = ["family"]
