"""Counters of Nsight Compute for single `cp.async` instructions by predicate register, and of lanes that take a part of their bytes.

    python -m measurements.copy_predicates --out DIR         on a machine with a GPU and ncu; writes DIR/copy_predicates_h200.json
    python -m measurements.copy_predicates --compare FILE    anywhere: the file beside the prediction of `copy_sites`
    python -m measurements.copy_predicates --launch KIND     for ncu: each pattern of a kind launched once

Kernels of one copy differ in how many other predicates are alive across it: so ptxas gives its condition another register. Patterns of
the first kind, `choice`, have lanes that read everything or nothing, those of the second, `parts`, lanes that read a part, and those of
the third, `rows`, are rows of a matrix that end in the midst of a lane's bytes.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from ctypes import c_void_p
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gemmgen import emulator
from gemmgen.runtime.cuda import driver
from gemmgen.runtime.cuda.driver import LoadedBinary
from gemmgen.toolchain.nvrtc import Binary, compile_source
from measurements.copy_sites import CopySites
from measurements.counters import read_report

LANES = 32
WIDTH = 16
HELD = range(7)
SHARED_BYTES = 32768
GLOBAL_BYTES = 1 << 16
_SASS = "sm__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts_cache_"
_SASS_SECTORS = "sm__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_"
METRICS = {
    "copy wavefronts": (_SASS + "access", _SASS + "bypass"),
    "copy sectors": (_SASS_SECTORS + "access", _SASS_SECTORS + "bypass"),
    "global load sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld",),
    "shared wavefronts": ("l1tex__data_pipe_lsu_wavefronts_mem_shared",),
    "wavefronts": ("l1tex__data_pipe_lsu_wavefronts",),
}
"""Instrumented counters, and those of the hardware: the last three count loads, and the last everything else, too."""
SIZES = {"chosen": f"bytes ? {WIDTH} : 0", "sized": "bytes"}
KERNEL = """
extern "C" __global__ void NAME(const char* array, const int* sources, const int* destinations, const int* sizes, int* out)
{
    extern __shared__ __align__(128) char tile[];
    int bytes = sizes[threadIdx.x], size = SIZE, count = 0, other[7];
    for (int i = 0; i < HELD; ++i) other[i] = sizes[32 + threadIdx.x + i];
    unsigned to = (unsigned)__cvta_generic_to_shared(tile) + destinations[threadIdx.x];
    const char* from = array + sources[threadIdx.x];
    asm volatile("{.reg .pred q; VOTES cp.async.MODE.shared.global [%1], [%2], 16, %3; USES }"
        : "+r"(count) : "r"(to), "l"(from), "r"(size) OPERANDS : "memory");
    asm volatile("cp.async.commit_group;\\ncp.async.wait_group 0;" ::: "memory");
    out[threadIdx.x] = count;
}
"""


class Launch(NamedTuple):
    """A pattern for a kernel: bytes from a 128-byte line, and bytes that each lane reads."""

    kernel: str
    name: str
    sources: np.ndarray
    destinations: np.ndarray
    sizes: np.ndarray


def sources() -> dict[str, str]:
    """The kernels by name: `FORM_MODE_HELD`."""
    found = {}
    for form, size in SIZES.items():
        for mode in ("cg", "ca"):
            for held in HELD:
                votes = "".join(
                    f".reg .pred h{i}; setp.gt.s32 q, %{4 + i}, 0; vote.sync.any.pred h{i}, q, 0xffffffff; " for i in range(held)
                )
                names = {
                    "NAME": f"{form}_{mode}_{held}",
                    "SIZE": size,
                    "HELD": str(held),
                    "VOTES": votes,
                    "MODE": mode,
                    "USES": " ".join(f"@h{i} add.s32 %0, %0, {i + 3};" for i in range(held)),
                    "OPERANDS": "".join(f', "r"(other[{i}])' for i in range(held)),
                }
                text = KERNEL
                for name, value in names.items():
                    text = text.replace(name, value)
                found[names["NAME"]] = text
    return found


KINDS = ("choice", "parts", "rows")


def launches(kind: str) -> list[Launch]:
    """Measured copies of one kind."""
    return [launch for launch in _launches() if launch.name.startswith(kind)]


def _launches() -> Iterator[Launch]:
    rng = np.random.default_rng(20261123)
    lanes = np.arange(LANES)
    linear = lanes * WIDTH
    pixels = lanes // 2
    sources = {
        "linear": linear,
        "rows of 32 bytes, 96 apart": pixels * 96 + lanes % 2 * WIDTH,
        "rows of 32 bytes, 128 apart": pixels * 128 + lanes % 2 * WIDTH,
        "columns 512 apart": lanes * 512,
    }
    masks = {
        "all": lanes >= 0,
        "none": lanes < 0,
        "first half": lanes < LANES // 2,
        "every other lane": lanes % 2 == 1,
        "one lane": lanes == 5,
        "random": rng.integers(0, 2, LANES) == 1,
    }
    for form in SIZES:
        for held in HELD:
            for source_name, mask_name in (*((name, "random") for name in sources), *(("rows of 32 bytes, 128 apart", m) for m in masks)):
                sizes = np.where(masks[mask_name], WIDTH, 0)
                yield Launch(f"{form}_cg_{held}", f"choice / {source_name} / {mask_name}", sources[source_name], linear, sizes)
    parts = {f"{size} in lane 0": np.where(lanes == 0, size, WIDTH) for size in (1, 2, 4, 7, 8, 12, 15)}
    parts |= {f"8 in {count} lanes": np.where(lanes < count, 8, WIDTH) for count in (2, 3, 4, 8, 16, 32)}
    parts |= {
        "8 in every other lane": np.where(lanes % 2, 8, WIDTH),
        "8 in lane 0, else nothing": np.where(lanes == 0, 8, 0),
        "8 in 8 lanes, else nothing": np.where(lanes < 8, 8, 0),
        "random": rng.integers(0, WIDTH + 1, LANES),
        "random parts": rng.integers(1, WIDTH, LANES),
    }
    for held in (0, 2):
        for name, sizes in parts.items():
            for source_name in ("linear", "rows of 32 bytes, 96 apart", "columns 512 apart"):
                if source_name == "linear" or held == 0 or name.startswith(("8", "random")):
                    yield Launch(f"sized_cg_{held}", f"parts / {source_name} / {name}", sources[source_name], linear, sizes)
    for name, sizes in parts.items():
        yield Launch("sized_ca_2", f"parts / linear / {name}", linear, linear, sizes)
    yield from _rows()


def _rows() -> Iterator[Launch]:
    lanes = np.arange(LANES)
    for held in (0, 2):
        for begin in (0, 16):
            for chunks in (1, 8, 16, 31):
                for last in (4, 8, 12, 16):
                    sizes = np.where(lanes < chunks, WIDTH, np.where(lanes == chunks, last, 0))
                    name = f"rows / one from {begin} of {chunks} lanes and {last} bytes"
                    yield Launch(f"sized_cg_{held}", name, lanes * WIDTH + begin, lanes * WIDTH, sizes)
            for stride in (144, 160, 1040):
                for last in (4, 8, 16):
                    row, chunk = lanes // 16, lanes % 16
                    sizes = np.where(chunk < 8, WIDTH, np.where(chunk == 8, last, 0))
                    name = f"rows / two from {begin}, {stride} apart, of 8 lanes and {last} bytes"
                    yield Launch(f"sized_cg_{held}", name, row * stride + chunk * WIDTH + begin, lanes * WIDTH, sizes)


@functools.cache
def compiled(source: str) -> Binary:
    """Kernels as this machine's NVRTC makes them."""
    return compile_source(source, architecture="sm_90a", name="copy_predicates.cu")


