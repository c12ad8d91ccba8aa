"""General matrix-matrix multiplication in float32."""

from gemmgen.kernels.gemm.family import family

__all__ = ["family"]
