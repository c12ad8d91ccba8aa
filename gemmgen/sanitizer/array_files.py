"""Arrays in files of NumPy."""

from __future__ import annotations

import os
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

from gemmgen.core.files import open_plain

if TYPE_CHECKING:
    import numpy.typing as npt


MAX_ARRAY_BYTES = 1 << 30
"""Limit of an argument or an expected array: the emulator keeps several bytes for each of its bytes."""
_HEADER_BYTES = 1 << 16


def load_array(name: str) -> npt.NDArray[Any]:
    """The array in a ``.npy`` file. Raises ValueError with the reason."""
    import numpy as np

    try:
        with open_plain(name) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > MAX_ARRAY_BYTES + _HEADER_BYTES:
                raise ValueError(f"holds {size / 2**30:.3g} GiB, need at most {MAX_ARRAY_BYTES >> 30} GiB")
            array = np.load(stream, allow_pickle=False)
            if not isinstance(array, np.ndarray):
                raise ValueError("holds several arrays; expected a .npy file with one")
            return array
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(getattr(error, "strerror", None) or str(error)) from None
    except (SyntaxError, TypeError, RecursionError, TokenError):
        raise ValueError("has a damaged header; expected a .npy file") from None
    except MemoryError:
        raise ValueError("does not fit into this computer's memory") from None
