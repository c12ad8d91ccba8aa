"""The driver's structures in ctypes, against cuda.h as a C compiler lays them out, and its enumerations against the bindings."""

import ctypes
import json
import shutil
import subprocess
from importlib import metadata

import pytest
from cuda.bindings import driver

from gemmgen.runtime.cuda import abi

STRUCTURES = {
    "CUlaunchConfig": abi.LaunchConfig,
    "CUlaunchAttribute": abi.LaunchAttribute,
    "CUlaunchAttributeValue": abi.LaunchAttributeValue,
}


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory):
    """Size of each structure and offset of each member, as a C compiler has them."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    header = next(file for file in metadata.files("nvidia-cuda-runtime") if file.name == "cuda.h")
    lines = []
    for name, structure in STRUCTURES.items():
        lines.append(f'printf("\\"{name}\\": %zu,\\n", sizeof({name}));')
        for member, *_ in structure._fields_:
            lines.append(f'printf("\\"{name}.{member}\\": %zu,\\n", offsetof({name}, {member}));')
    folder = tmp_path_factory.mktemp("layout")
    source = '#include <cuda.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\nprintf("{");\n%s\nprintf("\\"end\\": 0}");\n}\n'
    (folder / "layout.c").write_text(source % "\n".join(lines))
    subprocess.run([compiler, "-I", str(header.locate().parent), "layout.c", "-o", "layout"], cwd=folder, check=True)
    return json.loads(subprocess.run([folder / "layout"], capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("name", STRUCTURES)
def test_sizes_are_those_of_the_header(laid_out, name):
    assert ctypes.sizeof(STRUCTURES[name]) == laid_out[name]


@pytest.mark.parametrize(("name", "member"), [(n, m) for n, s in STRUCTURES.items() for m, *_ in s._fields_])
def test_offsets_are_those_of_the_header(laid_out, name, member):
    assert getattr(STRUCTURES[name], member).offset == laid_out[f"{name}.{member}"]


def test_attribute_numbers_are_those_of_the_driver():
    identifiers = driver.CUlaunchAttributeID
    assert abi.CLUSTER_DIMENSION == identifiers.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    assert abi.PROGRAMMATIC_STREAM_SERIALIZATION == identifiers.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


ELEMENT_NAMES = {
    "u8": "UINT8",
    "u16": "UINT16",
    "u32": "UINT32",
    "s32": "INT32",
    "u64": "UINT64",
    "s64": "INT64",
    "f16": "FLOAT16",
    "f32": "FLOAT32",
    "f64": "FLOAT64",
    "bf16": "BFLOAT16",
    "f32_ftz": "FLOAT32_FTZ",
    "tf32": "TFLOAT32",
    "tf32_ftz": "TFLOAT32_FTZ",
}


@pytest.mark.parametrize(("element", "name"), ELEMENT_NAMES.items())
def test_element_numbers_are_those_of_the_driver(element, name):
    assert abi.ELEMENT_NUMBERS[element] == getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{name}")


@pytest.mark.parametrize(
    ("numbers", "enumeration"),
    [
        (abi.SWIZZLE_NUMBERS, driver.CUtensorMapSwizzle),
        (abi.INTERLEAVE_NUMBERS, driver.CUtensorMapInterleave),
        (abi.L2_PROMOTION_NUMBERS, driver.CUtensorMapL2promotion),
    ],
)
def test_mode_numbers_are_those_of_the_driver(numbers, enumeration):
    assert {
        name: enumeration(number).name for name, number in numbers.items() if not enumeration(number).name.endswith(f"_{name.upper()}")
    } == {}


def test_fill_numbers_are_those_of_the_driver():
    fills = driver.CUtensorMapFloatOOBfill
    zeros, nan = fills.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE, fills.CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA
    assert {"zeros": zeros, "nan": nan} == abi.FILL_NUMBERS
