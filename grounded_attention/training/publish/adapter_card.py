# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The card of a vision-language adapter from a training loop of one's own, in the place of PEFT's empty one."""

from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData
from transformers.utils import ADAPTER_CONFIG_NAME

from grounded_attention.heads.card import HEADS_FIGURE, heads_before, put_heads_in_card
from grounded_attention.heads.heads_file import FILE
from grounded_attention.supervision.method import SupervisionMethod
from grounded_attention.training.loop.checkpoint import CARD
from grounded_attention.utils.bounded_files import read_json, read_text
from grounded_attention.utils.project import MODEL_CARDS
from grounded_attention.utils.whole_files import whole_file

from .card_snippets import VLM_LIMITS, VLM_TEMPLATE, place_line

EMPTY = "# Model Card for Model ID"  # the title of the card that PEFT writes


def complete_adapter_card(folder: Path, method: SupervisionMethod | None = None, weight: float = 1.0) -> bool:
    """Writes the card of an adapter that has none, or PEFT's empty one; returns whether it did.

    It names the base model, the supervision where it is known, and the heads of `heads.json` before and after.
    """
    card = folder / CARD
    if not (folder / ADAPTER_CONFIG_NAME).is_file() or (card.is_file() and EMPTY not in read_text(card)):
        return False
    config = read_json(folder / ADAPTER_CONFIG_NAME)
    base = str(config["base_model_name_or_path"])
    supervised = method is not None and method.name != "none"
    tags = ["grounded-attention", "visual-grounding", *(["attention-supervision"] if supervised else [])]
    named = None if Path(base).exists() else base
    data = ModelCardData(library_name="peft", base_model=named, tags=tags, pipeline_tag="image-text-to-text")
    how = f"attention was supervised with `{method.name}`, weight {weight:g}" if supervised and method else ""
    content = ModelCard.from_template(
        data,
        template_path=str(MODEL_CARDS / VLM_TEMPLATE),
        title=f"{folder.resolve().name}: adapter of {base}",
        summary=f"An adapter of `{base}`" + (f"; {how}." if how else "."),
        about=[("kind", f"{config['peft_type']}, r = {config['r']}" if "r" in config else str(config["peft_type"]))],
        base_model=base,
        prompt='"What is in the image?"',
        place=place_line(str(folder)),
        training="Trained in a loop of its author's own, with grounded-attention.",
        heads_before=heads_before(base),
        limits=VLM_LIMITS,
        licence="Weights: not stated; ask the publisher.",
        citations=[method.citation] if supervised and method else [],
    )
    with whole_file(card) as draft:
        content.save(draft)
    if (folder / FILE).is_file():
        put_heads_in_card(read_json(folder / FILE), folder, folder / HEADS_FIGURE)
    return True
