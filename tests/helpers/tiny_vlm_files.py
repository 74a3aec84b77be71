"""Tiny vision-language models with random weights as folders, which transformers' Auto classes load."""

from transformers import LlavaProcessor, Qwen2_5_VLProcessor

from tests.helpers.tiny_vlm_models import make_model
from tests.helpers.tiny_vlm_processors import make_processor


def save_llava(folder):
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


def save_qwen(folder):
    """Writes Qwen2.5-VL; to load its processor without torchvision, leave out the part for videos."""
    parts = make_processor("qwen2_5_vl", byte_pairs=True)
    make_model("qwen2_5_vl", parts.tokenizer).save_pretrained(folder)
    type(parts).__name__ = Qwen2_5_VLProcessor.__name__
    parts.save_pretrained(folder)
    return folder
