# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
import collections
import contextlib
import os
import pickle
import random
import tracemalloc

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from grounded_attention.dataset_scripts.files import safe_pickle
from grounded_attention.dataset_scripts.files.errors import DataError, MissingFileError
from grounded_attention.dataset_scripts.files.safe_pickle import load_pickle, loads

ARRAYS = {
    "floats": np.arange(6, dtype=np.float32).reshape(2, 3),
    "big endian": np.arange(3, dtype=">f8"),
    "columns first": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "axes exchanged": np.arange(24, dtype=np.int16).reshape(2, 3, 4).transpose(1, 0, 2),
    "strided": np.arange(10)[::3],
    "half": np.array([1.5, -2], dtype=np.float16),
    "booleans": np.array([True, False]),
    "bytes": np.array([b"ab", b"c"]),
    "texts": np.array(["sky", "träum"]),
    "big-endian texts": np.array(["sky", "träum"], dtype=">U5"),
    "empty": np.empty((0, 4), dtype=np.float32),
    "no dimension": np.array(3.5),
}
DATA = [
    None,
    {"image_id": 7, "raw": "two dogs", "tokens": ["two", "dogs"], "split": b"x", "box": (1, 2.5), "flag": True},
    [1, -1, 1 << 70, 0.1, 1 + 2j, {3, 4}, frozenset({5}), bytearray(b"abc"), b"", ""],
    {("a", 1): [[], {}, ()], 5: None},
]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_and_plain_data_come_back(protocol):
    for name, array in ARRAYS.items():
        found = loads(pickle.dumps({"features": array}, protocol))["features"]
        assert found.dtype.newbyteorder("=") == array.dtype.newbyteorder("="), name
        assert found.shape == array.shape, name
        assert_array_equal(found, array)
    for value in (*DATA, np.int64(3), np.float32(0.5), np.bool_(True), {np.int64(3): np.float32(0.5)}):
        found = loads(pickle.dumps(value, protocol))
        assert found == value
        assert type(found) is type(value)
    ordered = loads(pickle.dumps(collections.OrderedDict(a=1, b=2), protocol))
    assert ordered == {"a": 1, "b": 2}
    assert type(ordered) is dict


def test_module_names_of_numpy_one():
    content = pickle.dumps(ARRAYS["floats"], 2).replace(b"numpy._core", b"numpy.core")
    assert b"numpy.core.multiarray" in content
    assert loads(content).tolist() == ARRAYS["floats"].tolist()


def text(value):
    """Python 2's `str` in protocol 2."""
    return b"T" + len(value).to_bytes(4, "little") + value


