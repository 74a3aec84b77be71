# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Loads a checkpoint of one class of a family as another class, and hands over the heads of pre-training.

The `PreTrainedModel` of every family inherits from [`PretrainingHandover`], so all families have the same rule.
"""

import logging as python_logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.utils import logging

from ..utils.named_types import Columns, Fields

# The logger of loading in transformers, so that its verbosity and handlers apply here too.
logger = logging.get_logger("transformers.modeling_utils")

_REPORT = "LOAD REPORT"  # in the first line of transformers' table of missing and unexpected weights
# Arguments of `from_pretrained` that locate a checkpoint.
_PLACE = "cache_dir force_download local_files_only proxies revision subfolder token use_safetensors variant".split()


class PretrainingHandover:
    """Extends `from_pretrained` to checkpoints of another class of the same family: the base model is loaded, and the
    heads that the class declares. A checkpoint of the same class, or of an unknown class, is loaded as in
    transformers.

    A class declares:

    - `_heads_from_pretraining`: prefix of names in the checkpoint -> prefix in this class. Other heads of the
      checkpoint are not loaded, even if the names match. Weights without a loaded tensor are new.
    - `_heads_to_adapt`: prefixes of the heads that `_adapt_pretraining_weights` reads.
    - `_other_names`: names of this class in checkpoints of other libraries.
    """

    config_class: Any
    base_model_prefix: str
    all_tied_weights_keys: dict[str, str]
    state_dict: Any
    get_submodule: Any
    _init_weights: Any
    _heads_from_pretraining: dict[str, str] = {}
    _heads_to_adapt: tuple[str, ...] = ()
    _other_names: tuple[str, ...] = ()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *model_args, bert: str | None = None, **kwargs) -> Any:
        r"""
        Loads a checkpoint as in transformers, or the matching weights from a checkpoint of another class of the
        family. In the second case one line reports which weights are taken, new and left, instead of transformers'
        table. A base model takes no heads and reports only if weights of its own are new or left, except the pooler.

        Args:
            pretrained_model_name_or_path (`str`): directory or Hub id of a checkpoint of this family.
            bert (`str`, *optional*): directory or Hub id of a BERT checkpoint, for weights that the checkpoint lacks,
                such as the pooler in the public VL-BERT checkpoints.
            model_args, kwargs: see `PreTrainedModel.from_pretrained`. With `output_loading_info=True` the `dict`
                contains the line as `"handover"`, if weights were handed over.

        Raises:
            ValueError: if the checkpoint is of another family, has no weight of the base model, or contradicts the
                configuration.
        """
        name = pretrained_model_name_or_path
        source = cls._find_source(name, kwargs)
        if source is not None and (issubclass(cls, source) or issubclass(source, cls)):
            source = None  # this class uses the same names
        if source is None and bert is None:
            return super().from_pretrained(name, *model_args, **kwargs)  # type: ignore[misc]
        wants_info = kwargs.pop("output_loading_info", False)
        model, info = cls._load_weights(name, source, model_args, kwargs)
        filled = {}
        if source is not None and (adapted := model._adapt_weights(name, source, info, kwargs)):
            filled["adapted"] = adapted
        if bert is not None:
            filled[f"from {bert}"] = model._copy_bert_weights(bert, _find_new(info))
        _check_filled(model, name, filled)
        info["missing_keys"] = set(info["missing_keys"]).difference(*filled.values())
        info["handover"] = _describe(model, name, source, info, filled)
        own = f"{cls.base_model_prefix}."
        left = []
        for key in info["unexpected_keys"]:
            if key.startswith(own) and not key.startswith(f"{own}pooler."):
                left.append(key)
        if bert is not None or not cls._is_base_class() or _find_new(info) or left:
            logger.warning(info["handover"])
        if wants_info:
            return (model, info)
        return model

    @classmethod
    def _find_source(cls, name: Any, kwargs: Columns) -> Any:
        """The class of this family that saved a checkpoint; `None` for an unknown class."""
        if name is None or "gguf_file" in kwargs:
            return None
        where = {key: kwargs[key] for key in (*_PLACE, "_commit_hash") if key in kwargs}
        try:
            fields, _ = cls.config_class.get_config_dict(name, **where)
        except (OSError, TypeError, ValueError):  # no configuration: transformers raises the error
            return None
        model_type = fields.get("model_type")
        wanted = cls.config_class.model_type
        if model_type not in (None, wanted):
            hint = f" (for a BERT model use {cls.__name__}.from_bert)" if model_type == "bert" else ""
            raise ValueError(f"{name} is a checkpoint of the family '{model_type}'; expected '{wanted}'{hint}.")
        names = set(fields.get("architectures") or [])
        return next((kind for kind in cls._list_classes() if names & {kind.__name__, *kind._other_names}), None)

    @classmethod
    def _list_classes(cls) -> list[Any]:
        """The classes of this family, this one first."""
        classes: list[Any] = [cls]
        waiting: list[Any] = [next(kind for kind in reversed(cls.__mro__) if PretrainingHandover in kind.__mro__[1:])]
        while waiting:
            classes += waiting
            waiting = [child for kind in waiting for child in kind.__subclasses__()]
        return classes

    @classmethod
    def _load_weights(cls, name: Any, source: Any, model_args: tuple, kwargs: Fields) -> tuple[Any, dict]:
        """Loads base model and declared heads of a checkpoint of `source` (`None`: this class), with loading info."""
        heads = {} if source is None or source._is_base_class() else cls._heads_from_pretraining
        renamings = {"^" + re.escape(there): here for there, here in heads.items()}
        options = {**kwargs, "key_mapping": {**(kwargs.get("key_mapping") or {}), **renamings} or None}
        options |= {"ignore_mismatched_sizes": True, "output_loading_info": True}
        with _without_report():
            model, info = super().from_pretrained(name, *model_args, **options)  # type: ignore[misc]
        # transformers saves with the names of the loaded checkpoint, which are those of another class here.
        vars(model).pop("_weight_conversions", None)
        info["unexpected_keys"] = {
            _rename(key, {here: there for there, here in heads.items()}) for key in info["unexpected_keys"]
        }
        if source is not None:
            model._reset_other_heads(info)
        if not kwargs.get("ignore_mismatched_sizes"):
            check_shapes(name, info["mismatched_keys"])
        if not {key for key in model.state_dict() if model._is_of_base(key)} - _find_new(info):
            raise ValueError(
                f"{name}: expected weights of {cls.base_model_prefix}, found names such as "
                f"{min(info['unexpected_keys'], default='none')!r}; convert the checkpoint (grounded-attention "
                "convert)."
            )
        return model, info

    @torch.no_grad()
    def _reset_other_heads(self, info: Fields) -> None:
        """Initialises again a head that got weights from a different head of another class with the same name."""
        here = tuple(self._heads_from_pretraining.values())
        weights: Any = self.state_dict().keys() - info["missing_keys"] - self.all_tied_weights_keys.keys()
        same_name = set()
        for key in weights:
            if not self._is_of_base(key) and not key.startswith(here):
                same_name.add(key)
        for module in sorted({key.rpartition(".")[0] for key in same_name}):
            for parameter in self.get_submodule(module).parameters(recurse=False):
                parameter._is_hf_initialized = False
            self._init_weights(self.get_submodule(module))
        info["missing_keys"] = {*info["missing_keys"], *same_name}
        info["unexpected_keys"] |= same_name
        info["mismatched_keys"] = {key for key in info["mismatched_keys"] if key[0] not in same_name}

    @classmethod
    def _is_base_class(cls) -> bool:
        name = cls.config_class.code_places["AutoModel"].partition(".")[2]
        return any(kind.__name__ == name for kind in cls.__mro__)

    def _is_of_base(self, name: str) -> bool:
        """Whether a weight of this model belongs to the base model."""
        return self._is_base_class() or name.startswith(f"{self.base_model_prefix}.")

    def _rename_head(self, name: str) -> str:
        """The name in this model of a weight in a head of pre-training; other names do not change."""
        return _rename(name, self._heads_from_pretraining)

    def _adapt_weights(self, name: Any, source: Any, info: Fields, kwargs: Columns) -> set[str]:
        """Calls `_adapt_pretraining_weights` with the heads of `_heads_to_adapt`."""
        heads: dict[str, Tensor] = {}
        config = None
        if any(key.startswith(self._heads_to_adapt) for key in info["unexpected_keys"]):
            where = {key: kwargs[key] for key in _PLACE if key in kwargs}
            model = source.from_pretrained(name, **where)
            config = model.config
            weights = model.state_dict()
            heads = {key: value for key, value in weights.items() if key.startswith(self._heads_to_adapt)}
        adapted = self._adapt_pretraining_weights(heads, config)
        if not all(map(self._is_of_base, adapted)):
            info["unexpected_keys"] -= heads.keys()  # now part of a head of this model
        return adapted

    def _adapt_pretraining_weights(self, source: Mapping[str, Tensor], config: Any = None) -> set[str]:
        """Sets weights that are computed, not copied, from the weights of another class."""
        return set()

    def _copy_bert_weights(self, name: str, only: set[str] | None = None) -> set[str]:
        """Copies the weights of a BERT checkpoint; `only` limits the names in this model. Returns the names copied."""
        raise ValueError(f"{type(self).__name__} does not load weights from BERT: remove bert={name!r}.")


def _rename(name: str, prefixes: Mapping[str, str]) -> str:
    """Replaces the first matching prefix of a name."""
    for there, here in prefixes.items():
        if name.startswith(there):
            return here + name.removeprefix(there)
    return name


@contextmanager
def _without_report() -> Iterator[None]:
    """Leaves out transformers' table of missing and unexpected weights."""

    def is_other(record: python_logging.LogRecord) -> bool:
        return _REPORT not in record.getMessage()

    logger.addFilter(is_other)  # type: ignore[arg-type]
    try:
        yield
    finally:
        logger.removeFilter(is_other)  # type: ignore[arg-type]