def _lists(launch: Launch) -> list[np.ndarray]:
    return [launch.sources.astype(np.int32), launch.destinations.astype(np.int32), np.resize(launch.sizes, LANES * 3).astype(np.int32)]


def launch_all(kind: str) -> None:
    """Launches every pattern of a kind once."""
    loaded = LoadedBinary(compiled("".join(sources().values())).cubin, "sm_90a", 0)
    with driver.current_device(0):
        array = driver.call("cuMemAlloc", GLOBAL_BYTES)
        lists = [driver.call("cuMemAlloc", LANES * 12) for _ in range(4)]
        for launch in launches(kind):
            function = driver.call("cuModuleGetFunction", loaded.module, launch.kernel.encode())
            for pointer, values in zip(lists, _lists(launch), strict=False):
                driver.call("cuMemcpyHtoD", pointer, values.ctypes.data, values.nbytes)
            arguments = tuple(int(pointer) for pointer in (array, *lists)), (c_void_p,) * 5
            driver.call("cuLaunchKernel", function, 1, 1, 1, LANES, 1, 1, SHARED_BYTES, 0, arguments, 0)
            driver.call("cuCtxSynchronize")


def predictions(chosen: Sequence[Launch]) -> list[tuple[dict[str, int], dict[str, int]]]:
    """For each launch, the cost of its copy by the rules, and the profiler's number by `copy_sites`."""
    found = []
    for launch in chosen:
        sites, binary = CopySites(), compiled(sources()[launch.kernel])
        arrays = [np.zeros(GLOBAL_BYTES, np.uint8), *_lists(launch), np.zeros(LANES, np.int32)]
        emulator.launch(binary.ptx, launch.kernel, grid=1, block=LANES, shared_bytes=SHARED_BYTES, args=arrays, observers=[sites])
        total = sites.counters().total
        traffic = total.global_memory.get("cp.async")
        copied = traffic.sectors if traffic else 0
        predicted = {"copy wavefronts": total.shared_memory["cp.async"].wavefronts, "copy sectors": copied}
        loads = {"global load sectors": total.global_memory["load"].sectors + copied}
        found.append((predicted | loads, predicted | sites.profiled(binary, predicted) | loads))
    return found


