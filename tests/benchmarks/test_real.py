# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The benchmark of a trained language model joins it with a vision tower, and leaves it what it was."""

import math
from copy import deepcopy

import gguf
import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close
from transformers import AutoModelForImageTextToText

from benchmarks import real as benchmark
from grounded_attention.families.vlm import load_processor
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.training.recipes.adapters import import_peft

WIDTH, INNER, HEADS, KEYS, LAYERS = 32, 48, 4, 2, 2
WORDS = ("red", "blue", "heart", "user", "assistant")
TURNS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def letters():
    """The characters that stand for the 256 bytes in a byte-level tokenizer."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) for byte in shown] + [chr(256 + number) for number in range(len(hidden))]


def write_language_model(file):
    """A tiny Llama with random weights, as llama.cpp's own writer writes it."""
    pairs = {}
    for word in WORDS:
        for end in range(2, len(word) + 1):
            pairs[word[:end]] = f"{word[: end - 1]} {word[end - 1]}"
    tokens = [*TURNS, *letters(), *pairs]
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEYS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e4)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(TURNS) + [1] * (len(tokens) - len(TURNS)))
    writer.add_token_merges(list(pairs.values()))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    rng = np.random.default_rng(0)

    def add(name, *shape):
        values = rng.normal(0, 0.2, shape) + (len(shape) == 1)
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))

    add("token_embd", len(tokens), WIDTH)
    add("output_norm", WIDTH)
    narrow = WIDTH * KEYS // HEADS
    for layer in range(LAYERS):
        shapes = {"attn_q": (WIDTH, WIDTH), "attn_k": (narrow, WIDTH), "attn_v": (narrow, WIDTH)}
        shapes |= {"attn_output": (WIDTH, WIDTH), "ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH)}
        shapes |= {"ffn_down": (WIDTH, INNER), "attn_norm": (WIDTH,), "ffn_norm": (WIDTH,)}
        for name, shape in shapes.items():
            add(f"blk.{layer}.{name}", *shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("llm") / "tiny.gguf"
    write_language_model(path)
    return path


@pytest.fixture(scope="module")
def joined(file):
    eyes = AutoModelForImageTextToText.from_pretrained(benchmark.EYES)
    return benchmark.join(*benchmark.load_language_model(file), eyes, load_processor(benchmark.EYES))


def test_a_text_without_an_image_gets_the_logits_of_the_language_model(file, joined):
    model, processor = joined
    alone, tokenizer = benchmark.load_language_model(file)
    ids = tokenizer("a red heart and a blue one", return_tensors="pt").input_ids
    assert processor.tokenizer("a red heart and a blue one").input_ids == ids[0].tolist()
    with torch.no_grad():
        theirs = alone(ids).logits
        ours = model(input_ids=ids).logits
    assert ours.shape[-1] == theirs.shape[-1] + 1
    assert_close(ours[..., :-1], theirs, atol=0, rtol=0)
    assert theirs.std() > 0.1


def test_image_tokens_are_embedded_by_the_tower_and_the_projector(joined):
    model, processor = joined
    rng = np.random.default_rng(0)
    first, second = (Image.fromarray(rng.integers(0, 256, (96, 96, 3), dtype=np.uint8)) for _ in range(2))
    batch = PatchGroundingProcessor(processor)(text=["a red heart"] * 2, images=[first, second])
    places = batch["input_ids"] == model.config.image_token_id
    assert places.sum(1).tolist() == [model.config.image_seq_length] * 2
    seen = []
    layer = model.model.language_model

    def keep(_, args, kwargs):
        seen.append(kwargs["inputs_embeds"])

    handle = layer.register_forward_pre_hook(keep, with_kwargs=True)
    with torch.no_grad():
        model(**PatchGroundingProcessor(processor).model_inputs(batch))
        states = model.model.vision_tower(batch["pixel_values"], output_hidden_states=True).hidden_states[-1]
    handle.remove()
    projector = model.model.multi_modal_projector
    by_hand = projector.linear_2(torch.nn.functional.gelu(projector.linear_1(states)))
    assert_close(seen[0][places], by_hand.flatten(0, 1).detach())
    words = model.get_input_embeddings()(batch["input_ids"])
    assert_close(seen[0][~places], words[~places])


def test_the_processor_is_saved_and_loaded_as_it_is(joined, tmp_path):
    _, processor = joined
    processor.save_pretrained(tmp_path)
    loaded = load_processor(tmp_path)
    chat = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "red?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "blue"}]},
    ]
    picture = Image.new("RGB", (60, 40), (200, 30, 30))
    text = processor.apply_chat_template(chat)
    assert loaded.apply_chat_template(chat) == text
    made = processor(text=text, images=[picture], return_tensors="pt")
    again = loaded(text=text, images=[picture], return_tensors="pt")
    assert made.keys() == again.keys()
    for name, values in made.items():
        assert_close(again[name], values)
    plain = [{"role": "user", "content": "red?"}, {"role": "assistant", "content": "blue"}]
    turns = "<|im_start|>user\nred?<|im_end|>\n<|im_start|>assistant\nblue<|im_end|>\n"
    assert processor.apply_chat_template(plain) == turns


def test_a_lora_leaves_the_weights_of_the_language_model(joined, tmp_path):
    model = deepcopy(joined[0])
    processor = joined[1]
    before = {name: weight.clone() for name, weight in model.model.language_model.named_parameters()}
    peft = import_peft()
    options = {"target_modules": r".*language_model.*\.[qkvo]_proj", "r": 2}
    adapted = peft.get_peft_model(model, peft.LoraConfig(**options))
    optimizer = torch.optim.SGD([each for each in adapted.parameters() if each.requires_grad], lr=1.0)
    ids = processor.tokenizer("a red heart", return_tensors="pt").input_ids
    before_logits = adapted(input_ids=ids).logits.detach()
    for _ in range(2):  # after the first step alone one of the two factors is no longer zero
        adapted(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    assert (adapted(input_ids=ids).logits - before_logits).abs().max() > 1e-3
    base = adapted.unload()
    after = dict(base.model.language_model.named_parameters())
    assert after.keys() == before.keys()
    for name, weight in before.items():
        assert torch.equal(after[name], weight), name
    assert_close(base(input_ids=ids).logits, before_logits)


def test_aligning_brings_image_tokens_near_their_words_and_to_their_length(joined):
    model, _ = joined
    rng = torch.Generator().manual_seed(0)
    kinds = torch.randn(4, 128, generator=rng)
    phrases = []
    for number in range(64):
        states = kinds[number % 4] + 0.1 * torch.randn(3, 128, generator=rng)
        phrases.append((states, torch.tensor([10 + number % 4])))
    torch.manual_seed(0)
    benchmark.align(model, phrases, 60, size=32)
    words = model.get_input_embeddings().weight.detach()
    made = model.model.multi_modal_projector(kinds).detach()
    cosines = torch.cosine_similarity(made[:, None], words[None, 10:14], dim=-1)
    assert cosines.argmax(1).tolist() == [0, 1, 2, 3]
    assert 0.5 < made.pow(2).mean().sqrt() / words.pow(2).mean().sqrt() < 2


def test_perplexity_is_that_of_each_token_given_those_before(file):
    model, tokenizer = benchmark.load_language_model(file)
    sentences = ["a red heart", "blue one"]
    lost = []
    for sentence in sentences:
        ids = tokenizer(sentence).input_ids
        for place in range(1, len(ids)):
            with torch.no_grad():
                chances = model(torch.tensor([ids[:place]])).logits[0, -1].softmax(0)
            lost.append(-math.log(chances[ids[place]]))
    assert benchmark.perplexity(model, tokenizer, sentences) == pytest.approx(
        math.exp(sum(lost) / len(lost)), rel=1e-4
    )


def canned(right):
    """What the commands print, of a model that is right in this share of everything."""
    box = {"pointing": right, "accuracy": right / 2, "count": 50}
    return {
        "heads": {"boxes": [box, {**box, "pointing": right / 4}]},
        "vqa": {"validation": {"vqa_accuracy": right, "generated_count": 20}},
        "evidence": {"scenes": {"evidence_score": {"value": right / 10, "count": 10}}},
        "perplexity": 80 + right,
    }


def test_each_method_goes_on_from_the_start_with_each_seed(file, tmp_path, monkeypatch):
    runs = {}

    def train(folder, settings):
        runs[folder.name] = dict(each.split("=", 1) for each in settings)
        method = runs[folder.name]["methods"].strip("[]")
        (folder / method).mkdir(parents=True)
        (folder / method / "adapter_config.json").touch()

    def measure(folder, options):
        return canned(0.1 * int(folder.parent.name[-1]) if folder.name != "start" else 0.0)

    (tmp_path / "scenes.json").touch()
    for name, stub in {"train": train, "measure": measure, "DATA": tmp_path}.items():
        monkeypatch.setattr(benchmark, name, stub)
    monkeypatch.setattr(benchmark, "find_language_model", lambda: file)
    monkeypatch.setattr(benchmark, "make_start", lambda options: options.output / "start")
    options = benchmark.build_parser().parse_args(["--seeds", "2", "--steps", "7", "--output", str(tmp_path / "out")])
    printed = benchmark.compare(options)
    assert set(runs) == {f"{name}_{seed}" for name in ("none", "direct", "random") for seed in (1, 2)}
    for name, settings in runs.items():
        assert settings["model.source"] == str(tmp_path / "out/start")
        assert settings["seed"] == name[-1] and settings["training.max_steps"] == "7"
        assert settings["methods"] == ("[none]" if name.startswith("none") else "[direct]")
        assert settings.get("supervision.labels") == ("random" if name.startswith("random") else None)
    rows = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in printed.splitlines() if line.startswith("|")}
    assert set(rows) >= {"start", "none", "direct", "random"}
    pointing, box, vqa, evidence, text = (cell.split()[0] for cell in rows["direct"][1:])
    assert [float(each) for each in (pointing, box, vqa, evidence)] == pytest.approx([3.8, 7.5, 15.0, 1.5], abs=0.06)
    assert float(text) == pytest.approx(80.15, abs=0.06)
    assert (tmp_path / "out/table.md").read_text().splitlines()[0] == printed.splitlines()[0]
