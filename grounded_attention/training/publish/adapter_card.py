# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The card of an adapter from a training loop of one's own, in the place of PEFT's empty one."""

from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData
from transformers.utils import ADAPTER_CONFIG_NAME, CONFIG_NAME, PROCESSOR_NAME

from grounded_attention.families import FAMILIES
from grounded_attention.heads.card import HEADS_FIGURE, heads_before, put_heads_in_card
from grounded_attention.heads.heads_file import FILE
from grounded_attention.tasks import TASKS
from grounded_attention.training.loop.checkpoint import CARD
from grounded_attention.training.recipes.adapters import is_local, read_model_config
from grounded_attention.utils.bounded_files import read_json, read_text
from grounded_attention.utils.project import MODEL_CARDS
from grounded_attention.utils.whole_files import whole_file

from .card_snippets import (
    LIMITS,
    OWN_PROCESSOR,
    VLM_LIMITS,
    VLM_TEMPLATE,
    base_lines,
    forward_lines,
    place_line,
    seen_lines,
)

EMPTY = "# Model Card for Model ID"  # the title of the card that PEFT writes


def complete_adapter_card(folder: Path) -> bool:
    """Writes the card of an adapter that has none, or PEFT's empty one; returns whether it did."""
    card = folder / CARD
    if not (folder / ADAPTER_CONFIG_NAME).is_file() or (card.is_file() and EMPTY not in read_text(card)):
        return False
    config = read_json(folder / ADAPTER_CONFIG_NAME)
    base = str(config["base_model_name_or_path"] or "")
    model_class = (config.get("auto_mapping") or {}).get("base_model_class", "")
    of_regions = next((head for each in FAMILIES.values() if (head := each.head_of(model_class))), None)
    named = None if is_local(base) else base
    lines = base_lines(base)
    kind = None if of_regions else "image-text-to-text"
    data = ModelCardData(
        library_name="peft", base_model=named, tags=["grounded-attention", "visual-grounding"], pipeline_tag=kind
    )
    if of_regions:
        shape = read_model_config(str(folder))
        if not (folder / CONFIG_NAME).is_file():
            shape.architectures = [model_class]
            shape.save_pretrained(folder)
        # The variables of the snippet for a model of regions.
        texts = {"caption": "a dog runs after a red ball", "phrase": "a red ball"}
        example = next(task.example for task in TASKS.values() if task.head == of_regions)
        pixels = getattr(shape, "vision_config", None) is not None
        inputs = seen_lines(pixels, shape.region_feature_size, None)
        use_regions = {**texts, "seen": inputs, "forward": forward_lines(example, **texts)}
        use = {**use_regions, "model_class": model_class, "limits": LIMITS}
    else:
        use = {"prompt": '"What is in the image?"', "heads_before": heads_before(base), "limits": VLM_LIMITS}
    content = ModelCard.from_template(
        data,
        template_path=str(MODEL_CARDS / ("trained.md" if of_regions else VLM_TEMPLATE)),
        title=f"{folder.resolve().name}: adapter of {named or lines['base_named']}",
        summary=f"An adapter of {lines['base_named']}.",
        about=[("kind", f"{config['peft_type']}, r = {config['r']}" if "r" in config else str(config["peft_type"]))],
        **lines,
        processor=OWN_PROCESSOR if (folder / PROCESSOR_NAME).is_file() else lines["base_model"],
        place=place_line(str(folder)),
        training="Trained in a loop of its author's own, with grounded-attention.",
        licence="Weights: not stated; ask the publisher.",
        citations=[],
        **use,
    )
    with whole_file(card) as draft:
        content.save(draft)
    if (folder / FILE).is_file():
        put_heads_in_card(read_json(folder / FILE), folder, folder / HEADS_FIGURE)
    return True
