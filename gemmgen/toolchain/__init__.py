"""From source to binaries: NVRTC, and the tools that read what it makes."""
