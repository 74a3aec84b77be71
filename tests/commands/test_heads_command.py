# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`grounded-attention heads`, and grounding with the heads that it finds: command and pipeline."""

import json
import shutil
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
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
from tests.helpers.project_files import ROOT
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


def error(capsys):
    printed = capsys.readouterr()
    (line,) = [line for line in printed.err.splitlines() if line.startswith("error: ")]
    assert printed.out == ""
    assert "Traceback" not in printed.err
    return line


def test_the_folder_has_the_ranking(files):
    content = json.loads((files / "ranked" / "heads.json").read_text())
    assert content["about"]["data"] == "flickr30k_entities"
    assert content["about"]["choose_on"] == "train"
    assert content["about"]["model_type"] == "llava"
    assert content["about"]["same_split"] is False
    assert content["scores_on_choice"]["images"] == 3
    scores = content["scores"]["text_to_region"]["all"]
    assert scores["images"] == 2
    assert content["choice"]["split"] == "train"
    assert len(content["chosen"]) == 2
    assert content["ablation"]["tokens"] > 0
    assert np.shape(scores["scores"]["pointing"]) == (2, 4)
    assert (files / "ranked" / "heads.png").stat().st_size > 5000
    assert "chosen on" in (files / "ranked" / "heads.md").read_text()


@torch.no_grad()
def test_the_page_shows_the_attention_of_words(files):
    page = (files / "ranked" / "heads.html").read_text()
    assert '"layers":["0","1"]' in page.replace(" ", "")
    model = AutoModel.from_pretrained(files / "llava", attn_implementation="eager")
    grounding = PatchGroundingProcessor(AutoProcessor.from_pretrained(files / "llava"))
    boxes = np.array([[0.4, 0.3, 0.7, 0.9]], dtype=np.float32)
    example = AuditExample("a", "a red ball", (Phrase("a red ball", 0, 10, boxes=boxes),))
    plain = AutoModel.from_pretrained(files / "llava")
    (shown,) = capture_examples(plain, grounding, [example], None, lambda _: picture(files))
    words = [{"sentence": 0, "start": start, "end": end} for start, end in ((0, 1), (2, 5), (6, 10))]
    batch = grounding("a red ball", images=picture(files), phrases=words)
    maps = model(**grounding.model_inputs(batch), output_attentions=True).attentions
    assert shown.words == ((0, 1), (2, 5), (6, 10))
    assert shown.attention.shape == (2, 4, 3, 36)
    for layer in range(2):
        for word in range(3):
            rows = batch["text_positions"][0][batch["phrase_mask"][0, word]]
            expected = maps[layer][0][:, rows][:, :, batch["region_positions"][0]].mean(1)
            np.testing.assert_allclose(shown.attention[layer, :, word], expected, atol=1e-5)
    np.testing.assert_allclose(shown.boxes, batch["region_boxes"][0], atol=1e-5)
    assert shown.gold.any()
    assert (shown.gold == shown.gold[0]).all()


def test_expressions_are_ranked_as_localization_heads_does(files, tmp_path, capsys):
    options = ("--split", "testA", "--words", "prompt", "--rank", "localization", "--ablate", 0, "--json")
    assert run(files, *options, "--output", tmp_path, "--config", "refcoco+", data="refcoco") == 0
    printed = json.loads(capsys.readouterr().out)
    assert len(printed["chosen"]) == 2
    assert printed["folder"] == str(tmp_path)
    content = json.loads((tmp_path / "heads.json").read_text())
    assert content["about"]["options"]["words"] == "prompt"
    assert content["ablation"] is None
    assert content["scores"]["text_to_region"]["all"]["items"] == 3


@pytest.mark.parametrize("beside", [False, True])
def test_chosen_heads_are_measured_on_other_data(files, tmp_path, capsys, beside):
    model = "llava"
    if beside:
        shutil.copytree(files / "llava", files / "with_heads", dirs_exist_ok=True)
        shutil.copy(files / "ranked" / "heads.json", files / "with_heads")
        model = "with_heads"
    given = files / "with_heads" if beside else files / "ranked" / "heads.json"
    options = ("--split", "testA", "--output", tmp_path, "--evaluate", given)
    assert run(files, *options, data="refcoco", model=model) == 0
    assert "centre box" in capsys.readouterr().out
    content = json.loads((tmp_path / "boxes.json").read_text())
    assert [row["name"] for row in content["boxes"]][-2:] == ["centre box", "chance"]
    assert "heads.json" in content["about"]["heads"]
    assert (tmp_path / "boxes.md").is_file()


