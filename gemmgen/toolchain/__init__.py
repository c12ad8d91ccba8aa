"""From source to binaries: NVRTC, and the tools that read its output."""
