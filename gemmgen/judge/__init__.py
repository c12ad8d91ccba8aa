"""A referee for kernels that a person or a model wrote: the same function as a reference, for all shapes and data, without tricks.

A task (`gemmgen.judge.task`) says how the kernel is launched and what its arrays are; the reference is Python that runs in a process of its
own (`gemmgen.judge.reference`); `gemmgen.judge.referee` runs the kernel on the emulator and names every kind of failure.
"""
