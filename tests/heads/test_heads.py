# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The ranking of heads of vision-language models, against loops by hand over eager attention maps."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
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
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.processing.phrase import Phrase
from grounded_attention.supervision import layer_losses, row_states
from grounded_attention.supervision.head_masking import attention_modules
from grounded_attention.supervision.supervise import find_language_model, head_layers
from tests.helpers.tiny_vlm_examples import examples, pictures
from tests.helpers.tiny_vlm_models import make_pair
from tests.helpers.tiny_vlm_processors import PROCESSORS, meant

COUNT = 3
QUESTION = "what is this ?"


@torch.no_grad()
def scores_by_hand(model, processor, words, instruction):
    """Pointing, lift and share of each phrase and head, one example at a time, from eager maps."""
    grounding = PatchGroundingProcessor(processor)
    images = pictures(COUNT)
    decoder = find_language_model(model)
    before = decoder.config._attn_implementation
    decoder.set_attn_implementation("eager")
    found: dict[str, list] = {"pointing": [], "lift": [], "share": []}
    for example in examples(COUNT):
        texts = [(example.caption, [(phrase.start, phrase.end, phrase.boxes) for phrase in example.phrases])]
        if words == "prompt":
            texts = [(text := example.caption[p.start : p.end], [(0, len(text), p.boxes)]) for p in example.phrases]
        for text, spans in texts:
            number = 0 if instruction is None else 1
            given = [{"sentence": number, "start": start, "end": end, "boxes": boxes} for start, end, boxes in spans]
            said = (text, None) if instruction is None else (instruction, text)
            batch = grounding(*said, images=images[example.image_id], phrases=given)
            maps = model(**grounding.model_inputs(batch), output_attentions=True).attentions
            candidates = batch["region_candidate_mask"][0].tolist()
            columns = [int(c) for c, kept in zip(batch["region_positions"][0], candidates, strict=True) if kept]
            for tokens, regions in zip(batch["phrase_mask"][0], batch["phrase_regions"][0], strict=True):
                gold = [bool(g) for g, kept in zip(regions, candidates, strict=True) if kept]
                rows = [int(p) for p, inside in zip(batch["text_positions"][0], tokens, strict=True) if inside]
                if words == "last":
                    rows = rows[-1:]
                if words == "prompt":
                    rows = [batch["input_ids"].shape[1] - 1]
                values = {name: np.zeros((max(head_layers(model)) + 1, 4)) for name in found}
                for layer, each in zip(head_layers(model), filter(torch.is_tensor, maps), strict=True):
                    for head in range(each.shape[1]):
                        sums = [np.mean([float(each[0, head, row, c]) for row in rows]) for c in columns]
                        inside = sum(value for value, is_gold in zip(sums, gold, strict=True) if is_gold)
                        values["pointing"][layer, head] = gold[int(np.argmax(sums))]
                        values["lift"][layer, head] = inside / sum(sums) / (sum(gold) / len(gold))
                        values["share"][layer, head] = sum(sums)
                for name, value in values.items():
                    found[name].append(value)
    decoder.set_attn_implementation(before)
    return found


@pytest.mark.parametrize(
    ("model_type", "words", "instruction"),
    [
        *((name, "mean", None) for name in meant()),
        *((name, "last", QUESTION) for name in ("llava", "qwen2_5_vl", "smolvlm", "gemma3")),
        *((name, "prompt", None) for name in ("llava", "qwen2_5_vl", "smolvlm", "gemma3")),
    ],
)
def test_scores_equal_loops_over_eager_maps(model_type, words, instruction):
    model, processor = make_pair(model_type)
    layers = head_layers(model)
    expected = scores_by_hand(model, processor, words, instruction)
    ranking = rank_heads(
        *(model, processor, examples(COUNT), pictures(COUNT)),
        **{"words": words, "instruction": instruction, "ablate": 0, "count": 2},
        batch_size=1 if model_type in ("hunyuan_vl", "emu3") else 8,  # padding changes what these models compute
    )
    counts = ranking.reported_on.counts
    of_images = np.repeat(range(COUNT), 2)  # each text has two phrases
    for name, values in expected.items():
        found = counts.correct if name == "pointing" else getattr(counts, name)
        by_image = [np.stack(values)[of_images == image].sum(0) for image in range(COUNT)]
        np.testing.assert_allclose(found[:, layers], np.stack(by_image)[:, layers], atol=1e-4, rtol=1e-3)
    best = np.stack(expected["pointing"]).mean(0)
    assert best[ranking.heads[0]] == best.max()
    assert not find_language_model(model).config._attn_implementation.startswith("supervised")


