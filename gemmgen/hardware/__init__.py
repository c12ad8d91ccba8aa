"""Architectures, devices and the rules of their memories, as data and pure functions."""
