"""A bundle and a torch package of a 7-billion-parameter model's layers, built and called on a GPU.

    python -m measurements.exports_gpu --device H200      on a machine with a GPU, torch, gcc and cuda.h

Writes both into a temporary folder with ``gemmgen export``, compiles the package's kernels with gcc, and compares every layer with torch in
float32 at sizes within, between and beyond those that kernels were chosen for; derivatives too. Prints a line for each, and exits with 1 if
one is wrong.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LAYERS = (
    "4096,4096,nt,bf16",  # attention's projections
    "12288,4096,nt,bf16",  # the three of them as one
    "11008,4096,nt,bf16,silu",  # gate
    "11008,4096,nt,bf16",  # up
    "4096,11008,nt,bf16",  # down
    "32000,4096,nt,bf16",  # vocabulary
)
ROWS = (1, 16, 256, 4096)
CALLED = (1, 2, 16, 37, 256, 1000, 4096)


def built(folder: Path, device: str, include: str) -> Any:
    """The package, imported."""
    problems = folder / "llama.txt"
    problems.write_text("".join(f"gemm:{rows},{layer}\n" for layer in LAYERS for rows in ROWS))
    for form in ("bundle", "torch"):
        command = [
            sys.executable,
            "-m",
            "gemmgen",
            "export",
            "--problems",
            problems,
            "--format",
            form,
            "--device",
            device,
            "-o",
            folder / form,
        ]
        subprocess.run(list(map(str, command)), check=True)
    package = folder / "torch" / "llama"
    command = ["gcc", "-O2", "-shared", "-fPIC", f"-I{include}", package / "glue.c", "-o", package / "_kernels.so", "-l:libcuda.so.1"]
    subprocess.run(list(map(str, command)), check=True)
    sys.path.insert(0, str(folder / "torch"))
    return importlib.import_module("llama")


def header_folder() -> str:
    """A folder with cuda.h. Ends the program with a message if there is none."""
    places = [Path(root) / "include" for root in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda") if root]
    places += [found.parent for entry in sys.path for found in Path(entry).glob("nvidia/**/include/cuda.h")]
    places += [found.parent for found in Path("/usr/local").glob("cuda-*/include/cuda.h")]
    for place in places:
        if (place / "cuda.h").is_file():
            return str(place)
    raise SystemExit("no cuda.h found: pass its folder as --include, or pip install nvidia-cuda-runtime")


def main() -> None:
    """Builds, calls and compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="H200")
    parser.add_argument("--include", help="the folder of cuda.h; by default that of a toolkit or of NVIDIA's packages for Python")
    arguments = parser.parse_args()
    include = arguments.include or header_folder()
    import torch

    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        package = built(Path(folder), arguments.device, include)
        for name, layer in package.LAYERS.items():
            operator = getattr(torch.ops.llama, name)
            for rows in CALLED:
                operands = {}
                for operand, (extents, by_rows, kind) in layer["operands"].items():
                    shape = [rows if extent is None else extent for extent in extents]
                    made = torch.randn(shape if by_rows else shape[::-1], device="cuda", dtype=getattr(torch, kind)) / 8
                    operands[operand] = (made if by_rows else made.t()).requires_grad_(rows == 37)
                result, expected = operator(*operands.values()), package.reference(layer, operands)
                error = ((result.float() - expected.float()).abs() / (1 + expected.float().abs())).max().item()
                told = f"{name} with {rows} rows: largest error {error:.2e}"
                if rows == 37:
                    gradients = torch.autograd.grad(result.float().sum(), list(operands.values()), retain_graph=True)
                    others = torch.autograd.grad(expected.float().sum(), list(operands.values()))
                    same = all(
                        torch.allclose(one.float(), other.float(), rtol=2e-2, atol=2e-2)
                        for one, other in zip(gradients, others, strict=True)
                    )
                    told += f", derivatives {'agree' if same else 'DIFFER'}"
                    wrong += not same
                wrong += not error < 2e-2
                print(told, flush=True)
    print(f"{wrong} wrong")
    raise SystemExit(wrong > 0)


if __name__ == "__main__":
    main()
