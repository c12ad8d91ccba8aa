"""Static analysis of a kernel."""
