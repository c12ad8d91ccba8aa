"""cuBLASLt beside a GEMM instance: the fastest of all algorithms that its heuristic offers, with bias, ReLU and GELU fused where it can.

Its heuristic's first choice, which ``torch.matmul`` takes, is often not its fastest: a careful user tries them all, and so does this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from gemmgen.kernels.epilogue.torch_values import apply_torch
from gemmgen.kernels.family import Peer
from gemmgen.kernels.gemm.cublaslt import WORKSPACE_BYTES, Addresses, Algorithm, CublasLt, CublasLtError, Epilogue, Operand, Product
from gemmgen.kernels.vendor import milliseconds

if TYPE_CHECKING:
    from gemmgen.kernels.epilogue.steps import Step
    from gemmgen.kernels.gemm.plan import GemmPlan

RESULTS = {
    "f32": ("f32",),
    "f64": ("f64",),
    "f16": ("f16", "f32"),
    "bf16": ("bf16", "f32"),
    "s8": ("s32", "s8"),
    "e4m3": ("bf16", "f16", "f32"),
    "e5m2": (),
}
"""Types of results that cuBLASLt has for products of one type."""
FLOATS_OF_8_BITS = ("e4m3", "e5m2")
TRIAL_BYTES = 160 << 20
"""Operands by which algorithms are compared, more than any GPU's L2 holds."""
MAX_TRIAL_SETS = 32
FINALISTS = 3
"""Fastest algorithms that are timed again, in turns."""
FINAL_ROUNDS = 5


@dataclass(frozen=True)
class Choice:
    """The fastest algorithm for a product, among how many."""

    number: int
    count: int


_FASTEST: dict[tuple[int, Product], Choice] = {}
"""The fastest algorithm by device and product, of those that were asked for."""


def gemm_peer(plan: GemmPlan, arrays: Mapping[str, Any], scalars: Mapping[str, float]) -> Peer | str:
    """The fastest algorithm of cuBLASLt for a plan's product, on torch tensors, then the operations that it does not fuse, by torch.

    float32 is multiplied as float32; as TF32 where the instance multiplies as tf32. 8-bit floats are promoted to float32 within the sum
    where the instance does so. The reason, in words, where cuBLASLt has no such product.
    """
    types = tuple("f32" if kind == "tf32" else kind for kind in (plan.matrix_a.type, plan.matrix_b.type, plan.matrix_c.type))
    if plan.grouped:
        return "cuBLASLt has no products in groups"
    if plan.second_b is not None:
        return "cuBLASLt has no two products in one launch"
    if plan.row_bits < 8 * plan.matrix_a.element_bytes:
        return "cuBLASLt's products of a sparse A are not called here"
    if plan.scales:
        return "no product with block scales of cuBLASLt is called here"
    if types[0] != types[1] or types[2] not in RESULTS.get(types[0], ()):
        return f"cuBLASLt does not multiply {types[0]} by {types[1]} into {types[2]}"
    a, b, c = (operand(arrays[name], kind) for name, kind in zip("ABC", types, strict=True))
    fused, steps = fused_epilogue(plan.epilogue, c) if scalars.get("beta", 0.0) == 0 else ("none", plan.epilogue)
    if types[2] == "s8" and steps:
        return "cuBLASLt has no int8 results with a scale for each row and column"
    unpromoted = getattr(plan.spec.mainloop, "promote_every", "auto") == "never"
    product = Product(a, b, c, fused, tf32=plan.matrix_a.type == "tf32", fast_accumulation=unpromoted and types[0] in FLOATS_OF_8_BITS)
    bias = next((arrays[access.name] for step in plan.epilogue for access in step.accesses if "bias" in fused), None)
    made = fastest_product(product, (arrays["A"], arrays["B"], arrays["C"]), bias, scalars.get("alpha", 1.0), scalars.get("beta", 0.0))
    if isinstance(made, str):
        return made

    def read(name: str, per: str) -> Any:
        array = arrays.get(name, scalars.get(name))
        return array[:, None] if per == "row" else array

    def run() -> None:
        made.run()
        for step in steps:
            result = apply_torch(step, arrays["C"], [read(access.name, access.operand.per) for access in step.accesses])
            if result is not arrays["C"]:
                arrays["C"].copy_(result)

    return Peer(f"{made.name} + torch epilogue" if steps else made.name, run)


def operand(tensor: Any, kind: str) -> Operand:
    """A torch tensor of two dimensions, or of three with the batch first, as cuBLASLt sees it."""
    batch, batch_stride = (tensor.shape[0], tensor.stride(0)) if tensor.ndim == 3 else (1, 0)
    (rows, columns), (row_stride, column_stride) = tensor.shape[-2:], tensor.stride()[-2:]
    return Operand(kind, rows, columns, row_stride, column_stride, batch, batch_stride)


