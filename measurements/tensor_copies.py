"""Tensor copies on a GPU beside the emulator: the place of each element, and which maps the driver refuses.

    python -m measurements.tensor_copies --out DIR      on a machine with a GPU: writes DIR/tensor_copies_all_h200.npz, prints differences
    python -m measurements.tensor_copies --check FILE   anywhere: the emulator against the record

Maps are random: layouts without and with interleave, tile and im2col mode, every swizzle, strides and boxes that cross the ends of
the array, loads, stores and reductions. Elements are numbered. The record keeps a sum of the elements that a copy leaves (the tile in
shared memory, or the array), and the tile of loads. Some maps break a rule; for them it keeps the driver's code. Contents of the file:
`cases` and `maps` (texts, JSON), `sums` (of cases), `tile0`, `tile1` ... (of the cases that load), `codes` (the driver's, of maps; 0:
taken), `refused` and `faulted` (JSON: cases whose map the driver has not taken, and those that ended with a fault). tensor_copies.md
lists the results.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gemmgen import emulator
from gemmgen.hardware.tensor_map import (
    ELEMENT_BYTES,
    FLOATING_ELEMENTS,
    SLICE_BYTES,
    SWIZZLE_SPANS,
    Im2col,
    TensorMap,
    problems,
    refusals,
)
from gemmgen.runtime.cuda import driver
from gemmgen.runtime.cuda.driver import LoadedBinary
from gemmgen.runtime.cuda.launcher import map_encoder
from gemmgen.toolchain.nvrtc import compile_source

CASES = 320
TILE_BYTES = 32768
ARRAY_BYTES = 1 << 22
NAME = "tensor_copies_all_h200.npz"

HEAD = r"""
typedef unsigned u32; typedef unsigned long long u64;
struct alignas(64) Map { char bytes[128]; };
__device__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
"""
LOAD = r"""
extern "C" __global__ void NAME(const __grid_constant__ Map map, int c0, int c1, int c2, int c3, int c4, int o0, int o1, int o2, int bytes, u32* tile_out, u32* info)
{
    extern __shared__ __align__(1024) u32 tile[];
    __shared__ alignas(8) u64 barrier;
    for (int i = threadIdx.x; i < 8192; i += 128) tile[i] = 0xEEEEEEEE;
    u32 at = shared_address(&barrier), done = 0;
    unsigned short f0 = o0, f1 = o1, f2 = o2;
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" :: "r"(at) : "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(at), "r"(bytes) : "memory");
        COPY
    }
    for (int i = 0; i < 200 && !done; ++i)
        asm volatile("{.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], 0;\nselp.u32 %0, 1, 0, p;}" : "=r"(done) : "r"(at) : "memory");
    __syncthreads();
    if (threadIdx.x == 0) info[0] = done;
    for (int i = threadIdx.x; i < 8192; i += 128) tile_out[i] = tile[i];
}
"""  # noqa: E501
STORE = r"""
extern "C" __global__ void NAME(const __grid_constant__ Map map, int c0, int c1, int c2, int c3, int c4, int o0, int o1, int o2, int bytes, const u32* content, u32* info)
{
    extern __shared__ __align__(1024) u32 tile[];
    for (int i = threadIdx.x; i < 8192; i += 128) tile[i] = content[i];
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        COPY
        asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
        info[0] = 1;
    }
}
"""  # noqa: E501
OPERATIONS = ("add", "max")


def source() -> str:
    """A kernel for each direction, mode and rank."""
    kernels = [HEAD]
    for rank in range(1, 6):
        axes = ", ".join(f'"r"(c{axis})' for axis in range(rank))
        names = "{" + ", ".join(f"%{3 + axis}" for axis in range(rank)) + "}"
        load = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.MODE.mbarrier::complete_tx::bytes [%0], [%1, {names}], [%2]"
        ends = '"r"(shared_address(tile)), "l"(&map), "r"(at)'
        copies = {"load_tile": (load.replace("MODE", "tile"), axes)}
        stores = {}
        short = "{" + ", ".join(f"%{2 + axis}" for axis in range(rank)) + "}"
        if rank >= 3:
            offsets = "{" + ", ".join(f"%{3 + rank + axis}" for axis in range(rank - 2)) + "}"
            given = axes + "".join(f', "h"(f{axis})' for axis in range(rank - 2))
            copies["load_im2col"] = (load.replace("MODE", "im2col") + f", {offsets}", given)
        for mode in ("tile", "im2col_no_offs") if rank >= 3 else ("tile",):
            stores[f"store_{mode[:6].strip('_')}"] = (
                f"cp.async.bulk.tensor.{rank}d.global.shared::cta.{mode}.bulk_group [%1, {short}], [%0]"
            )
        for operation in OPERATIONS:
            stores[operation] = f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{operation}.tile.bulk_group [%1, {short}], [%0]"
        for name, (text, given) in copies.items():
            copy = f'asm volatile("{text};" :: {ends}, {given} : "memory");'
            kernels.append(LOAD.replace("NAME", f"{name}_{rank}").replace("COPY", copy))
        for name, text in stores.items():
            copy = f'asm volatile("{text};" :: "r"(shared_address(tile)), "l"(&map), {axes} : "memory");'
            kernels.append(STORE.replace("NAME", f"{name}_{rank}").replace("COPY", copy))
    return "".join(kernels)


def kernel_of(case: dict[str, Any]) -> str:
    """The kernel that makes a case's copy."""
    mode = "tile" if case["map"]["im2col"] is None else "im2col"
    direction = case["direction"]
    return f"{f'{direction}_{mode}' if direction in ('load', 'store') else direction}_{len(case['map']['extents'])}"


