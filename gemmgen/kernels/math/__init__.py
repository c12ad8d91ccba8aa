"""Arithmetic of mainloops: orders of multiply-adds, loops of warpgroups on tensor cores, and how far their sums are off."""
