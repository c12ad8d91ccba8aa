"""Pictures of plans, as SVG."""

from gemmgen.drawing.page import draw

__all__ = ["draw"]