@pytest.mark.parametrize("model_type", ["llava", "qwen2_5_vl"])
def test_the_batch_size_does_not_matter(model_type):
    model, processor = make_pair(model_type)
    settings = {"ablate": 3, "count": 2}
    one, all_ = (
        rank_heads(model, processor, examples(4), pictures(4), batch_size=size, **settings) for size in (1, 4)
    )
    assert one.heads == all_.heads
    for name in MEASURES:
        np.testing.assert_allclose(one.reported_on.counts.mean(name), all_.reported_on.counts.mean(name), atol=1e-4)
    assert one.ablation.together.change == pytest.approx(all_.ablation.together.change, abs=1e-4)


@pytest.mark.parametrize("model_type", ["llava", "qwen2_5_vl"])
def test_a_second_pass_is_needed_only_if_the_map_of_a_chosen_head_was_not_kept(model_type, monkeypatch):
    (model, processor), passes, score = make_pair(model_type), [], Measurement.score
    monkeypatch.setattr(Measurement, "score", lambda self, *a, **k: passes.append(a[1]) or score(self, *a, **k))
    found = []
    for most in (2**26, 2500, 0):  # the maps of all eight heads, of some, of one; two are chosen
        monkeypatch.setattr(measure, "MOST_KEPT", most)
        ranking = rank_heads(*(model, processor, examples(5), pictures(8)), report=examples(8)[5:], ablate=0, count=2)
        found.append(ranking.to_dict())
    assert found[0] == found[1] == found[2]
    assert passes == [*["choice", "report"] * 2, "choice", "boxes", "report"]


@pytest.mark.parametrize("model_type", ["llava", "gemma3"])
def test_layers_at_once_score_as_one_by_one(model_type, monkeypatch):
    model, processor = make_pair(model_type)
    tables = []
    stacked = []
    stack = layer_losses.stack_states
    monkeypatch.setattr(layer_losses, "stack_states", lambda states: stacked.append(len(states)) or stack(states))
    for joined in (row_states.JOINED_NUMBERS, 0):
        monkeypatch.setattr(row_states, "JOINED_NUMBERS", joined)
        ranking = rank_heads(model, processor, examples(COUNT), pictures(COUNT), ablate=0, count=1)
        tables.append(ranking.reported_on.counts)
        assert bool(stacked) == bool(joined)
        stacked.clear()
    for name in ("correct", "lift", "share"):
        np.testing.assert_allclose(getattr(tables[0], name), getattr(tables[1], name), rtol=1e-5)


@pytest.mark.parametrize("model_type", sorted({"llava", "llama4", "kimi_k25"} & {*PROCESSORS}))
def test_half_precision_also_where_a_family_does_not_cast_its_pictures(model_type):
    model, processor = make_pair(model_type)
    tables = []
    for dtype in (torch.bfloat16, torch.float32):  # the second has the rounded weights of the first
        model.to(dtype)
        tables.append(rank_heads(model, processor, examples(2), pictures(2), ablate=0).reported_on)
    np.testing.assert_allclose(*(table.counts.mean_share for table in tables), atol=0.03)


# Sliding windows