@pytest.mark.parametrize(
    ("options", "data", "message"),
    [
        (["--images", "nowhere"], "refcoco", "--images nowhere: no such folder"),
        (["--choose-on", "test", "--split", "test"], "refcoco", "--choose-on test is also the reported split"),
        (["--words", "prompt", "--instruction", "where"], "refcoco", "remove the instruction"),
        (["--config", "refcoco++"], "refcoco", "refcoco has no such --config: found 'refcoco++'"),
        (["no=1"], "refcoco", "unknown option: found 'no=1'"),
        ([], "vqa_v2", "have no phrases with boxes; use flickr30k_entities, vgp, refcoco"),
        (["--evaluate", "nowhere"], "flickr30k_entities", "has no heads.json, which names its heads that ground"),
        (["--evaluate", "heads.json", "--rank", "lift"], "refcoco", "--rank: not with --evaluate"),
        (["--evaluate", "nowhere.json"], "refcoco", "nowhere.json: no such file; make it with"),
    ],
)
def test_mistakes_are_one_line(files, tmp_path, capsys, options, data, message):
    assert run(files, "--output", tmp_path / "out", *options, data=data) == 2
    assert message in error(capsys)
    assert not (tmp_path / "out").exists()


def test_missing_pictures_and_other_models_are_refused(files, tmp_path, capsys):
    (tmp_path / "few").mkdir()
    shutil.copy(picture(files), tmp_path / "few")
    assert run(files, "--images", tmp_path / "few") == 2
    assert "images are missing, the first is" in error(capsys)
    BertConfig().save_pretrained(tmp_path / "bert")
    assert run(files, model=tmp_path / "bert") == 2
    assert "model type bert: its image tokens are not known" in error(capsys)
    words = AutoProcessor.from_pretrained(files / "llava").tokenizer
    shutil.copytree(files / "llava", tmp_path / "words", ignore=shutil.ignore_patterns("processor*"))
    words.save_pretrained(tmp_path / "words")
    assert run(files, model=tmp_path / "words") == 2
    assert "words: " in error(capsys)


# Grounding


def picture(files):
    return sorted((files / "scenes" / "flickr30k-images").iterdir())[0]


@torch.no_grad()
def boxes_by_hand(files, image, caption, spans):
    """The boxes in pixels, from eager maps of the whole model."""
    model = AutoModel.from_pretrained(files / "llava", attn_implementation="eager")
    grounding = PatchGroundingProcessor(AutoProcessor.from_pretrained(files / "llava"))
    phrases = [{"sentence": 0, "start": start, "end": end} for start, end in spans]
    batch = grounding(caption, images=image, phrases=phrases)
    maps = model(**grounding.model_inputs(batch), output_attentions=True).attentions
    candidates = batch["region_candidate_mask"][0]
    grid = TokenGrid.of_tokens(batch["region_boxes"][0], candidates)
    found = []
    for mask in batch["phrase_mask"][0]:
        rows = batch["text_positions"][0][mask]
        chosen = ChosenHeads.from_file(files / "ranked")
        columns = batch["region_positions"][0]
        attention = [maps[layer][0, head][rows][:, columns].mean(0) for layer, head in chosen.heads]
        box = ground_box(torch.stack(attention), candidates, grid, chosen.box_rule).box
        found.append([edge * side for edge, side in zip(box, image.size * 2, strict=True)])
    return found


def test_the_pipeline_finds_boxes(files):
    pipe = pipeline("visual-grounding", model=str(files / "llava"), heads=files / "ranked")
    assert isinstance(pipe, PatchGroundingPipeline)
    image = Image.open(picture(files))
    caption = "a red ball near the cube"
    (whole,) = pipe(image, caption)
    assert (whole["start"], whole["end"], whole["text"], whole["label"]) == (0, len(caption), caption, None)
    assert 0 < whole["score"] <= 1
    phrases = ["the cube", "a red ball"]
    items = [{"image": image, "caption": caption, "phrases": phrases}, {"image": image, "caption": "a"}]
    together = pipe(items, batch_size=2)
    assert [one["text"] for one in together[0]] == ["a red ball", "the cube"]
    assert len(together[1]) == 1
    expected = boxes_by_hand(files, image, caption, [(0, 24), (0, 10), (16, 24)])
    for one, box in zip([whole, *together[0]], expected, strict=True):
        assert list(one["box"].values()) == pytest.approx(box, abs=0.06)
    json.dumps(together)


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
    assert list(grounding[0]["box"].values()) == pytest.approx(expected, abs=0.06)


