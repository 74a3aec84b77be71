# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Questions and statements in the formats of VQA v2, NLVR2, GQA, LXMERT's pre-training data and LLaVA.

VQA: train and val have answers; the ids of questions start at 1000 times the image's id, as in the real data.

GQA: the balanced questions have files of their own; all training questions are in ten files. As in the real data,
testdev has answers and test has none; here each has every second image of the test split. Graphs of the scenes have
the boxes of objects, as of train and val in the real data; reasoning programs and full answers are left out.

LXMERT: the sentences are those of the folder's COCO, VQA and GQA files; as in the real data, no image of test is in
them. The real files divide their images among COCO's parts and Visual Genome. Here a tenth of the training images is
in each of `mscoco_nominival.json` and `vgnococo.json`, whose captions have the source `vg`.

LLaVA: conversations with the phrases of captions and questions. The captions are those of the folder's Flickr30K
Entities; as in the real data, the questions of test have no answers, so its conversations have captions only. In
`{split}.json` the phrases of captions have boxes. `{split}_questions.json` have the questions of an image and one
caption, in any order; phrases of questions have boxes too, and a whole answer has those of the objects that decide it.
`processor/` is a processor for a small LLaVA: a word-level tokenizer of all texts, a chat template, and pictures of
96 x 96 pixels in patches of 12.
"""

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from grounded_attention.dataset_scripts.scenes import compositional_questions as composition
from grounded_attention.utils.boxes import in_shares
from grounded_attention.utils.named_types import Fields

from .captions import Caption
from .questions import Question
from .records import DrawnImage, Files, Splits
from .screens import Screen
from .statements import Statement
from .world import Scene
from .writers import WORDS, pixels_of, related_texts

# VQA v2
YEARS = {"train": "train2014", "val": "val2014", "test": "test2015"}
VQA_QUESTIONS_PER_IMAGE = 1000


def usual_answer(question: Question) -> str:
    """Returns the answer that most humans gave."""
    return Counter(question.answers).most_common(1)[0][0]


def vqa_files(splits: Splits) -> Files:
    """The files of questions and of annotations."""
    written: Files = {}
    for split, images in splits.items():
        questions = []
        annotations = []
        for image in images:
            for number, question in enumerate(image.questions, VQA_QUESTIONS_PER_IMAGE * int(image.image_id)):
                about = {"image_id": int(image.image_id)}
                questions.append({**about, "question": question.text, "question_id": number})
                annotations.append({"question_id": number, **about, **_answers(question)})
        name = f"vqa/v2_OpenEnded_mscoco_{YEARS[split]}_questions.json"
        written[name] = {"task_type": "Open-Ended", "data_type": "scenes", "questions": questions}
        if split != "test":
            name = f"vqa/v2_mscoco_{YEARS[split]}_annotations.json"
            written[name] = {"data_type": "scenes", "annotations": annotations}
    return written


def _answers(question: Question) -> Fields:
    answers = []
    for number, answer in enumerate(question.answers, start=1):
        answers.append({"answer": answer, "answer_confidence": "yes", "answer_id": number})
    return {
        "question_type": question.question_type,
        "answer_type": question.answer_type,
        "multiple_choice_answer": usual_answer(question),
        "answers": answers,
    }


# NLVR2
NLVR2_NAMES = {"train": "train", "val": "dev", "test": "test1"}


def nlvr2_files(statements: Mapping[str, Iterable[Statement]]) -> Files:
    """The files of the splits; an identifier is `<split>-<set>-<pair>-<sentence>`, a set a statement."""
    written: Files = {}
    for split, listed in statements.items():
        name = NLVR2_NAMES[split]
        lines = []
        for number, statement in enumerate(listed):
            for place, ((left, right), label) in enumerate(statement.pairs):
                lines.append(
                    {
                        "sentence": statement.text,
                        "left_url": f"flickr30k-images/{left}.jpg",
                        "right_url": f"flickr30k-images/{right}.jpg",
                        "label": str(label),
                        "identifier": f"{name}-{number}-{place}-0",
                    }
                )
        written[f"nlvr2/{name}.json"] = "".join(f"{json.dumps(line)}\n" for line in lines)
    return written


# GQA
TRAIN_PARTS = 10
GQA_QUESTIONS_PER_IMAGE = 100


def gqa_files(splits: Splits) -> Files:
    """The files of questions, graphs and choices; a split without images has none."""
    images = {"train": splits["train"], "val": splits["val"]}
    images |= {"testdev": splits["test"][::2], "test": splits["test"][1::2]}
    written: Files = {}
    for split, listed in images.items():
        if not listed:
            continue
        records = _gqa_records(listed, with_answers=split != "test")
        balanced = {question_id: record for question_id, record in records.items() if record["isBalanced"]}
        written[f"gqa/{split}_balanced_questions.json"] = balanced
        if split == "train":
            numbered = list(records.items())
            for part in range(TRAIN_PARTS):
                name = f"gqa/train_all_questions/train_all_questions_{part}.json"
                written[name] = dict(numbered[part::TRAIN_PARTS])
        else:
            written[f"gqa/{split}_all_questions.json"] = records
        if split in ("train", "val"):
            written[f"gqa/{split}_sceneGraphs.json"] = {image.image_id: _graph(image) for image in listed}
        if split in ("val", "testdev"):
            choices = {}
            for image in listed:
                for question_id, question, _ in _identified(image):
                    choices[question_id] = {"valid": list(question.valid), "plausible": list(question.plausible)}
            written[f"gqa/{split}_choices.json"] = choices
    return written


def _identified(image: DrawnImage) -> Iterator[tuple[str, composition.Question, bool]]:
    """Yields id, question, and whether it is balanced; ids have leading zeros, as in the real data."""
    for place, question in enumerate((*image.composed, *image.entailed)):
        yield f"{GQA_QUESTIONS_PER_IMAGE * int(image.image_id) + place:09}", question, place < len(image.composed)


def _gqa_records(images: Iterable[DrawnImage], with_answers: bool) -> dict[str, Fields]:
    """Returns question id -> record."""
    records = {}
    for image in images:
        ids = {question.text: question_id for question_id, question, _ in _identified(image)}
        for question_id, question, balanced in _identified(image):
            record = {"question": question.text, "imageId": image.image_id, "isBalanced": balanced}
            if with_answers:
                record |= _answered(question_id, question, ids)
            records[question_id] = record
    return records


def _answered(question_id: str, question: composition.Question, ids: Mapping[str, str]) -> Fields:
    structural, semantic, detailed = question.types
    # Words of a question that mean an object: the first and the end, as GQA counts them.
    text = question.text.rstrip("?").replace(",", "")
    marks = {}
    for phrase, number in question.meant:
        before, _, _ = f"{text} ".partition(f"{phrase} ")
        first = len(before.split())
        marks[f"{first}:{first + len(phrase.split())}"] = str(number)
    local_group = f"{detailed}-{question.group}" if question.group else None
    entailed = [ids[other.text] for other in question.entailed]
    equivalent = [ids[other.text] for other in question.equivalent]
    return {
        "answer": question.answer,
        "types": {"structural": structural, "semantic": semantic, "detailed": detailed},
        "groups": {"global": question.group, "local": local_group},
        # As in the real data, a question entails itself.
        "entailed": [question_id, *entailed],
        "equivalent": [question_id, *equivalent],
        "annotations": {"question": marks, "answer": {}, "fullAnswer": {}},
    }


def _graph(image: DrawnImage) -> Fields:
    """The size of an image, and its objects by number."""
    objects = {}
    for number, (x1, y1, x2, y2) in enumerate(image.boxes):
        objects[str(number)] = {"x": x1, "y": y1, "w": x2 - x1, "h": y2 - y1}
    return {"width": image.scene.width, "height": image.scene.height, "objects": objects}


# LXMERT
# The public code's score of an answer that a human gave; at most 1.
SCORE_OF_ONE = 0.3


def lxmert_files(train: Sequence[DrawnImage], val: Sequence[DrawnImage]) -> Files:
    """The lists of images with their sentences."""
    tenth = max(1, len(train) // 10)
    own = [_lxmert_image(image) for image in train[:-tenth]]
    return {
        "lxmert/mscoco_train.json": own[:-tenth],
        "lxmert/mscoco_nominival.json": own[-tenth:],
        "lxmert/vgnococo.json": [_lxmert_image(image, "vg") for image in train[-tenth:]],
        "lxmert/mscoco_minival.json": [_lxmert_image(image) for image in val],
    }


def _lxmert_image(image: DrawnImage, source: str = "mscoco") -> Fields:
    asked = []
    answers = []
    for question in image.questions:
        scores = {}
        for answer, count in Counter(question.answers).items():
            scores[answer] = min(1.0, round(SCORE_OF_ONE * count, 1))
        asked.append(question.text)
        answers.append(scores)
    composed = [question.text for question in image.composed]
    composed_answers = [{question.answer: 1.0} for question in image.composed]
    return {
        "img_id": image.image_id,
        "sentf": {source: related_texts(image), "vqa": asked, "gqa": composed},
        "labelf": {"vqa": answers, "gqa": composed_answers},
    }


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


def llava_files(seed: int, splits: Splits) -> Files:
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
    return [round(share, digits) for share in in_shares(box, scene.width, scene.height)]


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
