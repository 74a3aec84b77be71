# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Sharded training (FSDP2, `training.fsdp`): what accelerate needs to know, also for processes without a GPU."""

from accelerate import Accelerator
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def prepare_sharding(accelerator: Accelerator, plugin: FullyShardedDataParallelPlugin, model: nn.Module) -> None:
    """
    Makes accelerate shard the weights, before the model is prepared.

    accelerate shards over GPUs only and ignores the settings otherwise; sharding over CPU processes works too. It
    makes a unit of the word embeddings, so no other unit may contain them.

    Args:
        accelerator (`Accelerator`): the accelerator of several processes.
        plugin (`FullyShardedDataParallelPlugin`): the settings of `training.fsdp_config`.
        model (`nn.Module`): the model.
    """
    if accelerator.distributed_type == DistributedType.MULTI_CPU:
        accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = plugin
    if accelerator.state.fsdp_plugin.transformer_cls_names_to_wrap is None:
        accelerator.state.fsdp_plugin.transformer_cls_names_to_wrap = unit_names(model)


def unit_names(model: nn.Module) -> list[str]:
    """The classes of the modules whose weights are gathered together: those that must not be split, without the one
    that contains the word embeddings."""
    units = set(getattr(model, "_no_split_modules", None) or ())
    words = model.get_input_embeddings()  # type: ignore[operator]
    holders = {type(module).__name__ for module in model.modules() if any(each is words for each in module.modules())}
    return sorted(units - holders)


def full_state(model: nn.Module) -> dict[str, Tensor]:
    """The whole weights and buffers of a sharded model, on the CPU; every process must call it.

    accelerate's own state has tensors without storage after a step on the CPU, which safetensors refuses.
    """
    state = {}
    for name, value in model.state_dict().items():
        value = value.full_tensor() if isinstance(value, DTensor) else value
        state[name] = value.detach().to("cpu", copy=True)
    return state