def test_a_layer_that_does_not_see_the_image_is_not_ranked():
    model, processor = make_pair("gemma3")
    for module in model.modules():  # two tokens: the words after the image see nothing of it
        if getattr(module, "sliding_window", None):
            module.sliding_window = 2
    model.config.get_text_config().sliding_window = 2
    late = [
        AuditExample(one.image_id, "what is this here a dog", (Phrase("a dog", 18, 23, boxes=one.phrases[0].boxes),))
        for one in examples(COUNT)
    ]
    ranking = rank_heads(model, processor, late, pictures(COUNT), count=4, ablate=0)
    assert ranking.reported_on.counts.blind_layers == (0,)
    assert {layer for layer, _ in ranking.heads} == {1}
    assert "Layers 0 see no image token" in ranking.to_markdown()
    with pytest.raises(ValueError, match="5 heads cannot be chosen: the model has 4 heads that see the image"):
        rank_heads(model, processor, late, pictures(COUNT), count=5, ablate=0)


def test_attention_that_is_not_a_number_is_refused():
    """The first region would else be the answer."""
    model, processor = make_pair("llava")
    with torch.no_grad():
        next(iter(attention_modules(model).values())).q_proj.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match=r"image 0.*NaN"):
        rank_heads(model, processor, examples(2), pictures(2), count=2, ablate=0)


# The choice


def made_counts(correct, share=None):
    """One phrase for each image."""
    ids = tuple(map(str, range(len(correct))))
    ones = np.ones(len(correct), dtype=int)
    return HeadCounts(ids, ones, correct, np.ones(correct.shape) if share is None else share, ones * 0, ones / 5)


def test_the_best_heads_are_chosen_in_order():
    pointing = np.zeros((10, 3, 4), int)
    pointing[:7, 2, 1] = pointing[:9, 0, 3] = pointing[:7, 1, 0] = 1
    assert choose_heads(made_counts(pointing), 3) == [(0, 3), (1, 0), (2, 1)]


def test_localization_heads_look_at_the_image_in_one_place():
    """Two heads have the lowest entropy; one of them hardly looks at the image."""
    generator = np.random.default_rng(0)
    share = np.full((20, 6, 8), 0.1, np.float32)
    share[:, 4:] = 0.6
    entropy = generator.uniform(1, 2, share.shape).astype(np.float32)
    entropy[:, 5, 2] = entropy[:, 0, 0] = 0.1
    counts = made_counts(np.zeros(share.shape, int), share)
    frequency = localization_frequency(counts.mean_share, entropy)
    assert choose_heads(counts, 1, "localization", entropy) == [(5, 2)]
    assert frequency[5, 2] == 1
    assert frequency[0, 0] == -1
    by_hand = np.zeros((6, 8))
    for phrase in entropy:
        ranked = sorted((float(phrase[place]), place) for place in np.ndindex(6, 8) if share[0][place] > 0.5)
        for _, place in ranked[:10]:
            by_hand[place] += 1 / 20
    np.testing.assert_allclose(np.where(frequency < 0, 0, frequency), by_hand, atol=1e-9)


def test_the_elbow_is_where_values_begin_to_rise():
    assert elbow(np.array([0.1, 0.0, 0.05, 0.1, 0.9, 1.0])) == pytest.approx(0.1)
    assert elbow(np.full(4, 0.3)) == pytest.approx(0.3)


# Boxes


def test_the_boxes_of_baselines():
    """The centre box fits a centred object; chance is the box of another image."""
    boxes = np.array([[[0.25, 0.25, 0.75, 0.75]], [[0.0, 0.0, 0.1, 0.1]], [[0.0, 0.0, 0.1, 0.1]]])
    points = (0.25, 0.01, 0.01)

    def score(images, name):
        ways = [{"centre box": (0.0, float(n == 0)), "chance": (point, 0.0)} for n, point in enumerate(points)]
        phrases = [MappedPhrase(*each) for each in zip(images, boxes, [None] * 3, ways, strict=True)]
        return {each.name: each for each in box_scores(phrases)}[name]

    assert score("abc", "chance").pointing == pytest.approx(np.mean(points))
    assert score("abc", "chance").accuracy < 1  # the first one's others are far away
    assert score("aaa", "chance").accuracy == 0  # no phrase of another image
    assert score("abc", "centre box").accuracy == pytest.approx(1 / 3)


