# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The ranking of heads of vision-language models, against loops by hand over eager attention maps."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM

from grounded_attention.dataset_scripts.builders.local_builder import whole_text
from grounded_attention.heads import measure
from grounded_attention.heads.boxes import MappedPhrase, box_scores, judge_ways
from grounded_attention.heads.choosing import choose_heads, elbow, localization_frequency
from grounded_attention.heads.examples import AuditExample, PromptSettings, grounded_examples, grounded_prompts
from grounded_attention.heads.heads_file import ChosenHeads
from grounded_attention.heads.measure import Measurement
from grounded_attention.heads.ranking import evaluate_heads, rank_heads
from grounded_attention.heads.table import MEASURES, HeadCounts
from grounded_attention.processing.phrase import Phrase
from grounded_attention.supervision import layer_losses, row_states
from grounded_attention.supervision.head_masking import attention_modules
from grounded_attention.supervision.supervise import find_language_model, head_layers
from tests.helpers.tiny_vlm_examples import examples, pictures
from tests.helpers.tiny_vlm_models import image_maps, make_pair
from tests.helpers.tiny_vlm_processors import ANSWERERS, PROCESSORS, meant, wrap

COUNT = 3
QUESTION = "what is this ?"
FOUR = ("llava", "qwen2_5_vl", "smolvlm", "gemma3")


def rank(pair, texts=COUNT, given=None, **options):
    """Ranks the heads of a model and its processor on so many texts, or on those that are given."""
    return rank_heads(*pair, given or examples(texts), pictures(texts), **{"ablate": 0, **options})


def spans_of(example, words):
    """Texts with the places and boxes of their phrases; a prompt has one phrase."""
    if words != "prompt":
        return {example.caption: [(phrase.start, phrase.end, phrase.boxes) for phrase in example.phrases]}
    texts = {}
    for phrase in example.phrases:
        texts[example.caption[phrase.start : phrase.end]] = [(0, phrase.end - phrase.start, phrase.boxes)]
    return texts


@torch.no_grad()
def scores_by_hand(model, processor, words, instruction):
    """Of each phrase, layer and head, one text at a time, from eager maps."""
    grounding = wrap(processor, model.config.model_type)
    images = pictures(COUNT)
    decoder = find_language_model(model)
    before = decoder.config._attn_implementation
    decoder.set_attn_implementation("eager")
    found = {"correct": [], "lift": [], "share": []}
    texts = [(example.image_id, *item) for example in examples(COUNT) for item in spans_of(example, words).items()]
    for image, text, spans in texts:
        number = 0 if instruction is None else 1
        given = [{"sentence": number, "start": start, "end": end, "boxes": boxes} for start, end, boxes in spans]
        sentences = (text, None) if instruction is None else (instruction, text)
        batch = grounding(*sentences, images=images[image], phrases=given)
        inputs = grounding.model_inputs(batch)
        maps = image_maps(model(**inputs, output_attentions=True), model, inputs)
        candidates = batch["region_candidate_mask"][0].bool()
        columns = batch["region_positions"][0][candidates]
        for tokens, regions in zip(batch["phrase_mask"][0], batch["phrase_regions"][0], strict=True):
            gold = regions[candidates].bool()
            rows = batch["text_positions"][0][tokens.bool()]
            if words == "last":
                rows = rows[-1:]
            if words == "prompt":
                rows = torch.tensor([batch["input_ids"].shape[1] - 1])
            values = [layer[0][:, rows][..., columns].mean(1) for layer in maps]
            values = pad_sequence(values, batch_first=True).double()  # (layers, heads, columns)
            share = values.sum(-1)
            # Layers of some models have fewer heads: nan
            found["correct"].append(torch.where(share > 0, gold[values.argmax(-1)].double(), torch.nan))
            found["lift"].append(values[..., gold].sum(-1) / share / gold.double().mean())
            found["share"].append(share)
    decoder.set_attn_implementation(before)
    return {name: torch.stack(values).double().numpy() for name, values in found.items()}