def map_of(case: dict[str, Any]) -> TensorMap:
    """The tensor map of a case, without an array."""
    fields = {key: tuple(value) if isinstance(value, list) else value for key, value in case["map"].items()}
    walk = fields.pop("im2col")
    walk = None if walk is None else Im2col(**{key: tuple(value) if isinstance(value, list) else value for key, value in walk.items()})
    return TensorMap(**fields, im2col=walk)


def described(tensor_map: TensorMap) -> dict[str, Any]:
    """A tensor map as JSON has it."""
    fields = asdict(replace(tensor_map, base=None))
    del fields["base"]
    listed: dict[str, Any] = json.loads(json.dumps(fields))
    return listed


def random_map(rng: np.random.Generator, interleave: str, im2col: bool, element: str | None = None) -> TensorMap | None:
    """A map that follows the rules, or None if this draw does not."""

    def pick(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    rank = int(rng.integers(3 if interleave != "none" or im2col else 1, 6))
    element = element or pick("u8", "u16", "u32", "s32", "f16", "f32", "bf16", "f64", "u64", "tf32", "f32_ftz", "tf32_ftz")
    probe = TensorMap(element, (1,) * rank, (16,) * (rank - 1), interleave=interleave)  # type: ignore[arg-type]
    unit, align = probe.unit_bytes, SLICE_BYTES.get(interleave, 16)
    extents = [int(rng.integers(1, 12 if interleave != "none" else 96))] + [int(rng.integers(1, 7)) for _ in range(rank - 1)]
    strides, reach = [0] * rank, -(-extents[0] * unit // align) * align
    strides[0] = unit
    for axis in (1 + rng.permutation(rank - 1)).tolist():
        strides[axis] = reach + align * int(rng.integers(0, 3))
        reach = strides[axis] * extents[axis]
    box = [int(rng.integers(1, 10)) for _ in range(rank)]
    box[0] = 16 // probe.element_bytes * int(rng.integers(1, 5)) if probe.element_bytes < 16 else 1
    if interleave != "none":
        box[rank - 2] = pick(1, 2, 8, 17, 64, 256)
    steps = [pick(1, 1, 1, 2, 3) for _ in range(rank)]
    swizzle = pick("none", "32B", "64B", "128B") if interleave != "32B" else "32B"
    span = SWIZZLE_SPANS[swizzle]
    walk = None
    if interleave == "none" and span:
        box[0] = min(box[0], span // probe.element_bytes)
    if im2col:
        spatial = rank - 2
        lower = tuple(int(v) for v in rng.integers(-2, 1, spatial))
        upper = tuple(int(v) for v in rng.integers(-2, 1, spatial))
        walk = Im2col(lower, upper, box[0], int(rng.integers(1, 40)))
    fill = pick("zeros", "nan") if element in FLOATING_ELEMENTS else "zeros"
    found = TensorMap(
        element,
        tuple(extents),
        tuple(strides[1:]),
        () if im2col else tuple(box),
        tuple(steps),
        interleave,
        swizzle,
        fill,  # type: ignore[arg-type]
        "none",
        walk,
    )
    fits = found.shared_bytes <= TILE_BYTES and found.array_bytes <= 1 << 17
    return found if fits and not problems(found) else None


def cases() -> Iterator[dict[str, Any]]:
    """Copies: direction, map, coordinates, offsets."""
    rng = np.random.default_rng(90)
    made = 0
    while made < CASES:
        interleave = ("16B", "32B", "none")[made % 3]
        direction = ("load", "load", "load", "store", "add", "load", "max", "load")[made // 3 % 8]
        im2col = direction == "load" and made // 24 % 3 == 2
        element = None
        if direction in OPERATIONS:
            element = ("u32", "s32", "u64", "f16", "bf16", "f32")[made // 3 % 6 if direction == "add" else made % 2]
        found = random_map(rng, interleave, im2col, element)
        if found is None:
            continue
        coordinates = [int(rng.integers(-3, extent + 1)) for extent in found.extents]
        if interleave != "none":
            coordinates[found.rank - 2] = int(rng.integers(-1, found.extents[found.rank - 2] + 1)) if made % 5 == 0 else 0
        if direction != "load" and interleave != "none":
            # Boxes outside the array come at the end: a GPU may fault there.
            reach = [step * (count - 1) for step, count in zip(found.steps, found.box_elements, strict=True)]
            if any(extent <= far for extent, far in zip(found.extents, reach, strict=True)):
                continue
            coordinates = [int(rng.integers(0, extent - far)) for extent, far in zip(found.extents, reach, strict=True)]
        coordinates[0] -= coordinates[0] * found.unit_bytes % 16 // found.unit_bytes
        if direction != "load":
            coordinates = [max(c, 0) for c in coordinates]
        offsets: list[int] = []
        if found.im2col is not None:
            for axis, low, high in zip(found.spatial_axes, found.im2col.lower, found.im2col.upper, strict=True):
                coordinates[axis] = int(rng.integers(low, max(found.extents[axis] + high, low + 1)))
            coordinates[-1] = max(coordinates[-1], 0)
            offsets = [int(v) for v in rng.integers(0, 3, found.rank - 2)]
        yield {"direction": direction, "map": described(found), "coordinates": coordinates, "offsets": offsets}
        made += 1
    yield from fills()
    yield from outside_stores()


def fills() -> Iterator[dict[str, Any]]:
    """Boxes that leave the array on all sides, for every type of floats, filled with NaN."""
    for element in sorted(FLOATING_ELEMENTS):
        wide = 32 // ELEMENT_BYTES[element]
        tiled = TensorMap(element, (wide, 6), (32,), (2 * wide, 9), fill="nan")  # type: ignore[arg-type]
        yield {"direction": "load", "map": described(tiled), "coordinates": [-16 // ELEMENT_BYTES[element], -1], "offsets": []}
        walk = Im2col((-1,), (1,), wide, 20)
        column = TensorMap(element, (wide, 6, 2), (32, 256), fill="nan", im2col=walk)  # type: ignore[arg-type]
        yield {"direction": "load", "map": described(column), "coordinates": [0, -1, 0], "offsets": [1]}


def outside_stores() -> Iterator[dict[str, Any]]:
    """Copies at which a GPU may fault, last: stores through interleaved maps that leave the array, and coordinates that break a rule."""
    pixels = TensorMap("u32", (24, 9), (96,), (8, 4))
    for direction, here in (
        ("load", [4, 0]),
        ("load", [-1, 0]),
        ("load", [1, 0]),
        ("load", [8, -1]),
        ("store", [4, 0]),
        ("store", [8, -1]),
        ("add", [8, -1]),
    ):
        yield {"direction": direction, "map": described(pixels), "coordinates": here, "offsets": []}
    column = TensorMap("u32", (8, 6, 2), (32, 256), im2col=Im2col((-1,), (1,), 8, 20))
    for begin in (0, -1, 5):
        yield {"direction": "store", "map": described(column), "coordinates": [0, begin, 0], "offsets": []}
    for lower, upper, extent in ((0, 0, 8), (0, 1, 8), (1, -1, 8), (0, 0, 6)):
        walked = replace(column, extents=(extent, 6, 2), im2col=Im2col((lower,), (upper,), 8, 9))
        yield {"direction": "store", "map": described(walked), "coordinates": [0, 1, 0], "offsets": []}
    for interleave in SLICE_BYTES:
        unit = SLICE_BYTES[interleave]
        found = TensorMap(
            "u16",
            (10, 6, 5, 4),
            (16 * unit, 128 * unit, 1024 * unit),
            (8, 3, 8, 2),
            (1, 1, 1, 1),
            interleave,  # type: ignore[arg-type]
            "none" if unit == 16 else "32B",
        )
        for here in ([9, 0, 0, 0], [0, 5, 0, 0], [0, 0, 0, 3], [0, 0, 5, 0]):
            yield {"direction": "store", "map": described(found), "coordinates": here, "offsets": []}
    for swizzle in ("none", "64B", "128B"):
        wide = TensorMap("u16", (10, 6, 5, 4), (512, 4096, 32768), (8, 3, 8, 2), (1,) * 4, "32B", swizzle)  # type: ignore[arg-type]
        yield {"direction": "load", "map": described(wide), "coordinates": [0, 0, 0, 0], "offsets": []}


def doubtful_maps() -> Iterator[TensorMap]:
    """Maps that break one rule or nearly so: rank, box, strides, swizzle, steps, channels, by layout."""
    for interleave in ("none", "16B", "32B"):
        swizzle = "32B" if interleave == "32B" else "none"
        good = TensorMap("u16", (64, 6, 5, 4), (1024, 8192, 65536), (16, 3, 2, 2), (1,) * 4, interleave, swizzle)  # type: ignore[arg-type]
        yield good
        for element in ("u8", "u32", "u64", "f16", "f32", "f64", "bf16", "tf32"):
            for first in (1, 2, 3, 4, 8, 9, 16, 17, 32, 64, 256):
                yield replace(good, element=element, box=(first, 3, 2, 2))  # type: ignore[arg-type]
        for other in SWIZZLE_SPANS:
            for first in (8, 16, 32, 64, 128):
                yield replace(good, swizzle=other, box=(first, 3, 2, 2))  # type: ignore[arg-type]
        for rank in (1, 2, 3):
            yield replace(
                good, extents=good.extents[:rank], strides=good.strides[: rank - 1], box=good.box[:rank], element_strides=(1,) * rank
            )
        for axis in range(4):
            for size in (0, 1, 255, 256, 257):
                yield replace(good, box=(*good.box[:axis], size, *good.box[axis + 1 :]))
            for step in (0, 1, 2, 3, 8, 9):
                yield replace(good, element_strides=tuple(step if axis == other else 1 for other in range(4)))
        for stride in (0, 8, 16, 32, 48, 64, 100, 112, 128):
            yield replace(good, strides=(stride, 8192, 65536))
            yield replace(good, strides=(1024, stride, 65536))
        for first in (1, 3, 7, 8, 9, 63):
            yield replace(good, extents=(first, 6, 5, 4))
        yield replace(good, fill="nan")
        yield replace(good, element="f16", fill="nan")
        for channels in (1, 3, 7, 8, 9, 16, 17, 24, 64, 256, 257):
            yield replace(good, box=(), im2col=Im2col((0, 0), (0, 0), channels, 10))
        for pixels in (0, 1, 1024, 1025):
            yield replace(good, box=(), im2col=Im2col((0, 0), (0, 0), 16, pixels))
        for low, high in ((-128, 0), (-129, 0), (0, 127), (0, 128), (3, -2), (3, -3), (3, -4)):
            yield replace(good, box=(), im2col=Im2col((low, 0), (high, 0), 16, 10))
    # Boxes about as large as shared memory, without steps and with such that do not divide them.
    for rows in (144, 145, 160, 192, 223, 224, 225, 226, 227, 228, 229, 255, 256):
        yield TensorMap("u8", (256, 300, 8), (256, 76800), (128, rows, 8))
        yield TensorMap("u8", (256, 300, 8), (256, 76800), (128, rows, 8), (1, 1, 3))
        yield TensorMap("u8", (256, 300, 20), (256, 76800), (128, rows, 17), (1, 1, 2))


def contents(case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The array and the tile that a case begins with, as bytes: elements count from 1, so that each tells where it was."""
    element = ELEMENT_BYTES[case["map"]["element"]]
    if case["direction"] in OPERATIONS:
        rng = np.random.default_rng(len(case["coordinates"]))
        whole = rng.integers(-64, 64, (ARRAY_BYTES + TILE_BYTES) // 4).astype(np.float32)
        kinds = {"f16": whole.astype(np.float16), "bf16": (whole.view(np.uint32) >> 16).astype(np.uint16), "f32": whole}
        both = np.resize(kinds.get(case["map"]["element"], whole.astype(np.int32)).view(np.uint8), ARRAY_BYTES + TILE_BYTES)
        return both[:ARRAY_BYTES].copy(), both[ARRAY_BYTES:].copy()
    if case["direction"] == "load":
        return _numbered(ARRAY_BYTES, element), np.full(TILE_BYTES, 0xEE, np.uint8)
    return np.zeros(ARRAY_BYTES, np.uint8), _numbered(TILE_BYTES, element).copy()


@cache
def _numbered(count: int, element: int) -> np.ndarray:
    return np.arange(1, count // element + 1, dtype=np.uint64).astype(f"u{element}").view(np.uint8)


def summed(case: dict[str, Any], array: np.ndarray, tile: np.ndarray) -> int:
    """A number for the result of a copy: in shared memory, or in the array."""
    left = tile[: map_of(case).shared_bytes] if case["direction"] == "load" else array
    return int.from_bytes(hashlib.sha256(left.tobytes()).digest()[:8], "little")


def scalars(case: dict[str, Any]) -> list[int]:
    """The numbers that a kernel gets behind the map."""
    return [*(case["coordinates"] + [0] * 5)[:5], *(case["offsets"] + [0] * 3)[:3], map_of(case).box_bytes]


def forbidden(case: dict[str, Any]) -> bool:
    """True if cuda.h forbids the map, which the emulator refuses, though the driver encodes it."""
    return bool(problems(map_of(case))) and not refusals(map_of(case))


def on_emulator(ptx: str, case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The array and the tile that a case leaves on the emulator."""
    array, tile = contents(case)
    info = np.zeros(1, np.uint32)
    given = [replace(map_of(case), base=array), *map(np.int32, scalars(case)), tile.view(np.uint32), info]
    emulator.launch(ptx, kernel_of(case), grid=1, block=128, args=given, shared_bytes=TILE_BYTES)
    if not info[0]:
        raise RuntimeError("the copy's barrier expects other bytes")
    return array, tile


def on_gpu(first: int, folder: Path) -> None:
    """Runs the cases from `first` on; results go to files, so that those before a fault are kept."""
    library = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: Any) -> None:
        code = getattr(library, name)(*arguments)
        if code:
            raise RuntimeError(f"{name}: {code}")

    with driver.current_device(0):
        loaded = LoadedBinary((folder / "cubin").read_bytes(), "sm_90a", 0)
        array_at, tile_at, info_at = (int(driver.call("cuMemAlloc", size)) for size in (ARRAY_BYTES, TILE_BYTES, 16))
        storage = ctypes.create_string_buffer(256)
        at = (ctypes.addressof(storage) + 63) // 64 * 64
        if first == 0:
            codes = [map_encoder(driver.raw_functions(), each, at)(array_at) for each in doubtful_maps()]
            (folder / "codes.json").write_text(json.dumps(codes))
        for number, case in enumerate(cases()):
            if number < first:
                continue
            (folder / "at").write_text(str(number))
            code = map_encoder(driver.raw_functions(), map_of(case), at)(array_at)
            result: dict[str, Any] = {"number": number, "code": code}
            if not code:
                array, tile = contents(case)
                info = np.zeros(4, np.uint32)
                for pointer, host in ((array_at, array), (tile_at, tile), (info_at, info)):
                    driver.call("cuMemcpyHtoD", pointer, host.ctypes.data, host.nbytes)
                function = driver.call("cuModuleGetFunction", loaded.module, kernel_of(case).encode())
                call("cuFuncSetAttribute", ctypes.c_void_p(int(function)), 8, TILE_BYTES)
                values = [(ctypes.c_char * 128).from_buffer_copy(ctypes.string_at(at, 128)), *map(ctypes.c_int, scalars(case))]
                values += [ctypes.c_uint64(tile_at), ctypes.c_uint64(info_at)]
                pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
                call("cuLaunchKernel", ctypes.c_void_p(int(function)), 1, 1, 1, 128, 1, 1, TILE_BYTES, None, pointers, None)
                call("cuCtxSynchronize")
                for pointer, host in ((array_at, array), (tile_at, tile), (info_at, info)):
                    driver.call("cuMemcpyDtoH", host.ctypes.data, pointer, host.nbytes)
                result |= {"sum": summed(case, array, tile), "done": int(info[0])}
                if case["direction"] == "load":
                    np.save(folder / f"tile{number}.npy", tile)
            with (folder / "results").open("a") as stream:
                stream.write(json.dumps(result) + "\n")
        (folder / "at").write_text("end")


def measure(out: Path) -> None:
    """Runs everything on the GPU, a new process after each fault, and the emulator beside it."""
    listed = list(cases())
    binary = compile_source(source(), architecture="sm_90a", name="tensor_copies.cu")
    with tempfile.TemporaryDirectory() as name:
        folder, first, faults = Path(name), 0, {}
        (folder / "cubin").write_bytes(binary.cubin)
        while first < len(listed):
            done = subprocess.run(
                [sys.executable, "-m", "measurements.tensor_copies", "--from", str(first), "--out", name], capture_output=True, text=True
            )
            at = (folder / "at").read_text()
            if at == "end":
                break
            faults[int(at)] = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else str(done.returncode)
            print(f"fault of case {at}: {faults[int(at)]}: {listed[int(at)]}", flush=True)
            first = int(at) + 1
        results = {row["number"]: row for row in map(json.loads, (folder / "results").read_text().splitlines())}
        codes = json.loads((folder / "codes.json").read_text())
        tiles = {number: np.load(folder / f"tile{number}.npy") for number in results if (folder / f"tile{number}.npy").exists()}
    different, kept = [], []
    for number, case in enumerate(listed):
        result = results.get(number)
        label = f"{number} {case['direction']} {case['map']['interleave']} {case['map']['element']} {case['map']} {case['coordinates']}"
        if result is None or result["code"] or not result["done"]:
            print(f"{label}: {faults.get(number) or result}")
            continue
        kept.append(number)
        if forbidden(case):
            print(f"{label}: not run by the emulator, as cuda.h forbids the map")
            continue
        try:
            same = summed(case, *on_emulator(binary.ptx, case)) == result["sum"]
        except Exception as error:  # a report on all cases is worth more than the first failure
            print(f"{label}: emulator: {str(error)[:200]}")
            same = False
        if not same:
            different.append(number)
            print(f"{label}: differs")
    unlike = [
        described(each) | {"code": code} for each, code in zip(doubtful_maps(), codes, strict=True) if bool(refusals(each)) != bool(code)
    ]
    for each in unlike:
        print("driver:", each)
    print(f"{len(kept)} of {len(listed)} copies ran, {len(different)} differ; {len(unlike)} of {len(codes)} maps are judged otherwise")
    out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        out / NAME,
        cases=json.dumps([listed[number] for number in kept]),
        sums=np.array([results[number]["sum"] for number in kept], np.uint64),
        maps=json.dumps([described(each) for each in doubtful_maps()]),
        codes=np.array(codes, np.int32),
        refused=json.dumps([listed[number] for number, result in results.items() if result["code"]]),
        faulted=json.dumps([listed[number] for number in faults]),
        **{
            f"tile{place}": tiles[number][: map_of(listed[number]).shared_bytes]  # type: ignore[arg-type]
            for place, number in enumerate(kept)
            if number in tiles
        },
    )


def check(path: Path) -> None:
    """Prints each recorded case in which the emulator leaves something else."""
    recorded = np.load(path)
    ptx = compile_source(source(), architecture="sm_90a", name="tensor_copies.cu").ptx
    listed = json.loads(str(recorded["cases"]))
    different = 0
    for place, (case, total) in enumerate(zip(listed, recorded["sums"].tolist(), strict=True)):
        if forbidden(case):
            continue
        array, tile = on_emulator(ptx, case)
        if summed(case, array, tile) == total:
            continue
        different += 1
        name = f"tile{place}"
        where = np.flatnonzero(recorded[name] != tile[: len(recorded[name])]) if name in recorded else np.arange(0)
        print(case, f"{len(where)} bytes of the tile differ, the first at {where[0]}" if len(where) else "")
    print(f"{different} of {len(listed)} copies differ")


def main() -> None:
    """Measures or checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for the results")
    parser.add_argument("--check", type=Path, metavar="FILE")
    parser.add_argument("--from", type=int, dest="first", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.check is not None:
        check(options.check)
    elif options.first is not None:
        on_gpu(options.first, options.out)
    elif options.out is not None:
        measure(options.out)
    else:
        parser.error("nothing to do: --out or --check")


if __name__ == "__main__":
    main()
