"""Pictures of a reduction: the elements that each thread reads, the steps in which threads combine, and the banks that they access."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gemmgen.hardware.shared_memory import BANK_BYTES, WARP
from gemmgen.hardware.target import WARP_THREADS
from gemmgen.kernels.pictures import (
    ArrayOverview,
    BankMap,
    BankMaps,
    Division,
    Picture,
    Share,
    SharedAccess,
    SharedLayout,
    TileHierarchy,
    Tree,
    TreeStep,
    product,
)
from gemmgen.kernels.reduction.plan import BlockLayout, ColumnLayout, LaneLayout, ReductionPlan
from gemmgen.kernels.reduction.tensor import TensorLayout

_TREES = {
    "interleaved": "neighbours first; every second active thread continues",
    "interleaved_compact": "neighbours first, by the first threads",
    "sequential": "halves",
    "unroll_last_warp": "halves; the last warp needs no barrier of the block",
    "fully_unrolled": "halves, written out; the last warp needs no barrier of the block",
    "shuffle": "through the registers of each warp, then of the first",
}


def pictures(plan: ReductionPlan) -> list[Picture]:
    """All pictures of a plan."""
    pictures: list[Picture] = [_tiles(plan)]
    if isinstance(plan.layout, TensorLayout) and plan.layout.flat:
        return pictures
    steps = _steps(plan)
    if steps:
        pictures.append(Tree("How the threads of a block combine", plan.threads, steps, _tree_notes(plan)))
    maps = _bank_maps(plan, steps)
    return [*pictures, maps] if maps.maps else pictures


def _shown(plan: ReductionPlan) -> BlockLayout | LaneLayout | ColumnLayout:
    """The layout; of a tensor, that of the same threads over rows, or over columns."""
    layout = plan.layout
    if not isinstance(layout, TensorLayout):
        return layout
    if layout.name in ("tensor_columns", "flat_tiles"):
        return ColumnLayout(layout.lanes, layout.groups, 1, layout.lanes * plan.vector * layout.choice.columns)
    if layout.name == "tensor_rows" and not layout.in_parts:
        return LaneLayout(layout.lanes, 1, layout.groups)
    return BlockLayout("shuffle", "stream", "part", "parts", None, None, plan.vector * plan.unroll)


def _tiles(plan: ReductionPlan) -> TileHierarchy:
    rows, columns = _block_extents(plan)
    warps = plan.threads // WARP_THREADS
    shares = []
    for warp in range(warps):
        places = [_thread_places(plan, thread) for thread in range(warp * WARP, (warp + 1) * WARP)]
        shares.append(Share(warp, product({row for down, _ in places for row in down}, {at for _, along in places for at in along})))
    block = Division("block", rows, columns, "rows", "columns", "warp", tuple(shares), _block_notes(plan))
    places = [_thread_places(plan, thread) for thread in range(WARP)]
    down = {row: at for at, row in enumerate(sorted({row for rows_of, _ in places for row in rows_of}))}
    along = {column: at for at, column in enumerate(sorted({column for _, columns_of in places for column in columns_of}))}
    lanes = [
        Share(lane, product([down[row] for row in rows_of], [along[column] for column in columns_of]))
        for lane, (rows_of, columns_of) in enumerate(places)
    ]
    gaps = max(down) >= len(down) or max(along) >= len(along)
    warp_tile = Division("warp", len(down), len(along), "rows", "columns", "lane", tuple(lanes), ("gaps in it closed up",) if gaps else ())
    own_rows, own_columns = places[0]
    elements = Division("thread", len(own_rows), len(own_columns), "rows", "columns", "element", (), (_thread_note(plan),))
    return TileHierarchy("Division of reads", _overview(plan), (block, warp_tile, elements))


def _block_extents(plan: ReductionPlan) -> tuple[int, int]:
    layout = _shown(plan)
    if isinstance(layout, LaneLayout):
        return layout.rows_per_block, layout.lanes * plan.vector * plan.unroll
    if isinstance(layout, ColumnLayout):
        return layout.row_threads * plan.unroll, layout.tile_columns
    return _loads(plan, layout), plan.threads * plan.vector


def _loads(plan: ReductionPlan, layout: BlockLayout) -> int:
    return {"one": 1, "pair": 2, "stream": plan.unroll}[layout.loads]


def _thread_places(plan: ReductionPlan, thread: int) -> tuple[list[int], list[int]]:
    """Rows and columns of a thread's read, and of its block's."""
    layout, vector = _shown(plan), plan.vector
    if isinstance(layout, LaneLayout):
        group, lane = divmod(thread, layout.lanes)
        rows = [group + row * layout.groups for row in range(layout.rows)]
        return rows, [(lane + load * layout.lanes) * vector + i for load in range(plan.unroll) for i in range(vector)]
    if isinstance(layout, ColumnLayout):
        row, lane = divmod(thread, layout.lanes)
        vectors = range(lane, layout.tile_columns // vector, layout.lanes)
        return [row + load * layout.row_threads for load in range(plan.unroll)], [at * vector + i for at in vectors for i in range(vector)]
    return list(range(_loads(plan, layout))), [thread * vector + i for i in range(vector)]


def _block_notes(plan: ReductionPlan) -> tuple[str, ...]:
    warps = plan.threads // WARP_THREADS
    threads = f"{plan.threads} threads, {warps} warp{'s' if warps > 1 else ''}"
    layout = _shown(plan)
    if isinstance(layout, BlockLayout):
        return (threads, "each row follows the one above it in memory")
    if isinstance(layout, ColumnLayout) and layout.splits > 1:
        return (threads, f"{layout.splits} blocks share the rows")
    return (threads,)


def _thread_note(plan: ReductionPlan) -> str:
    into = f"{plan.accumulators} state{'s' if plan.accumulators > 1 else ''}"
    layout = _shown(plan)
    each = " for each row" if isinstance(layout, LaneLayout) and layout.rows > 1 else ""
    return f"loads of {plan.vector} element{'s' if plan.vector > 1 else ''}, into {into}{each}"


def _overview(plan: ReductionPlan) -> ArrayOverview:
    layout = _shown(plan)
    rows, columns = _block_extents(plan)
    meeting = (f"blocks meet: {plan.finish.replace('_', ' ')}",) if plan.finish else ()
    if isinstance(layout, LaneLayout):
        one = f"{layout.lanes} lane{'s' if layout.lanes > 1 else ''} a row, {layout.rows} row{'s' if layout.rows > 1 else ''} at a time"
        everything = tuple((0, column) for column in range(6))
        return ArrayOverview("X", f"rows, {rows} a block", f"reduced, {columns} at a time", rows, columns, everything, False, (one,))
    if isinstance(layout, ColumnLayout):
        taken = tuple((row, 0) for row in range(0, 6, 2 if layout.splits > 1 else 1))
        down = f"reduced, {rows} at a time"
        return ArrayOverview("X", down, f"inner, {columns} a block", rows, columns, taken, True, meeting)
    elements = rows * columns
    if layout.blocks_per_row is not None:
        taken = tuple((0, column) for column in range(0, 6, 2 if layout.blocks_per_row > 1 else 1))
        shared = f"{layout.blocks_per_row} block{'s' if layout.blocks_per_row > 1 else ''} a row"
        return ArrayOverview("X", "rows", f"reduced, {elements} at a time", 1, elements, taken, False, (shared, *meeting))
    taken = ((0, 0), (0, 3)) if layout.loads == "stream" else ((0, 0),)
    more = ("a block takes tile after tile, a grid apart",) if layout.loads == "stream" else ()
    return ArrayOverview("X", "", f"reduced, {elements} at a time", 1, elements, taken, False, (*more, *meeting))


def _tree_notes(plan: ReductionPlan) -> tuple[str, ...]:
    layout = _shown(plan)
    if isinstance(layout, BlockLayout):
        notes = [f"{layout.tree}: {_TREES[layout.tree]}."]
        if layout.tree == "shuffle":
            notes.append("All lanes of a warp take part in a shuffle; only the results of the first half are used.")
        return tuple(notes)
    if isinstance(layout, LaneLayout):
        return (f"Shuffles among the {layout.lanes} lanes of a row; only the results of the first half are used.",)
    return (f"The threads of the same columns, {layout.lanes} apart: the upper half hands over through shared memory, the lower combines.",)


def _halves(count: int) -> list[int]:
    """count / 2, count / 4, ... 1."""
    return [count >> step for step in range(1, count.bit_length())]


def _steps(plan: ReductionPlan) -> tuple[TreeStep, ...]:
    layout = _shown(plan)
    if isinstance(layout, LaneLayout):
        return tuple(_shuffle(distance, layout.lanes, range(plan.threads)) for distance in _halves(layout.lanes))
    if isinstance(layout, ColumnLayout):
        steps = []
        for half in _halves(layout.row_threads):
            apart = half * layout.lanes
            pairs = tuple((thread, thread + apart) for thread in range(apart))
            steps.append(TreeStep(f"distance {apart}", pairs, tuple(range(apart)), None, "__syncthreads()"))
        return tuple(steps)
    if layout.tree == "shuffle":
        return _shuffle_tree(plan.threads)
    return _tree(layout.tree, plan.threads, plan.arithmetic.state_bytes, bool(plan.arithmetic.fields))


def _shuffle(distance: int, lanes: int, threads: Iterable[int]) -> TreeStep:
    taking = tuple(threads)
    pairs = tuple((thread, thread + distance) for thread in taking if thread % lanes < distance)
    return TreeStep(f"shuffle by {distance}", pairs, taking, None, "in registers")


def _shuffle_tree(threads: int) -> tuple[TreeStep, ...]:
    warps = threads // WARP
    steps = [_shuffle(distance, WARP, range(threads)) for distance in _halves(WARP)]
    if warps > 1:
        moves = tuple((warp, warp * WARP) for warp in range(warps))
        steps.append(TreeStep("totals of warps", moves, tuple(range(warps)), None, "through shared memory"))
        steps += [replace(_shuffle(distance, warps, range(warps)), workers=tuple(range(WARP))) for distance in _halves(warps)]
    return tuple(steps)


def _tree(tree: str, threads: int, state_bytes: int, is_struct: bool) -> tuple[TreeStep, ...]:
    """The steps of one of the trees through shared memory, as ``templates/reduction/trees.cu.j2`` has them."""
    distances = _halves(threads)
    steps = []
    for distance in distances[::-1] if tree.startswith("interleaved") else distances:
        if tree == "interleaved":
            workers = range(0, threads, 2 * distance)
            targets: Iterable[int] = workers
        elif tree == "interleaved_compact":
            workers = range(threads // (2 * distance))
            targets = (2 * distance * thread for thread in workers)
        else:
            workers = targets = range(distance)
        pairs = tuple((target, target + distance) for target in targets)
        in_warp = tree in ("unroll_last_warp", "fully_unrolled") and distance <= WARP
        access = None
        if not is_struct:
            offsets = [-1] * WARP
            for worker, (_, origin) in zip(workers, pairs, strict=True):
                if worker < WARP:
                    offsets[worker] = origin * state_bytes
            access = SharedAccess(tuple(offsets), state_bytes, store=False)
        barrier = "__syncwarp()" if in_warp else "__syncthreads()"
        steps.append(TreeStep(f"distance {distance}", pairs, tuple(workers), access, barrier))
    return tuple(steps)


def _bank_maps(plan: ReductionPlan, steps: tuple[TreeStep, ...]) -> BankMaps:
    """The first warp's loads in each step, beside those of the tree with as many threads at work that does the opposite."""
    maps = []
    layout = _shown(plan)
    if isinstance(layout, BlockLayout) and any(step.access for step in steps):
        size, tree = plan.arithmetic.state_bytes, layout.tree
        other = {"interleaved": None, "interleaved_compact": "sequential"}.get(tree, "interleaved_compact")
        others = {len(step.workers): step for step in _tree(other, plan.threads, size, False)} if other else {}
        for number, step in enumerate(steps, 1):
            if len(step.workers) == 1:
                continue
            layouts = [_states(plan.threads, size, step, f"{tree}, {step.title}, as here", True)]
            if other and step.access:
                opposite = others[len(step.workers)]
                beside = _states(plan.threads, size, opposite, f"{other}, {opposite.title}", False)
                layouts.insert(0 if tree != "interleaved_compact" else 1, beside)
            busy = f"{len(step.workers)} thread{'s' if len(step.workers) > 1 else ''}"
            total = f"The first warp's load of the combined states, {size} bytes a lane; {busy} of the block at work."
            note = "Bold: the words of the access, with lane numbers. One color: the 32 states that one warp stored."
            maps.append(BankMap(f"step-{number}", f"Step {number}: {step.title}", tuple(layouts), total, (note,), max(BANK_BYTES, size)))
    return BankMaps("Banks of shared memory", tuple(maps))


def _states(threads: int, size: int, step: TreeStep, title: str, chosen: bool) -> SharedLayout:
    assert step.access is not None
    colors = {state * size: state // WARP for state in range(threads)}
    return SharedLayout(title, threads * size, colors, step.access, chosen)
