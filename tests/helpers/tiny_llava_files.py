"""A tiny LLaVA with random weights as a folder, which transformers' Auto classes load."""

from pathlib import Path

from transformers import LlavaProcessor

from tests.helpers.tiny_vlm_models import make_model
from tests.helpers.tiny_vlm_processors import make_processor


def save_llava(folder: Path) -> Path:
    """Writes model and processor; the tokenizer reads any text."""
    parts = make_processor("llava", byte_pairs=True)
    processor = LlavaProcessor(
        parts.image_processor,
        parts.tokenizer,
        patch_size=parts.patch_size,
        num_additional_image_tokens=parts.num_additional_image_tokens,
        vision_feature_select_strategy=parts.vision_feature_select_strategy,
        chat_template=parts.chat_template,
    )
    make_model("llava", parts.tokenizer).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
