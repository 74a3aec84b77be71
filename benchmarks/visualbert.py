# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Speed of a pre-training step of VisualBERT: transformers' model, ours padded, ours unpadded, ours with supervision.

All ways have the same weights and train on the same examples, 8 to 22 tokens and 10 to 100 regions, uniform; masked
words, and whether the caption belongs. transformers has only eager attention. A round runs all ways in turn; times are
CPU seconds of the process, or seconds on a GPU. Before the measurement the losses of all ways without supervision are
compared, without dropout.

examples:
  python -m benchmarks.visualbert
  python -m benchmarks.visualbert --layers 12 --batch 32 --examples 256 --device cuda --dtype bfloat16
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from grounded_attention.commands.command_line import run

import torch
import transformers

from benchmarks.beside_transformers import Batch, Workload, build_parser, make_batches, report
from grounded_attention.modeling import VisualBERTConfig, VisualBERTForPreTraining


class VisualBERTWorkload(Workload):
    """VisualBERT with its losses of words and of the relationship."""

    not_inputs = (*Workload.not_inputs, "region_labels", "predicted_regions")

    def __init__(self, options: argparse.Namespace):
        sizes: dict[str, Any] = {"num_hidden_layers": options.layers}
        if options.quick:
            sizes |= {"hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 100}
            sizes |= {"visual_embedding_dim": 16}
        torch.manual_seed(0)
        config = VisualBERTConfig(**sizes, attn_implementation="sdpa")
        theirs = transformers.VisualBertConfig(**{"visual_embedding_dim": 2048, **sizes})
        models = VisualBERTForPreTraining(config), transformers.VisualBertForPreTraining(theirs)
        # VisualBERT predicts nothing of regions: their classes are not read.
        super().__init__(options, *models, make_batches(options, config.vocab_size, config.visual_embedding_dim, 2))

    def their_loss(self, batch: Batch) -> torch.Tensor:
        regions = batch["region_attention_mask"]
        return self.theirs(
            batch["input_ids"],
            attention_mask=batch["attention_mask"],
            visual_embeds=batch["region_features"],
            visual_attention_mask=regions,
            visual_token_type_ids=torch.zeros_like(regions),
            labels=torch.nn.functional.pad(batch["labels"], (0, regions.shape[1]), value=-100),
            sentence_image_labels=batch["relationship_labels"],
        ).loss


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns 0."""
    parser = build_parser("python -m benchmarks.visualbert", __doc__)
    parser.add_argument("--layers", type=int, default=4, metavar="N", help="layers (default: %(default)s)")
    return run(parser, lambda options: report(VisualBERTWorkload(options)), arguments)


if __name__ == "__main__":
    sys.exit(main())
