"""Pictures of an operation on rows: the elements of a block, a row and a lane."""

from __future__ import annotations

from gemmgen.kernels.pictures import ArrayOverview, Division, Picture, Share, TileHierarchy, product
from gemmgen.kernels.rows.plan import RowsPlan

MAX_COLUMNS = 512
"""Columns of a picture."""


def pictures(plan: RowsPlan) -> list[Picture]:
    """The tiles."""
    columns = min(plan.lanes * plan.vector, MAX_COLUMNS)
    rows = tuple(Share(row, product(range(row, row + 1), range(columns))) for row in range(plan.rows))
    vectors = range(columns // plan.vector)
    lanes = tuple(Share(lane, product(range(1), range(lane * plan.vector, (lane + 1) * plan.vector))) for lane in vectors)
    overview = ArrayOverview("y", "rows", "columns", plan.rows, columns, ((0, 0),), False, ("a threadblock's share",), combines=False)
    levels = (
        Division("block", plan.rows, columns, "rows", "columns", "row", rows, (f"{plan.threads} threads",)),
        Division("row", 1, columns, "rows", "columns", "lane", lanes, (f"{plan.lanes} lanes",)),
        Division("thread", 1, plan.vector, "rows", "columns", "element", (), (f"{plan.held or 1} of these at a time",)),
    )
    return [TileHierarchy("Division of work", overview, levels)]
