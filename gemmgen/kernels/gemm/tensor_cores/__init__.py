"""Parts that all strategies on tensor cores share: tiles and work of a grid, fragments of results, reasons, launch arguments."""
