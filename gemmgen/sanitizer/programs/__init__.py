"""Whole CUDA programs on the emulator: the host program runs as a child process whose CUDA runtime hands its launches to this one."""