@pytest.mark.parametrize(
    "model_type, words, instruction",
    [
        *((name, "mean", None) for name in meant()),
        *((name, "mean", QUESTION) for name in ANSWERERS),
        *((name, "last", QUESTION) for name in FOUR),
        *((name, "prompt", None) for name in FOUR),
    ],
)
def test_scores_equal_loops_over_eager_maps(model_type, words, instruction):
    model, processor = make_pair(model_type)
    expected = scores_by_hand(model, processor, words, instruction)
    settings = {"words": words, "instruction": instruction, "count": 2}
    settings["batch_size"] = 1 if model_type in ("hunyuan_vl", "emu3") else 8  # padding changes what these compute
    ranking = rank((model, wrap(processor, model_type)), **settings)
    layers = head_layers(model)
    for name, values in expected.items():
        by_image = values[::2] + values[1::2]  # each image has two phrases
        found = getattr(ranking.reported_on.counts, name)[:, layers]
        exists = np.isfinite(expected["correct"][::2])
        assert_allclose(found[exists], by_image[exists], atol=1e-4, rtol=1e-3)
    accuracy = expected["correct"].mean(0)
    layer, head = ranking.heads[0]
    assert accuracy[layers.index(layer), head] == np.nanmax(accuracy)
    assert not find_language_model(model).config._attn_implementation.startswith("supervised")


@pytest.mark.parametrize("model_type", ["llava", "qwen2_5_vl"])
def test_the_batch_size_does_not_matter(model_type):
    pair = make_pair(model_type)
    one = rank(pair, 4, batch_size=1, ablate=3)
    four = rank(pair, 4, batch_size=4, ablate=3)
    assert one.heads == four.heads
    for name in MEASURES:
        expected = four.reported_on.counts.mean(name)
        assert_allclose(one.reported_on.counts.mean(name), expected, atol=1e-4)
    assert one.ablation.together.change == pytest.approx(four.ablation.together.change, abs=1e-4)


@pytest.mark.parametrize("model_type", ["llava", "qwen2_5_vl"])
def test_a_second_pass_is_needed_only_if_the_map_of_a_chosen_head_was_not_kept(model_type, monkeypatch):
    pair = make_pair(model_type)
    passes = []
    score = Measurement.score

    def note(self, *arguments, **options):
        passes.append(arguments[1])
        return score(self, *arguments, **options)

    monkeypatch.setattr(Measurement, "score", note)
    found = []
    for most in (2**26, 2500, 0):  # the maps of all eight heads, of some, of one; two are chosen
        monkeypatch.setattr(measure, "MOST_KEPT", most)
        ranking = rank(pair, 8, examples(5), report=examples(8)[5:], count=2)
        found.append(ranking.to_dict())
    assert found[0] == found[1] == found[2]
    assert passes == [*["choice", "report"] * 2, "choice", "boxes", "report"]


@pytest.mark.parametrize("model_type", ["llava", "gemma3"])
def test_layers_at_once_score_as_one_by_one(model_type, monkeypatch):
    pair = make_pair(model_type)
    stack = layer_losses.stack_states
    stacked = []
    monkeypatch.setattr(layer_losses, "stack_states", lambda *given: stacked.append(given) or stack(*given))
    together = rank(pair)
    assert stacked
    monkeypatch.setattr(row_states, "JOINED_NUMBERS", 0)
    monkeypatch.delattr(layer_losses, "stack_states")
    alone = rank(pair)
    for name in ("correct", "lift", "share"):
        ours = getattr(together.reported_on.counts, name)
        assert_allclose(ours, getattr(alone.reported_on.counts, name), rtol=1e-5)


@pytest.mark.parametrize("model_type", sorted({"llava", "llama4", "kimi_k25"} & {*PROCESSORS}))
def test_half_precision_also_where_a_family_does_not_cast_its_pictures(model_type):
    pair = make_pair(model_type)
    shares = []
    for dtype in (torch.bfloat16, torch.float32):  # the second has the rounded weights of the first
        pair[0].to(dtype)
        shares.append(rank(pair, 2).reported_on.counts.mean_share)
    assert_allclose(*shares, atol=0.03)


# Sliding windows


