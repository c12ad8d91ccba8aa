"""The charting library of sweeps' reports, gemmgen/sweep/report/vega.js: python docs/vega.py

Vega, Vega-Lite and Vega-Embed with all that they need in one script, as vl-convert-python bundles them; ``pip install vl-convert-python``
gets the newest. VEGA_LICENSES beside it holds the licences of the bundled files.
"""

from __future__ import annotations

import sys
from pathlib import Path

TARGET = Path(__file__).resolve().parents[1] / "gemmgen" / "sweep" / "report" / "vega.js"


def main() -> int:
    """Writes the script."""
    import vl_convert

    versions = f"Vega {vl_convert.get_vega_version()}, Vega-Lite {vl_convert.get_vegalite_versions()[-1]}"
    versions += f", Vega-Embed {vl_convert.get_vega_embed_version()}"
    bundle = vl_convert.javascript_bundle(vl_version=vl_convert.get_vegalite_versions()[-1])
    if "</script" in bundle.lower():
        raise SystemExit("the bundle would end the script element that it stands in")
    TARGET.write_text(f"// {versions}; licences in VEGA_LICENSES; written by docs/vega.py\n{bundle.rstrip()}\n")
    print(f"{TARGET}: {versions}, {TARGET.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
