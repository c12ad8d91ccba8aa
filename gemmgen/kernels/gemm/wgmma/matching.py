"""Fits of GEMMs by warpgroups."""

from __future__ import annotations

from collections.abc import Mapping

from gemmgen.kernels.gemm.fitting import changes_for, fitted, placed
from gemmgen.kernels.gemm.request import GemmRequest, is_stored
from gemmgen.kernels.gemm.spec import Cluster, GemmSpec, WgmmaMainloop
from gemmgen.kernels.gemm.tensor_cores.matching import group_changes, groups_refusal
from gemmgen.kernels.gemm.tensor_cores.reasons import turning_reasons
from gemmgen.kernels.gemm.wgmma.loop import MOVING_REGISTERS
from gemmgen.kernels.gemm.wgmma.scaled import column_scales
from gemmgen.kernels.math.warpgroup import BLOCK_ROWS, OTHER_REGISTERS, SPAN_BYTES, WARPGROUP
from gemmgen.kernels.requests import MAX_ALIGNMENT, Fit

REGISTERS_OF_AN_SM, MAX_REGISTERS = 65536, 248
"""Registers of an SM of sm_90a, and the most of a thread, a multiple of 8."""
SPARE_REGISTERS = 8
"""Registers to spare beside two sets of products where an SM holds several blocks: two blocks of 64 x 64 would take 124 of 128 registers,
and 64 x 7168 x 2048 takes 6.7 us by them on an H200, 6.4 with one set."""
INVARIANT_PROMOTION = 256
"""Values of k after which sums of 8-bit floats leave the tensor core where rows must not depend on their number: the deepest tile."""

LONE_ELEMENTS = 64 * 128
"""Elements of a tile from which on one group of consumers promotes too slowly: on an H200, 256 x 4096 x 14336 in e4m3 takes 35.9 us by
``64x128x128_s9_c1`` where the model, which leaves that out, expects 27.0, and 28.8 us by two groups on ``128x64x128``."""


def fit(spec: GemmSpec, mainloop: WgmmaMainloop, request: GemmRequest) -> Fit | str:
    """The instance's spec, changed as far as the request needs it; or why it cannot be."""
    if (refusal := groups_refusal(spec, request)) is not None:
        return refusal
    truncated = request.precision == "tf32" and spec.storage.a == spec.storage.b == "tf32"
    placement = placed(spec, request, takes_transpose(spec, request))
    if isinstance(placement, str):
        return placement
    request = placement.request
    if spec.batch != "grouped" and spec.decomposition.scheme != "split_k_parallel":
        copied = _copied_factors(request, placement.row_major, placement.alignment, mainloop)
        placement.alignment.update(dict.fromkeys(copied, 1))
        mainloop = mainloop.model_copy(update={"copied": "both" if len(copied) > 1 else copied[0] if copied else "none"})
    eighths = request.invariant != "none" and request.a.type in ("e4m3", "e5m2")
    if eighths and mainloop.consumers == 1 and mainloop.tile.m * mainloop.tile.n >= LONE_ELEMENTS:
        return "nothing multiplies while its only group of consumers promotes a large tile"
    if eighths and INVARIANT_PROMOTION % mainloop.tile.k == 0:
        # Instances for few rows and for many then promote alike, and belong to one numeric class.
        mainloop = mainloop.model_copy(update={"promote_every": INVARIANT_PROMOTION})
    if request.groups is not None and mainloop.persistent_blocks:
        # Groups end at different times.
        mainloop = mainloop.model_copy(update={"tiles": "static" if request.grouping.gathered else "dynamic", "cluster": Cluster()})
    if request.block_scales:
        mainloop = mainloop.model_copy(update={"product_sets": _product_sets(spec, mainloop)})
    # TMA stores whole units of 16 bytes; warps store the other ends and alignments.
    column_major = spec.order == "column_major"
    whole_lines = (request.m if column_major else request.n) * request.c.element_bytes % MAX_ALIGNMENT == 0
    boxes = spec.store == "tma" and whole_lines and placement.result_bytes == MAX_ALIGNMENT
    boxes = boxes and not (column_major and _reads_matrices(request))
    store = spec.store
    if spec.store == "tma" and not boxes:
        store = "direct" if column_major or any(turning_reasons(spec)) or request.grouping.scattered else "through_shared"
    units = MAX_ALIGNMENT // request.c.element_bytes if boxes else 1
    changes = changes_for(spec, placement, truncated, units) | {"store": store, "mainloop": mainloop}
    held = tuple(operand for operand in request.constant if mainloop.copied not in (operand, "both"))
    if held and spec.batch != "grouped" and spec.decomposition.scheme != "stream_k":
        changes |= {"constant": held, "early_launch": True}
    return fitted(spec, request, changes | group_changes(request))


def _product_sets(spec: GemmSpec, mainloop: WgmmaMainloop) -> int:
    """Sets of products beside block scales: two where registers suffice, so that the tensor cores need not wait for sums to be scaled."""
    consumers, tile = mainloop.consumers, mainloop.tile
    if mainloop.instruction_n not in (None, tile.n):
        return 1
    registers = REGISTERS_OF_AN_SM // (WARPGROUP * (1 + consumers) * mainloop.min_blocks_per_sm)
    if consumers > 1 and mainloop.min_blocks_per_sm == 1:
        registers = MOVING_REGISTERS[consumers][1]
    blocks = tile.m // BLOCK_ROWS // (consumers if mainloop.schedule == "cooperative" else 1)
    others = OTHER_REGISTERS + column_scales(spec.scales, tile.n, tile.n)
    spare = SPARE_REGISTERS if mainloop.min_blocks_per_sm > 1 else 0
    return 2 if blocks * 3 * tile.n // 2 + others + spare <= min(MAX_REGISTERS, registers) else 1


def _reads_matrices(request: GemmRequest) -> bool:
    """True if matrices of the result's shape, groups or a second product keep TMA from storing column-major results."""
    like_output = any(operand.like_output for operation in request.epilogue for operand in operation.operands())
    return like_output or request.accumulates or request.groups is not None or request.second is not None


def takes_transpose(spec: GemmSpec, request: GemmRequest) -> bool:
    """True if a kernel for column-major results takes C as its transpose, as it does wherever it can: few rows then fill the columns of its
    tiles."""
    return spec.order != "row_major" and is_stored(request.c, True)


def _copied_factors(
    request: GemmRequest, row_major: Mapping[str, bool], alignment: Mapping[str, int], mainloop: WgmmaMainloop
) -> list[str]:
    """The factors that neither TMA nor matrix instructions can read as they lie, of which the second kind is copied only where
    one tile holds it or no tile could."""
    choices = []
    tile, cluster = mainloop.tile, mainloop.cluster
    sides = (
        ("a", request.a, row_major["a"], request.m, tile.m, cluster.n),
        ("b", request.b, not row_major["b"], request.n, tile.n, cluster.m),
    )
    for name, layout, along_k, extent, held, sharers in sides:
        unaligned = alignment[name] * layout.element_bytes < MAX_ALIGNMENT
        # Boxes of a matrix stored across k are as wide as a row of shared memory: 8 x 10072 x 1888, its few rows stored so.
        narrow = extent <= held and held * layout.element_bytes % (SPAN_BYTES * sharers) != 0
        if unaligned or (not along_k and (layout.element_bytes != 2 or narrow)):
            choices.append(name)
    return choices


def may_launch_early(spec: GemmSpec) -> bool:
    """True if an instance leaves numbers to the launch, and comes early where the architecture allows it."""
    return False
