# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""One process trains on one GPU.

For one process and several GPUs the Trainer of transformers takes `torch.nn.DataParallel`, which multiplies the batch
by the number of GPUs, and cannot gather the attention that a supervised model reports.
"""

import logging
from typing import Any

logger = logging.getLogger(__name__)


def use_one_gpu(trainer: Any) -> None:
    """
    Lets a Trainer use one of several GPUs, and tells how all are used.
    """
    count = trainer.args.n_gpu
    if count > 1:
        trainer.args._n_gpu = 1
        trainer._train_batch_size = trainer.args.train_batch_size
        logger.warning(
            f"one process trains on one of the {count} GPUs; to use all, start one process for each: "
            f"accelerate launch --multi_gpu --num_processes {count} train.py RECIPE"
        )
