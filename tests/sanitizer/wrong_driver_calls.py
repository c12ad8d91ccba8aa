"""Calls of the driver with handles and sizes that are wrong, by ctypes; prints the result of each."""

import ctypes
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

PTX = b""".version 8.0
.target sm_80
.address_size 64
.visible .entry f() { ret; }
"""
HUGE = 1 << 62
driver = ctypes.CDLL("libcuda.so.1")
module, function, memory = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
context = ctypes.c_void_p()


def launch(function: ctypes.c_void_p) -> int:
    one = ctypes.c_uint(1)
    result: int = driver.cuLaunchKernel(function, one, one, one, one, one, one, ctypes.c_uint(0), None, None, None)
    return result


early = driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
print("before cuInit", early, driver.cuInit(0), "without a context", driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(64)))
driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
driver.cuCtxSetCurrent(context)
if "abort" in sys.argv:
    os.abort()
if "close" in sys.argv:
    driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(64))
    os.closerange(3, 1 << 16)
    driver.cuMemFree_v2(memory)
claims = (0xBA55ED50).to_bytes(4, "little") + bytes([1, 0, 16, 0]) + (1 << 40).to_bytes(8, "little") + bytes(64)
print("length", driver.cuModuleLoadData(ctypes.byref(module), claims))
print("load", driver.cuModuleLoadData(ctypes.byref(module), PTX))
print("function", driver.cuModuleGetFunction(ctypes.byref(function), module, b"f"))
print("launch", launch(function))
print("unload", driver.cuModuleUnload(module), driver.cuModuleUnload(module), driver.cuModuleUnload(None))
print("after unload", launch(function), driver.cuModuleGetFunction(ctypes.byref(function), module, b"f"))
print("again", driver.cuModuleLoadData(ctypes.byref(module), PTX), driver.cuModuleGetFunction(ctypes.byref(function), module, b"f"))
print("launch", launch(function))
driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(64))
print("fill", driver.cuMemsetD32_v2(memory, ctypes.c_uint(1), ctypes.c_size_t(HUGE)))
driver.cuMemFree_v2(memory)

# Contexts that end: their memory and modules end with them, and calls without a context are refused.
first, second, stream, found = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
create = driver.cuCtxCreate_v4 if hasattr(driver, "cuCtxCreate_v4") else driver.cuCtxCreate_v2
given = (ctypes.byref(second), None, 0, 0) if hasattr(driver, "cuCtxCreate_v4") else (ctypes.byref(second), 0, 0)


def tried() -> tuple[int, ...]:
    """Results of calls that need a context."""
    allocated = driver.cuMemAlloc_v2(ctypes.byref(found), ctypes.c_size_t(64))
    return allocated, driver.cuModuleLoadData(ctypes.byref(found), PTX), driver.cuCtxSynchronize()


def in_a_thread(call: Callable[[], object]) -> object:
    """Result of a call that another thread makes."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


print("create", create(*given), "another thread", in_a_thread(tried))
driver.cuModuleLoadData(ctypes.byref(module), PTX)
driver.cuModuleGetFunction(ctypes.byref(function), module, b"f")
driver.cuStreamCreate(ctypes.byref(stream), 0)
driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(64))
print("destroy", driver.cuCtxDestroy_v2(second), driver.cuCtxDestroy_v2(second), driver.cuCtxDestroy_v2(context))
print("in the primary context", launch(function), driver.cuModuleUnload(module), driver.cuCtxSetCurrent(second))
print("release", driver.cuDevicePrimaryCtxRelease_v2(0), driver.cuDevicePrimaryCtxRelease_v2(0), "destroyed", *tried(), launch(function))
print("stream", driver.cuStreamSynchronize(stream), "pop", driver.cuCtxPopCurrent_v2(ctypes.byref(first)), "none", *tried())
print("again", driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), driver.cuCtxSetCurrent(context), *tried())

# Memory in the order of a stream needs no current context: the stream has one.
pool = ctypes.c_void_p()
driver.cuStreamCreate(ctypes.byref(stream), 0)
driver.cuMemGetDefaultMemPool(ctypes.byref(pool), None, 1)
print("current", driver.cuCtxSetCurrent(None), "stream", driver.cuStreamGetCtx(stream, ctypes.byref(found)), found.value == context.value)
taken = driver.cuMemAllocFromPoolAsync(ctypes.byref(memory), ctypes.c_size_t(64), pool, stream)
refused = driver.cuMemAllocFromPoolAsync(ctypes.byref(first), ctypes.c_size_t(64), pool, None)
print("pool", taken, "default stream", refused, "free", driver.cuMemFreeAsync(memory, stream))
