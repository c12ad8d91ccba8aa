"""Reading resources from cubins, whole and damaged."""

from __future__ import annotations

import random
import re
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemmgen.toolchain.cubin import CubinError, read_entries, text_sections
from gemmgen.toolchain.nvrtc import compile_source

SOURCE = """
extern "C" __global__ void __launch_bounds__(256) shared_sum(float* out, const float* in, int n) {
    __shared__ float stage[300];
    stage[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    float sum = 0.f;
    for (int i = 0; i < n; i++) sum += stage[(i * 7) % 256] * in[i];
    out[threadIdx.x] = sum;
}
extern "C" __global__ void __launch_bounds__(512, 2) spilling(float* a) {
    float v[64];
    #pragma unroll
    for (int i = 0; i < 64; i++) v[i] = a[i * 512 + threadIdx.x];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 64; i++) v[i] = v[i] * v[(i * 5 + 3) % 64] + v[(i * 11 + 7) % 64];
    #pragma unroll
    for (int i = 0; i < 64; i++) a[i * 512 + threadIdx.x] = v[i] * v[63 - i];
}
extern "C" __global__ void dynamic_only(float* a) {
    extern __shared__ float dynamic[];
    dynamic[threadIdx.x] = a[threadIdx.x];
    __syncthreads();
    a[threadIdx.x] = dynamic[threadIdx.x ^ 1];
}
extern "C" __global__ void empty() {}
"""
ENTRIES = {"shared_sum", "spilling", "dynamic_only", "empty"}


@pytest.fixture(scope="module")
def cubins() -> dict[str, bytes]:
    return {name: compile_source(SOURCE, architecture=name).cubin for name in ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")}


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"])
def test_reads_every_kernel(cubins, architecture):
    entries = read_entries(cubins[architecture])
    assert set(entries) == ENTRIES
    assert entries["shared_sum"].static_shared_bytes == 1200
    assert entries["dynamic_only"].static_shared_bytes == 0
    assert entries["shared_sum"].max_threads == 256
    assert entries["dynamic_only"].max_threads is None
    assert entries["shared_sum"].parameter_bytes == 20
    assert entries["empty"].parameter_bytes == 0
    assert entries["shared_sum"].constant_bytes >= entries["empty"].constant_bytes + 20
    assert 10 <= entries["shared_sum"].registers < 64
    assert entries["shared_sum"].stack_bytes == 0
    assert set(text_sections(cubins[architecture])) == ENTRIES


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_agrees_with_what_nvccs_ptxas_reports(tmp_path, architecture):
    (tmp_path / "k.cu").write_text(SOURCE)
    command = ["nvcc", f"-arch={architecture}", "-cubin", "-Xptxas", "-v", "-o", "k.cubin", "k.cu"]
    report = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
    entries = read_entries((tmp_path / "k.cubin").read_bytes())
    seen = 0
    for part in report.split("Compiling entry function '")[1:]:
        entry = entries[part.split("'")[0]]
        shared = re.search(r"(\d+) bytes smem", part)
        assert entry.registers == int(re.search(r"Used (\d+) registers", part)[1])
        assert entry.stack_bytes == int(re.search(r"(\d+) bytes stack frame", part)[1])
        assert entry.static_shared_bytes == (int(shared[1]) if shared else 0)
        seen += 1
    assert seen == len(entries) == 4


def test_an_array_with_runtime_indices_needs_stack():
    source = """extern "C" __global__ void local(float* a, const int* index) {
        float v[40];
        for (int j = 0; j < 40; j++) v[j] = a[j];
        for (int j = 0; j < 40; j++) v[index[j]] += v[j];
        for (int j = 0; j < 40; j++) a[j] = v[j];
    }"""
    entry = read_entries(compile_source(source, architecture="sm_90").cubin)["local"]
    assert entry.stack_bytes >= 160
    assert entry.local_bytes >= entry.stack_bytes


def test_what_is_no_cubin_says_so():
    for data, message in [(b"", "no ELF"), (b"\x7fELF", "no ELF"), (b"MZ" * 100, "no ELF")]:
        with pytest.raises(CubinError, match=message):
            read_entries(data)
    with open("/proc/self/exe", "rb") as executable, pytest.raises(CubinError, match="machine"):
        read_entries(executable.read())


def test_every_truncation_is_an_error(cubins):
    cubin = cubins["sm_90"]
    for length in range(0, len(cubin), 97):
        with pytest.raises(CubinError):
            read_entries(cubin[:length])


@pytest.mark.parametrize("architecture", ["sm_75", "sm_100"])
def test_damage_is_an_error_or_a_value_never_a_crash(cubins, architecture):
    choose = random.Random(1)
    errors = 0
    for _ in range(1500):
        data = bytearray(cubins[architecture])
        for _ in range(choose.choice([1, 4, 64])):
            data[choose.randrange(len(data))] = choose.randrange(256)
        for reader in (read_entries, text_sections):
            try:
                reader(bytes(data))
            except CubinError:
                errors += 1
    assert errors > 0


@settings(max_examples=200)
@given(st.binary(max_size=400))
def test_arbitrary_bytes_behind_a_valid_magic_are_never_a_crash(data):
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xbe\x00"
    for candidate in (data, header + data):
        try:
            read_entries(candidate)
        except CubinError as error:
            assert "cubin" in str(error)


def test_damage_in_the_header_tables_is_named(cubins):
    data = bytearray(cubins["sm_90"])
    data[40:48] = (2**63).to_bytes(8, "little")  # the offset of the section table
    with pytest.raises(CubinError, match="beyond its end"):
        read_entries(bytes(data))
