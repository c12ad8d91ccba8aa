"""Tiles of C that the blocks of a grid take on tensor cores: how many there are, and the formulas of a launch that follow."""

from __future__ import annotations

from dataclasses import dataclass

from gemmgen.core.formulas import Formula, round_up
from gemmgen.kernels.gemm.matrices import FLOAT_BYTES
from gemmgen.kernels.gemm.sequence import WORKSPACE_ALIGNMENT, workspace_argument
from gemmgen.kernels.gemm.spec import GemmSpec, SplitKParallel, StreamK
from gemmgen.kernels.launch import ArrayArgument, Constraint, grid_in_turn

MAX_INT = 2**31 - 1


@dataclass(frozen=True)
class Grid:
    """A tile of C with its steps along k, and the blocks that share tiles or take several."""

    tile_m: int
    tile_n: int
    tile_k: int
    persistent_blocks: int = 0
    """Blocks that take tiles in turn; 0: as many as there are tiles."""
    own_tiles: int = 1
    """Tiles that a block takes at a time: one, or one for each warp."""
    warps_apart: bool = False
    """True if every warp takes pieces of work for itself."""
    cluster_m: int = 1
    cluster_n: int = 1
    cluster_k: int = 1
    """Blocks of a cluster side by side along m, n and k."""
    groups: int = 1
    """Groups of a block's threads that hold sums of a tile each, and wait for one another's alone."""
    dynamic: bool = False
    """True if a counter deals out the tiles."""
    skips_rows: bool = False
    """True if groups of warps whose rows of a tile do not exist do nothing."""

    @property
    def cluster_blocks(self) -> int:
        return self.cluster_m * self.cluster_n * self.cluster_k

    @property
    def shares_both(self) -> bool:
        """True if blocks of a cluster share tiles of A, and others tiles of B."""
        return self.cluster_m > 1 and self.cluster_n > 1

    @property
    def sharers(self) -> int:
        """Blocks that copy tiles for one another."""
        return self.cluster_m * self.cluster_n

    def works(self, spec: GemmSpec) -> str:
        """The formula of the pieces of work, at most."""
        rows, columns = f"ceil_div(m, {self.tile_m * self.cluster_m})", f"ceil_div(n, {self.tile_n * self.cluster_n})"
        if spec.batch == "grouped":
            # Each group may add a tile that it does not fill; where the tiles are, only the device knows.
            return f"({rows} + groups) * {columns} * min(min(m, groups), 1)"
        own = getattr(spec.decomposition, "slices", 1)
        slices = f" * {'slices' if own == 'launch' else own}" if isinstance(spec.decomposition, SplitKParallel) else ""
        return f"{rows} * {columns}{slices}" + (" * batch" if spec.batch == "strided" else "")

    def blocks(self, spec: GemmSpec) -> Formula:
        """The formula of the blocks of the grid, which are clusters side by side."""
        if isinstance(spec.decomposition, StreamK):
            return Formula(f"select({self.works(spec)} > 0, {spec.decomposition.blocks}, 0)")
        return grid_in_turn(self._own_works(spec), self.persistent_blocks, self.cluster_blocks)[0]

    def blocks_of_device(self, spec: GemmSpec) -> Formula | None:
        """Blocks of the grid for a device of ``multiprocessors``; None where it does not depend on them."""
        return grid_in_turn(self._own_works(spec), self.persistent_blocks, self.cluster_blocks)[1]

    def _own_works(self, spec: GemmSpec) -> str:
        works = self.works(spec)
        return f"ceil_div({works}, {self.own_tiles})" if self.own_tiles > 1 else works

    def constraint(self, spec: GemmSpec) -> Constraint:
        """Pieces of work, or steps of all of them, that can be counted."""
        works = self.works(spec)
        if isinstance(spec.decomposition, StreamK):
            steps = f"{works} * max(1, ceil_div(k, {self.tile_k}))"
            most = 2**31 - 1024
            return Constraint(
                Formula(f"{steps} < {most}"), f"{steps} must be less than {most}; an int counts the steps along k of all tiles"
            )
        most = MAX_INT - 65536 * (self.own_tiles if self.persistent_blocks else 1)
        pieces = "slices of tiles of C" if isinstance(spec.decomposition, SplitKParallel) else "tiles of C"
        return Constraint(Formula(f"{works} < {most}"), f"{works} must be less than {most}; an int counts the {pieces}")

    def flag_bytes(self, division: StreamK) -> int:
        """Bytes at the start of the workspace of stream-K: a flag for each group of threads of each block that leaves a sum."""
        return round_up(4 * division.blocks * self.groups, WORKSPACE_ALIGNMENT)

    def streamed_workspace(self, division: StreamK) -> tuple[ArrayArgument, Formula]:
        """The workspace of stream-K, and how many of its bytes are zero at first."""
        size = Formula(str(self.flag_bytes(division) + FLOAT_BYTES * self.tile_m * self.tile_n * division.blocks))
        workspace = workspace_argument("u8", size, 1, "for each block whether it left a sum, then the sums")
        return workspace, Formula(str(4 * division.blocks * self.groups))
