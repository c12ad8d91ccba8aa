"""Kernels of the user's own on the emulator: sources and arguments as people have them, findings as data, reports for CI."""