def compare(measured: Mapping[str, Any], kind: str, one_in: int = 1) -> list[tuple[Launch, str, int, int, int]]:
    """Numbers that the profiler showed and `copy_sites` does not say: launch, name, rule, said, shown. Of the launches one in so many."""
    found = []
    chosen = launches(kind)[::one_in]
    for launch, (rule, said), shown in zip(chosen, predictions(chosen), measured[kind][::one_in], strict=True):
        found += [(launch, name, rule[name], said[name], shown[name]) for name in rule if said[name] != shown[name]]
    return found


def measure(folder: Path) -> Iterator[str]:
    """Runs all under ncu, one process a kind, and writes the results so far after each; reports progress."""
    ncu = shutil.which("ncu") or next(iter(sorted(map(str, Path("/opt/nvidia").glob("nsight-compute/*/ncu")), reverse=True)), "ncu")
    metrics = [metric for names in METRICS.values() for metric in names]
    found: dict[str, Any] = {"device": driver.gpu(0).name, "date": datetime.date.today().isoformat()}
    folder.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as scratch:
            report = Path(scratch) / "report"
            command = [ncu, "--clock-control", "none", "--force-overwrite", "--export", str(report)]
            command += ["--metrics", ",".join(f"{metric}.sum" for metric in metrics)]
            program = [sys.executable, "-m", "measurements.copy_predicates", "--launch", kind]
            done = subprocess.run([*command, *program], capture_output=True, text=True)
            rows = read_report(ncu, report.with_suffix(".ncu-rep"), metrics)
        found[kind] = [{name: _whole(row["values"], of) for name, of in METRICS.items()} for row in rows]
        (folder / "copy_predicates_h200.json").write_text(json.dumps(found) + "\n")
        yield f"{kind}: {len(rows)} of {len(launches(kind))} launches {done.stderr[-500:]}"


def _whole(values: Mapping[str, float], names: tuple[str, ...]) -> int | None:
    total = sum(values[name] for name in names)
    return int(total) if total == total else None


def main() -> None:
    """Measures, compares, or launches for a profiler that watches."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(), help="folder for copy_predicates_h200.json")
    parser.add_argument("--compare", type=Path, help="the measured data")
    parser.add_argument("--launch", choices=KINDS)
    options = parser.parse_args()
    if options.launch:
        launch_all(options.launch)
    elif options.compare:
        measured = json.loads(options.compare.read_text())
        for kind in filter(measured.__contains__, KINDS):
            different = compare(measured, kind)
            for launch, name, rule, said, shown in different:
                print(f"{launch.kernel} {launch.name}: {name} {rule} by the rules, {said} said, {shown} shown")
            print(f"{kind}: {len(different)} of {3 * len(launches(kind))} numbers differ")
    else:
        for progress in measure(options.out):
            print(progress, flush=True)


if __name__ == "__main__":
    main()
