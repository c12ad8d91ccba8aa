"""From a plan to CUDA source."""
