"""Attention supervision inside of LLaMA-Factory, as it installs: its own template, its own loop."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
import yaml
from datasets import Dataset, DatasetDict
from llamafactory.data import loader
from llamafactory.train.sft import workflow

from grounded_attention.training.trainers import llamafactory
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
from tests.trainers.small_qwen import save_model, write_rows

EXAMPLE = Path(__file__).parents[2] / "examples/llamafactory"
MODULE = "grounded_attention.training.trainers.llamafactory"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("factory")
    save_model(made / "model")
    write_rows(made / "rows")
    shutil.copy(EXAMPLE / "grounding.yaml", made / "grounding.yaml")
    given = {
        **yaml.safe_load((EXAMPLE / "train.yaml").read_text()),
        "model_name_or_path": str(made / "model"), "template": "qwen2_vl", "stage": "sft", "do_train": True,
        "finetuning_type": "full", "freeze_vision_tower": False, "freeze_multi_modal_projector": False,
        "dataset": "shapes", "dataset_dir": str(made / "rows"), "cutoff_len": 2048, "output_dir": str(made / "out"),
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 1, "learning_rate": 1e-2,
        "lr_scheduler_type": "constant", "max_steps": 10, "logging_steps": 1, "save_strategy": "no",
        "report_to": "none", "use_cpu": True, "overwrite_cache": True, "preprocessing_num_workers": 1,
        "disable_shuffling": True, "dataloader_num_workers": 0,
    }  # fmt: skip
    (made / "train.yaml").write_text(yaml.safe_dump(given))
    return made


@pytest.fixture(autouse=True)
def restored(folder, monkeypatch):
    """Each test launches anew, with the parts of LLaMA-Factory as they were."""
    for owner, name in (
        (loader, "_get_preprocessed_dataset"), (loader, "SupervisedDatasetProcessor"),
        (workflow, "SFTDataCollatorWith4DAttentionMask"), (workflow, "CustomSeq2SeqTrainer"), (sys, "argv"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.chdir(folder)
    yield
    vars(llamafactory.Launch).get("grounding") and delattr(llamafactory.Launch, "grounding")


def test_boxes_meet_the_tokens_of_resized_pictures(folder, monkeypatch):
    boxes = json.loads((folder / "rows/swift.jsonl").read_text().splitlines()[0])["objects"]["bbox"]
    counts = []
    for more in ((), (f"image_max_pixels={28 * 28 * 12}",)):
        trainer = launched(folder, monkeypatch, *more)
        batch = trainer.data_collator([trainer.train_dataset[0]])
        check_regions(batch, 0, boxes)
        counts.append(int(batch["region_attention_mask"].sum()))
        delattr(llamafactory.Launch, "grounding")
    assert counts[1] < counts[0]


def add_rows(folder, name, rows, **columns):
    """Adds a data set to those that LLaMA-Factory knows."""
    (folder / f"rows/{name}.json").write_text(json.dumps(rows))
    about = json.loads((folder / "rows/dataset_info.json").read_text())
    about[name] = {"file_name": f"{name}.json", "formatting": "sharegpt"}
    about[name]["columns"] = {"messages": "conversations", **columns}
    (folder / "rows/dataset_info.json").write_text(json.dumps(about))


def launched(folder, monkeypatch, *more, stop=True):
    """Runs the launcher; with `stop`, the trainer that it makes before it trains."""
    made = []
    if stop:

        def train(self, **kwargs):
            made.append(self)
            raise KeyboardInterrupt

        monkeypatch.setattr(llamafactory.FactoryTrainer, "train", train)
    try:
        llamafactory.main(["train.yaml", "grounding.yaml", *more])
    except KeyboardInterrupt:
        return made[0]


def test_loss_and_gradients_equal_those_of_the_mixin(folder, monkeypatch, tmp_path):
    trainer = launched(folder, monkeypatch)
    rows = []
    for number in range(2):

        def text(box):
            sides = [round(1000 * side / (140, 112)[place % 2]) for place, side in enumerate(box)]
            return "<|box_start|>({},{}),({},{})<|box_end|>".format(*sides)

        rows.append(row_of(tmp_path / f"{number}.png", number, None, text))
    theirs = trainer.data_collator([trainer.train_dataset[number] for number in range(2)])
    length = theirs["input_ids"].shape[1]  # they pad to eight, and learn the newline after an answer
    ours, loss, gradients = reference(folder / "model", rows, str(tmp_path), theirs["labels"], length=length)
    assert theirs["input_ids"].tolist() == ours["input_ids"].tolist()
    same_grounding(ours, theirs)
    their_loss, their_gradients = loss_and_gradients(trainer, theirs)
    torch.testing.assert_close(their_loss, loss, atol=1e-6, rtol=1e-6)
    assert compare(gradients, their_gradients) < 1e-6


def test_two_processes_equal_accumulation_and_ten_steps_lower_the_loss(folder, monkeypatch):
    launched(folder, monkeypatch, "gradient_accumulation_steps=2", "output_dir=one", stop=False)
    history = json.loads((folder / "one/trainer_state.json").read_text())["log_history"]
    accumulated = [each["loss_text_to_region"] for each in history if "loss_text_to_region" in each]
    launch = ["-m", "torch.distributed.run", "--nproc_per_node", 2, "--master_port", 29534, "-m", MODULE]
    parted = logged(run([*launch, "train.yaml", "grounding.yaml", "output_dir=two", "max_steps=3"], folder))
    assert accumulated[:3] == pytest.approx(parted, rel=2e-3)
    assert accumulated[-1] < 0.98 * accumulated[0]
    assert len(accumulated) == 10


def test_an_adapter_is_trained_and_loads_with_peft_alone(folder, monkeypatch, capsys):
    evaluation = ("eval_dataset=shapes", "eval_strategy=steps", "eval_steps=5", "per_device_eval_batch_size=2")
    launched(folder, monkeypatch, "finetuning_type=lora", "lora_rank=4", "output_dir=lora", *evaluation, stop=False)
    printed = capsys.readouterr().out
    assert len(re.findall(r"step 5: best head right for [\d.]+% of \d+ words \(\d-\d; chance", printed)) == 1
    check_adapter(folder / "model", folder / "lora")


def test_cut_rows_keep_the_phrases_that_are_whole(folder, monkeypatch):
    rows = json.loads((folder / "rows/factory.json").read_text())
    for row in rows:
        row["conversations"][1]["value"] = 300 * "-" + row["conversations"][1]["value"]  # they cut the longer side
    add_rows(folder, "long", rows, images="images")
    whole = len(launched(folder, monkeypatch, "dataset=long").train_dataset[0]["input_ids"])
    delattr(llamafactory.Launch, "grounding")
    trainer = launched(folder, monkeypatch, "dataset=long", f"cutoff_len={whole - 40}")
    batch = trainer.data_collator([trainer.train_dataset[0]])
    entry = json.loads(trainer.train_dataset[0]["grounding"])
    assert entry["lost"]
    words = []
    for mask in batch["phrase_mask"][0]:
        ids = batch["input_ids"][0, batch["text_positions"][0][mask]]
        words.append(trainer.processing_class.decode(ids))
    assert words == [phrase["text"] for phrase in entry["phrases"]]
    assert len(words) + entry["lost"] == 2


@pytest.mark.parametrize(
    "given, found",
    [
        ("packing=true", "packing"),
        ("neat_packing=true", "packing"),
        ("stage=pt", "stage"),
        ("dataset=texts", "box"),
        ("tokenized_path=tokens", "tokenized_path"),
    ],
)
def test_what_cannot_be_supervised_is_refused(folder, monkeypatch, given, found):
    rows = [{"conversations": [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hello."}]}]
    add_rows(folder, "texts", rows)
    tokens = Dataset.from_dict({"input_ids": [[1, 2]], "attention_mask": [[1, 1]], "labels": [[1, 2]]})
    DatasetDict({"train": tokens}).save_to_disk("tokens")
    with pytest.raises(ValueError, match=found):
        launched(folder, monkeypatch, given)


def test_two_files_are_needed():
    with pytest.raises(SystemExit, match="two files"):
        llamafactory.main(["train.yaml", "max_steps=3"])
