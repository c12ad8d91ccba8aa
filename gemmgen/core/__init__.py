"""Errors, formulas, files and the compile cache, which all other parts use."""
