"""SGEMM for a CPU: C with intrinsics, compiled by the host's compiler."""

from gemmgen.kernels.cpu_gemm.family import family

__all__ = ["family"]
