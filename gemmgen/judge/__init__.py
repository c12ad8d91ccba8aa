"""A referee for kernels that a person or a model wrote: the same function as a reference, for all shapes and data, without tricks.

A task (`gemmgen.judge.task`) describes the kernel's launch and arrays; the reference is Python that runs in a separate process
(`gemmgen.judge.reference`); `gemmgen.judge.referee` runs the kernel on the emulator and names every kind of failure."""
