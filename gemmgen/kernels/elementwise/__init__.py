"""Operations on every element of arrays: y = operations(x, z, ...), with any strides and broadcasts of up to four axes."""

from gemmgen.kernels.elementwise.family import family

__all__ = ["family"]
