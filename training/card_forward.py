# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The lines of a card's snippet that use the model: a forward call, and its outcome in words a reader understands."""

from typing import Any

# What the snippet has by then: `processor`, `model`, `caption`, `phrase`, `boxes`, `seen` (regions as the processor
# takes them). {mask} is the caption with a word hidden.
_IDENTIFICATION = """inputs = processor(caption, "{other}", **seen)
with torch.no_grad():
    shares = model(**inputs).identification_logits.softmax(-1)[0].tolist()
for which, share in zip(("both captions describe", "the first alone describes", "the second alone describes"), shares):
    print(f"{{which}} the image: {{share:.0%}}")"""
_HIDDEN_WORD = """inputs = processor(caption.replace("{word}", processor.tokenizer.mask_token, 1), **seen)
place = inputs["input_ids"][0].tolist().index(processor.tokenizer.mask_token_id)
with torch.no_grad():
    best = model(**inputs).mlm_logits[0, place].softmax(-1).max(-1)
print(f"in the place of '{word}': {{processor.tokenizer.decode([best.indices])}} ({{best.values:.0%}})")"""
_ANSWER = """inputs = processor(caption, layout=processor.answer_layout, **seen)
with torch.no_grad():
    best = model(**inputs).logits[0].argmax().item()
print(f"answer: {{model.config.id2label[best]}}")"""
_REGION = """inputs = processor(caption, **seen)
with torch.no_grad():
    scores = model(**inputs).logits[0][inputs["region_candidate_mask"][0]]
print(f"what the caption names: box {{boxes[scores.argmax()]}}")"""
_PHRASE = """start = caption.index(phrase)
inputs = processor(caption, phrases=[{{"text": 0, "start": start, "end": start + len(phrase)}}], **seen)
with torch.no_grad():
    scores = model(**inputs).logits[0, 0][inputs["region_candidate_mask"][0]]
print(f"{{phrase}}: box {{boxes[scores.argmax()]}}")"""
_STATEMENT = """inputs = processor(caption, region_image_indices=[0, 1], **seen)  # each box of another image
with torch.no_grad():
    shares = model(**inputs).logits[0].softmax(-1).tolist()
print(f"the statement holds: {{shares[1]:.0%}}")"""
_CHOICE = """answers = ["{word}", "{other}"]
inputs = processor([caption] * 2, answers, **{{name: [value] * 2 for name, value in seen.items()}})
texts = {{name: inputs[name][None] for name in ("input_ids", "attention_mask", "token_type_ids")}}
regions = {{name: inputs[name][:1] for name in inputs if name.startswith(("region", "pixel", "image_sizes"))}}
with torch.no_grad():
    shares = model(**texts, **regions).logits[0].softmax(-1).tolist()
for answer, share in zip(answers, shares):
    print(f"{{answer}}: {{share:.0%}}")"""
_LINES = {
    "multiple_choice": _CHOICE,
    "phrase_grounding": _PHRASE,
    "pretraining": _HIDDEN_WORD,
    "referring_expressions": _REGION,
    "vgp": _IDENTIFICATION,
    "visual_reasoning": _STATEMENT,
    "vqa": _ANSWER,
}


def forward_lines(head: str, caption: str, phrase: str) -> str:
    """The lines for a model with this head.

    Args:
        head: name of the head, as a family has it.
        caption: of the snippet.
        phrase: words of the caption.
    """
    words = {"word": phrase.split()[-1], "other": phrase}
    return _LINES[head].format(**words)


def seen_lines(pixels: bool, feature_size: int, source: Any) -> str:
    """The lines that make the stand-ins of an image's regions.

    Args:
        pixels: whether the model reads pixels.
        feature_size: D.
        source: what computed the features of training, see `feature_source`; None where it is not known.
    """
    boxes = "boxes = [[0, 0, 320, 480], [320, 120, 640, 480]]  # x1 y1 x2 y2 in pixels, of a detector"
    if pixels:
        lines = ['image = Image.new("RGB", (640, 480))  # yours', boxes]
        return "\n".join([*lines, 'seen = {"images": image, "region_boxes": boxes, "image_sizes": (640, 480)}'])
    named = f"those of {source['name']}, on which it was trained" if source else "those that it was trained on"
    features = f"features = np.random.rand(2, {feature_size})  # of your boxes: {named}"
    return "\n".join(
        [boxes, features, 'seen = {"region_features": features, "region_boxes": boxes, "image_sizes": (640, 480)}']
    )
