"""Extents of tiles of products, as specs state them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gemmgen.kernels.family import SpecModel

Extent = Annotated[int, Field(ge=1, le=1024, strict=True)]
MAX_DEPTH = 4096
"""Largest depth of a step: a tile of few rows may have many values of k."""


class Extents2(SpecModel):
    """Rows and columns of a tile of the result; a convolution's are those of its implicit GEMM."""

    m: Extent
    """Rows."""
    n: Extent
    """Columns."""


class Extents3(Extents2):
    """A tile of the result, and the depth of a step along k."""

    k: Annotated[int, Field(ge=1, le=MAX_DEPTH, strict=True)]
    """Values of k in a step."""
