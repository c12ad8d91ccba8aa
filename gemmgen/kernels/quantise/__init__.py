"""Quantisation of matrices to 8-bit floats: the largest magnitude of a block of elements, its scale, and the elements in it."""

from gemmgen.kernels.quantise.family import family

__all__ = ["family"]