def fused_epilogue(steps: Sequence[Step], result: Operand) -> tuple[Epilogue, Sequence[Step]]:
    """The operation that cuBLASLt fuses, and the steps that are left. It adds one bias for each column of a row-major result."""
    left = list(steps)
    bias = bool(left) and left[0].operation.op == "bias" and [access.operand.per for access in left[0].accesses] == ["column"]
    if bias and result.column_major:
        return "none", steps
    if bias:
        left.pop(0)
    activation = left[0].operation if left else None
    if activation is not None and activation.op == "relu":
        return ("bias_relu" if bias else "relu"), left[1:]
    if activation is not None and activation.op == "gelu" and activation.model_dump().get("form") == "tanh":
        return ("bias_gelu" if bias else "gelu"), left[1:]
    return ("bias" if bias else "none"), left


def fastest_product(product: Product, tensors: Sequence[Any], bias: Any, alpha: float, beta: float) -> Peer | str:
    """The fastest algorithm for a product as a call on torch's current stream; the reason, in words, where there is none.

    ``tensors``: A, B and D, on the current CUDA device. Each algorithm is timed on copies of A and B that exceed the L2 together, by graph
    replay; the three fastest then again, in turns. D is overwritten by this.
    """
    import torch

    device = tensors[0].device
    try:
        library, workspace, one = _library(device.index)
        algorithms = library.algorithms(product)
    except OSError as error:
        return f"cuBLASLt is not installed: {error}"
    except CublasLtError as error:
        return f"cuBLASLt cannot address the arrays: {error}"
    if not algorithms:
        return f"cuBLASLt has no algorithm for {product.a.type} of this layout and alignment"

    def enqueue(algorithm: Algorithm, a: Any, b: Any, d: Any) -> None:
        at = Addresses(a.data_ptr(), b.data_ptr(), d.data_ptr(), 0 if bias is None else bias.data_ptr(), one.data_ptr())
        algorithm.run(at, alpha, beta, torch.cuda.current_stream(device).cuda_stream)

    key = (device.index, product)
    if key not in _FASTEST:
        spare = torch.empty_like(tensors[2]).copy_(tensors[2])
        sets = _trial_sets(tensors[0], tensors[1])

        def trial(algorithm: Algorithm) -> Callable[[int], None]:
            return lambda index: enqueue(algorithm, *sets[index], spare)

        runs = {algorithm.number: trial(algorithm) for algorithm in algorithms}
        torch.cuda.synchronize(device)
        with torch.cuda.stream(torch.cuda.Stream(device)):  # graphs are not captured on the default stream
            _FASTEST[key] = Choice(_fastest(runs, len(sets)), len(algorithms))
    choice = _FASTEST[key]
    chosen = next(algorithm for algorithm in algorithms if algorithm.number == choice.number)
    held = (*tensors, bias, workspace, one)  # as long as the graph that replays the launch
    return Peer(f"cuBLASLt {library.version}, best of {choice.count}", lambda: enqueue(chosen, *held[:3]))


def _fastest(runs: Mapping[int, Callable[[int], None]], sets: int) -> int:
    times: dict[int, float] = {}
    for number, run in runs.items():
        try:
            times[number] = milliseconds(run, sets)
        except CublasLtError:  # offered by the heuristic, refused at the launch
            continue
    finalists = sorted(times, key=lambda number: times[number])[:FINALISTS]
    if len(finalists) > 1:
        for _ in range(FINAL_ROUNDS):
            for number in finalists:
                times[number] = min(times[number], milliseconds(runs[number], sets))
    return min(finalists, key=lambda number: times[number])


def _trial_sets(a: Any, b: Any) -> list[tuple[Any, Any]]:
    """Copies of A and B, with their strides, that exceed the L2 together."""
    import torch

    size = (a.numel() + b.numel()) * a.element_size()
    count = max(1, min(MAX_TRIAL_SETS, TRIAL_BYTES // max(1, size) + 1))

    def copied(tensor: Any) -> Any:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)

    return [(a, b)] + [(copied(a), copied(b)) for _ in range(count - 1)]


@cache
def _library(device: int) -> tuple[CublasLt, Any, Any]:
    """cuBLASLt on a device, its workspace, and a float32 one on that device."""
    import torch

    torch.zeros(1, device=f"cuda:{device}")  # makes the context
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=f"cuda:{device}")
    with torch.cuda.device(device):
        return CublasLt(workspace.data_ptr()), workspace, torch.ones((), dtype=torch.float32, device=f"cuda:{device}")
