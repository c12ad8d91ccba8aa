"""Runs cubins on CUDA devices: the backend where there is a GPU."""

from gemmgen.runtime.cuda.backend import GpuBackend
from gemmgen.runtime.cuda.driver import GpuDevice, gpu, gpu_available, list_gpus, why_no_gpu

__all__ = ["GpuBackend", "GpuDevice", "gpu", "gpu_available", "list_gpus", "why_no_gpu"]
