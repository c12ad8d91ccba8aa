"""Tiles: how elements are divided among threads and laid out in memory."""
