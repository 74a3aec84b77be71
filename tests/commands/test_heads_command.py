# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`grounded-attention heads`, and grounding with the heads that it finds: command and pipeline."""

import json
import shutil
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from peft import LoraConfig, get_peft_model
from PIL import Image
from transformers import AutoModel, AutoModelForImageTextToText, AutoProcessor, BertConfig, pipeline

from grounded_attention.commands import ground, heads, heads_work
from grounded_attention.heads.boxes import ground_box
from grounded_attention.heads.card import HEADS
from grounded_attention.heads.example_attention import capture_examples
from grounded_attention.heads.examples import AuditExample, PromptSettings
from grounded_attention.heads.heads_file import ChosenHeads
from grounded_attention.heads.maps import TokenGrid
from grounded_attention.heads.pipeline import PatchGroundingPipeline
from grounded_attention.modeling import VisualGroundingPipeline
from grounded_attention.processing.patch_grounding import PatchGroundingProcessor
from grounded_attention.processing.phrase import Phrase
from tests.helpers.commands import ROOT, read_error, read_result
from tests.helpers.tiny_scenes import tiny_scenes
from tests.helpers.tiny_vgp import tiny_model
from tests.helpers.tiny_vlm_files import save_llava
from tests.helpers.warm_python import run_python

pytestmark = pytest.mark.drawn_figures


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Scenes, a tiny LLaVA, and its ranking in `ranked`."""
    folder = tmp_path_factory.mktemp("heads")
    tiny_scenes(folder / "scenes")
    save_llava(folder / "llava")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
        given = ["--ablate", 2, "--split", "test", "--explore", 2, "--device", "cpu"]
        assert run(folder, "--output", folder / "ranked", *given) == 0
        yield folder


def run(files, *options, data="flickr30k_entities", model="llava"):
    scenes = files / "scenes"
    given = ["--model", files / model, "--data", data, "--data-dir", scenes, "--limit", 3]
    given += [] if "--evaluate" in options else ["--top-k", 2]
    pictures = [] if "--images" in options else ["--images", scenes / "flickr30k-images"]
    return heads.main([*map(str, [*given, *pictures, *options])])


def load_parts(folder):
    """The model, with eager attention, and its processor."""
    model = AutoModel.from_pretrained(folder, attn_implementation="eager")
    return model, AutoProcessor.from_pretrained(folder)


def read_json(path):
    return json.loads(path.read_text())


def box_of(row):
    return list(row["box"].values())


def test_the_folder_has_the_ranking(files):
    content = read_json(files / "ranked" / "heads.json")
    about = content["about"]
    assert about["data"] == "flickr30k_entities"
    assert about["choose_on"] == content["choice"]["split"] == "train"
    assert about["model_type"] == "llava"
    assert about["same_split"] is False
    assert content["scores_on_choice"]["images"] == 3
    scores = content["scores"]["text_to_region"]["all"]
    assert scores["images"] == 2
    assert np.shape(scores["scores"]["pointing"]) == (2, 4)
    assert len(content["chosen"]) == 2
    assert content["ablation"]["tokens"] > 0
    assert (files / "ranked" / "heads.png").stat().st_size > 5000
    assert "chosen on" in (files / "ranked" / "heads.md").read_text()


def test_the_page_shows_the_attention_of_words(files):
    page = (files / "ranked" / "heads.html").read_text()
    assert '"layers":["0","1"]' in page.replace(" ", "")
    model, processor = load_parts(files / "llava")
    grounding = PatchGroundingProcessor(processor)
    boxes = np.array([[0.4, 0.3, 0.7, 0.9]], dtype=np.float32)
    example = AuditExample("a", "a red ball", (Phrase("a red ball", 0, 10, boxes=boxes),))
    plain = AutoModel.from_pretrained(files / "llava")
    (shown,) = capture_examples(plain, grounding, [example], None, lambda _: picture(files))
    assert shown.words == ((0, 1), (2, 5), (6, 10))
    assert shown.attention.shape == (2, 4, 3, 36)
    attention, batch = attention_by_hand(model, processor, picture(files), "a red ball", shown.words)
    for word, maps in enumerate(attention):
        assert_allclose(shown.attention[:, :, word], maps, atol=1e-5)
    assert_allclose(shown.boxes, batch["region_boxes"][0], atol=1e-5)
    assert shown.gold.any()
    assert (shown.gold == shown.gold[0]).all()


def test_expressions_are_ranked_as_localization_heads_does(files, tmp_path, capsys):
    options = ("--split", "testA", "--words", "prompt", "--rank", "localization", "--ablate", 0, "--json")
    assert run(files, *options, "--output", tmp_path, "--config", "refcoco+", data="refcoco") == 0
    printed = read_result(capsys)
    assert len(printed["chosen"]) == 2
    assert printed["folder"] == str(tmp_path)
    content = read_json(tmp_path / "heads.json")
    assert content["about"]["options"]["words"] == "prompt"
    assert content["ablation"] is None
    assert content["scores"]["text_to_region"]["all"]["items"] == 3


@pytest.mark.parametrize("beside", [False, True])
def test_chosen_heads_are_measured_on_other_data(files, tmp_path, capsys, beside):
    heads_file = files / "ranked" / "heads.json"
    given = heads_file
    model = files / "llava"
    if beside:
        model = given = shutil.copytree(model, tmp_path / "with_heads")
        shutil.copy(heads_file, model)
    options = ("--split", "testA", "--output", tmp_path / "out", "--evaluate", given)
    assert run(files, *options, data="refcoco", model=model) == 0
    assert "centre box" in capsys.readouterr().out
    content = read_json(tmp_path / "out" / "boxes.json")
    assert [row["name"] for row in content["boxes"]][-2:] == ["centre box", "chance"]
    assert "heads.json" in content["about"]["heads"]
    assert (tmp_path / "out" / "boxes.md").is_file()


@pytest.mark.parametrize(
    "options, message",
    [
        ("--images nowhere", "--images nowhere: no such folder"),
        ("--choose-on test --split test", "--choose-on test is also the reported split"),
        ("--words prompt --instruction where", "remove the instruction"),
        ("--config refcoco++", "refcoco has no such --config: found 'refcoco++'"),
        ("no=1", "unknown option: found 'no=1'"),
        ("--data vqa_v2", "have no phrases with boxes; use flickr30k_entities, vgp, refcoco"),
        ("--evaluate nowhere", "has no heads.json, which names its heads that ground"),
        ("--evaluate heads.json --rank lift", "--rank: not with --evaluate"),
        ("--evaluate nowhere.json", "nowhere.json: no such file; make it with"),
    ],
)
def test_mistakes_are_one_line(files, tmp_path, capsys, options, message):
    assert run(files, "--output", tmp_path / "out", *options.split(), data="refcoco") == 2
    assert message in read_error(capsys)
    assert not (tmp_path / "out").exists()


def test_missing_pictures_and_other_models_are_refused(files, tmp_path, capsys):
    (tmp_path / "few").mkdir()
    shutil.copy(picture(files), tmp_path / "few")
    assert run(files, "--images", tmp_path / "few") == 2
    assert "images are missing, the first is" in read_error(capsys)
    BertConfig().save_pretrained(tmp_path / "bert")
    assert run(files, model=tmp_path / "bert") == 2
    assert "model type bert: its image tokens are not known" in read_error(capsys)
    words = AutoProcessor.from_pretrained(files / "llava").tokenizer
    shutil.copytree(files / "llava", tmp_path / "words", ignore=shutil.ignore_patterns("processor*"))
    words.save_pretrained(tmp_path / "words")
    assert run(files, model=tmp_path / "words") == 2
    assert "words: " in read_error(capsys)


# Grounding


def picture(files):
    return sorted((files / "scenes" / "flickr30k-images").iterdir())[0]


@torch.no_grad()
def attention_by_hand(model, processor, image, caption, spans):
    """The attention (layers, heads, patches) of each span, from eager maps of the whole model, and the batch."""
    grounding = PatchGroundingProcessor(processor)
    phrases = [{"sentence": 0, "start": start, "end": end} for start, end in spans]
    batch = grounding(caption, images=image, phrases=phrases)
    maps = torch.cat(model(**grounding.model_inputs(batch), output_attentions=True).attentions)
    maps = maps[..., batch["region_positions"][0]]
    rows = [batch["text_positions"][0][mask] for mask in batch["phrase_mask"][0]]
    return [maps[:, :, tokens].mean(2) for tokens in rows], batch


def boxes_by_hand(files, image, caption, spans):
    """The boxes in pixels."""
    attention, batch = attention_by_hand(*load_parts(files / "llava"), image, caption, spans)
    chosen = ChosenHeads.from_file(files / "ranked")
    layers, heads = np.transpose(chosen.heads)
    candidates = batch["region_candidate_mask"][0]
    grid = TokenGrid.of_tokens(batch["region_boxes"][0], candidates)
    boxes = [ground_box(maps[layers, heads], candidates, grid, chosen.box_rule).box for maps in attention]
    return np.array(boxes) * np.tile(image.size, 2)


def test_the_pipeline_finds_boxes(files):
    pipe = pipeline("visual-grounding", model=str(files / "llava"), heads=files / "ranked")
    assert isinstance(pipe, PatchGroundingPipeline)
    image = Image.open(picture(files))
    caption = "a red ball near the cube"
    (whole,) = pipe(image, caption)
    assert whole["start"] == 0
    assert whole["text"] == caption
    assert whole["label"] is None
    assert 0 < whole["score"] <= 1
    row = {"image": image, "caption": caption, "phrases": ["the cube", "a red ball"]}
    [ball, cube], [_] = pipe([row, {"image": image, "caption": "a"}], batch_size=2)
    assert ball["text"] == "a red ball"
    assert cube["text"] == "the cube"
    expected = boxes_by_hand(files, image, caption, [(0, 24), (0, 10), (16, 24)])
    found = [box_of(row) for row in (whole, ball, cube)]
    assert_allclose(found, expected, atol=0.06)
    json.dumps(ball)


ON_HUB = """
import json, sys
from huggingface_hub import HfApi
HfApi().create_repo("org/llava")
HfApi().upload_folder(repo_id="org/llava", folder_path=sys.argv[1])
from grounded_attention import VisualGroundingPipeline
from transformers import pipeline
pipe = pipeline("visual-grounding", model="org/llava")
print(json.dumps([pipe.chosen.heads, pipe(sys.argv[2], "a red ball")]))
"""


def test_heads_in_the_repository_of_the_model_are_found(files, tmp_path, loopback_hub):
    shutil.copytree(files / "llava", tmp_path / "model")
    shutil.copy(files / "ranked" / "heads.json", tmp_path / "model")
    environment = {**loopback_hub.environment(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    done = run_python(ON_HUB, [tmp_path / "model", picture(files)], env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    found, grounding = json.loads(done.stdout)
    assert [tuple(pair) for pair in found] == list(ChosenHeads.from_file(files / "ranked").heads)
    image = Image.open(picture(files))
    (expected,) = boxes_by_hand(files, image, "a red ball", [(0, 10)])
    assert_allclose(box_of(grounding[0]), expected, atol=0.06)


def test_heads_that_read_the_end_of_the_prompt_ask_for_each_phrase(files):
    chosen = ChosenHeads(((0, 1), (1, 2)), PromptSettings("prompt"))
    pipe = pipeline("visual-grounding", model=str(files / "llava"), heads=chosen)
    image = Image.open(picture(files))
    ball, cube = pipe(image, "a red ball near the cube", phrases=["a red ball", "the cube"])
    assert ball["box"] == pipe(image, "a red ball")[0]["box"]
    assert cube["box"] == pipe(image, "the cube")[0]["box"]
    assert cube["start"] == 16


@pytest.mark.parametrize(
    "heads, message",
    [
        ([], "heads is empty"),
        ([(9, 0)], r"layer and head \(9, 0\)"),
        ("nowhere.json", "no such file"),
        ("nowhere", "nowhere has no heads.json"),
    ],
)
def test_heads_that_the_pipeline_refuses(files, heads, message):
    model, processor = load_parts(files / "llava")
    with pytest.raises(ValueError, match=message):
        VisualGroundingPipeline(model, processor=processor, task="visual-grounding", heads=heads)


def test_mistakes_with_the_pipeline(files):
    model, processor = load_parts(files / "llava")
    options = {"heads": [(0, 0)], "task": "visual-grounding"}
    with pytest.raises(ValueError, match="a model object needs a processor"):
        VisualGroundingPipeline(model, **options)
    pipe = VisualGroundingPipeline(model, processor=processor, **options)
    with pytest.raises(ValueError, match="phrase 'horse' does not occur"):
        pipe(Image.open(picture(files)), "a ball", phrases=["horse"])
    with pytest.raises(ValueError, match="has no image"):
        pipe({"caption": "a ball"})
    with pytest.raises(TypeError, match="llava takes only heads"):
        pipe(Image.open(picture(files)), "a ball", layer=1)
    bert = tiny_model()
    bert.config = BertConfig()
    with pytest.raises(ValueError, match="model type bert is not of this package; other models that ground are llava"):
        VisualGroundingPipeline(bert, processor=processor, **options)


def test_the_command_grounds_and_draws(files, tmp_path, capsys):
    arguments = [str(picture(files)), "a red ball near the cube", "--model", str(files / "llava")]
    given = ["--heads", str(files / "ranked" / "heads.json"), "--phrases", "the cube,a red ball"]
    assert ground.main([*arguments, *given, "--output", str(tmp_path / "ball.png"), "--json"]) == 0
    found = read_result(capsys)
    expected = boxes_by_hand(files, Image.open(picture(files)), "a red ball near the cube", [(0, 10), (16, 24)])
    assert_allclose([box_of(row) for row in found["grounding"]], expected, atol=0.06)
    assert Image.open(tmp_path / "ball.png").size[0] > 300
    assert ground.main([*arguments, *given]) == 0
    assert "attention of L" in capsys.readouterr().out
    assert ground.main([*arguments, *given, "--queries", "x"]) == 2
    assert "--queries: --model" in read_error(capsys)
    assert ground.main(arguments) == 2
    assert "has no heads.json" in read_error(capsys)


def test_chosen_heads_go_into_a_card(files, tmp_path, capsys):
    card = tmp_path / "README.md"
    options = ["--card", tmp_path, "--output", tmp_path / "out", "--ablate", 0, "--split", "test"]
    assert run(files, *options) == 2
    assert f"{card}: no model card found" in read_error(capsys)
    card.write_text("# A model\n")
    assert run(files, *options) == 2
    assert f"{card}: no place for the heads; add this line" in read_error(capsys)
    assert not (tmp_path / "out").exists()
    card.write_text(f"# A model\n\n{HEADS.place}\n\n## Licence\n")
    for _ in range(2):  # a second section replaces the first
        assert run(files, *options) == 0
    text = card.read_text()
    assert text.startswith("# A model\n")
    assert text.endswith("## Licence\n")
    for head in read_json(tmp_path / "out" / "heads.json")["chosen"]:
        name = f"L{head['layer']} H{head['head']}"
        rows = [line for line in text.splitlines() if name in line]
        assert f" {head['pointing']:.1%} |" in rows[0]
    assert text.count("## Where its heads look") == 1
    assert "| chance" in text


def test_an_adapter_has_heads_of_its_own(files, tmp_path, capsys):
    base = tmp_path / "base"
    adapter = tmp_path / "adapter"
    shutil.copytree(files / "llava", base)
    lora = LoraConfig(r=2, target_modules=r".*language_model.*\.(q|k)_proj", init_lora_weights=False)
    model = get_peft_model(AutoModelForImageTextToText.from_pretrained(base), lora)
    processor = AutoProcessor.from_pretrained(base)
    model.save_pretrained(adapter)
    processor.save_pretrained(adapter)
    content = read_json(files / "ranked" / "heads.json")
    for folder, head in ((base, 0), (adapter, 3)):
        content["chosen"] = [{**content["chosen"][0], "layer": 1, "head": head}]
        content["box_rule"] = "otsu"  # that of heads without a file
        (folder / "heads.json").write_text(json.dumps(content))
    image = Image.open(picture(files))
    pipe = VisualGroundingPipeline(model, processor=processor, heads=[(1, 3)], task="visual-grounding")
    [expected] = pipe(image, "a red ball")
    assert ground.main([str(picture(files)), "a red ball", "--model", str(adapter), "--json"]) == 0
    printed = read_result(capsys)
    assert printed["heads"] == [[1, 3]]
    assert printed["heads_of"] == f"{adapter}/heads.json"
    with pytest.raises(ValueError, match=r"base has an adapter here, .*also give heads"):
        pipeline("visual-grounding", model=str(adapter))
    piped = pipeline("visual-grounding", model=str(adapter), heads=str(adapter))(image, "a red ball")
    for [row] in (printed["grounding"], piped):
        assert row["score"] == pytest.approx(expected["score"], abs=1e-5)
        assert row["box"] == expected["box"]


def test_options_of_one_kind_of_model_are_refused_by_the_other(files, tmp_path, capsys):
    tiny_model().save_pretrained(tmp_path / "ours")
    arguments = [str(picture(files)), "a ball", "--model", str(tmp_path / "ours")]
    assert ground.main(arguments) == 2
    assert "reads regions: give --detector, --boxes or --regions" in read_error(capsys)
    assert ground.main([*arguments, "--regions", "x", "--dtype", "bfloat16"]) == 2
    assert "--dtype: only for vision-language models" in read_error(capsys)
    for kind, reason in (("bert", "its image tokens are not known"), ("idefics", "cross-attention")):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "config.json").write_text(f'{{"model_type": "{kind}"}}')
        assert ground.main([*arguments[:3], str(tmp_path / kind)]) == 2
        line = read_error(capsys)
        assert f"model type {kind}: " in line
        assert reason in line
        assert "docs/api/tables/vlm_families.md" in line


def test_rows_as_people_have_them(files, tmp_path, capsys):
    paths = sorted((files / "scenes" / "flickr30k-images").glob("*.jpg"))[:6]
    lines = [{"image": path.name, "text": "a red circle", "bbox": [30, 20, 10, 15]} for path in paths]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = ["--model", files / "llava", "--data", tmp_path / "rows.jsonl", "--top-k", 1, "--ablate", 0]
    given += ["--images", paths[0].parent, "--output", tmp_path / "heads", "--limit", 0]
    assert heads.main([*map(str, given)]) == 0
    content = read_json(tmp_path / "heads" / "heads.json")
    assert "half of the images" in content["about"]["split"]
    reported = content["scores"]["text_to_region"]["all"]["images"]
    assert content["scores_on_choice"]["images"] + reported == len(paths)
    capsys.readouterr()
    assert heads.main([*map(str, given), "--split", "testA"]) == 2
    assert "testA" in read_error(capsys)
    assert heads.main([*map(str, given), "--images", str(tmp_path)]) == 2
    assert paths[0].name in read_error(capsys)


def test_pictures_of_one_row_are_on_one_side(tmp_path):
    """Rows (p0, p1), (p1, p2) and (p3), of several groups: a picture is never in both halves, nor with its rows."""
    phrase = {"text": "ball", "boxes": [[0, 0, 1, 1]], "start": 2, "end": 6}
    lines = []
    for group in range(12):
        names = [f"{group}_{number}.png" for number in range(4)]
        for number, name in enumerate(names):
            Image.new("RGB", (8, 8), (group, number, 0)).save(tmp_path / name)
        for shown in (names[:2], names[1:3], names[3:]):
            phrases = [{**phrase, "image": place} for place in range(len(shown))]
            lines.append({"images": shown, "text": "a ball", "phrases": phrases})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = heads.Heads(model="m", data=str(tmp_path / "rows.jsonl"), limit=0)
    found = heads_work.load_examples(options, ["train", "validation"], [], None)
    sides = []
    for examples in found.of_splits:
        sides.append({Path(found.pictures[example.image_id]).name for example in examples})
    assert not sides[0] & sides[1]
    assert len(sides[0] | sides[1]) == 48
    for group in range(12):
        together = {f"{group}_{number}.png" for number in range(3)}
        assert together <= sides[0] or together <= sides[1]
    # Half of the 24 pictures that are together or alone.
    for side in sides:
        assert len([name for name in side if name.endswith(("_2.png", "_3.png"))]) == 12
