# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A device `pretend` that behaves like a GPU, on any machine: its tensors do not mix with those of the CPU.

The values lie in CPU tensors, so results can be compared with those of the CPU. As on a GPU, an operator refuses
tensors of two devices, except numbers without dimensions, and a value that is read makes the CPU wait: `WAITS`.

Importing this file gives PyTorch the device, for the whole process: only processes of their own import it.
"""

import traceback
from collections import Counter
from contextlib import contextmanager

import torch
from torch._decomp.decompositions import lstm_data_impl, lstm_impl
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from tests.helpers.warm_python import ROOT

NAME = "pretend"
# Line of this project -> how often the CPU waited there for a value.
WAITS = Counter()

_ATEN = torch.ops.aten
# Copies, and operators that take indices from both, as on a GPU.
_MIXED = (_ATEN._to_copy.default, _ATEN.copy_.default, _ATEN._copy_from.default, _ATEN.index.Tensor)
_READS = (_ATEN._local_scalar_dense.default, _ATEN.equal.default, _ATEN.nonzero.default, _ATEN.masked_select.default)


class _Backend(_DummyBackendModule):
    """What PyTorch and Accelerate ask of a device."""

    def get_amp_supported_dtype(self):
        return [torch.bfloat16]


_setup_privateuseone_for_python_backend(NAME, _Backend())
DEVICE = torch.device(NAME, 0)


class PretendTensor(torch.Tensor):
    """A tensor of the device; `values` is the CPU tensor with its values."""

    values: torch.Tensor

    @staticmethod
    def __new__(cls, values):
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=DEVICE,
        )
        tensor.values = values
        return tensor

    def __repr__(self, **options):
        return f"PretendTensor({self.values})"

    def tolist(self):
        return self.cpu().tolist()

    def untyped_storage(self):
        """What checkpoints ask whether two weights are one."""
        return self.values.untyped_storage()

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        return _compute(operator, args, kwargs or {})


class _Mode(TorchDispatchMode):
    """For operators that make a tensor of the device without having one."""

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        return _compute(operator, args, kwargs or {})


def _compute(operator, args, kwargs):
    """The result of an operator, on the device if it has tensors of the device or makes one there."""
    leaves, structure = tree_flatten((args, kwargs))
    target = None if kwargs.get("device") is None else torch.device(kwargs["device"]).type
    is_ours = any(isinstance(leaf, PretendTensor) for leaf in leaves)
    if not is_ours and target != NAME:
        return operator(*args, **kwargs)
    theirs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not isinstance(leaf, PretendTensor)]
    if is_ours and operator not in _MIXED and any(tensor.dim() for tensor in theirs):
        shapes = [tuple(tensor.shape) for tensor in theirs if tensor.dim()]
        raise RuntimeError(f"{operator} has tensors of two devices, on the CPU those of shapes {shapes}; {_line()}")

    plain_args, plain_kwargs = tree_unflatten([_plain(leaf) for leaf in leaves], structure)
    if "pin_memory" in plain_kwargs:
        plain_kwargs["pin_memory"] = None
    if operator is _ATEN._copy_from.default:  # copy_ with the arguments the other way round
        operator = _ATEN.copy_.default
        args = args[1::-1]
        plain_args = plain_args[1::-1]
    found = operator(*plain_args, **plain_kwargs)
    in_place = operator._schema.name.endswith("_")
    leaves_device = not isinstance(args[0], PretendTensor) if in_place and is_ours else target not in (None, NAME)
    if leaves_device or operator in _READS:
        WAITS[_line()] += 1
    if torch.Tag.inplace_view in operator.tags:  # it changes the shape
        with no_dispatch():
            operator(*args, **kwargs)
    if in_place:  # operators on lists of tensors return nothing
        if isinstance(found, torch.Tensor):
            return args[0]
        return None
    if leaves_device or "out" in kwargs:
        return kwargs.get("out", found)
    return tree_map_only(torch.Tensor, PretendTensor, found)


def _plain(leaf):
    """An argument of an operator as the CPU gets it."""
    if isinstance(leaf, torch.device):
        return torch.device("cpu")
    if isinstance(leaf, PretendTensor):
        return leaf.values
    return leaf


def _line():
    """The line of this project that runs; of PyTorch in the backward pass."""
    frames = [frame for frame in traceback.extract_stack() if frame.filename != __file__]
    own = [frame for frame in frames if frame.filename.startswith(str(ROOT)) and "site-packages" not in frame.filename]
    frame = (own or frames)[-1]
    return f"{frame.filename.removeprefix(str(ROOT)).lstrip('/')}:{frame.lineno} {frame.line}"


_KERNELS = torch.library.Library("aten", "IMPL")
for _name in ("empty.memory_format", "empty_strided", "_copy_from", "_local_scalar_dense"):
    _packet, _, _overload = _name.partition(".")
    _operator = getattr(getattr(_ATEN, _packet), _overload or "default")
    _KERNELS.impl(_name, lambda *args, _operator=_operator, **kwargs: _compute(_operator, args, kwargs), "PrivateUse1")
# PyTorch has one kernel for the cell of an LSTM on a GPU; here it is computed operator by operator.
_KERNELS.impl("lstm.input", lstm_impl, "AutogradPrivateUse1")
_KERNELS.impl("lstm.data", lstm_data_impl, "AutogradPrivateUse1")


@contextmanager
def pretend_gpu():
    """Makes the device usable; `module.to(device)` keeps its parameters' identity, as on a GPU."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    WAITS.clear()
    try:
        with _Mode():
            yield DEVICE
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