def test_heads_that_read_the_end_of_the_prompt_ask_for_each_phrase(files):
    model = AutoModel.from_pretrained(files / "llava")
    processor = AutoProcessor.from_pretrained(files / "llava")
    chosen = ChosenHeads(((0, 1), (1, 2)), PromptSettings("prompt"))
    pipe = VisualGroundingPipeline(model, processor=processor, heads=chosen, task="visual-grounding")
    image = Image.open(picture(files))
    together = pipe(image, "a red ball near the cube", phrases=["a red ball", "the cube"])
    alone = [pipe(image, text)[0] for text in ("a red ball", "the cube")]
    assert [one["box"] for one in together] == [one["box"] for one in alone]
    assert together[1]["start"] == 16


def test_mistakes_with_the_pipeline(files):
    model = AutoModel.from_pretrained(files / "llava")
    processor = AutoProcessor.from_pretrained(files / "llava")
    made = {"processor": processor, "task": "visual-grounding"}
    wrong = [([], "heads is empty"), ([(9, 0)], r"layer and head \(9, 0\)"), ("nowhere.json", "no such file")]
    wrong.append(("nowhere", "nowhere has no heads.json"))
    for given, message in wrong:
        with pytest.raises(ValueError, match=message):
            VisualGroundingPipeline(model, heads=given, **made)
    with pytest.raises(ValueError, match="a model object needs a processor"):
        VisualGroundingPipeline(model, heads=[(0, 0)], task="visual-grounding")
    pipe = VisualGroundingPipeline(model, heads=[(0, 0)], **made)
    with pytest.raises(ValueError, match="phrase 'horse' does not occur"):
        pipe(Image.open(picture(files)), "a ball", phrases=["horse"])
    with pytest.raises(ValueError, match="has no image"):
        pipe({"caption": "a ball"})
    with pytest.raises(TypeError, match="llava takes only heads"):
        pipe(Image.open(picture(files)), "a ball", layer=1)
    bert = tiny_model()
    bert.config = BertConfig()
    with pytest.raises(ValueError, match="model type bert is not of this package; other models that ground are llava"):
        VisualGroundingPipeline(bert, **made)