def test_a_layer_that_does_not_see_the_image_is_not_ranked():
    model, processor = make_pair("gemma3")
    for module in model.modules():  # two tokens: the words after the image see nothing of it
        if getattr(module, "sliding_window", None):
            module.sliding_window = 2
    model.config.get_text_config().sliding_window = 2
    late = []
    for example in examples(COUNT):
        phrase = Phrase("a dog", 18, 23, boxes=example.phrases[0].boxes)
        late.append(AuditExample(example.image_id, "what is this here a dog", (phrase,)))
    ranking = rank((model, processor), given=late, count=4)
    assert ranking.reported_on.counts.blind_layers == (0,)
    assert {layer for layer, _ in ranking.heads} == {1}
    assert "Layers 0 see no image token" in ranking.to_markdown()
    with pytest.raises(ValueError, match=r"5 heads cannot be chosen.* has 4 heads that see the image"):
        rank((model, processor), given=late, count=5)


def test_attention_that_is_not_a_number_is_refused():
    """The first region would else be the answer."""
    model, processor = make_pair("llava")
    attention_modules(model)[0].q_proj.weight.data.fill_(torch.nan)
    with pytest.raises(ValueError, match=r"image 0.*NaN"):
        rank((model, processor))


# The choice


def made_counts(correct, share=None):
    """One phrase for each image."""
    count = len(correct)
    ids = tuple(map(str, range(count)))
    share = np.ones(correct.shape) if share is None else share
    return HeadCounts(ids, np.ones(count, int), correct, share, np.zeros(count, int), np.full(count, 0.2))


def test_the_best_heads_are_chosen_in_order():
    pointing = np.zeros((10, 3, 4), int)
    pointing[:7, 2, 1] = pointing[:9, 0, 3] = pointing[:7, 1, 0] = 1
    assert choose_heads(made_counts(pointing), 3) == [(0, 3), (1, 0), (2, 1)]


def test_localization_heads_look_at_the_image_in_one_place():
    """Two heads have the lowest entropy; one of them hardly looks at the image."""
    share = np.full((20, 6, 8), 0.1, np.float32)
    share[:, 4:] = 0.6
    entropy = np.random.default_rng(0).uniform(1, 2, share.shape).astype(np.float32)
    entropy[:, 5, 2] = 0.1
    entropy[:, 0, 0] = 0.1
    counts = made_counts(np.zeros(share.shape, int), share)
    assert choose_heads(counts, 1, "localization", entropy) == [(5, 2)]
    by_hand = np.full((6, 8), -1.0)
    by_hand[4:] = 0  # the others do not look at the image
    for phrase in entropy:
        lowest = np.argsort(phrase[4:].ravel())[:10]
        by_hand[4:].flat[lowest] += 1 / 20
    assert_allclose(localization_frequency(counts.mean_share, entropy), by_hand, atol=1e-9)


def test_the_elbow_is_where_values_begin_to_rise():
    assert elbow(np.array([0.1, 0.0, 0.05, 0.1, 0.9, 1.0])) == pytest.approx(0.1)
    assert elbow(np.full(4, 0.3)) == pytest.approx(0.3)


# Boxes


@pytest.mark.parametrize("images, name, accuracy", [("aaa", "chance", 0), ("abc", "centre box", 1 / 3)])
def test_the_boxes_of_baselines(images, name, accuracy):
    """The centre box fits a centred object; chance is the box of another image."""
    boxes = np.array([[[0.25, 0.25, 0.75, 0.75]], [[0.0, 0.0, 0.1, 0.1]], [[0.0, 0.0, 0.1, 0.1]]])
    points = np.array([0.25, 0.01, 0.01])
    phrases = [MappedPhrase(*pair) for pair in zip(images, boxes, strict=True)]
    names, index = np.unique(list(images), return_inverse=True)
    ways = {name: np.zeros((len(names), 2)) for name in ("centre box", "chance")}
    ways["centre box"][0, 1] = 1
    np.add.at(ways["chance"][:, 0], index, points)
    found = {score.name: score for score in box_scores(ways, np.bincount(index), phrases)}
    assert found[name].accuracy == pytest.approx(accuracy)
    assert found["chance"].pointing == pytest.approx(np.mean(points))
    assert found["chance"].accuracy < 1  # the first one's others are far away


