# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Model families by name. A new family is one new entry of `_FAMILIES`."""

from .family import HEADS, Family
from .vlm import VLM

_FAMILIES = (
    # VL-BERT (https://huggingface.co/papers/1908.08530): one stream of words, regions and an END element.
    Family(
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
    ),
    # VisualBERT (https://huggingface.co/papers/1908.03557): one stream of words and regions.
    Family(
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
    ),
    # ViLBERT (https://huggingface.co/papers/1908.02265) and 12-in-1: two streams with co-attention.
    Family(
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
    ),
    # LXMERT (https://huggingface.co/papers/1908.07490): two streams, then cross layers.
    Family(
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
    ),
)
FAMILIES: dict[str, Family] = {family.name: family for family in _FAMILIES}
# The family of a recipe without `model.source` and `model.family`.
DEFAULT_FAMILY = "vl_bert"


def find_family(model_type: str) -> str | None:
    """Finds the family whose classes load checkpoints of a `model_type`."""
    for name, family in FAMILIES.items():
        if model_type == name or model_type in family.reads:
            return name
    return None


__all__ = ["DEFAULT_FAMILY", "FAMILIES", "HEADS", "VLM", "Family", "find_family"]
