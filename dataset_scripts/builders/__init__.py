# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Registry of the builders. A new data set needs one new file and one line here."""

from .coco_captions import CocoCaptions
from .conceptual_captions import ConceptualCaptions
from .flickr30k_entities import Flickr30kEntities
from .gqa import GQA
from .llava_instruct import LlavaInstruct
from .local_builder import LocalBuilder
from .lxmert_pretraining import LXMERTPretraining
from .nlvr2 import NLVR2
from .pope import Pope
from .refcoco import RefCOCO
from .text_corpus import TextCorpus
from .vcr import VCR
from .vgp import VGP
from .visual_genome_regions import VisualGenomeRegions
from .vqa_v2 import VQAv2

BUILDERS: dict[str, type[LocalBuilder]] = {
    "coco_captions": CocoCaptions,
    "conceptual_captions": ConceptualCaptions,
    "flickr30k_entities": Flickr30kEntities,
    "gqa": GQA,
    "llava_instruct": LlavaInstruct,
    "lxmert_pretraining": LXMERTPretraining,
    "nlvr2": NLVR2,
    "pope": Pope,
    "refcoco": RefCOCO,
    "text_corpus": TextCorpus,
    "vcr": VCR,
    "vgp": VGP,
    "visual_genome_regions": VisualGenomeRegions,
    "vqa_v2": VQAv2,
}
