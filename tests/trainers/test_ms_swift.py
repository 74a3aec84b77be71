"""Attention supervision inside of ms-swift, as it installs: its own template, its own loop."""

import json
import re
import shutil
from pathlib import Path

import pytest
import swift
import torch
from swift.pipelines.train.sft import SwiftSft

from tests.trainers.commands import logged, run
from tests.trainers.reference import (
    check_adapter,
    check_regions,
    compare,
    loss_and_gradients,
    reference,
    row_of,
    same_grounding,
)
from tests.trainers.small_qwen import draw, save_model, write_rows

EXAMPLE = Path(__file__).parents[2] / "examples/ms_swift"


def arguments(folder, **more):
    given = {
        "model": folder / "model", "model_type": "qwen2_5_vl", "template": "qwen2_5_vl", "tuner_type": "full",
        "external_plugins": folder / "plugin.py", "dataset": folder / "rows/swift.jsonl", "torch_dtype": "float32",
        "per_device_train_batch_size": 2, "max_steps": 10, "logging_steps": 1, "learning_rate": 1e-2,
        "output_dir": folder / "out", "save_strategy": "no", "report_to": "none", "use_cpu": True,
        "freeze_vit": False, "freeze_aligner": False,
        "gradient_accumulation_steps": 1, "load_from_cache_file": False, "add_version": False,
        "split_dataset_ratio": 0,
        "check_model": False, "dataset_shuffle": False,
        "dataloader_num_workers": 0, "lr_scheduler_type": "constant", **more,
    }  # fmt: skip
    words = []
    for name, value in given.items():
        words += [f"--{name}", str(value)]
    return words


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("swift")
    save_model(made / "model")
    write_rows(made / "rows")
    for name in ("plugin.py", "grounding.yaml"):
        shutil.copy(EXAMPLE / name, made / name)
    return made


@pytest.fixture(autouse=True)
def variables(folder, monkeypatch):
    monkeypatch.setenv("GROUNDING", str(folder / "grounding.yaml"))
    monkeypatch.setenv("MODELSCOPE_CACHE", str(folder / "cache"))
    monkeypatch.chdir(folder)


def made_trainer(folder, monkeypatch, **more):
    """The trainer that ms-swift makes, before it trains."""
    monkeypatch.setattr(SwiftSft, "train", lambda self, trainer: trainer)
    return SwiftSft(arguments(folder, **more)).main()


def test_loss_and_gradients_equal_those_of_the_mixin(folder, monkeypatch, tmp_path):
    trainer = made_trainer(folder, monkeypatch)
    rows = []
    for number in range(2):
        mark = "<|object_ref_start|>{}<|object_ref_end|>".format
        text = lambda box: "<|box_start|>({},{}),({},{})<|box_end|>".format(*box)  # noqa: E731
        rows.append(row_of(tmp_path / f"{number}.png", number, mark, text))
    theirs = trainer.data_collator([trainer.train_dataset[number] for number in range(2)])
    # They also learn the newline after the token that ends an answer.
    ours, loss, gradients = reference(folder / "model", rows, str(tmp_path), theirs["labels"])
    assert theirs["input_ids"].tolist() == ours["input_ids"].tolist()
    same_grounding(ours, theirs)
    their_loss, their_gradients = loss_and_gradients(trainer, theirs)
    torch.testing.assert_close(their_loss, loss, atol=1e-6, rtol=1e-6)
    assert compare(gradients, their_gradients) < 1e-6


def test_two_processes_equal_accumulation_and_ten_steps_lower_the_loss(folder):
    fixed = {"train_dataloader_shuffle": False, "dataset_shuffle": False}
    history = SwiftSft(arguments(folder, gradient_accumulation_steps=2, output_dir="one", **fixed)).main()[
        "log_history"
    ]
    accumulated = [each["loss_text_to_region"] for each in history if "loss_text_to_region" in each]
    two = arguments(folder, gradient_accumulation_steps=1, output_dir="two", max_steps=3, **fixed)
    command = Path(swift.__file__).parent / "cli/sft.py"
    launch = ["-m", "torch.distributed.run", "--nproc_per_node", 2, "--master_port", 29533]
    parted = logged(run([*launch, command, *two], folder))
    assert accumulated[:3] == pytest.approx(parted, rel=2e-3)
    assert accumulated[-1] < 0.98 * accumulated[0]
    assert len(accumulated) == 10


def test_an_adapter_is_trained_and_loads_with_peft_alone(folder, capsys):
    words = arguments(
        folder, tuner_type="lora", save_strategy="steps", save_steps=10, output_dir="lora", eval_strategy="steps",
        eval_steps=5, val_dataset=folder / "rows/swift.jsonl", lora_rank=4, per_device_eval_batch_size=2,
    )  # fmt: skip
    SwiftSft(words).main()
    printed = capsys.readouterr().out
    assert len(re.findall(r"step (?:5|10): best head right for [\d.]+% of \d+ words \(\d-\d; chance", printed)) == 2
    check_adapter(folder / "model", folder / "lora/checkpoint-10")


