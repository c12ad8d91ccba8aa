"""General matrix-matrix multiplication in float32."""

from gemmgen.families.gemm.family import family

__all__ = ["family"]
