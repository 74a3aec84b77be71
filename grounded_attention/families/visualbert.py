# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""VisualBERT (https://huggingface.co/papers/1908.03557): one stream of words and regions."""

from .family import Family

FAMILY = Family(
    name="visualbert",
    title="VisualBERT",
    processor="VisualBERTProcessor",
    reads=("visual_bert",),
    converter="VISUALBERT",
    citation="""\
@inproceedings{li2020visualbert,
  title = {What Does BERT with Vision Look At?},
  author = {Li, Liunian Harold and Yatskar, Mark and Yin, Da and Hsieh, Cho-Jui and Chang, Kai-Wei},
  booktitle = {Proceedings of the 58th Annual Meeting of the Association for Computational Linguistics},
  year = {2020},
}""",
)
