"""What options offer without importing its home is what the home knows."""

from grounded_attention.analysis.dependency_parses import SPACY_MODEL
from grounded_attention.analysis.perturbation_curves import STEPS
from grounded_attention.analysis.relevancy import MAPS
from grounded_attention.commands import choices
from grounded_attention.conversion.export_folder import FILES
from grounded_attention.dataset_scripts.builders.coco_captions import IMAGE_ID_FORMATS
from grounded_attention.dataset_scripts.builders.refcoco import SPLITS_BY
from grounded_attention.dataset_scripts.builders.vcr import OPTIONS
from grounded_attention.dataset_scripts.scenes.dataset import MIN_IMAGES
from grounded_attention.dataset_scripts.scenes.shape_regions import SOURCE
from grounded_attention.families import FAMILIES
from grounded_attention.heads.examples import WORDS
from grounded_attention.heads.heads_file import FILE
from grounded_attention.heads.items import DEFAULT_WORD
from grounded_attention.heads.ranking import ABLATED, RANKS
from grounded_attention.heads.statistics import CORRECTIONS, SAME_SPLIT
from grounded_attention.labelling.florence import MODEL_TYPE
from grounded_attention.labelling.grounder import Selection
from grounded_attention.labelling.phrases import SOURCES
from grounded_attention.labelling.zero_shot import PROMPTS
from grounded_attention.lens.forms import FORMS
from grounded_attention.reports.bertviz_export import VIEWS


def test_the_words_of_options_are_those_of_their_home():
    assert (choices.SAME_SPLIT, choices.DEFAULT_WORD) == (SAME_SPLIT, DEFAULT_WORD)
    assert (choices.WORDS, choices.CORRECTIONS) == (WORDS, tuple(CORRECTIONS))
    assert choices.HEAD_RANKS == RANKS
    assert (choices.HEADS_ABLATED, choices.HEADS_FILE, choices.SCENES) == (ABLATED, FILE, SOURCE)
    assert choices.LOOK_FORMS == FORMS
    assert (choices.MAPS, choices.STEPS, choices.VIEWS) == (MAPS, STEPS, VIEWS)
    assert (choices.PHRASE_SOURCES, choices.PROMPTS, choices.FLORENCE) == (SOURCES, PROMPTS, MODEL_TYPE)
    assert (choices.SPACY_MODEL, choices.MIN_IMAGES) == (SPACY_MODEL, MIN_IMAGES)
    assert Selection(choices.BOXES_PER_PHRASE, choices.THRESHOLD, choices.NMS) == Selection()
    assert choices.EXPORT_FORMATS == tuple(FILES)
    assert choices.COCO_IMAGE_IDS == tuple(sorted(IMAGE_ID_FORMATS))
    assert choices.REFCOCO_SETS == tuple(sorted(SPLITS_BY))
    assert choices.VCR_IMAGE_IDS == OPTIONS["image_id_format"]
    assert choices.CONVERTERS == tuple(
        sorted(["fast_rcnn", *(name for name, family in FAMILIES.items() if family.converter)])
    )
