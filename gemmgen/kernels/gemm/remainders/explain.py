"""Float64 products by remainders in words."""

from __future__ import annotations

from gemmgen.kernels.family import Section
from gemmgen.kernels.gemm.remainders.plan import RemaindersPlan
from gemmgen.kernels.gemm.remainders.scheme import MAX_K, RANGE
from gemmgen.kernels.gemm.tensor_cores.explain import Wording
from gemmgen.kernels.gemm.wgmma import explain as wgmma
from gemmgen.kernels.gemm.wording import Lines


def sections(plan: RemaindersPlan) -> list[Section]:
    """The sections of the integer products, and a section about remainders."""
    wording = Wording(products=plan.scheme.planes, sections=(Section("float64 by remainders", _remainders(plan)),))
    return wgmma.sections(plan.products, wording)


def _remainders(plan: RemaindersPlan) -> Lines:
    scheme = plan.scheme
    bound = f"no product exceeds half of 2^{scheme.product.bit_length() - 1}, by Cauchy and Schwarz"
    scales = f"rows of A and columns of B are multiplied by powers of two, so large that {bound}, and rounded to integers"
    bound = "at most k u |A||B|, u = 2^-53, that of multiply-adds; a last kernel computes tiles by multiply-adds if that is not certain, or"
    error = f"{bound} if magnitudes exceed 2^{RANGE} or lie below 2^-{RANGE}"
    return (
        ("scales", scales),
        ("moduli", ", ".join(str(number) for number in scheme.numbers)),
        ("products", f"{scheme.count} of remainders in 8 bits, and one of magnitudes cut to 7 bits, which bounds |A||B| from below"),
        ("result", "the integer that the remainders determine, exact, without its scales"),
        ("error", error),
        ("largest k", f"{MAX_K:,}"),
    )
