"""A render imports its strategy alone, and a call of an operation its family alone."""

from __future__ import annotations

import subprocess
import sys

import pytest
from waiting import PATIENCE

from gemmgen.kernels import FAMILIES

RENDER = "import gemmgen; gemmgen.render('gemm/v3_double_buffer')"
CALLS = {
    "gemm": "ops.matmul.kernel(a, a, backend='emulator')",
    "reduction": "ops.reduce.kernel(a)",
    "elementwise": "ops.elementwise.kernel(a, 'relu')",
}


def imported(code: str) -> set[str]:
    """Modules of gemmgen after ``code``."""
    program = f"import sys\n{code}\nprint(*(name for name in sys.modules if name.startswith('gemmgen.')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=True)
    return set(done.stdout.split())


def test_a_render_imports_its_strategy_alone() -> None:
    modules = imported(RENDER)
    strategies = {name.split(".")[3] for name in modules if name.startswith("gemmgen.kernels.gemm.") and name.count(".") > 3}
    assert strategies == {"simt"}
    assert not modules & {"gemmgen.dispatch.selection", "gemmgen.perf.cost_model", "gemmgen.runtime.arrays.binding", "gemmgen.ops"}


@pytest.mark.parametrize("kind", CALLS)
def test_a_call_imports_its_family_alone(kind: str) -> None:
    modules = imported(f"import numpy as np\nfrom gemmgen import ops\na = np.ones((64, 64), np.float32)\n{CALLS[kind]}")
    families = {name.split(".")[2] for name in modules if name.startswith("gemmgen.kernels.")}
    assert families & FAMILIES.keys() == {kind}
