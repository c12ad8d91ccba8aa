"""Wavefronts of single `cp.async` instructions by form, counted by Nsight Compute on the first GPU.

    python -m measurements.copy_wavefronts --out DIR       on a machine with a GPU and ncu; writes DIR/copy_wavefronts_h200.json
    python -m measurements.copy_wavefronts --launch        for ncu: each pattern launched once

ptxas has three forms of a copy: without a number of bytes (`whole`), with a predicate where it sees that the number is either
everything or nothing (`chosen`), and with the number in the address (`sized`). One warp runs one instruction. A pattern holds, a
lane: `source` and `destination` (bytes from a 128-byte line), `bytes` (0: the lane fills with zeros; -1: it takes no part). The file has a
number a pattern.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from ctypes import c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from gemmgen.runtime.cuda import driver
from gemmgen.runtime.cuda.driver import LoadedBinary
from gemmgen.toolchain.nvrtc import compile_source
from measurements.counters import read_report

SHARED_BYTES = 32768
GLOBAL_BYTES = 1 << 20
LANES = 32
_SASS = "sm__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts_cache_"
_SECTORS = "sm__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_"
METRICS = (_SASS + "access", _SASS + "bypass", _SECTORS + "access", _SECTORS + "bypass")
FORMS = {
    "whole": 'asm volatile("cp.async.MODE.shared.global [%0], [%1], WIDTH;" :: "r"(to), "l"(from) : "memory");',
    "chosen": 'asm volatile("cp.async.MODE.shared.global [%0], [%1], WIDTH, %2;" :: "r"(to), "l"(from), "r"(SIZE) : "memory");'.replace(
        "SIZE", "bytes ? WIDTH : 0"
    ),
    "sized": 'asm volatile("cp.async.MODE.shared.global [%0], [%1], WIDTH, %2;" :: "r"(to), "l"(from), "r"(bytes) : "memory");',
}
KERNEL = """
extern "C" __global__ void FORM_MODE_WIDTH(const char* array, const int* sources, const int* destinations, const int* sizes)
{
    extern __shared__ __align__(128) char tile[];
    int bytes = sizes[threadIdx.x];
    unsigned to = (unsigned)__cvta_generic_to_shared(tile) + destinations[threadIdx.x];
    const char* from = array + sources[threadIdx.x];
    if (bytes >= 0) {
        COPY
    }
    asm volatile("cp.async.commit_group;\\ncp.async.wait_group 0;" ::: "memory");
}
"""
_FEW_MASKS = ("all", "none", "first half", "every other lane")
KINDS = (("cg", 16), ("ca", 16), ("ca", 8), ("ca", 4))


def source() -> str:
    """All kernels, one a form, mode and width."""
    return "".join(
        KERNEL.replace("COPY", copy).replace("FORM", form).replace("MODE", mode).replace("WIDTH", str(width))
        for form, copy in FORMS.items()
        for mode, width in KINDS
    )


def patterns() -> Iterator[dict[str, Any]]:
    """Measured copies: width, mode, form and the lanes' addresses."""
    rng = np.random.default_rng(20261122)
    lanes = np.arange(LANES)
    for mode, width in KINDS:
        linear = lanes * width
        row = max(32 // width, 1)
        pixels = lanes // row
        sources = {
            "linear": linear,
            "rows of 32 bytes, 96 apart": pixels * 96 + lanes % row * width,
            "rows of 32 bytes, 128 apart": pixels * 128 + lanes % row * width,
            "image rows of 6 pixels": (pixels // 6 * 8 + pixels % 6) * 32 + lanes % row * width,
            "columns 512 apart": lanes * 512,
        }
        swizzled = linear ^ ((linear >> 7) % 8 * 16) if width == 16 else linear
        masks = {
            "all": np.full(LANES, width),
            "none": np.zeros(LANES, np.int64),
            "first half": np.where(lanes < 16, width, 0),
            "one pixel less": np.where(pixels == pixels[-1], 0, width),
            "every other pixel": np.where(pixels % 2, width, 0),
            "every other lane": np.where(lanes % 2, width, 0),
            "one pixel": np.where(pixels == 0, width, 0),
            "first quarter": np.where(lanes < 8, width, 0),
            "idle half": np.where(lanes < 16, width, -1),
            "idle and zeros": np.where(lanes < 16, width, np.where(lanes < 24, 0, -1)),
        } | {f"random pixels {i}": np.where(rng.integers(0, 2, LANES)[pixels], width, 0) for i in range(4)}
        for form in FORMS:
            for source_name, of in sources.items():
                for mask_name, sizes in masks.items():
                    if form == "whole" and 0 in sizes:
                        continue
                    for to_name, to in (("linear", linear), ("swizzled", swizzled)):
                        if to_name == "swizzled" and (width != 16 or source_name == "columns 512 apart"):
                            continue
                        if (mode, width) != ("cg", 16) and (mask_name not in _FEW_MASKS or source_name.startswith(("columns", "image"))):
                            continue
                        yield {
                            "name": f"{source_name} / {to_name} / {mask_name}",
                            "form": form,
                            "mode": mode,
                            "width": width,
                            "source": of.tolist(),
                            "destination": to.tolist(),
                            "bytes": sizes.tolist(),
                        }


def launch_all() -> None:
    """Launches every pattern once."""
    binary = compile_source(source(), architecture="sm_90a", name="copy_wavefronts.cu")
    loaded = LoadedBinary(binary.cubin, "sm_90a", 0)
    with driver.current_device(0):
        array = driver.call("cuMemAlloc", GLOBAL_BYTES)
        lists = [driver.call("cuMemAlloc", LANES * 4) for _ in range(3)]
        for pattern in patterns():
            name = f"{pattern['form']}_{pattern['mode']}_{pattern['width']}"
            function = driver.call("cuModuleGetFunction", loaded.module, name.encode())
            for pointer, key in zip(lists, ("source", "destination", "bytes"), strict=True):
                values = np.array(pattern[key], np.int32)
                driver.call("cuMemcpyHtoD", pointer, values.ctypes.data, values.nbytes)
            arguments = tuple(int(pointer) for pointer in (array, *lists)), (c_void_p,) * 4
            driver.call("cuLaunchKernel", function, 1, 1, 1, LANES, 1, 1, SHARED_BYTES, 0, arguments, 0)
            driver.call("cuCtxSynchronize")


def main() -> None:
    """Measures, or launches for a profiler that watches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(), help="folder for copy_wavefronts_h200.json")
    parser.add_argument("--launch", action="store_true")
    options = parser.parse_args()
    if options.launch:
        launch_all()
        return
    ncu = shutil.which("ncu") or next(iter(sorted(map(str, Path("/opt/nvidia").glob("nsight-compute/*/ncu")), reverse=True)), "")
    if not ncu:
        parser.error("ncu was not found")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report"
        command = [
            ncu,
            "--clock-control",
            "none",
            "--force-overwrite",
            "--export",
            str(report),
            "--metrics",
            ",".join(f"{metric}.sum" for metric in METRICS),
            sys.executable,
            "-m",
            "measurements.copy_wavefronts",
            "--launch",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        rows = read_report(ncu, report.with_suffix(".ncu-rep"), METRICS)
    counted = [[int(row["values"][metric]) for metric in METRICS] for row in rows]
    found = {
        "device": driver.gpu(0).name,
        "date": datetime.date.today().isoformat(),
        "wavefronts": [values[0] + values[1] for values in counted],
        "sectors": [values[2] + values[3] for values in counted],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "copy_wavefronts_h200.json").write_text(json.dumps(found) + "\n")
    print(f"{len(counted)} of {len(list(patterns()))} patterns", done.stderr[-500:])


if __name__ == "__main__":
    main()
