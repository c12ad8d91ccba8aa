"""A bundle, a torch package and a JAX package of a 7-billion-parameter model's layers, and modules, built and called on a GPU.

    python -m measurements.exports_gpu --device H200               on a machine with a GPU, torch, JAX, CuPy, gcc, g++ and cuda.h
    python -m measurements.exports_gpu --folder DIR --build        builds all of them into DIR, anywhere
    python -m measurements.exports_gpu --folder DIR                calls the exports that were built there

Writes all three with ``gemmgen export``, compiles the bundle into a C++ program (exports_gpu.cpp) with g++ and the packages by their own
setup.py, and compares every layer at sizes within, between and beyond those that kernels were chosen for; derivatives of the packages too.
Products by modules for CuPy and for Python are compared with CuPy's and torch's. Prints a line for each, and exits with 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
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
PROGRAM = Path(__file__).with_suffix(".cpp")
PARTS = ("bundle", "torch", "jax", "modules")
MODULES = ("gemm/v0_naive", "gemm/v1_tiled", "gemm/v3_double_buffer")
"""Specs of modules, float32 products."""
SIZES = ((64, 48, 32), (332, 220, 112), (1000, 512, 256))


def run(*command: object, **settings: Any) -> None:
    """A command that must succeed."""
    subprocess.run(list(map(str, command)), check=True, **settings)


def build(folder: Path, device: str, parts: tuple[str, ...]) -> None:
    """Exports and compiles these parts."""
    problems = folder / "llama.txt"
    problems.write_text("".join(f"gemm:{rows},{layer}\n" for layer in LAYERS for rows in ROWS))
    for place, spec in enumerate(MODULES if "modules" in parts else ()):
        for form in ("cupy", "python"):
            run(sys.executable, "-m", "gemmgen", "export", spec, "--format", form, "-o", folder / f"{form}_{place}.py")
    for part in (part for part in parts if part != "modules"):
        command = (sys.executable, "-m", "gemmgen", "export", "--problems", problems, "--format", part, "--device", device)
        run(*command, "-o", folder / part)
    include = header_folder()

    def compiled(part: str) -> None:
        if part == "bundle":
            flags = ("-std=c++17", "-O2", "-isystem", include, "-I", folder / part)
            run("g++", *flags, PROGRAM, "-o", folder / "program", driver_flag())
        else:
            environment = {**os.environ, "CUDA_HOME": str(Path(include).parent)}
            run(sys.executable, "setup.py", "-q", "build_ext", "--inplace", cwd=folder / part, env=environment)

    with ThreadPoolExecutor() as pool:
        list(pool.map(compiled, [part for part in parts if part != "modules"]))


def driver_flag() -> str:
    """The linker's argument for this machine's CUDA driver."""
    places = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
    return "-lcuda" if any(Path(place, "libcuda.so").is_file() for place in places) else "-l:libcuda.so.1"


def header_folder() -> str:
    """A folder with cuda.h. Ends the program with a message if there is none."""
    places = [Path(root) / "include" for root in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda") if root]
    places += [found.parent for entry in sys.path for found in Path(entry).glob("nvidia/**/include/cuda.h")]
    places += [found.parent for found in Path("/usr/local").glob("cuda-*/include/cuda.h")]
    for place in places:
        if (place / "cuda.h").is_file():
            return str(place)
    raise SystemExit("no cuda.h found: set CUDA_HOME, or pip install nvidia-cuda-runtime")


def package(folder: Path, part: str) -> Any:
    """A built package, imported."""
    sys.path.insert(0, str(folder / part))
    return importlib.import_module("llama")


def shapes(layer: dict[str, Any], rows: int) -> dict[str, tuple[list[int], bool, str]]:
    """Shape, order and type of each operand of a layer with so many rows."""
    operands = layer["operands"].items()
    return {name: ([rows if one is None else one for one in extents], by_rows, kind) for name, (extents, by_rows, kind) in operands}


def called_by_torch(folder: Path) -> int:
    """Calls every layer of the torch package; how many results or derivatives are wrong."""
    import torch

    llama, wrong = package(folder, "torch"), 0
    for name, layer in llama.LAYERS.items():
        operator = getattr(torch.ops.llama, name)
        for rows in CALLED:
            operands = {}
            for operand, (shape, by_rows, kind) in shapes(layer, rows).items():
                made = torch.randn(shape if by_rows else shape[::-1], device="cuda", dtype=getattr(torch, kind)) / 8
                operands[operand] = (made if by_rows else made.t()).requires_grad_(rows == 37)
            result, expected = operator(*operands.values()), llama.reference(layer, operands)
            error = ((result.float() - expected.float()).abs() / (1 + expected.float().abs())).max().item()
            told = f"torch: {name} with {rows} rows: largest error {error:.2e}"
            if rows == 37:
                gradients = torch.autograd.grad(result.float().sum(), list(operands.values()), retain_graph=True)
                others = torch.autograd.grad(expected.float().sum(), list(operands.values()))
                pairs = zip(gradients, others, strict=True)
                same = all(torch.allclose(one.float(), other.float(), rtol=2e-2, atol=2e-2) for one, other in pairs)
                told += f", derivatives {'agree' if same else 'DIFFER'}"
                wrong += not same
            wrong += not error < 2e-2
            print(told, flush=True)
    return wrong


def called_by_jax(folder: Path) -> int:
    """Calls every layer of the JAX package under ``jit``, a process for each; how many results or derivatives are wrong."""
    names = [f"gemm_{layer.replace(',', '_')}" for layer in LAYERS]
    with multiprocessing.get_context("spawn").Pool(len(names)) as pool:
        return sum(pool.starmap(layer_called_by_jax, [(folder, name) for name in names]))


def layer_called_by_jax(folder: Path, name: str) -> int:
    """Calls one layer of the JAX package; how many results or derivatives are wrong."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("XLA_FLAGS", "--xla_gpu_autotune_level=0")  # the reference's products need not be fast
    import jax
    import jax.numpy as jnp

    llama, wrong = package(folder, "jax"), 0
    layer, operation = llama.LAYERS[name], getattr(llama, name)

    def difference(one: Any, other: Any) -> float:
        one, other = one.astype(jnp.float32), other.astype(jnp.float32)
        return float(jnp.max(jnp.abs(one - other) / (1 + jnp.abs(other))))

    @jax.jit
    def expected(*given: Any) -> Any:
        return llama.reference(layer, dict(zip(layer["operands"], given, strict=True)))

    # b is given as the rows of a weight: jit reads its transpose where it lies
    run_transposed = jax.jit(lambda *given: operation(*(one.T for one in given)))
    made: dict[tuple[int, ...], Any] = {}
    for rows in CALLED:
        for shape, _, kind in shapes(layer, rows).values():
            if tuple(shape) not in made:
                made[tuple(shape)] = jax.random.normal(jax.random.key(len(made)), shape[::-1], kind) / 8
        values = [made[tuple(shape)] for shape, _, _ in shapes(layer, rows).values()]
        transposed = [value.T for value in values]
        result = run_transposed(*values)
        error = difference(result, expected(*transposed))
        told = f"JAX: {name} with {rows} rows: largest error {error:.2e}"
        if rows == 37:
            ones = jnp.ones(result.shape, result.dtype)
            pairs = zip(jax.vjp(operation, *transposed)[1](ones), jax.vjp(expected, *transposed)[1](ones), strict=True)
            same = all(difference(one, other) < 2e-2 for one, other in pairs)
            told += f", derivatives {'agree' if same else 'DIFFER'}"
            wrong += not same
        wrong += not error < 2e-2
        print(told, flush=True)
    return wrong


