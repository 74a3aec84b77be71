# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Speed of a pre-training step of LXMERT: transformers' model, ours padded, ours unpadded, ours with supervision.

All ways have the same weights and train on the same examples, 8 to 22 tokens and 10 to 100 regions, uniform; masked
words, class and feature of regions, and whether the caption belongs. transformers has only eager attention. A round
runs all ways in turn; times are CPU seconds of the process, or seconds on a GPU. Before the measurement the losses of
all ways without supervision are compared, without dropout.

examples:
  python -m benchmarks.two_streams
  python -m benchmarks.two_streams --layers 9 5 5 --batch 32 --examples 256 --device cuda --dtype bfloat16
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from grounded_attention.commands.command_line import run

import torch
import transformers

from benchmarks.beside_transformers import Batch, Workload, build_parser, make_batches, report
from grounded_attention.modeling import LXMERTConfig, LXMERTForPreTraining


class LXMERTWorkload(Workload):
    """LXMERT with its losses of words, of class and feature of regions, and of the relationship."""

    def __init__(self, options: argparse.Namespace):
        sizes: dict[str, Any] = {}
        if options.quick:
            sizes = {"hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 100}
            sizes |= {"visual_feat_dim": 16, "num_object_labels": 12, "num_attr_labels": 5}
        sizes |= dict(zip(("l_layers", "r_layers", "x_layers"), options.layers, strict=True))
        sizes |= {"task_qa": False, "visual_attr_loss": False}
        torch.manual_seed(0)
        config = LXMERTConfig(**sizes, visual_loss="released", attn_implementation="sdpa")
        theirs = transformers.LxmertConfig(**sizes, visual_loss_normalizer=1 / 0.15)
        models = LXMERTForPreTraining(config), transformers.LxmertForPreTraining(theirs)
        batches = make_batches(options, config.vocab_size, config.visual_feat_dim, config.num_object_labels)
        super().__init__(options, *models, batches)

    def their_loss(self, batch: Batch) -> torch.Tensor:
        mask = batch["region_attention_mask"]
        weights = batch["predicted_regions"].float()
        objects = {"obj": (batch["region_labels"], weights), "feat": (batch["region_features"], weights)}
        # Its mean runs over padded regions too.
        self.theirs.visual_loss_normalizer = float(mask.numel() / mask.sum()) / 0.15
        return self.theirs(
            batch["input_ids"],
            attention_mask=batch["attention_mask"],
            visual_feats=batch["region_features"],
            visual_pos=batch["region_boxes"],
            visual_attention_mask=mask,
            labels=batch["labels"],
            obj_labels=objects,
            matched_label=batch["relationship_labels"],
        ).loss


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns 0."""
    parser = build_parser("python -m benchmarks.two_streams", __doc__)
    layers = {"metavar": "N", "help": "text, region and cross layers (3 2 2)"}
    parser.add_argument("--layers", type=int, nargs=3, default=[3, 2, 2], **layers)
    return run(parser, lambda options: report(LXMERTWorkload(options)), arguments)


if __name__ == "__main__":
    sys.exit(main())
