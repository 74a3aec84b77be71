# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The builders by name. A new data set is a new file and one line here."""

from dataset_scripts.coco_captions import CocoCaptions
from dataset_scripts.conceptual_captions import ConceptualCaptions
from dataset_scripts.flickr30k_entities import Flickr30kEntities
from dataset_scripts.local_builder import LocalBuilder
from dataset_scripts.nlvr2 import NLVR2
from dataset_scripts.refcoco import RefCOCO
from dataset_scripts.text_corpus import TextCorpus
from dataset_scripts.vcr import VCR
from dataset_scripts.vgp import VGP
from dataset_scripts.visual_genome_regions import VisualGenomeRegions
from dataset_scripts.vqa_v2 import VQAv2

BUILDERS: dict[str, type[LocalBuilder]] = {
    "coco_captions": CocoCaptions,
    "conceptual_captions": ConceptualCaptions,
    "flickr30k_entities": Flickr30kEntities,
    "nlvr2": NLVR2,
    "refcoco": RefCOCO,
    "text_corpus": TextCorpus,
    "vcr": VCR,
    "vgp": VGP,
    "visual_genome_regions": VisualGenomeRegions,
    "vqa_v2": VQAv2,
}