REFUSED = {
    "packing": True,
    "padding_free": True,
    "sequence_parallel_size": 2,
    "rlhf_type": "dpo",
    "task_type": "seq_cls",
    "cached_dataset": ["rows"],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_parts_or_joins_rows_is_refused(folder, name):
    work = SwiftSft(arguments(folder))
    setattr(work.args, name, REFUSED[name])
    with pytest.raises(ValueError, match=re.escape(f"{name}={REFUSED[name]}")):
        work._prepare_dataset()


def test_rows_without_boxes_and_unknown_keys_are_refused(folder, monkeypatch, tmp_path):
    path = tmp_path / "rows.jsonl"
    row = json.loads((folder / "rows/swift.jsonl").read_text().splitlines()[0])
    row["messages"] = [{"role": "user", "content": "<image>What is it?"}, {"role": "assistant", "content": "A box."}]
    row.pop("objects")
    path.write_text(json.dumps(row))
    with pytest.raises(ValueError, match="no phrase with boxes in the first 1 rows"):
        made_trainer(folder, monkeypatch, dataset=path)
    options = tmp_path / "grounding.yaml"
    options.write_text("methods: direct\n")
    monkeypatch.setenv("GROUNDING", str(options))
    with pytest.raises(ValueError, match="methods"):
        made_trainer(folder, monkeypatch)


@pytest.mark.parametrize("side", ["left", "right"])
def test_cut_rows_keep_the_phrases_that_are_whole(folder, monkeypatch, side):
    """Tokens of the phrases of a cut row are the words; a phrase that loses a token is none."""
    whole = made_trainer(folder, monkeypatch)
    length = len(whole.train_dataset[0]["input_ids"])
    cut = made_trainer(folder, monkeypatch, max_length=length - 40, truncation_strategy=side)
    batch = cut.data_collator([cut.train_dataset[0]])
    assert batch["input_ids"].shape[1] == length - 40
    words = []
    for mask in batch["phrase_mask"][0]:
        ids = batch["input_ids"][0, batch["text_positions"][0][mask]]
        words.append(cut.template.tokenizer.decode(ids))
    named = json.loads((folder / "rows/swift.jsonl").read_text().splitlines()[0])["objects"]["ref"][2:]
    assert words == (named[:1] if side == "right" else named)


def test_boxes_meet_the_tokens_of_resized_pictures(folder, monkeypatch):
    whole = made_trainer(folder, monkeypatch)
    resized = made_trainer(folder, monkeypatch, max_pixels=28 * 28 * 12)
    row = json.loads((folder / "rows/swift.jsonl").read_text().splitlines()[0])
    counts = []
    for trainer in (whole, resized):
        batch = trainer.data_collator([trainer.train_dataset[0]])
        check_regions(batch, 0, row["objects"]["bbox"])
        counts.append(int(batch["region_attention_mask"].sum()))
    assert counts[1] < counts[0]


def test_a_template_that_leaves_out_texts_is_refused(folder, monkeypatch):
    trainer = made_trainer(folder, monkeypatch)
    template = trainer.template
    before = template._swift_encode

    def shortened(inputs):
        inputs.messages[1]["content"] = "Here."
        return before(inputs)

    monkeypatch.setattr(template, "_swift_encode", shortened)
    with pytest.raises(ValueError, match="marks of phrases"):
        trainer.data_collator([trainer.train_dataset[0]])


def test_texts_alone_pass_and_a_row_that_cannot_be_read_ends_training(folder, monkeypatch, tmp_path):
    rows = [json.loads(line) for line in (folder / "rows/swift.jsonl").read_text().splitlines()[:2]]
    rows[1]["objects"]["bbox"] = rows[1]["objects"]["bbox"][:1]  # a place for a second box
    words = {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello."}]}
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in (rows[0], words)))
    trainer = made_trainer(folder, monkeypatch, dataset=path)
    batch = trainer.data_collator([trainer.train_dataset[number] for number in range(2)])
    assert batch["phrase_mask"].any(2).sum(1).tolist() == [2, 0]
    loss, _ = loss_and_gradients(trainer, batch)
    assert torch.isfinite(loss)
    path = tmp_path / "wrong.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(ValueError, match="objects: too few for <bbox>"):
        made_trainer(folder, monkeypatch, dataset=path)
    trainer.train_dataset.dataset = trainer.train_dataset.dataset.from_list(rows)
    with pytest.raises(ValueError, match=r"a row cannot be supervised: .*objects: too few for <bbox>"):
        trainer.data_collator([trainer.train_dataset[1]])


def test_phrases_of_two_pictures_and_two_turns(folder, monkeypatch, tmp_path):
    """The same words stand in the question too: only those before a box are its phrase, in the picture of the box."""
    (red, one), (black, two) = draw(tmp_path / "a.png", 11)
    (green, three), _ = draw(tmp_path / "b.png", 12)
    turns = (
        ("user", "<image>First. <image>Where is <ref-object> in the second?"),
        ("assistant", "<ref-object><bbox> yes"),
        ("user", f"And {red} in the first, and again {red}?"),
        ("assistant", "It is <ref-object><bbox>, <ref-object><bbox>."),
    )
    messages = [{"role": role, "content": content} for role, content in turns]
    objects = {"ref": [green, green, red, black], "bbox": [three, one, two], "image_id": [1, 0, 0]}
    pictures = [str(tmp_path / "a.png"), str(tmp_path / "b.png")]
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"messages": messages, "images": pictures, "objects": objects}))
    trainer = made_trainer(folder, monkeypatch, dataset=path)
    batch = trainer.data_collator([trainer.train_dataset[0]])
    ids = batch["input_ids"][0]
    decode = trainer.template.tokenizer.decode
    found = []
    for mask, regions in zip(batch["phrase_mask"][0], batch["phrase_regions"][0], strict=True):
        places = batch["text_positions"][0][mask]
        assert decode(ids[places[-1] + 1 :]).startswith("<|object_ref_end|><|box_start|>")
        images = set(batch["region_image"][0][regions > 0].tolist())
        found.append((decode(ids[places]), images))
    assert found == [(green, {1}), (red, {0}), (black, {0})]
