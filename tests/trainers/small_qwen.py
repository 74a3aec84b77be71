"""A small Qwen2.5-VL with random weights and the numbers of the original's tokens, and rows with drawn shapes."""

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedTokenizerFast
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
FIRST = 151643  # the number of the first special token: ms-swift knows that of the image by heart
TEMPLATE = (
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
COLOURS = ("red", "green", "blue", "black")


def make_tokenizer():
    """One token for each byte; the numbers between them and the special tokens are never used."""
    vocabulary = {}
    for letter in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[letter] = len(vocabulary)
    while len(vocabulary) < FIRST:
        vocabulary[f"unused{len(vocabulary)}"] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=4096,
        extra_special_tokens={"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"},
    )  # fmt: skip
    assert made.convert_tokens_to_ids("<|image_pad|>") == 151655
    return made


def save_model(folder):
    """Writes model and processor, which Auto classes load."""
    tokenizer = make_tokenizer()
    sizes = {"min_pixels": 28 * 28, "max_pixels": 28 * 28 * 64}
    images = Qwen2VLImageProcessor(patch_size=14, merge_size=2, temporal_patch_size=2, **sizes)
    videos = Qwen2VLVideoProcessor(patch_size=14, merge_size=2, temporal_patch_size=2)
    Qwen2_5_VLProcessor(images, tokenizer, videos, chat_template=TEMPLATE).save_pretrained(folder)
    text = {
        "vocab_size": FIRST + len(SPECIAL), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0},
        "bos_token_id": FIRST, "eos_token_id": FIRST + 2, "pad_token_id": FIRST,
    }  # fmt: skip
    vision = {
        "depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "out_hidden_size": 32,
        "patch_size": 14, "fullatt_block_indexes": [0], "window_size": 56,
    }  # fmt: skip
    ids = {"image_token_id": 151655, "video_token_id": 151656, "vision_start_token_id": 151652}
    ids["vision_end_token_id"] = 151653
    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen2_5_vl", text_config=text, vision_config=vision, **ids)
    AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
    return folder


def draw(path, seed):
    """A picture of 140 x 112 pixels with two rectangles; returns their names and boxes in pixels."""
    random = np.random.default_rng(seed)
    picture = Image.new("RGB", (140, 112), "white")
    brush = ImageDraw.Draw(picture)
    things = []
    for side, colour in enumerate(random.choice(COLOURS, 2, replace=False)):
        left = int(side * 70 + random.integers(4, 20))
        top = int(random.integers(5, 50))
        box = [left, top, left + 40, top + 45]
        brush.rectangle(box, fill=str(colour))
        things.append((f"the {colour} box", box))
    picture.save(path)
    return things


def write_rows(folder, count=8):
    """Rows for both trainers: `objects` of ms-swift, and ShareGPT with the same boxes as text in the answers."""
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    swift, factory = [], []
    for number in range(count):
        path = folder / f"{number}.png"
        (first, one), (second, two) = draw(path, number)
        question = "<image>Where are <ref-object> and <ref-object>?"
        answer = "Here: <ref-object><bbox>, and <ref-object><bbox>."
        objects = {"ref": [first, second, first, second], "bbox": [one, two]}
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        swift.append({"messages": messages, "images": [str(path)], "objects": objects})
        marks = []
        for name, box in ((first, one), (second, two)):
            x1, y1, x2, y2 = (round(1000 * side / (140, 112)[place % 2]) for place, side in enumerate(box))
            inside = f"<|object_ref_start|>{name}<|object_ref_end|><|box_start|>({x1},{y1}),({x2},{y2})<|box_end|>"
            marks.append(inside)
        turns = [{"from": "human", "value": f"<image>Where are {first} and {second}?"}]
        turns.append({"from": "gpt", "value": f"Here: {marks[0]}, and {marks[1]}."})
        factory.append({"conversations": turns, "images": [str(path)]})
    (folder / "swift.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in swift))
    (folder / "factory.json").write_text(json.dumps(factory))
    about = {"file_name": "factory.json", "formatting": "sharegpt"}
    about["columns"] = {"messages": "conversations", "images": "images"}
    (folder / "dataset_info.json").write_text(json.dumps({"shapes": about}))
    return folder
