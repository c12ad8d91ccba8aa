"""Convolution of int8 tensors in NCHW32 on tensor cores."""

from gemmgen.kernels.conv2d.family import family

__all__ = ["family"]
