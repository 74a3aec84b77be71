# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Reads pickles from data files without running any code that they contain.

All legacy pickles (`refs(unc).p`, LMDB values, `*_imgid2idx.pkl`) are read here. The result
consists of None, booleans, numbers, texts, bytes, lists, tuples, dicts, sets, NumPy scalars and arrays. Three
checks protect the reader:

1. A name is looked up in a short table of this file and never imported. Any other name is refused.
2. The reader is the one of Python that is written in Python: in the one in C, a damaged number of a few bytes claims
   gigabytes.
3. The table holds constructors of this file in place of NumPy's and Python's. They compare the dtype before they make
   an array, so that a forged one never reaches NumPy. What they raise is a damaged pickle.
"""

import io
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from grounded_attention.utils.bounded_files import read_data
from grounded_attention.utils.named_types import AnyPath

from .errors import DataError, refuse_if, require_file

# A pickle is read into memory at once; the largest known files (captions of all images) are far smaller.
MAX_BYTES = 512 << 20
# The pickled form of `numpy.dtype`: booleans, numbers, fixed-length texts. No objects, no records, no dates.
DTYPE = re.compile(r"b1|[iu][1248]|f[248]|c8|c16|[SU]\d{1,9}")
AGAIN = "get the file again"
HINT = "pickles that may run code are not read"
LAST_CODE_POINT = 0x10FFFF


def load_pickle(path: AnyPath) -> Any:
    """Loads the data of a pickle file, also of one that Python 2 wrote (its `str` becomes text, by Latin-1)."""
    require_file(Path(path), expected="a pickle")
    return loads(read_data(Path(path), MAX_BYTES), file=path)


def loads(data: bytes, *, file: AnyPath | None = None, where: str | None = None) -> Any:
    """Loads the data of a pickle in memory."""
    try:
        return _Unpickler(data).load()
    except DataError as error:
        raise DataError(str(error), file=file, where=where) from error
    except Exception as error:  # damaged instructions can raise any error
        expected = "a whole file of pickle.dump"
        problem = "a damaged or forged pickle"
        found = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(problem, file=file, where=where, found=found, expected=expected, hint=AGAIN) from error


# Without a type: typeshed has the one in C under both names.
_IN_PYTHON: Any = pickle._Unpickler


class _Unpickler(_IN_PYTHON):
    """Runs the instructions with a table of constructors in place of imports."""

    dispatch = dict(_IN_PYTHON.dispatch)

    def __init__(self, data: bytes) -> None:
        # Python 2 kept the bytes of arrays in its `str`; only Latin-1 decodes them unchanged.
        super().__init__(io.BytesIO(data), fix_imports=False, encoding="latin1")

    def find_class(self, module: str, name: str) -> "_Constructor":
        """Returns the constructor for a name; refuses names that are not in the table."""
        constructor = CONSTRUCTORS.get((module, name))
        if constructor is None:
            raise DataError("the pickle holds more than data", found=f"{module}.{name}", hint=HINT)
        return constructor

    def _read_bytearray(self) -> None:
        """Python's own makes room for any length before it reads."""
        self.append(bytearray(self.read(int.from_bytes(self.read(8), "little"))))

    dispatch[pickle.BYTEARRAY8[0]] = _read_bytearray


class _Constructor:
    """The meaning of a name: a function to call, with no state that a pickle could change."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: Any) -> NoReturn:
        raise DataError("the pickle changes a constructor", hint=HINT)


class _Dtype:
    """A dtype during reading."""

    __slots__ = ("dtype",)

    def __init__(self, code: Any, *flags: Any) -> None:
        refuse_if(
            not DTYPE.fullmatch(code), "dtype is not supported", found=code, expected="a boolean, number or text"
        )
        self.dtype = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        _, order, *records = state[:5]
        if order not in ("<", ">", "|", "=") or any(part is not None for part in records):
            raise DataError("dtype is not supported", found="records", expected="a boolean, number or text")
        self.dtype = self.dtype.newbyteorder(order)


class _Array(np.ndarray):
    """An array that a pickle fills: what it says is read into a plain array first, which NumPy checks."""

    def __setstate__(self, state: Any) -> None:
        *_, shape, dtype, fortran, content = state
        array = _array_from_bytes(content, dtype, shape, "F" if fortran else "C")
        own: Any = (1, array.shape, array.dtype, False, array.tobytes())
        super().__setstate__(own)


def _check_text(array: np.ndarray) -> np.ndarray:
    """Returns `array` unchanged; refuses texts with a number that is not a character."""
    if array.dtype.kind == "U" and array.size:
        points = array.view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        if points.max() > LAST_CODE_POINT:
            raise DataError("a text contains a number that is not a character", found=int(points.max()))
    return array


def _reconstruct(kind: Any, *_: Any) -> _Array:
    refuse_if(kind is not _ARRAY, "the pickle contains a subclass of arrays", expected="numpy.ndarray")
    return _Array(0)


def _array_from_bytes(content: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> np.ndarray:
    """Makes an array as protocol 5 does; with `order` "K", `axes` gives the order of the axes."""
    flat = np.frombuffer(content.encode("latin1") if isinstance(content, str) else content, dtype.dtype)
    array = _check_text(flat).reshape(shape, order="F" if order == "F" else "C")
    if array.shape != shape:  # one of -1
        raise DataError("the shape of an array is not a shape", found=shape)
    if axes is None:
        return array
    return array.transpose(axes)


def _scalar(dtype: Any, content: Any) -> Any:
    return _array_from_bytes(content, dtype, (1,), "C")[0]


def _encode(text: str, encoding: Any) -> bytes:
    """Makes bytes as Python 3 writes them for Python 2."""
    refuse_if(encoding != "latin1", "an encoding other than that of bytes", found=encoding, expected="latin1")
    return text.encode("latin1")


def _filled(kind: Callable[..., Any]) -> Callable[..., Any]:
    def make(*content: Any) -> Any:
        if content and isinstance(content[0], int):  # zeros, which take the system's time, that is not bounded
            raise DataError(f"the pickle makes {kind.__name__} of a length alone", found=content[0])
        return kind(*content)

    return make


def _refuse_array(*_: Any) -> NoReturn:
    raise DataError("the pickle makes an array directly", expected="an array as NumPy pickles it")


_ARRAY = _Constructor(_refuse_array)
_MULTIARRAY: dict[str, Callable[..., Any]] = {"_reconstruct": _reconstruct, "scalar": _scalar}
_BUILTINS: dict[str, Callable[..., Any]] = {
    **{kind.__name__: kind for kind in (complex, set, frozenset, list, tuple, dict)},
    **{kind.__name__: _filled(kind) for kind in (bytes, bytearray)},
}
_FUNCTIONS: dict[tuple[str, str], Callable[..., Any]] = {
    # NumPy 1 and 2.
    **{
        (f"numpy.{core}.multiarray", name): function
        for core in ("core", "_core")
        for name, function in _MULTIARRAY.items()
    },
    **{(f"numpy.{core}.numeric", "_frombuffer"): _array_from_bytes for core in ("core", "_core")},
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
    # Python 2 and 3.
    **{(module, name): kind for module in ("__builtin__", "builtins") for name, kind in _BUILTINS.items()},
    ("collections", "OrderedDict"): dict,
}
CONSTRUCTORS: dict[tuple[str, str], _Constructor] = {
    ("numpy", "ndarray"): _ARRAY,
    **{name: _Constructor(function) for name, function in _FUNCTIONS.items()},
}
