# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Captions and questions of scenes as conversations in the format of LLaVA's instruction data, with their phrases.

The captions are those of the folder's Flickr30K Entities, which are read again; as in the real data, the questions of
test have no answers, so its conversations have captions only. In `{split}.json` the phrases of captions
have boxes. `{split}_questions.json` have the questions of an image and one caption, in any order; phrases of questions
have boxes too, and a whole answer has those of the objects that decide it. `processor/` is a processor for a small
LLaVA: a word-level tokenizer of all texts, a chat template, and pictures of 96 x 96 pixels in patches of 12.
"""

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from grounded_attention.dataset_scripts.builders.flickr30k_entities import EntitiesFiles
from grounded_attention.dataset_scripts.builders.flickr30k_parsing import parse_annotation
from grounded_attention.utils.bounded_files import read_text

from .annotators import CAPTIONS_PER_SCENE
from .drawn import DrawnImage
from .questions import Question
from .writers_vqa import usual_answer

FOLDER = "llava"
Turn = tuple[str, str, list[dict[str, Any]]]  # prompt, answer, and phrases of either: `message` is 0 or 1
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


def files(root: Path, seed: int, splits: Mapping[str, Sequence[DrawnImage]]) -> dict[str, str | bytes]:
    """Returns path and text of all files."""
    written: dict[str, str | bytes] = {}
    for split, images in splits.items():
        captions = dict(_captions(root, split))
        talks = []
        asked = []
        for image in images:
            questions = [] if split == "test" else image.questions
            turns = [*captions[image.image_id], *((each.text, usual_answer(each), []) for each in questions)]
            random.Random(f"{seed}/llava/{image.image_id}").shuffle(turns)
            talks.append(_conversation(image.image_id, turns))
            rng = random.Random(f"{seed}/llava questions/{image.image_id}")
            turns = [_asked(question, image) for question in questions]
            turns.append(rng.choice(captions[image.image_id]))
            rng.shuffle(turns)
            asked.append(_conversation(image.image_id, turns))
        written[f"{FOLDER}/{split}.json"] = json.dumps(talks) + "\n"
        written[f"{FOLDER}/{split}_questions.json"] = json.dumps(asked) + "\n"
    listed = [word for word in read_text(root / "vocab.txt").split() if not word.startswith(("[", "##"))]
    words = [*listed, *CAPTION_PROMPT.lower().replace(".", "").split()]
    processor = processor_files(words, PICTURE, PATCH)
    return written | {f"{FOLDER}/processor/{name}": text for name, text in processor.items()}


def _asked(question: Question, image: DrawnImage) -> Turn:
    """A question and its usual answer, with the boxes of its phrases and those of what decides the answer."""
    answer = usual_answer(question)
    places = []
    for words, objects in question.phrases:
        start = question.text.index(words)
        places.append((0, start, start + len(words), objects))
    places.append((1, 0, len(answer), question.evidence))
    sides = (image.record.scene.width, image.record.scene.height) * 2
    boxes = [[round(edge / side, 5) for edge, side in zip(box, sides, strict=True)] for box in image.boxes]
    phrases = [
        {"message": side, "start": start, "end": end, "boxes": [boxes[each] for each in objects]}
        for side, start, end, objects in places
        if objects
    ]
    return question.text, answer, phrases


def _captions(root: Path, split: str) -> Iterator[tuple[str, list[Turn]]]:
    """Yields the images of a split and their captions, with the boxes of their phrases."""
    entities = EntitiesFiles.locate(root)
    for image in entities.image_ids(split):
        _, _, boxes = parse_annotation(entities.annotation(image))
        captions = entities.captions(split, image, CAPTIONS_PER_SCENE)
        related = [each for each in captions if each["related"]]
        yield image, [(CAPTION_PROMPT, each["text"], _phrases(each["phrases"], boxes)) for each in related]


def _phrases(phrases: list[dict[str, Any]], boxes: Mapping[str, list[list[float]]]) -> list[dict[str, Any]]:
    return [
        {
            "message": 1,
            "start": each["start"],
            "end": each["end"],
            "boxes": [[round(x, 5) for x in box] for box in gold],
        }
        for each in phrases
        if (gold := boxes.get(each["entity"]))
    ]


def _conversation(image: str, turns: Iterable[Turn]) -> dict[str, Any]:
    messages: list[dict[str, str]] = []
    phrases: list[dict[str, Any]] = []
    for prompt, answer, mentioned in turns:
        mark = "" if messages else "<image>\n"
        messages += [{"from": "human", "value": mark + prompt}, {"from": "gpt", "value": answer}]
        phrases += [{**phrase, "message": len(messages) - 2 + phrase["message"]} for phrase in mentioned]
    return {"id": image, "image": f"{image}.jpg", "conversations": messages, "phrases": phrases}


def processor_files(known: Iterable[str], picture: int, patch: int, word: str = r"\w+|[^\w\s]") -> dict[str, str]:
    """Path and text of the files of a processor: its words, and the sides of pictures and patches in pixels."""
    special = [*SPECIAL.values(), *EXTRA_SPECIAL.values()]
    words = list(dict.fromkeys([*special, *known]))
    tokenizer = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=SPECIAL["unk_token"])
    )
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