@pytest.mark.parametrize("candidates", [[True, True], [False, False]])
def test_heads_that_see_no_candidate_find_nothing(candidates):
    """They do not point at the first region, which may be right; without candidates chance finds nothing either."""
    gold = torch.tensor([[0.0, 0.0, 1.0, 1.0]])
    shown = torch.tensor(candidates)
    right = torch.tensor([True, False]) & shown
    regions = torch.cat([gold, torch.tensor([[0.0, 0.0, 0.1, 0.1]])]), shown, None
    nothing = torch.zeros(1, 1, 2)
    found = judge_ways({"one": ([(0, 0)], "otsu")}, (0.5, 0.5), nothing, (right, gold.numpy()), regions)
    assert found["one"] == (0.0, 0.0)
    assert found["chance"] == (sum(candidates) / 4, 0.0)


def test_evaluation_of_chosen_heads_agrees_with_the_ranking(tmp_path):
    pair = make_pair("qwen2_5_vl")
    given = *pair, examples(4), pictures(4)
    ranking = rank(pair, 4, examples(3), report=examples(4), count=2)
    found = evaluate_heads(*given, ranking.chosen)
    heads = [f"L{layer} H{head}" for layer, head in ranking.heads]
    assert [score.name for score in found[1:]] == [*heads, "centre box", "chance"]
    by_name = {score.name: score for score in ranking.boxes}
    for score in (found[0], found[-2], found[-1]):
        assert score == by_name[score.name]
    best = ranking.reported_on.counts.accuracy[ranking.heads[0]]
    assert found[1].pointing == by_name["best head"].pointing == pytest.approx(best)
    folder = ranking.save(tmp_path / "saved")
    for chosen in (ranking.heads, folder):  # pairs, and a folder with heads.json
        again = evaluate_heads(*given, chosen)
        assert again[1].pointing == found[1].pointing


# Files


def test_files_and_what_pipelines_read(tmp_path):
    pair = make_pair("llava")
    ranking = rank(pair, count=2, ablate=2, about={"model": "a_b"})
    folder = ranking.save(tmp_path / "new" / "out")
    *files, arrays = sorted(path.name for path in folder.iterdir())
    assert files == ["heads.json", "heads.md", "heads.png"]
    assert arrays.startswith("heads_counts_")
    content = json.loads((folder / "heads.json").read_text())
    scores = content["scores"]["text_to_region"]["all"]["scores"]
    assert np.shape(scores["entropy"]) == (2, 4)
    assert content["about"]["same_split"] is True
    read = ChosenHeads.from_file(folder)
    assert read.heads == ranking.heads == ranking.chosen.heads
    assert read.settings == PromptSettings()
    read.check(pair[0])
    text = (folder / "heads.md").read_text()
    for words in ("overstates them", "| L", "random heads", r"a\_b"):
        assert words in text


FILE = """{"format": 2, "chosen": [{"layer": 0, "head": 1}], "about": {"word": "mean", "instruction": null},
 "centre_size": [0.5, 0.5], "layers": ["0", "1"], "heads": 4}"""
HEAD = '{"layer": 0, "head": 1}'


@pytest.mark.parametrize(
    "part, written, message",
    [
        ('"format": 2', '"format": 3', "format 3, expected 2"),
        (HEAD, "", "0 chosen heads"),
        (HEAD, ", ".join([HEAD] * 300_000), "300000 chosen heads, 1 of them different"),
        ('"head": 1', '"head": "x"', "index 'x', expected a whole number"),
        ('"word": "mean", ', "", "no entry 'word'"),
    ],
    ids=["format", "no heads", "many heads", "index", "word"],
)
def test_a_damaged_file_is_refused(tmp_path, part, written, message):
    path = tmp_path / "heads.json"
    path.write_text(FILE)
    assert ChosenHeads.from_file(path).heads == ((0, 1),)
    path.write_text(FILE.replace(part, written))
    with pytest.raises(ValueError, match=message) as error:
        ChosenHeads.from_file(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    "heads, message",
    [
        (ChosenHeads(((0, 4),)), r"head \(0, 4\), but LlavaForConditionalGeneration has 2 layers of 4 heads"),
        (ChosenHeads(((0, 1),), layers=28, heads_per_layer=28), "28 layers of 28 heads, but"),
    ],
)
def test_heads_of_another_model_are_refused(heads, message):
    model, _ = make_pair("llava")
    with pytest.raises(ValueError, match=message):
        heads.check(model)