def _find_new(info: Columns) -> set[str]:
    """Names of the weights that were not loaded from the checkpoint."""
    return {*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])}


def describe_loading(model: Any, name: Any, info: Columns) -> str | None:
    """Describes in one line which weights of a model are taken from a checkpoint and new, and which were left."""
    if "handover" in info or not (info["unexpected_keys"] or _find_new(info)):
        return info.get("handover")
    return _describe(model, name, None, info, {})


def check_shapes(name: Any, mismatched: Iterable[tuple[str, Any, Any]]) -> None:
    """Raises `ValueError` for tensors that do not fit the configuration: (name, shape found, shape expected)."""
    for key, shape, wanted in sorted(mismatched):
        raise ValueError(
            f"{key} has the shape {tuple(shape)} in {name}, but {tuple(wanted)} in the configuration; remove the "
            "override that changes it."
        )


def _check_filled(model: Any, name: Any, filled: Mapping[str, set[str]]) -> None:
    """Raises `ValueError` if a weight on disk was set."""
    weights = model.state_dict()
    for key in sorted(set().union(*filled.values())):
        if weights[key].is_meta:
            raise ValueError(f"{name}: cannot set {key}, which is offloaded to disk; load without offloading.")


def _describe(model: Any, name: Any, source: Any, info: Columns, filled: Mapping[str, set[str]]) -> str:
    """One line: how many weights were taken, and the modules of those that are new, left, or filled."""
    new = _find_new(info)
    taken = set(model.state_dict()).difference(model.all_tied_weights_keys, new, *filled.values())
    origin = type(model) if source is None else source
    parts = {"new": new, "left": info["unexpected_keys"], **filled}
    named = []
    for part, names in parts.items():
        if names or part in filled:
            named.append(f"{part}: {_modules(names)}")
    return "; ".join([f"{type(model).__name__} from {name} ({origin.__name__}): took {len(taken)} tensors", *named])


def _modules(names: Iterable[str]) -> str:
    """The modules of weights, up to the number of a layer."""
    return ", ".join(sorted({".".join(name.split(".")[:-1][:4]) for name in names})) or "nothing"
