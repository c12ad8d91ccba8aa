"""Kernels of Triton on the emulator: `@triton.jit` functions, compiled for a target, launched with Triton's conventions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from math import prod
from typing import Any

from gemmgen.core.errors import EnvironmentMissing
from gemmgen.sanitizer.api import Result, emulate
from gemmgen.sanitizer.findings import Finding
from gemmgen.sanitizer.front_end import DEFAULT_ARCHITECTURE
from gemmgen.sanitizer.source import UnusableInput

_POINTERS = {
    "float32": "*fp32",
    "float64": "*fp64",
    "float16": "*fp16",
    "int8": "*i8",
    "uint8": "*u8",
    "int16": "*i16",
    "uint16": "*u16",
    "int32": "*i32",
    "uint32": "*u32",
    "int64": "*i64",
    "uint64": "*u64",
    "bool": "*i1",
}


@dataclass(frozen=True)
class TritonCode:
    """A compiled kernel."""

    ptx: str
    symbol: str
    shared_bytes: int
    scratch: tuple[tuple[str, int], ...]
    """Names of the parameters behind the kernel's own, the addresses of scratch memory, and its bytes a block."""


def compile_triton(
    kernel: Any,
    types: Mapping[str, str],
    constants: Mapping[str, Any],
    num_warps: int,
    architecture: str,
    options: Mapping[str, object] | None = None,
) -> TritonCode:
    """Compiles a `@triton.jit` function; ``types`` are those of its arguments, as Triton calls them. Raises EnvironmentMissing without
    Triton."""
    try:
        triton: Any = import_module("triton")
        compiler: Any = import_module("triton.compiler")
        backends: Any = import_module("triton.backends.compiler")
    except ImportError as error:
        raise EnvironmentMissing("Triton was not found; install it with: pip install triton") from error
    signature = {name: "constexpr" if name in constants else types[name] for name in kernel.arg_names}
    source = compiler.ASTSource(fn=kernel, signature=signature, constexprs=dict(constants))
    target = backends.GPUTarget("cuda", int("".join(filter(str.isdigit, architecture))), 32)
    compiled = triton.compile(source, target=target, options={"num_warps": num_warps, **(options or {})})
    metadata = compiled.metadata
    sizes = ((name, getattr(metadata, f"{name}_size", None)) for name in ("global_scratch", "profile_scratch"))
    scratch = tuple((name, size) for name, size in sizes if size is not None)
    return TritonCode(compiled.asm["ptx"], metadata.name, metadata.shared, scratch)


def emulate_triton(
    kernel: Any,
    *,
    grid: int | Sequence[int],
    args: Mapping[str, Any],
    constants: Mapping[str, object] | None = None,
    num_warps: int = 4,
    architecture: str = DEFAULT_ARCHITECTURE,
    options: Mapping[str, object] | None = None,
    **settings: Any,
) -> Result:
    """Compiles a `@triton.jit` function for a target, no GPU needed, and runs it as ``gemmgen.emulate`` does.

    `args` are arrays and numbers by parameter name, `constants` the values of `tl.constexpr` parameters, `options` further ones of
    Triton's compiler; `settings` are those of ``gemmgen.emulate``. Where all lanes of a warp store their copy of a sum to one place of
    shared memory and the copies differ in rounding (Triton contracts a product into the first step), the race is a warning: shared
    memory is the compiler's, and any of the copies will do. Raises EnvironmentMissing without Triton.
    """
    import numpy as np

    fixed = dict(constants or {})
    values = {name: fixed[name] if name in fixed else args.get(name) for name in kernel.arg_names}
    missing = [name for name, value in values.items() if value is None and name not in args and name not in fixed]
    if missing:
        raise UnusableInput(f"{kernel.__name__} needs a value for {', '.join(missing)}")
    types = {name: _type(name, value) for name, value in values.items() if name not in fixed}
    code = compile_triton(kernel, types, fixed, num_warps, architecture, options)
    names = [name for name in kernel.arg_names if name not in fixed]
    passed = [_passed(values[name], types[name]) for name in names]
    blocks = prod([grid] if isinstance(grid, int) else grid)
    for scratch, size in code.scratch:
        passed.append(np.zeros(size * blocks, np.uint8) if size else None)
        names.append(scratch)
    result = emulate(
        code.ptx,
        code.symbol,
        grid=grid,
        block=32 * num_warps,
        shared_bytes=code.shared_bytes,
        args=passed,
        parameter_names=names,
        name=f"{kernel.__name__}.ptx",
        **settings,
    )
    return result if settings.get("strict") else replace(result, findings=_softened(result.findings))


def _softened(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The findings, the worst first, with stores of copies by the lanes of one warp as warnings."""
    softened = [replace(one, severity="warning", text=f"warning: {one.text}") if _stores_copies(one) else one for one in findings]
    return tuple(sorted(softened, key=lambda one: ("error", "warning", "note").index(one.severity)))


def _stores_copies(finding: Finding) -> bool:
    """True for a race in shared memory of one store instruction with itself, the two threads in one warp."""
    if finding.code != "shared-race" or len(finding.places) != 2:
        return False
    first, second = finding.places
    warps = [
        (int(match[1]) // 32, match[2])
        for place in (first, second)
        if (match := re.match(r"thread \((\d+),0,0\) of block (\(\d+,\d+,\d+\))", place.threads or ""))
    ]
    return first.ptx_line == second.ptx_line and "st.shared" in first.ptx and len(warps) == 2 and warps[0] == warps[1]


def _type(name: str, value: object) -> str:
    """The type of an argument, as Triton calls it."""
    import numpy as np

    if isinstance(value, np.ndarray):
        if str(value.dtype) not in _POINTERS:
            raise UnusableInput(f"{name}: Triton has no pointers to {value.dtype}")
        return _POINTERS[str(value.dtype)]
    if isinstance(value, np.generic):
        return _POINTERS[str(value.dtype)][1:]
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    if isinstance(value, float):
        return "fp32"
    raise UnusableInput(f"{name}: {type(value).__name__} is no argument of a kernel")


def _passed(value: Any, type_name: str) -> Any:
    import numpy as np

    kinds = {"i1": np.int8, "i32": np.int32, "i64": np.int64, "fp32": np.float32}
    return kinds[type_name](value) if type_name in kinds and not isinstance(value, np.generic) else value
