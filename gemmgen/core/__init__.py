"""Errors, formulas, files and the compile cache: what every other part stands on."""
