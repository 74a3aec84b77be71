# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Captions and questions of scenes as conversations in the format of LLaVA's instruction data, with their phrases.

The captions are those of the folder's Flickr30K Entities; as in the real data, the questions of test have no answers,
so its conversations have captions only. In `{split}.json` the phrases of captions
have boxes. `{split}_questions.json` have the questions of an image and one caption, in any order; phrases of questions
have boxes too, and a whole answer has those of the objects that decide it. `processor/` is a processor for a small
LLaVA: a word-level tokenizer of all texts, a chat template, and pictures of 96 x 96 pixels in patches of 12.
"""

import json
import random
from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from grounded_attention.utils.named_types import Fields

from .captions import Caption
from .drawn import DrawnImage, Files, Splits
from .questions import Question
from .screens import Screen
from .world import Scene
from .writers import WORDS, pixels_of
from .writers_questions import usual_answer

Turn = tuple[str, str, list[Fields]]  # prompt, answer, and phrases of either: `message` is 0 or 1
CAPTION_PROMPT = "Describe the image."
# pixels
PICTURE = 96
PATCH = 12
SPECIAL = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
EXTRA_SPECIAL = {"image_token": "<image>", "user_token": "<user>", "assistant_token": "<assistant>"}
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<' + message['role'] + '>' }}"
    "{% if message['content'] is string %}{{ ' ' + message['content'] | trim }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<image>' }}{% else %}{{ ' ' + part['text'] | trim }}{% endif %}"
    "{% endfor %}{% endif %}{% if message['role'] == 'assistant' %}{{ '</s>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


def files(seed: int, splits: Splits) -> Files:
    """The files of conversations, and those of the processor."""
    written: Files = {}
    for split, images in splits.items():
        talks = []
        asked = []
        for image in images:
            captions = [(CAPTION_PROMPT, *_described(image, caption)) for caption in image.related_captions]
            questions = [] if split == "test" else image.questions
            turns = [*captions]
            turns += [(question.text, usual_answer(question), []) for question in questions]
            random.Random(f"{seed}/llava/{image.image_id}").shuffle(turns)
            talks.append(_conversation(image.image_id, turns))
            rng = random.Random(f"{seed}/llava questions/{image.image_id}")
            turns = [_asked(question, image) for question in questions]
            turns.append(rng.choice(captions))
            rng.shuffle(turns)
            asked.append(_conversation(image.image_id, turns))
        written[f"llava/{split}.json"] = talks
        written[f"llava/{split}_questions.json"] = asked
    words = [*WORDS, *CAPTION_PROMPT.lower().replace(".", "").split()]
    processor = processor_files(words, PICTURE, PATCH)
    return written | {f"llava/processor/{name}": text for name, text in processor.items()}


def _described(image: DrawnImage, caption: Caption) -> tuple[str, list[Fields]]:
    """A caption, and its phrases with the boxes of whole pixels, as Flickr30K Entities has them."""
    scene = image.scene
    text, spans = caption.written()
    phrases = []
    for mention, start, end in spans:
        if mention.members:
            boxes = [share_of(scene, pixels_of(scene.objects[number], scene)) for number in sorted(mention.members)]
            phrases.append({"message": 1, "start": start, "end": end, "boxes": boxes})
    return text, phrases


def _asked(question: Question, image: DrawnImage) -> Turn:
    """A question and its usual answer, with the boxes of its phrases and those of what decides the answer."""
    answer = usual_answer(question)
    places = []
    for words, objects in question.phrases:
        start = question.text.index(words)
        places.append((0, start, start + len(words), objects))
    places.append((1, 0, len(answer), question.evidence))
    boxes = [share_of(image.scene, box) for box in image.boxes]
    phrases = []
    for side, start, end, objects in places:
        if objects:
            own = [boxes[number] for number in objects]
            phrases.append({"message": side, "start": start, "end": end, "boxes": own})
    return question.text, answer, phrases


def share_of(scene: Scene | Screen, box: Sequence[float], digits: int = 5) -> list[float]:
    """A box in pixels as shares of width and height."""
    sides = (scene.width, scene.height) * 2
    return [round(edge / side, digits) for edge, side in zip(box, sides, strict=True)]


def _conversation(image: str, turns: Iterable[Turn]) -> Fields:
    messages: list[dict[str, str]] = []
    phrases: list[Fields] = []
    for prompt, answer, mentioned in turns:
        mark = "" if messages else "<image>\n"
        messages += [{"from": "human", "value": mark + prompt}, {"from": "gpt", "value": answer}]
        phrases += [{**phrase, "message": len(messages) - 2 + phrase["message"]} for phrase in mentioned]
    return {"id": image, "image": f"{image}.jpg", "conversations": messages, "phrases": phrases}


def processor_files(known: Iterable[str], picture: int, patch: int, word: str = r"\w+|[^\w\s]") -> dict[str, str]:
    """Path and text of the files of a processor: its words, and the sides of pictures and patches in pixels."""
    special = [*SPECIAL.values(), *EXTRA_SPECIAL.values()]
    words = dict.fromkeys([*special, *known])
    vocabulary = {text: index for index, text in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL["unk_token"]))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(word), "removed", invert=True)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    about_tokens = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **SPECIAL,
        "extra_special_tokens": EXTRA_SPECIAL,
        "padding_side": "right",
        "clean_up_tokenization_spaces": False,
    }
    pictures = {
        "image_processor_type": "CLIPImageProcessor",
        "do_resize": True,
        "size": {"height": picture, "width": picture},
        "resample": 2,
        "do_center_crop": False,
        "do_rescale": True,
        "do_normalize": True,
        "image_mean": [0.5] * 3,
        "image_std": [0.25] * 3,
        "do_convert_rgb": True,
    }
    about = {
        "processor_class": "LlavaProcessor",
        "patch_size": patch,
        "vision_feature_select_strategy": "full",
        "num_additional_image_tokens": 0,
        "image_token": EXTRA_SPECIAL["image_token"],
    }
    return {
        "tokenizer.json": tokenizer.to_str(pretty=True) + "\n",
        "tokenizer_config.json": json.dumps(about_tokens, indent=2) + "\n",
        "preprocessor_config.json": json.dumps(pictures, indent=2) + "\n",
        "processor_config.json": json.dumps(about, indent=2) + "\n",
        "chat_template.jinja": CHAT_TEMPLATE,
    }
