"""Multiply-adds and the orders in which they are listed."""
