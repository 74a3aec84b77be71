# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The builders by name. A new data set is a new file and one line here."""

from dataset_scripts.flickr30k_entities import Flickr30kEntities
from dataset_scripts.local_builder import LocalBuilder
from dataset_scripts.vgp import VGP

BUILDERS: dict[str, type[LocalBuilder]] = {"flickr30k_entities": Flickr30kEntities, "vgp": VGP}