def called_by_modules(folder: Path) -> int:
    """Products of small integers by modules for CuPy and for Python; how many are not exact."""
    import cupy
    import torch

    wrong = 0
    sys.path.insert(0, str(folder))
    for place, spec in enumerate(MODULES):
        by_cupy, by_python = importlib.import_module(f"cupy_{place}"), importlib.import_module(f"python_{place}")
        launch = next(value for name, value in vars(by_cupy).items() if callable(value) and name.startswith(spec.split("/")[1]))
        for m, n, k in SIZES:
            a, b = (cupy.random.randint(-3, 4, shape).astype(cupy.float32) for shape in ((m, k), (k, n)))
            c = cupy.full((m, n), cupy.nan, cupy.float32)
            launch(a, b, c)
            off = not bool((c == a @ b).all())
            x, y = torch.as_tensor(a, device="cuda"), torch.as_tensor(b, device="cuda")
            z = torch.full((m, n), float("nan"), device="cuda")
            by_python.launch(x, y, z, stream=torch.cuda.current_stream())
            differs = not torch.equal(z, x @ y)
            print(f"{spec}, {m} x {n} x {k}: CuPy {'WRONG' if off else 'exact'}, Python {'WRONG' if differs else 'exact'}", flush=True)
            wrong += off + differs
    return wrong


CALLED_BY = {"torch": called_by_torch, "jax": called_by_jax, "modules": called_by_modules}


def main() -> None:
    """Builds, calls and compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="H200")
    parser.add_argument("--folder", type=Path, help="where the exports lie; by default a temporary folder, which is built first")
    parser.add_argument("--build", action="store_true", help="build into --folder, and call nothing")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS)
    arguments = parser.parse_args()
    if arguments.build and arguments.folder is None:
        parser.error("--build needs --folder")
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if arguments.build or arguments.folder is None:
            build(folder.resolve(), arguments.device, tuple(arguments.parts))
        if arguments.build:
            return
        wrong = 0
        for part in arguments.parts:
            if part == "bundle":
                wrong += subprocess.run([folder / "program"]).returncode != 0
            elif len(arguments.parts) == 1:
                wrong += CALLED_BY[part](folder)
            else:  # a process each: libraries keep memory of the device
                command = [sys.executable, "-m", "measurements.exports_gpu", "--folder", folder, "--parts", part]
                wrong += subprocess.run(list(map(str, command))).returncode != 0
    print(f"{wrong} wrong")
    raise SystemExit(wrong > 0)


if __name__ == "__main__":
    main()
