"""Operations on the rows of a matrix in one pass: softmax, norms, their gradients, running sums."""

from gemmgen.kernels.rows.family import family

__all__ = ["family"]
