"""Pictures of plans, as SVG."""

from gemmgen.present.drawing.page import draw

__all__ = ["draw"]
