# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Registry of the builders. A new data set needs one new file and one line here."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from grounded_attention.utils.lazy_registry import LazyRegistry

if TYPE_CHECKING:
    from .local_builder import LocalBuilder

# Name -> file and class, imported when it is first used.
BUILDERS: "Mapping[str, type[LocalBuilder]]" = LazyRegistry(
    __name__,
    {
        "coco_captions": "coco_captions:CocoCaptions",
        "conceptual_captions": "conceptual_captions:ConceptualCaptions",
        "flickr30k_entities": "flickr30k_entities:Flickr30kEntities",
        "gqa": "gqa:GQA",
        "llava_instruct": "llava_instruct:LlavaInstruct",
        "lxmert_pretraining": "lxmert_pretraining:LXMERTPretraining",
        "nlvr2": "nlvr2:NLVR2",
        "pope": "pope:Pope",
        "refcoco": "refcoco:RefCOCO",
        "text_corpus": "text_corpus:TextCorpus",
        "vcr": "vcr:VCR",
        "vgp": "vgp:VGP",
        "visual_genome_regions": "visual_genome_regions:VisualGenomeRegions",
        "vqa_v2": "vqa_v2:VQAv2",
    },
)
