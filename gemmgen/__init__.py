"""gemmgen turns a short, checked description of a kernel into specialised CUDA, with the evidence that it is right."""

__version__ = "0.1.0"
