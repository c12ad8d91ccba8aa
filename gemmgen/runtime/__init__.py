"""Running instances: arrays and their binding, the emulator and CUDA devices as backends."""