# Data


def test_rows_of_builders_become_examples():
    text = "the red ball"
    row = {"image_id": "1", "text": text, "phrases": [whole_text(text, [0.1, 0.2, 0.3, 0.4])]}
    (found,) = grounded_examples([row])
    assert found.image_id == "1"
    assert found.caption == text
    (phrase,) = found.phrases
    assert (phrase.start, phrase.end) == (0, len(text))
    assert phrase.boxes == pytest.approx(np.array([[0.1, 0.2, 0.3, 0.4]]))
    captions = ["a cat", "a"]
    phrases = [whole_text(text, [0, 0, 1, 1], number) for number, text in enumerate(captions)]
    regions = {"image_id": "1", "captions": captions, "phrases": phrases}
    assert [example.caption for example in grounded_examples([regions])] == captions
    assert list(grounded_examples([])) == []


def test_a_prompt_for_each_phrase():
    (one,) = examples(1)
    bare = AuditExample("x", "a b", (Phrase("a", 0, 1, boxes=np.zeros((0, 4), np.float32)),))
    assert grounded_prompts([bare], PromptSettings()) == []
    (together,) = grounded_prompts([one, bare], PromptSettings())
    assert together.phrases == one.phrases
    first, second = grounded_prompts([one], PromptSettings("prompt"))
    assert (first.caption, second.caption) == ("a dog", "cat .")


# Refusals


TWO = examples(2)
OUTSIDE = AuditExample("image 0", "a dog", (Phrase("", 0, 9, boxes=TWO[0].phrases[0].boxes),))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"examples": [replace(TWO[0], size=(37, 53))]}, r"image image 0: 37 x 53 in the row, but 53 x 37"),
        ({"examples": [OUTSIDE]}, "a batch of the images image 0: .*phrase"),
        ({"examples": []}, "choice: no phrase can be judged"),
        ({"processor": object()}, "no known processor"),
        ({"images": {}}, "image 'image 0': images has no picture of it"),
        ({"rank": "entropy"}, "rank='entropy' is unknown"),
        ({"words": "second"}, "word='second' is unknown"),
        ({"words": "prompt", "instruction": "where"}, "remove the instruction"),
        ({"count": 9}, "9 heads cannot be chosen: the model has 8"),
    ],
)
def test_what_cannot_be_ranked_is_refused(change, message):
    model, processor = make_pair("llava")
    given = {"processor": processor, "examples": TWO, "images": pictures(2), "ablate": 0, **change}
    with pytest.raises(ValueError, match=message):
        rank_heads(model, **given)


def test_a_model_that_is_not_on_the_attention_interface_is_refused(monkeypatch):
    """Eager-only models keep their own attention, whatever name is set."""
    model, processor = make_pair("llava")
    decoder = type(find_language_model(model))
    monkeypatch.setattr(decoder, "set_attn_implementation", lambda self, name: None)
    with pytest.raises(ValueError, match="does not use the AttentionInterface of transformers"):
        rank((model, processor))


def test_a_template_that_changes_the_text_is_refused():
    model, processor = make_pair("llava")
    processor.chat_template = processor.chat_template.replace("part['text'] | trim", "part['text'] | upper")
    with pytest.raises(ValueError, match=r"a batch of the images image 0.* changes or leaves out a text"):
        rank((model, processor))


def test_models_of_another_form_cannot_be_masked():
    model = LlamaForCausalLM(LlamaConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2))
    del model.model.layers[0].self_attn.layer_idx
    with pytest.raises(ValueError, match="has 1 layers, but attention modules for the layers"):
        attention_modules(model)