def python2_array(values):
    """What Python 2's cPickle writes of a float32 vector in protocol 2."""
    dtype = b"cnumpy\ndtype\n" + text(b"f4") + b"K\x00K\x01\x87R(K\x03" + text(b"<") + b"NNNJ\xff\xff\xff\xffJ"
    dtype += b"\xff\xff\xff\xffK\x00tb"
    begin = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    return begin + b"(K\x01K" + bytes([len(values) // 4]) + b"\x85" + dtype + b"\x89" + text(values) + b"tb"


def test_pickles_of_python_2():
    values = np.array([1.5, -300.25, 3e38], dtype=np.float32)
    content = b"\x80\x02}(" + text(b"boxes") + python2_array(values.tobytes()) + text(b"raw")
    content += b"X\x06\x00\x00\x00caf\xc3\xa9s" + text(b"id") + b"\x8a\x05\x15\xcd\x5b\x07\x00u."
    found = loads(content)
    assert_array_equal(found["boxes"], values)
    assert (found["raw"], found["id"]) == ("cafés", 123456789)
    # Protocol 0, as `pickle.dump(x, file)` wrote it by default.
    plain = loads(b"(dp1\nS'sentences'\np2\n(lp3\nVtwo dogs\np4\nasS'ref_id'\np5\nL12L\ns.")
    assert plain == {"sentences": ["two dogs"], "ref_id": 12}


def test_shared_and_circular_containers():
    row = [np.arange(2)]
    found = loads(pickle.dumps({"a": row, "b": row}))
    assert found["a"] is found["b"]
    assert isinstance(found["b"][0], np.ndarray)
    circle = [np.arange(2)]
    circle.append(circle)
    found = loads(pickle.dumps(circle))
    assert found[1] is found
    assert found[0].tolist() == [0, 1]
    # Each list holds the one before twice: 2^60 leaves, if it were walked as a tree.
    laughs = [np.arange(2)]
    for _ in range(60):
        laughs = [laughs, laughs]
    assert len(loads(pickle.dumps(laughs))) == 2


class Call:
    """Pickles as a call of any function, as malicious files do."""

    def __init__(self, function, *arguments, state=None):
        self.reduced = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.reduced


SYSTEM = Call(os.system, "touch marker")
# Pickles that write the file `marker` where pickles are executed.
ATTACKS = {
    "os.system": pickle.dumps(SYSTEM, 4),
    "eval": pickle.dumps(Call(eval, "open('marker', 'w').close()"), 4),
    "numpy.load": pickle.dumps(Call(np.load, "marker", None, True), 4),
    "numpy's eval": pickle.dumps(Call(np.testing.runstring, "open('marker', 'w').close()", {}), 4),
    "in a dict": pickle.dumps({"features": np.ones(2), "boxes": [({"deep": (SYSTEM,)},)]}, 4),
    "a state": pickle.dumps(Call(collections.OrderedDict, (), state={"x": SYSTEM}), 4),
    "a key": pickle.dumps({SYSTEM: 1}, 4),
    "getattr": b"cbuiltins\ngetattr\n(cos\nsystem\nX\x08\x00\x00\x00__call__tR(Vtouch marker\ntR.",
    "protocol 0": b"cos\nsystem\n(S'touch marker'\ntR.",
    "posix": b"cposix\nsystem\n(S'touch marker'\ntR.",
    "instance": b"(S'touch marker'\nios\nsystem\n.",
    "object": b"(cos\nsystem\nS'touch marker'\no.",
    "new object": b"\x80\x02cos\nsystem\n(S'touch marker'\nt\x81.",
    "dotted": b"\x80\x04\x8c\x05numpy\x8c\x12compat.py3k.os.sys\x93(S'x'\ntR.",
    "extension": b"\x80\x02\x82\x01.",
    "persistent id": b"Pos.system\n.",
    # The memo holds the name, which is fetched and called after harmless work.
    "memo": b"cos\nsystem\np7\n0(lp1\n0(S'touch marker'\ntp2\n0g7\ng2\nR.",
    "memo overwritten": b"cnumpy\ndtype\np0\n0cos\nsystem\np0\n0g0\n(S'touch marker'\ntR.",
    "after the data": b"}S'a'\nI1\ns0cos\nsystem\n(S'touch marker'\ntR.",
    "two pickles": b"\x80\x02]q\x000\x80\x02cos\nsystem\n(S'touch marker'\ntR.",
}


@pytest.mark.parametrize("content", ATTACKS.values(), ids=ATTACKS)
def test_malicious_pickles_run_nothing(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"holds more than data|forged pickle"):
        loads(content)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("name", ["os.system", "eval", "protocol 0"])
def test_attacks_would_run(tmp_path, monkeypatch, name):
    """What the test above is worth."""
    monkeypatch.chdir(tmp_path)
    pickle.loads(ATTACKS[name])
    assert (tmp_path / "marker").exists()


def test_the_error_contains_the_refused_name(tmp_path):
    path = tmp_path / "refs(unc).p"
    path.write_bytes(pickle.dumps(Call(os.system, "true")))
    with pytest.raises(DataError, match=r"refs\(unc\)\.p: the pickle holds more than data: found 'posix\.system'"):
        load_pickle(path)
    with pytest.raises(DataError, match=r"data\.mdb, key 7: .*found 'builtins\.eval'"):
        loads(pickle.dumps(Call(eval, "1")), file="data.mdb", where="key 7")
    with pytest.raises(MissingFileError, match=r"absent\.p: no such file"):
        load_pickle(tmp_path / "absent.p")


def array_with(**changes):
    """A pickled float32 array of two values, with forged parts."""
    parts = {
        "kind": b"cnumpy\nndarray\n",
        "code": b"S'f4'\n",
        "dtype_state": b"(I3\nS'<'\nNNNI-1\nI-1\nI0\nt",
        "shape": b"(I2\nt",
        "raw": text(bytes(8)),
    } | changes
    dtype = b"cnumpy\ndtype\n(" + parts["code"] + b"I00\nI01\ntR" + parts["dtype_state"] + b"b"
    begin = b"cnumpy.core.multiarray\n_reconstruct\n(" + parts["kind"] + b"(I0\ntS'b'\ntR(I1\n"
    return begin + parts["shape"] + dtype + b"I00\n" + parts["raw"] + b"tb."


FORGED = {
    "shape larger than the bytes": array_with(shape=b"(I2000000000\nt"),
    "endless shape": array_with(shape=b"(I" + b"9" * 30 + b"\nt"),
    "negative shape": array_with(shape=b"(I-2\nt"),
    "shape of objects": array_with(code=b"S'O8'\n"),
    "shape no tuple": array_with(shape=b"I2\n"),
    "shape that overflows": array_with(shape=b"(" + b"I4294967296\n" * 2 + b"t", raw=text(b"")),
    "record dtype": array_with(code=b"S'V8'\n"),
    "dtype by a string of NumPy": array_with(code=b"S'f4,O'\n"),
    "dtype without a size": array_with(code=b"S'S0'\n"),
    "dtype of dates": array_with(code=b"S'M8'\n"),
    "dtype no text": array_with(code=b"I8\n"),
    # Fields beyond the item would read other memory.
    "fields": array_with(dtype_state=b"(I3\nS'<'\nN(S'a'\nt(S'a'\n(I1\nI4096\ntdI-1\nI-1\nI0\nt"),
    "sub-array": array_with(dtype_state=b"(I3\nS'<'\n(I1\nI99\ntNNI-1\nI-1\nI0\nt"),
    "byte order": array_with(dtype_state=b"(I3\nS'x'\nNNNI-1\nI-1\nI0\nt"),
    "bytes no bytes": array_with(raw=b"I8\n"),
    "subclass": array_with(kind=b"cnumpy\nmatrix\n"),
    "array type of another name": array_with(kind=b"cnumpy\ndtype\n"),
    "text beyond Unicode": array_with(code=b"S'U2'\n", shape=b"(I1\nt", raw=text(b"\xff" * 8)),
    "ndarray called": b"cnumpy\nndarray\n(cnumpy\ndtype\n(S'f4'\ntR(I9\nttR.",
    "dtype called without arguments": b"cnumpy\ndtype\n)R.",
    "scalar of objects": b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'O8'\ntR(lI1\natR.",
    "scalar too long": b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(S'f4'\ntRS'12345678'\ntR.",
    "axes": b"cnumpy.core.numeric\n_frombuffer\n(" + text(b"") + b"cnumpy\ndtype\n(S'f4'\ntR(I0\ntS'K'\n(I9\nttR.",
    "another encoding": b"c_codecs\nencode\n(Va\nS'zlib'\ntR.",
    "constructor changed": b"cnumpy\ndtype\n(N}S'_function'\nI1\nstb.",
    "many bytes": b"cbuiltins\nbytearray\n(I100000000000\ntR.",
    # Each a gigabyte, freed at once: the memory is bounded, but not the time that the system takes to clear it.
    "bytes that are dropped": b"cbuiltins\nbytearray\n(I900000000\ntR0" * 2 + b"N.",
    "list of a number": b"cbuiltins\nlist\n(I9\ntR.",
    "unhashable": b"cbuiltins\nset\n((l(lattR.",
}


@pytest.mark.parametrize("content", FORGED.values(), ids=FORGED)
def test_forged_arrays_are_refused(content):
    with pytest.raises(DataError):
        loads(content)
    # A forged pickle leaves nothing behind.
    assert_array_equal(loads(array_with()), np.zeros(2, np.float32))


HUGE = {
    "bytes": b"\x8e\0\0\0\0\0\1\0\0",
    "text": b"\x8d\0\0\0\0\0\1\0\0",
    "bytearray": b"\x96\0\0\0\0\0\1\0\0",
    "frame": b"\x80\x04\x95\0\0\0\0\0\1\0\0",
    "number": b"\x8b\0\0\0\x40",
    "memo": b"]r\0\0\0\x40",
    "memo in text": b"]p1000000000\n",
    "memo in endless text": b"]p" + b"9" * 5000 + b"\n",
}


@pytest.mark.parametrize("name", HUGE)
def test_claimed_sizes_take_no_memory(name):
    """A value that is there is read, whatever its number in the memo."""
    tracemalloc.start()
    with contextlib.suppress(DataError):
        assert loads(HUGE[name] + b"]" * 20 + b".") == []
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 24


def test_cut_and_damaged_pickles():
    whole = pickle.dumps({"features": ARRAYS["floats"], "id": "7", "more": [1.5, 1 << 70]})
    cuts = [whole[:end] for end in range(len(whole))]
    for content in (*cuts, b"image_id\t7\n", b"\xff\xff", b"."):
        with pytest.raises(DataError):
            loads(content)
    generator = random.Random(0)
    for protocol in (0, 2, 5):
        whole = pickle.dumps([*ARRAYS.values(), *DATA], protocol)
        for _ in range(300):
            content = bytearray(whole)
            for _ in range(generator.randint(1, 4)):
                content[generator.randrange(len(content))] = generator.randrange(256)
            try:
                loads(bytes(content))
            except DataError as error:
                assert len(str(error)) < 1000


def test_too_large_pickles_are_not_read(tmp_path):
    path = tmp_path / "sparse.p"
    with open(path, "wb") as file:
        file.truncate(safe_pickle.MAX_BYTES + 1)
    with pytest.raises(ValueError, match=r"sparse\.p: the file is too large"):
        load_pickle(path)