@pytest.mark.parametrize("candidates", [[True, True], [False, False]])
def test_heads_that_see_no_candidate_find_nothing(candidates):
    """They do not point at the first region, which may be right; without candidates chance finds nothing either."""
    gold = np.array([[0.0, 0.0, 1.0, 1.0]])
    regions = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.1, 0.1]]), torch.tensor(candidates), None
    right = torch.tensor([True, False]) & regions[1]
    found = judge_ways({"one": ([(0, 0)], "otsu")}, (0.5, 0.5), torch.zeros(1, 1, 2), (right, gold), regions)
    assert found["one"] == (0.0, 0.0)
    assert found["chance"] == (sum(candidates) / 4, 0.0)


def test_evaluation_of_chosen_heads_agrees_with_the_ranking(tmp_path):
    model, processor = make_pair("qwen2_5_vl")
    ranking = rank_heads(model, processor, examples(3), pictures(4), report=examples(4), count=2, ablate=0)
    found = evaluate_heads(model, processor, examples(4), pictures(4), ranking.chosen)
    names = [score.name for score in found]
    assert names[1:] == [f"L{layer} H{head}" for layer, head in ranking.heads] + ["centre box", "chance"]
    by_name = {score.name: score for score in ranking.boxes}
    for score in (found[0], found[-2], found[-1]):
        assert score == by_name[score.name]
    for alone in (ranking.heads, ranking.save(tmp_path / "saved")):  # pairs, and a folder with heads.json
        again = evaluate_heads(model, processor, examples(4), pictures(4), alone)
        assert [score.pointing for score in again[:3]] == [score.pointing for score in found[:3]]
    assert found[1].pointing == by_name["best head"].pointing
    assert found[1].pointing == pytest.approx(ranking.reported_on.counts.accuracy[ranking.heads[0]])


# Files


def test_files_and_what_pipelines_read(tmp_path):
    model, processor = make_pair("llava")
    ranking = rank_heads(model, processor, examples(3), pictures(3), count=2, ablate=2, about={"model": "a_b"})
    folder = ranking.save(tmp_path / "new" / "out")
    files = sorted(path.name for path in folder.iterdir())
    assert files[:3] == ["heads.json", "heads.md", "heads.png"]
    assert files[3].startswith("heads_counts_")
    content = json.loads((folder / "heads.json").read_text())
    assert np.shape(content["scores"]["text_to_region"]["all"]["scores"]["entropy"]) == (2, 4)
    assert content["about"]["same_split"] is True
    read = ChosenHeads.from_file(folder)
    assert read.heads == ranking.heads == ranking.chosen.heads
    assert read.settings == PromptSettings()
    read.check(model)
    text = (folder / "heads.md").read_text()
    assert "overstates them" in text
    assert "| L" in text
    assert "random heads" in text
    assert r"a\_b" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 3}, "format 3, expected 2"),
        ({"chosen": []}, "0 chosen heads"),
        ({"chosen": [{"layer": 0, "head": 1}] * 300_000}, "300000 chosen heads, 1 of them different"),
        ({"chosen": [{"layer": 0, "head": "x"}]}, "index 'x', expected a whole number"),
        ({"about": {}}, "no entry 'word'"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, change, message):
    content = {"format": 2, "chosen": [{"layer": 0, "head": 1}], "about": {"word": "mean", "instruction": None}}
    content |= {"centre_size": [0.5, 0.5], "layers": ["0", "1"], "heads": 4}
    path = tmp_path / "heads.json"
    path.write_text(json.dumps(content))
    assert ChosenHeads.from_file(path).heads == ((0, 1),)
    path.write_text(json.dumps({**content, **change}))
    with pytest.raises(ValueError, match=message) as error:
        ChosenHeads.from_file(path)
    assert str(path) in str(error.value)


def test_heads_of_another_model_are_refused():
    model, _ = make_pair("llava")
    for heads, message in [
        (
            ChosenHeads(((0, 4),)),
            r"layer and head \(0, 4\), but LlavaForConditionalGeneration has 2 layers of 4 heads",
        ),
        (ChosenHeads(((0, 1),), layers=28, heads_per_layer=28), "28 layers of 28 heads, but"),
    ]:
        with pytest.raises(ValueError, match=message):
            heads.check(model)


# Data


