# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""VL-BERT (https://huggingface.co/papers/1908.08530): one stream of words, regions and an END element."""

from .family import Family

FAMILY = Family(
    name="vl_bert",
    title="VL-BERT",
    processor="VLBertProcessor",
    converter="VL_BERT",
    citation="""\
@inproceedings{su2020vlbert,
  title = {VL-BERT: Pre-training of Generic Visual-Linguistic Representations},
  author = {Su, Weijie and Zhu, Xizhou and Cao, Yue and Li, Bin and Lu, Lewei and Wei, Furu and Dai, Jifeng},
  booktitle = {International Conference on Learning Representations},
  year = {2020},
}""",
)
