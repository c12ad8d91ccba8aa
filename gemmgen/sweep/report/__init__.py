"""An HTML report of a sweep in one file: page, data and charts, with the charting library Vega-Lite inlined."""
