"""Arrays in files of NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gemmgen.core.files import open_plain

if TYPE_CHECKING:
    import numpy.typing as npt


def load_array(name: str) -> npt.NDArray[Any]:
    """The array in a ``.npy`` file. Raises ValueError with the reason."""
    import numpy as np

    try:
        with open_plain(name) as stream:
            found = np.load(stream, allow_pickle=False)
            if not isinstance(found, np.ndarray):
                raise ValueError("holds several arrays; expected a .npy file with one")
            return found
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(getattr(error, "strerror", None) or str(error)) from None
    except MemoryError:
        raise ValueError("does not fit into this computer's memory") from None
