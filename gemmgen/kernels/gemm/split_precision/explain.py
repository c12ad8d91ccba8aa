"""Float32 products on tensor cores by those of smaller types, in words."""

from __future__ import annotations

from gemmgen.kernels.family import Section
from gemmgen.kernels.gemm.split_precision.planes import PlanesPlan
from gemmgen.kernels.gemm.split_precision.product import SplitPrecisionPlan, product_part
from gemmgen.kernels.gemm.tensor_cores.explain import Wording
from gemmgen.kernels.gemm.wording import Lines


def sections(plan: SplitPrecisionPlan) -> list[Section]:
    """Sections of the product of planes, and one about the planes."""
    planes = plan.planes
    wording = Wording(
        products=planes.scheme.products,
        rows="are split in registers",
        adds="a kernel behind the product adds up in a fixed order, rounding errors of additions included",
        writer="the kernel that adds them up" + (", and undoes the scales," if planes.scheme.scaled else ""),
        sections=(Section("float32 by planes", _planes(planes, plan.staggered)),),
    )
    shown: list[Section] = product_part(plan, "explain").sections(plan, wording)
    return shown


def accuracy(plan: SplitPrecisionPlan, k: int) -> str:
    """Bound of the errors of a product of depth k."""
    factor, least = plan.planes.error_factor(k), plan.planes.least_depth
    way = f"in double precision, as below k = {least}" if k < least else f"by {plan.planes.scheme.name}"
    return f"at most {factor:,.0f} u |A||B|, u = 2^-24, {way}"


def _planes(planes: PlanesPlan, staggered: bool) -> Lines:
    scheme = planes.scheme
    promoted = planes.promoted_steps * scheme.instruction_k
    bounds = ", ".join(f"{planes.error_factor(k):.0f} u at k = {k}" for k in (16, 64, 1024, 16384))
    kind = "tf32" if scheme.type == "f32" else scheme.type
    scaled = ", rows of A and columns of B scaled by powers of two" if scheme.scaled else ""
    held = "numbers within 2^-28 of the largest of their row or column" if scheme.scaled else "numbers from 2^-100 to 2^63, and 0"
    made = "written to the workspace by a kernel before the product"
    if planes.kept_operand is not None:
        made = f"those of {planes.kept_operand.name} are an argument, the others are {made}"
    if planes.in_mainloop:
        made = "A's are made by the warps that multiply it, B's by a kernel before the product"
    turns = "; two groups of warps take turns to multiply and to add up" if staggered else ""
    leaves = f"the leading ones leave the tensor core every {promoted} of k"
    rounded_off = f"in float32; each addition's rounding error is kept with the smaller products{turns}"
    if planes.in_mainloop:
        leaves = f"the smaller ones first; their sum leaves the tensor core every {promoted} of k"
        rounded_off = "in float32; each addition's rounding error is the initial value of the next sum"
    elif planes.together:
        leaves = f"the smaller ones first; their sum leaves the tensor core every {promoted} of k"
        rounded_off = f"in float32; each addition's rounding error is kept beside them{turns}"
    below = f"and all rows and columns in double precision if k is below {planes.least_depth}"
    return (
        ("planes", f"{scheme.planes} of {kind} for each operand{scaled}; {made}"),
        ("products", f"{scheme.products} for one of float32; {leaves}"),
        ("sums", rounded_off if planes.compensated else "in float32"),
        ("error", f"at most c u |A||B|, u = 2^-24; c is {bounds}, that of multiply-adds k"),
        ("holds", f"{held}; a last kernel multiplies rows and columns with other numbers in float32, {below}"),
    )
