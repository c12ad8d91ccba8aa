"""Both gradients of convolutions beside cuDNN as torch calls it, on layers of ``measurements.convolutions``.

    python -m measurements.convolution_gradients --prepare                        # compiles the kernels of the next line, in processes
    python -m measurements.convolution_gradients --seconds 60 --out measurements  # one line of JSON for each gradient

A ratio is torch's time (``torch.ops.aten.convolution_backward`` with ``cudnn.benchmark``, ``channels_last``) over ours: above 1, ours is
faster. Every result is compared with torch's in float32 before it is timed. Arrays are larger than the L2, or several of them take turns.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measurements.convolutions import CASES, Case, made, window
from measurements.preparation import in_processes
from measurements.row_reductions import ROTATED_BYTES, geometric

PROCESSES = 6
TURNS = 7
ALLOWED = {"float16": 6e-3, "bfloat16": 4e-2}
"""Largest difference from torch's result in float32, over the largest value."""
GRADIENTS = ("input", "filter")


@dataclass(frozen=True)
class Row:
    """Times of one gradient in microseconds, and the largest difference from the reference over the largest value."""

    case: Case
    gradient: str
    off: float
    ours: float
    torch: float

    @property
    def ratio(self) -> float:
        """Torch's time over ours."""
        return self.torch / self.ours


def arrays_of(torch: Any, case: Case) -> tuple[Any, Any, Any]:
    """Images, filter and a gradient of the results, in ``channels_last``."""
    x, w = made(torch, case)
    y = torch.nn.functional.conv2d(x[:1], w, **window(case))
    dy = torch.randn(case.n, *y.shape[1:], device="cuda", dtype=x.dtype).to(memory_format=torch.channels_last)
    return x, w, dy


def theirs(torch: Any, case: Case, x: Any, w: Any, dy: Any, gradient: str) -> Any:
    """Torch's gradient."""
    pair = [case.stride] * 2, [case.padding] * 2
    wanted = [gradient == "input", gradient == "filter", False]
    found = torch.ops.aten.convolution_backward(dy, x, w, None, *pair, [1, 1], False, [0, 0], case.groups, wanted)
    return found[GRADIENTS.index(gradient)]


def ours(case: Case, x: Any, w: Any, dy: Any, gradient: str) -> Any:
    """The gradient by ``gemmgen.ops``."""
    from gemmgen import ops

    if gradient == "input":
        return ops.conv2d_input_gradient(dy, w, (case.h, case.w), **window(case))
    return ops.conv2d_filter_gradient(x, dy, (case.r, case.s), **window(case))


def measured(torch: Any, case: Case, gradient: str) -> Row:
    """Checks and times one gradient of one layer."""
    from gemmgen.perf.contestants import median_seconds

    x, w, dy = arrays_of(torch, case)
    found = ours(case, x, w, dy, gradient)
    exact = theirs(torch, case, x.float(), w.float(), dy.float(), gradient)
    off = float((found.float() - exact).abs().max() / exact.abs().max().clamp(min=1e-30))
    if off > ALLOWED[case.type]:
        raise ValueError(f"{off:.3g} off")
    moved = sum(array.numel() * array.element_size() for array in (x, w, dy))
    sets = [(x, dy), *((arrays_of(torch, case)[::2]) for _ in range(max(0, min(7, ROTATED_BYTES // (2 * moved)))))]
    w_last = w.to(memory_format=torch.channels_last)
    turns: dict[str, Callable[[int], Any]] = {
        "ours": lambda index: ours(case, sets[index][0], w, sets[index][1], gradient),
        "torch": lambda index: theirs(torch, case, sets[index][0], w_last, sets[index][1], gradient),
    }
    times = median_seconds(torch, turns, sets=len(sets), rounds=TURNS, graph_seconds=1e-3)
    return Row(case, gradient, off, 1e6 * times["ours"], 1e6 * times["torch"])


def failure(case: Case, gradient: str, error: Exception) -> str:
    """A line of JSON for a gradient that could not be had."""
    return json.dumps({"failed": asdict(case), "gradient": gradient, "why": f"{type(error).__name__}: {error}"[:400]})


def prepare_some(chosen: Sequence[Case], until: float) -> None:
    """Calls ours on each case, so that its code is in the cache."""
    import torch

    for case in chosen:
        for gradient in GRADIENTS:
            if time.time() > until:
                return
            try:
                ours(case, *arrays_of(torch, case), gradient)
                torch.cuda.synchronize()
            except Exception as error:
                print(
                    json.dumps({"failed": asdict(case), "gradient": gradient, "why": f"{type(error).__name__}: {error}"[:300]}), flush=True
                )


def main() -> None:
    """Prepares or measures the cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="cases of this kind alone")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the measurement or of the preparation")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="processes that prepare")
    parser.add_argument("--out", type=Path, help="folder of convolution_gradients.json")
    parser.add_argument("--prepare", action="store_true", help="compile, and time nothing")
    options = parser.parse_args()
    begun = time.monotonic()
    chosen = [case for case in CASES if options.only in (None, case.kind)]
    if options.prepare:
        in_processes(prepare_some, chosen, options.processes, options.seconds)
        return
    import torch

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}))
    rows: list[Row] = []
    for case in chosen:
        for gradient in GRADIENTS:
            if time.monotonic() - begun > options.seconds:
                break
            try:
                rows.append(measured(torch, case, gradient))
                print(json.dumps(asdict(rows[-1]) | {"ratio": round(rows[-1].ratio, 3)}), flush=True)
            except Exception as error:
                print(
                    json.dumps({"failed": asdict(case), "gradient": gradient, "why": f"{type(error).__name__}: {error}"[:400]}), flush=True
                )
            torch.cuda.empty_cache()
    for gradient in GRADIENTS:
        ratios = [row.ratio for row in rows if row.gradient == gradient]
        if ratios:
            print(json.dumps({"gradient": gradient, "mean": geometric(ratios), "least": min(ratios), "cases": len(ratios)}), flush=True)
    if options.out:
        (options.out / "convolution_gradients.json").write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
