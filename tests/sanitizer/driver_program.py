"""Vector addition by cuda.bindings; with the argument "bad" the kernel's check of the bound is missing, "core" launches it by cuda.core."""

import sys
from typing import Any

import numpy as np
from cuda.bindings import driver, nvrtc

KERNEL = b"""
extern "C" __global__ void add(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
"""


def checked(result: tuple[Any, ...]) -> Any:
    """Values of a call; ends the program if it failed."""
    error, *values = result
    if error.value:
        raise SystemExit(f"error {error}")
    return values[0] if len(values) == 1 else values


if "core" in sys.argv:
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

    card = Device()
    card.set_current()
    queue = card.create_stream()
    code = Program(KERNEL.decode(), code_type="c++", options=ProgramOptions(arch="compute_80")).compile("ptx")
    buffers = [card.allocate(400, stream=queue) for _ in range(3)]
    for buffer in buffers[:2]:
        checked(driver.cuMemsetD32Async(int(buffer.handle), 0x3F800000, 100, int(queue.handle)))
    launch(queue, LaunchConfig(grid=1, block=128), code.get_kernel("add"), *buffers, np.int32(100))
    queue.sync()
    ones = np.zeros(100, np.float32)
    checked(driver.cuMemcpyDtoH(ones.ctypes.data, int(buffers[2].handle), 400))
    raise SystemExit(0 if (ones == 2).all() else "wrong")

source = KERNEL.replace(b"if (i < n) ", b"") if "bad" in sys.argv else KERNEL
program = checked(nvrtc.nvrtcCreateProgram(source, b"add.cu", 0, [], []))
checked(nvrtc.nvrtcCompileProgram(program, 2, [b"--gpu-architecture=compute_80", b"-lineinfo"]))
ptx = b" " * checked(nvrtc.nvrtcGetPTXSize(program))
checked(nvrtc.nvrtcGetPTX(program, ptx))
checked(driver.cuInit(0))
device = checked(driver.cuDeviceGet(0))
context = checked(driver.cuDevicePrimaryCtxRetain(device))
checked(driver.cuCtxSetCurrent(context))
module = checked(driver.cuModuleLoadData(ptx))
kernel = checked(driver.cuModuleGetFunction(module, b"add"))
n = 1000
a, b, c = np.arange(n, dtype=np.float32), np.ones(n, np.float32), np.zeros(n, np.float32)
a_device = checked(driver.cuMemAlloc(4 * n))
b_device = checked(driver.cuMemAlloc(4 * n))
c_device = checked(driver.cuMemAlloc(4 * n))
checked(driver.cuMemcpyHtoD(a_device, a.ctypes.data, 4 * n))
checked(driver.cuMemcpyHtoD(b_device, b.ctypes.data, 4 * n))
arguments = [np.array([int(pointer)], np.uint64) for pointer in (a_device, b_device, c_device)] + [np.array([n], np.int32)]
pointers = np.array([argument.ctypes.data for argument in arguments], np.uint64)
stream = checked(driver.cuStreamCreate(0))
checked(driver.cuLaunchKernel(kernel, 4, 1, 1, 256, 1, 1, 0, stream, pointers.ctypes.data, 0))
checked(driver.cuStreamSynchronize(stream))
checked(driver.cuMemcpyDtoH(c.ctypes.data, c_device, 4 * n))
for pointer in (a_device, b_device, c_device):
    checked(driver.cuMemFree(pointer))
print("sum", c.sum(), "right" if (c == a + b).all() else "wrong")
