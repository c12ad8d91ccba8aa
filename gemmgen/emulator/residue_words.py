"""Elements of 8 and 16 bits over the field where a kernel moves them in whole words.

A code of 8 bits tells only 256 elements apart. Four elements that lie in one word of 32 bits, and that a program moves together from
memory to a tensor core, have the word's 32 bits: each word that is drawn is the index of four different random residues. Two elements of
16 bits likewise, where there are more than 65,534 of them, and eight of 4 bits. The claim holds for programs that never take such words
apart (`gemmgen.emulator.whole_words`).
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import numpy as np

from gemmgen.emulator import residue_loops
from gemmgen.emulator.errors import NoFieldMeaning
from gemmgen.emulator.residues import MODULUS

Array = np.ndarray[Any, Any]

WORD_BYTES, PACKED_ELEMENTS = 4, 8
MAX_CUT_WORDS = 60_000
"""Words of a run of which their lower halves are different, and some are passed over."""
_ODDS = 1 << 31
_POISON = 0xFFFFFFFF
_LARGE = np.uint64(0x4B000080)
_LOWER_HALF, _TOP_BITS = np.uint32(0xFFFF), np.uint32(0x80808080)
_BYTES = tuple(np.uint32(0xFF << shift) for shift in (0, 8, 16, 24))


class Words:
    """The words of one run. Word number i, from 1 on, is i times an odd number modulo 2^32, so that words are different and their
    numbers are found again by one product. A word with a byte of zeros is none of them, as a part of a word beside zeros would be."""

    def __init__(self, rng: np.random.Generator, count: int, elements: int = WORD_BYTES) -> None:
        """So many words that differ from each other, of so many elements each."""
        self.elements = elements
        while True:
            factor = int(rng.integers(0, _ODDS)) * 2 + 1
            self._factor = np.uint32(factor)
            self._inverse = np.uint32(pow(factor, -1, 1 << 32))
            products = np.arange(1, count + count // 16 + 64, dtype=np.uint32) * np.uint32(factor)
            fits = np.logical_and.reduce([products & byte != 0 for byte in _BYTES]) & (products != np.uint32(_POISON))
            self._codes = products[fits][:count]
            if len(self._codes) == count:
                break
        self._last = np.uint32(int(self._number_of(self._codes).max(initial=0)) + 1)
        self._drawn = 0
        self.residues = rng.integers(0, MODULUS, (int(self._last) + 1, elements), dtype=np.uint32)
        """Residues of the elements of each word by its number; of zeros first, and of all other words last."""
        self.residues[0] = 0
        self.in_loops = residue_loops.Elements(self.residues.ctypes.data, elements, 0, int(self._inverse), int(self._last))

    def draw(self, shape: tuple[int, ...]) -> Array:
        """Words that no element has yet."""
        count = int(np.prod(shape))
        chosen: Array = self._codes[self._drawn : self._drawn + count].reshape(shape)
        self._drawn += count
        return chosen

    def _number_of(self, words: Array) -> Array:
        numbers: Array = words * self._inverse
        return numbers

    def of_elements(self, elements: Array) -> Array:
        """Residues of elements, of which a few along the last axis make a word, as 32-bit patterns below the modulus. Elements of 4 bits
        are two in a byte."""
        words = np.ascontiguousarray(elements).view(np.uint32)
        if (loops := residue_loops.loops()) is not None:
            residues = np.empty((*words.shape[:-1], words.shape[-1] * self.elements), np.uint32)
            numbers = (words.size, int(self._inverse), int(self._last), self.residues.ctypes.data, self.elements)
            loops.read_elements(words.ctypes.data, *numbers, residues.ctypes.data)
            return residues
        places = np.minimum(self._number_of(words), self._last)
        taken: Array = self.residues.take(places, axis=0).reshape(*places.shape[:-1], -1)
        return taken

    def of_bytes(self, values: Array) -> Array:
        """Residues of the bytes of words, along the last axis, where a word may have more elements than bytes. Zeros may take the place of
        bytes: the lower half tells words apart, of which there are fewer than 2^16."""
        each = self.of_elements(values).reshape(*values.shape[:-1], -1, self.elements)[..., :WORD_BYTES]
        words = np.ascontiguousarray(values).view(np.uint32)
        cut = (self._number_of(words) >= self._last) & (words & _LOWER_HALF != 0)
        if cut.any() and self._last <= _LOWER_HALF:
            numbers = self._number_of(words[cut]) & _LOWER_HALF
            bytes_left = np.ascontiguousarray(words[cut]).view(np.uint8).reshape(-1, WORD_BYTES)
            codes = (numbers * self._factor).view(np.uint8).reshape(-1, WORD_BYTES)
            known = (numbers < self._last) & ((bytes_left == 0) | (bytes_left == codes)).all(-1) & (bytes_left[:, :2] != 0).all(-1)
            of_cut = self.residues.take(np.minimum(numbers, self._last), axis=0)[:, :WORD_BYTES] * (bytes_left != 0)
            each[cut] = np.where(known[:, None], of_cut, each[cut])
        bytes_alone: Array = each.reshape(values.shape)
        return bytes_alone

    def numbers_of_bytes(self, inverted: Array, place: int) -> Array:
        """Residues of a byte of words whose bytes have their highest bits inverted, 128 + 2^23 as bits of float32 more."""
        words = np.ascontiguousarray(inverted ^ _TOP_BITS)
        own = self.of_elements(words.view(np.uint8)).reshape(-1, self.elements)[:, place]
        numbers: Array = ((own.astype(np.uint64) + _LARGE) % np.uint64(MODULUS)).astype(np.uint32)
        return numbers

    def require_bytes(self, words: Array, masks: Array) -> None:
        """Raises NoFieldMeaning if a mask cuts a byte of a word that elements have."""
        cut = cuts_bytes(masks)
        if np.any(cut) and np.any(cut & (words != 0) & (self._number_of(np.asarray(words)) < self._last)):
            raise NoFieldMeaning("a mask takes bytes of elements apart")


def cuts_bytes(masks: Array) -> Array:
    """True for masks that leave parts of bytes."""
    cut: Array = ((masks & _TOP_BITS) >> np.uint32(7)) * np.uint32(0xFF) != masks
    return cut


whole_words: ContextVar[Words | None] = ContextVar("whole_words", default=None)
"""The words of the present run; None: an element of 8 bits is its code."""


def scales(values: Array) -> Array:
    """Codes of scales; their residues, where elements are parts of words."""
    drawn = whole_words.get()
    return values if drawn is None else drawn.of_bytes(values)


def has_packed_words() -> bool:
    """True if elements of 4 bits are parts of words in the present run."""
    drawn = whole_words.get()
    return drawn is not None and drawn.elements == PACKED_ELEMENTS


def require_whole(first_byte: int, end: int) -> None:
    """Raises NoFieldMeaning if elements of 8 bits are words, and a copy of such elements begins or ends within one."""
    if (first_byte % WORD_BYTES or end % WORD_BYTES) and whole_words.get() is not None:
        raise NoFieldMeaning("a copy takes words of four elements apart")
