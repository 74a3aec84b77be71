"""What the losses and gradients in a trainer of others are compared with: `GroundingTrainerMixin` over `Trainer`."""

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForImageTextToText, AutoProcessor, Trainer, TrainingArguments

from grounded_attention import GroundingCollator, GroundingTrainerMixin, get_method
from tests.trainers.small_qwen import draw

SIZE = (140, 112)


class PlainTrainer(GroundingTrainerMixin, Trainer):
    pass


def row_of(path, number, mark, box_text):
    """A row as TRL has it, with the texts that a trainer's template makes: `mark` of a name, `box_text` of a box."""
    things = draw(path, number)
    first, second = (name for name, _ in things)
    question = f"Where are {mark(first)} and {mark(second)}?" if mark else f"Where are {first} and {second}?"
    answer = ""
    phrases = []
    for before, (name, box), after in (("Here: ", things[0], ", and "), ("", things[1], ".")):
        answer += before
        named = f"<|object_ref_start|>{name}<|object_ref_end|>"
        start = len(answer) + named.index(name)
        shares = [side / SIZE[place % 2] for place, side in enumerate(box)]
        phrases.append({"text": name, "start": start, "end": start + len(name), "sentence": 1, "boxes": [shares]})
        answer += named + box_text(box) + after
    image = {"type": "image"}
    user = {"role": "user", "content": [image, {"type": "text", "text": question}]}
    assistant = {"role": "assistant", "content": [{"type": "text", "text": answer}]}
    return {"images": [str(path)], "messages": [user, assistant], "phrases": phrases}


def reference(folder, rows, work, labels, length=None):
    """The batch, the loss and the gradients of a step of `PlainTrainer`."""
    model = AutoModelForImageTextToText.from_pretrained(folder)
    method = get_method("direct")
    collator = GroundingCollator(AutoProcessor.from_pretrained(folder), method)
    arguments = TrainingArguments(work, remove_unused_columns=False, report_to="none", use_cpu=True)
    trainer = PlainTrainer(
        model=model, args=arguments, data_collator=collator, train_dataset=rows, method=method, attention_weight=0.1
    )
    batch = dict(collator(rows))
    missing = (length or labels.shape[1]) - batch["input_ids"].shape[1]
    for name, value in (("input_ids", 151643), ("attention_mask", 0), ("mm_token_type_ids", 0)):
        batch[name] = torch.nn.functional.pad(batch[name], (0, missing), value=value)
    batch["labels"] = labels
    return batch, *loss_and_gradients(trainer, batch)


def loss_and_gradients(trainer, batch):
    """Runs a batch as a training step does."""
    model = trainer.model.train()
    model.zero_grad()
    inputs = trainer._prepare_inputs(dict(batch))
    items = (batch["labels"][:, 1:] != -100).sum() if "labels" in batch else None
    trainer.current_gradient_accumulation_steps = 1
    loss = trainer.compute_loss(model, inputs, num_items_in_batch=items)
    loss.backward()
    named = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    return loss.detach(), named


def compare(ours, theirs):
    """The largest difference of two sets of gradients."""
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


def same_grounding(ours, theirs):
    """Whether two batches ask the same rows for the same columns, whatever else their texts have."""
    for one, other in zip(_asked(ours), _asked(theirs), strict=True):
        assert one == other
    torch.testing.assert_close(ours["region_boxes"], theirs["region_boxes"])


def _asked(batch):
    asked = []
    for row, phrases in enumerate(batch["phrase_mask"]):
        for phrase, mask in enumerate(phrases):
            tokens = batch["text_positions"][row][mask].tolist()
            regions = batch["phrase_regions"][row, phrase].nonzero().flatten()
            asked.append((row, tokens, batch["region_positions"][row][regions].tolist()))
    return asked


def check_regions(batch, row, boxes):
    """Whether the image tokens of each phrase are those that its box covers by half, whatever size they were read in.

    Args:
        batch (`dict`): a batch of one row.
        row (`int`): the row.
        boxes (list of `[x1, y1, x2, y2]`): in pixels of the picture as it was drawn.
    """
    tokens = batch["region_boxes"][row].double()
    area = (tokens[:, 2:] - tokens[:, :2]).prod(1)
    assert float(area.sum()) == pytest.approx(1.0, abs=1e-4)  # they tile the picture
    for box, marked in zip(boxes, batch["phrase_regions"][row], strict=True):
        gold = torch.tensor([side / SIZE[place % 2] for place, side in enumerate(box)], dtype=torch.float64)
        sides = torch.minimum(tokens[:, 2:], gold[2:]) - torch.maximum(tokens[:, :2], gold[:2])
        covered = sides.clamp(min=0).prod(1) / area
        assert torch.equal(marked > 0, covered >= 0.5)
        assert marked.any()


def check_adapter(model, adapter):
    """An adapter that was trained loads beside its model with peft alone; training starts with zeros."""
    adapted = PeftModel.from_pretrained(AutoModelForImageTextToText.from_pretrained(model), adapter)
    weights = [each for name, each in adapted.named_parameters() if "lora_B" in name]
    assert weights
    assert max(float(each.abs().max()) for each in weights) > 0
