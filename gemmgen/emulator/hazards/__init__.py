"""Hazards: undefined behaviour of a kernel, even where its result happens to be right."""
