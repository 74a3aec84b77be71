# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Sharded training (FSDP2, `training.fsdp`): what accelerate needs to know, also for processes without a GPU."""

from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch import nn
from torch.distributed.fsdp import FSDPModule


def prepare_sharding(accelerator: Accelerator, plugin: FullyShardedDataParallelPlugin, model: nn.Module) -> None:
    """
    Makes accelerate shard the weights, before the model is prepared.

    accelerate shards over GPUs only and ignores the settings otherwise; sharding over CPU processes works too. It
    makes a unit of the word embeddings, so no other unit may contain them.
    """
    if accelerator.distributed_type == DistributedType.MULTI_CPU:
        # Every new `AcceleratorState` copies the type from `PartialState`.
        PartialState().distributed_type = accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = plugin
    if accelerator.state.fsdp_plugin.transformer_cls_names_to_wrap is None:
        accelerator.state.fsdp_plugin.transformer_cls_names_to_wrap = unit_names(model)


def unit_names(model: nn.Module) -> list[str]:
    """The classes of the modules whose weights are gathered together: those in the model that must not be split,
    without the one that contains the word embeddings."""
    units = set(getattr(model, "_no_split_modules", None) or ()) & {type(each).__name__ for each in model.modules()}
    words = model.get_input_embeddings()  # type: ignore[operator]
    holders = {type(module).__name__ for module in model.modules() if any(each is words for each in module.modules())}
    return sorted(units - holders)


def name_plainly(model: nn.Module) -> None:
    """
    Gives the class of a sharded model the names of the class that it extends; any other model stays as it is.

    PyTorch makes a class of its own for each sharded class. `save_pretrained` copies the file of the class and writes
    its name into the configuration, and cards show it: without this, PyTorch's file and name instead of the model's.
    """
    sharded = type(model)
    if issubclass(sharded, FSDPModule):
        plain = next(each for each in sharded.__mro__ if not issubclass(each, FSDPModule))
        sharded.__module__, sharded.__name__ = plain.__module__, plain.__name__