def test_the_command_grounds_and_draws(files, tmp_path, capsys):
    arguments = [str(picture(files)), "a red ball near the cube", "--model", str(files / "llava")]
    given = ["--heads", str(files / "ranked" / "heads.json"), "--phrases", "the cube,a red ball"]
    assert ground.main([*arguments, *given, "--output", str(tmp_path / "ball.png"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = boxes_by_hand(files, Image.open(picture(files)), "a red ball near the cube", [(0, 10), (16, 24)])
    for one, box in zip(found["grounding"], expected, strict=True):
        assert list(one["box"].values()) == pytest.approx(box, abs=0.06)
    assert Image.open(tmp_path / "ball.png").size[0] > 300
    assert ground.main([*arguments, *given]) == 0
    assert "attention of L" in capsys.readouterr().out
    assert ground.main([*arguments, *given, "--queries", "x"]) == 2
    assert "--queries: --model" in error(capsys)
    assert ground.main(arguments) == 2
    assert "has no heads.json" in error(capsys)


def test_chosen_heads_go_into_a_card(files, tmp_path, capsys):
    card = tmp_path / "README.md"
    options = ["--card", tmp_path, "--output", tmp_path / "out", "--ablate", 0, "--split", "test"]
    assert run(files, *options) == 2
    assert f"{card}: no model card found" in error(capsys)
    card.write_text("# A model\n")
    assert run(files, *options) == 2
    assert f"{card}: no place for the heads; add this line" in error(capsys)
    assert not (tmp_path / "out").exists()
    card.write_text(f"# A model\n\n{HEADS.place}\n\n## Licence\n")
    for _ in range(2):  # a second section replaces the first
        assert run(files, *options) == 0
    text = card.read_text()
    chosen = json.loads((tmp_path / "out" / "heads.json").read_text())["chosen"]
    assert text.startswith("# A model\n")
    assert text.endswith("## Licence\n")
    for one in chosen:
        row = next(line for line in text.splitlines() if f"L{one['layer']} H{one['head']}" in line)
        assert f" {one['pointing']:.1%} |" in row
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
    content = json.loads((files / "ranked" / "heads.json").read_text())
    for folder, head in ((base, 0), (adapter, 3)):
        content["chosen"] = [{**content["chosen"][0], "layer": 1, "head": head}]
        content["box_rule"] = "otsu"  # that of heads without a file
        (folder / "heads.json").write_text(json.dumps(content))
    image = Image.open(picture(files))
    expected = VisualGroundingPipeline(model, processor=processor, heads=[(1, 3)], task="visual-grounding")
    wanted = expected(image, "a red ball")
    assert ground.main([str(picture(files)), "a red ball", "--model", str(adapter), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["heads"] == [[1, 3]]
    with pytest.raises(ValueError, match=r"base has an adapter here, .*also give heads"):
        pipeline("visual-grounding", model=str(adapter))
    piped = pipeline("visual-grounding", model=str(adapter), heads=str(adapter))(image, "a red ball")
    assert found["heads_of"] == f"{adapter}/heads.json"
    for each in (found["grounding"], piped):
        assert each[0]["score"] == pytest.approx(wanted[0]["score"], abs=1e-5)
        assert each[0]["box"] == wanted[0]["box"]


def test_options_of_one_kind_of_model_are_refused_by_the_other(files, tmp_path, capsys):
    tiny_model().save_pretrained(tmp_path / "ours")
    arguments = [str(picture(files)), "a ball", "--model", str(tmp_path / "ours")]
    assert ground.main(arguments) == 2
    assert "reads regions: give --detector, --boxes or --regions" in error(capsys)
    assert ground.main([*arguments, "--regions", "x", "--dtype", "bfloat16"]) == 2
    assert "--dtype: only for vision-language models" in error(capsys)
    for kind, reason in (("bert", "its image tokens are not known"), ("mllama", "cross-attention")):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "config.json").write_text(json.dumps({"model_type": kind}))
        assert ground.main([*arguments[:3], str(tmp_path / kind)]) == 2
        line = error(capsys)
        assert f"model type {kind}: " in line
        assert reason in line
        assert "docs/vlm_families.md" in line
        assert len(line) < 250 + len(str(tmp_path))


def test_rows_as_people_have_them(files, tmp_path, capsys):
    paths = sorted((files / "scenes" / "flickr30k-images").glob("*.jpg"))[:6]
    lines = [{"image": path.name, "text": "a red circle", "bbox": [30, 20, 10, 15]} for path in paths]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = ["--model", files / "llava", "--data", tmp_path / "rows.jsonl", "--top-k", 1, "--ablate", 0]
    given += ["--images", paths[0].parent, "--output", tmp_path / "heads", "--limit", 0]
    assert heads.main([*map(str, given)]) == 0
    content = json.loads((tmp_path / "heads" / "heads.json").read_text())
    assert "half of the images" in content["about"]["split"]
    reported = content["scores"]["text_to_region"]["all"]["images"]
    assert content["scores_on_choice"]["images"] + reported == len(paths)
    capsys.readouterr()
    assert heads.main([*map(str, given), "--split", "testA"]) == 2
    assert "testA" in error(capsys)
    given[given.index("--images") : given.index("--images") + 2] = ["--boxes", "xyxy pixels"]
    assert heads.main([*map(str, given)]) == 2


def test_pictures_of_one_row_are_on_one_side(tmp_path):
    """Rows (p0, p1), (p1, p2) and (p3), of several groups: a picture is never in both halves, nor with its rows."""
    lines = []
    for group in range(12):
        names = [f"{group}_{number}.png" for number in range(4)]
        for number, name in enumerate(names):
            Image.new("RGB", (8, 8), (group, number, 0)).save(tmp_path / name)
        for shown in (names[:2], names[1:3], names[3:]):
            phrases = [
                {"text": "ball", "boxes": [[0, 0, 1, 1]], "image": place, "start": 2, "end": 6}
                for place in range(len(shown))
            ]
            lines.append({"images": shown, "text": "a ball", "phrases": phrases})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = heads.Heads(model="m", data=str(tmp_path / "rows.jsonl"), limit=0)
    found = heads_work.load_examples(options, ["train", "validation"], [], None)
    seen = [{Path(found.pictures[each.image_id]).name for each in side} for side in found.of_splits]
    assert not seen[0] & seen[1]
    assert len(seen[0] | seen[1]) == 48
    # Half of the 24 pictures that are together or alone.
    assert [len({name.replace("0.", "2.").replace("1.", "2.") for name in side}) for side in seen] == [12, 12]
    for group in range(12):
        assert any({f"{group}_{number}.png" for number in range(3)} <= side for side in seen)