def test_rows_of_builders_become_examples():
    referring = {
        "image_id": "1",
        "text": "the red ball",
        "phrases": [whole_text("the red ball", [0.1, 0.2, 0.3, 0.4])],
    }
    (found,) = grounded_examples([referring])
    assert (found.image_id, found.caption) == ("1", "the red ball")
    assert (found.phrases[0].start, found.phrases[0].end) == (0, 12)
    assert found.phrases[0].boxes == pytest.approx(np.array([[0.1, 0.2, 0.3, 0.4]]))
    told = ["a cat", "a"]
    phrases = [whole_text(text, [0, 0, 1, 1], number) for number, text in enumerate(told)]
    regions = {"image_id": "1", "captions": told, "phrases": phrases}
    assert [one.caption for one in grounded_examples([regions])] == ["a cat", "a"]
    assert list(grounded_examples([])) == []
    with pytest.raises(ValueError, match="image_id, question have no phrases with boxes"):
        list(grounded_examples([{"image_id": "1", "question": "?"}]))


def test_a_prompt_for_each_phrase():
    one = examples(1)[0]
    bare = AuditExample("x", "a b", (Phrase("a", 0, 1, boxes=np.zeros((0, 4), np.float32)),))
    assert grounded_prompts([bare], PromptSettings()) == []
    (together,) = grounded_prompts([one, bare], PromptSettings())
    assert together.phrases == one.phrases
    apart = grounded_prompts([one], PromptSettings("prompt"))
    assert [each.caption for each in apart] == ["a dog", "cat ."]


# Refusals


def test_what_cannot_be_ranked_is_refused():
    model, processor = make_pair("llava")
    given = examples(2)
    images = pictures(2)

    def rank(model=model, processor=processor, given=given, images=images, **options):
        return rank_heads(model, processor, given, images, ablate=0, **options)

    outside = [AuditExample("image 0", "a dog", (Phrase("", 0, 9, boxes=given[0].phrases[0].boxes),))]
    turned = [replace(given[0], size=images["image 0"].size[::-1])]
    flex = make_pair("llava")[0]
    flex.model.language_model.config._attn_implementation_internal = "paged|eager"
    cases = [
        (lambda: rank(given=turned), r"image image 0: \d+ x \d+ in the row, but \d+ x \d+ in the picture"),
        (
            lambda: rank(processor=object()),
            "no known processor",
        ),
        (lambda: rank(flex), "attention back end 'paged.eager' cannot be supervised"),
        (lambda: rank(given=outside), "a batch of the images image 0: .*phrase"),
        (lambda: rank(images={}), "image 'image 0': images has no picture of it"),
        (lambda: rank(given=[]), "choice: no phrase can be judged"),
        (lambda: rank(rank="entropy"), "rank='entropy' is unknown"),
        (lambda: rank(words="second"), "word='second' is unknown"),
        (lambda: rank(words="prompt", instruction="where"), "remove the instruction"),
        (lambda: rank(count=9), "9 heads cannot be chosen: the model has 8"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()


def test_a_model_that_is_not_on_the_attention_interface_is_refused(monkeypatch):
    """Eager-only models keep their own attention, whatever name is set."""
    model, processor = make_pair("llava")
    language_model = model.model.language_model
    monkeypatch.setattr(type(language_model), "set_attn_implementation", lambda self, name: None)
    with pytest.raises(ValueError, match="does not use the AttentionInterface of transformers"):
        rank_heads(model, processor, examples(2), pictures(2), ablate=0)


def test_a_template_that_changes_the_text_is_refused():
    model, processor = make_pair("llava")
    processor.chat_template = processor.chat_template.replace("part['text'] | trim", "part['text'] | upper")
    with pytest.raises(ValueError, match=r"a batch of the images image 0.* changes or leaves out a text"):
        rank_heads(model, processor, examples(2), pictures(2), ablate=0)


def test_models_of_another_form_cannot_be_masked():
    model = LlamaForCausalLM(LlamaConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2))
    del model.model.layers[0].self_attn.layer_idx
    with pytest.raises(ValueError, match="has 1 layers, but attention modules for the layers"):
        attention_modules(model)
