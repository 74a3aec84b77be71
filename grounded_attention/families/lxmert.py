# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""LXMERT (https://huggingface.co/papers/1908.07490): two streams, then cross layers."""

from .family import Family

FAMILY = Family(
    name="lxmert",
    title="LXMERT",
    processor="LXMERTProcessor",
    # The name of the configuration is another one, so that checkpoints of transformers stay those of transformers.
    reads=("grounded_lxmert",),
    converter="LXMERT",
    citation="""\
@inproceedings{tan2019lxmert,
  title = {LXMERT: Learning Cross-Modality Encoder Representations from Transformers},
  author = {Tan, Hao and Bansal, Mohit},
  booktitle = {Proceedings of the 2019 Conference on Empirical Methods in Natural Language Processing},
  year = {2019},
}""",
)
