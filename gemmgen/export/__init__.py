"""Instances for other programs: cubins, fat binaries, C headers and Python modules that need no gemmgen."""
