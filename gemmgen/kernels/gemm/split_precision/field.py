"""Products by planes over a finite field: the splitting runs on real numbers, the product over the field, from planes of any bits.

Splitting works on the bits of single numbers, and is compared bit by bit with NumPy's. The planes are then replaced by random ones, and the
kernels behind it must compute the sum of the scheme's products of them, scaled as rows and columns are, and in float32 where a row
or column is marked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gemmgen.emulator import residues
from gemmgen.emulator.residue_words import whole_words
from gemmgen.kernels.gemm.split_precision.numbers import MARKED, scale_exponents, split
from gemmgen.kernels.gemm.split_precision.planes import PlaneOperand
from gemmgen.kernels.gemm.split_precision.product import SplitPrecisionPlan

_WORDS = {2: np.uint16, 4: np.uint32}
_CODES = {"f16": "f16", "bf16": "bf16", "f32": "tf32"}
_MIN_EXPONENT = -250
_BIAS = 127


class PlanesOverField:
    """One problem of an instance: its planes in the workspace, and the product that belongs to them."""

    def __init__(self, plan: SplitPrecisionPlan, sizes: Mapping[str, int]) -> None:
        self.planes, self.sizes = plan.planes, sizes
        self.launches = len(self.planes.kernels)
        """Launches that split, before those that multiply."""
        self.code_bits = residues.CODE_BITS[_CODES[self.planes.scheme.type]]

    @property
    def given(self) -> list[tuple[str, int, int]]:
        """The scales in the workspace: they are no data of the product."""
        places = [(self._at(f"exponents_{o.suffix}"), 4 * self.sizes[o.extent]) for o in self.planes.operands]
        return [("workspace", start, start + size) for start, size in places]

    def real_factors(self, shapes: Mapping[str, tuple[int, ...]], rng: np.random.Generator) -> dict[str, npt.NDArray[np.float32]]:
        """A and B with numbers of several magnitudes, and some lines that no planes hold."""
        factors = {}
        for name, shape in shapes.items():
            values = rng.standard_normal(shape) * np.exp2(rng.integers(-6, 7, shape))
            lines = values if name == "A" else values.T
            lines[len(lines) // 3, 1], lines[-1, 0], lines[len(lines) // 2] = np.inf, 1e-44, 0
            factors[name] = values.astype(np.float32)
        return factors

    def wrong_split(self, factors: Mapping[str, npt.NDArray[np.float32]], workspace: npt.NDArray[np.uint8]) -> str:
        """A message about planes or scales that are not those that NumPy splits real numbers into; empty if there are none."""
        for operand in self.planes.operands:
            lines = factors[operand.name] if operand.name == "A" else factors[operand.name].T
            exponents = scale_exponents(self.planes.scheme, np.ascontiguousarray(lines))
            if not np.array_equal(self._exponents(operand, workspace), exponents):
                return f"scales of {operand.name} are wrong"
            wanted = split(self.planes.scheme, np.ascontiguousarray(lines), exponents)
            if not np.array_equal(self._lines(operand, workspace)[:, exponents != MARKED], wanted[:, exponents != MARKED]):
                return f"planes of {operand.name} are not those of its numbers"
        return ""

    @property
    def elements(self) -> int:
        """Numbers of all planes."""
        return sum(self.planes.scheme.planes * self.sizes[operand.extent] * self.sizes["k"] for operand in self.planes.operands)

    @property
    def elements_of_word(self) -> int:
        """Neighbours along k in a word of 32 bits; 0 if words have parts of two rows, or elements along k do not lie side by side."""
        elements = 4 // self.planes.scheme.element_bytes
        whole = self.sizes["k"] % elements == 0 and all(o.k_major and o.pitch_multiple % elements == 0 for o in self.planes.operands)
        return elements if whole else 0

    def draw(self, workspace: npt.NDArray[np.uint8], rng: np.random.Generator) -> None:
        """Random bits for all planes, or codes of random residues where the run has some."""
        drawn, long = whole_words.get(), residues.long_codes.get()
        for operand in self.planes.operands:
            lines = self._lines(operand, workspace)
            if drawn is not None:
                lines[...] = drawn.draw((*lines.shape[:-1], lines.shape[-1] // drawn.elements)).view(lines.dtype)
                continue
            if long is not None:
                lines[...] = long.draw(lines.shape)
                continue
            codes = rng.integers(0, 1 << 8 * lines.dtype.itemsize, lines.shape, dtype=np.uint64).astype(lines.dtype)
            lines[...] = codes & np.uint32(0xFFFFE000) if self.planes.scheme.type == "f32" else codes

    def product(self, arrays: Mapping[str, npt.NDArray[Any]], workspace: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """The products of all pairs of planes that the scheme keeps, as canonical residues; in marked lines the product of A and B."""
        scheme = self.planes.scheme
        a, b = (self._residues(operand, workspace) for operand in self.planes.operands)
        total = residues.matrix_product(a[0], b[0].T)
        factor = np.uint64(residues.of_float(scheme.kept_factor if scheme.scaled else 1.0))
        for i, j in scheme.kept:
            total = total + residues.canonical(residues.multiplied(residues.matrix_product(a[i], b[j].T), factor)).reshape(total.shape)
        total = residues.canonical(total).reshape(total.shape)
        rows, columns = (self._exponents(operand, workspace).astype(np.int64) for operand in self.planes.operands)
        if scheme.scaled:
            exponents = np.maximum(-(np.where(rows == MARKED, 0, rows)[:, None] + np.where(columns == MARKED, 0, columns)), _MIN_EXPONENT)
            half = exponents >> 1
            for part in (half, exponents - half):
                power = residues.canonical(((part + _BIAS) << 23).astype(np.uint32))
                total = residues.canonical(residues.multiplied(total, power.reshape(total.shape))).reshape(total.shape)
        direct = residues.matrix_product(residues.canonical(arrays["A"]), residues.canonical(arrays["B"]))
        return np.where((rows == MARKED)[:, None] | (columns == MARKED), direct, total)

    def _at(self, name: str) -> int:
        return int(self.planes.offset_of(name).evaluate(self.sizes))

    def _exponents(self, operand: PlaneOperand, workspace: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
        start = self._at(f"exponents_{operand.suffix}")
        return workspace[start : start + 4 * self.sizes[operand.extent]].view(np.int32)

    def _lines(self, operand: PlaneOperand, workspace: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """A view of planes (plane, row or column, k) without the ends of rows."""
        start, scheme = self._at(f"planes_{operand.suffix}"), self.planes.scheme
        lines, k = self.sizes[operand.extent], self.sizes["k"]
        rows, columns = (lines, k) if operand.k_major else (k, lines)
        pitch = -(-columns // operand.pitch_multiple) * operand.pitch_multiple
        size = scheme.planes * rows * pitch * scheme.element_bytes
        view = workspace[start : start + size].view(_WORDS[scheme.element_bytes]).reshape(scheme.planes, rows, pitch)[:, :, :columns]
        return view if operand.k_major else view.swapaxes(1, 2)

    def _residues(self, operand: PlaneOperand, workspace: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        codes = np.ascontiguousarray(self._lines(operand, workspace))
        if (drawn := whole_words.get()) is not None:
            return drawn.of_elements(codes).astype(np.uint64)
        return residues.canonical(residues.of_codes(codes, _CODES[self.planes.scheme.type])).reshape(codes.shape)
