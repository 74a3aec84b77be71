# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""ViLBERT (https://huggingface.co/papers/1908.02265) and 12-in-1: two streams with co-attention."""

from .family import Family

FAMILY = Family(
    name="vilbert",
    title="ViLBERT",
    processor="ViLBertProcessor",
    converter="VILBERT",
    citation="""\
@inproceedings{lu2019vilbert,
  title = {ViLBERT: Pretraining Task-Agnostic Visiolinguistic Representations for Vision-and-Language Tasks},
  author = {Lu, Jiasen and Batra, Dhruv and Parikh, Devi and Lee, Stefan},
  booktitle = {Advances in Neural Information Processing Systems},
  year = {2019},
}""",
)
