"""The page of a run: one file with table, figures and recipe; and tables of cards."""

import re
from html import unescape

import numpy as np
import pytest
import yaml
from PIL import Image

from grounded_attention.heads.example_attention import ExampleAttention
from grounded_attention.pages.tables import comparison_table
from grounded_attention.training.experiments.report import PAGE, next_steps, write_run_page
from grounded_attention.training.publish.card_results import head_table, result_table
from grounded_attention.training.recipes.recipe import Data, Recipe, ScenesData
from tests.helpers.browser import open_browser

pytestmark = pytest.mark.drawn_figures

GROUNDING = {"all_heads": 0.2, "best_layer": 0.3, "best_head": 0.4, "rollout": 0.1, "chance": 0.15, "head": [1, 2]}
BETTER = {**GROUNDING, "best_head": 0.5, "head": [2, 0]}
FIGURES = {"validation": {"vgp_accuracy": 0.5}, "test": {"vgp_accuracy": 0.5}}
PLAIN = {"vgp_accuracy": 0.5, "text_to_region_accuracy": GROUNDING, "train_seconds": 90.0, "figures": FIGURES}
SUPERVISED = {**PLAIN, "vgp_accuracy": 0.75, "text_to_region_accuracy": BETTER, "train_seconds": 120.0}
BASELINES = {"text_only": {"vgp_accuracy": 0.6, "train_seconds": 30.0}, "majority": {"vgp_accuracy": 0.25}}
RESULTS = {"methods": {"none": PLAIN, "direct": SUPERVISED, "semi_direct": PLAIN}, "baselines": BASELINES}
HOSTILE = "data/<script>alert(1)</script>"


@pytest.fixture
def page(tmp_path):
    recipe = Recipe(output_dir=str(tmp_path / "run"), seed=7, methods=["none", "direct"], data=Data(data_dir=HOSTILE))
    for name in ("loss_curves.png", "heads.png"):
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "run" / name)
    return write_run_page(RESULTS, recipe, comparison_table(RESULTS)).read_text(encoding="utf-8")


def test_the_page_is_one_file_with_every_part(page, tmp_path):
    assert (tmp_path / "run" / PAGE).is_file()
    links = re.findall(r'href="#([\w-]+)">(\w+)', page)
    places = re.findall(r'<h2 id="([\w-]+)">(\w+)', page)
    assert links == places
    headings = ["Comparison", "Heads", "Curves", "Recipe", "Next"]
    assert [heading for _, heading in places] == headings
    assert page.count("data:image/webp;base64,") == 2
    assert len(re.findall(r'alt="[^"]{20,}"', page)) == 2
    assert "http" not in page.replace("http-equiv", "")
    assert "<script" not in page


def test_the_table_and_the_recipe_are_those_of_the_run(page, tmp_path):
    assert re.search(r"<td>direct</td>.*?<b>0\.750</b><", page, re.DOTALL)
    assert '<td class="number">0.600</td>' in page
    recipe = unescape(page.split(">Recipe</h2>")[1].partition("<pre>")[2].partition("</pre>")[0])
    assert yaml.safe_load(recipe)["seed"] == 7
    assert yaml.safe_load(recipe)["data"]["data_dir"] == HOSTILE
    assert "grounded-attention heads --run" not in page  # the folder has no captions that it reads
    assert f"push {tmp_path / 'run' / 'direct'} ORG/NAME" in unescape(page)  # the better one of the table


def test_the_first_sentence_says_what_was_found(page):
    (lead,) = re.findall(r'<p class="lead">(.*?)</p>', page)
    assert re.findall(r"\d+\.\d%|\d-\d", lead) == ["2-0", "50.0%", "15.0%", "40.0%", "1-2"]
    assert lead.startswith("direct: ")


def test_the_explorer_opens_on_the_best_head(tmp_path):
    there = np.full((3, 4, 1, 2), 0.25)
    boxes = np.array([[0, 0, 0.5, 1], [0.5, 0, 1, 1]])
    example = ExampleAttention(Image.new("RGB", (8, 8)), "ball", ((0, 4),), boxes, there, ("0", "1", "2"))
    recipe = Recipe(output_dir=str(tmp_path / "run"), methods=["none", "direct"], data=Data(data_dir=HOSTILE))
    (tmp_path / "run").mkdir()
    examples = {name: [example] for name in RESULTS["methods"]}
    path = write_run_page(RESULTS, recipe, comparison_table(RESULTS), examples)
    with open_browser(tmp_path / "profile") as page:
        page.open(path)
        shown = "[...document.querySelectorAll('.explorer output')].map((one) => one.textContent)"
        assert page.evaluate(shown) == ["2", "0"]
        assert page.problems == []
        panes = "[...document.querySelectorAll('.pane select')].map((one) => one.selectedOptions[0].textContent)"
        assert page.evaluate(panes) == ["none", "direct"]


def test_commands_that_go_on_are_of_the_run(tmp_path):
    drawn = Data(data_dir="data/scenes", scenes=ScenesData())
    recipe = Recipe(output_dir=str(tmp_path / "run"), methods=["none", "direct"], data=drawn)
    assert [line.split()[1] for line in next_steps(recipe, RESULTS)] == ["heads", "ground", "push"]
    ungrounded = {"methods": {"none": {"vqa_accuracy": 0.5}, "direct": {"vqa_accuracy": 0.5}}}
    assert [line.split()[1] for line in next_steps(recipe, ungrounded)] == ["ground", "push"]
    assert f"push {tmp_path / 'run' / 'direct'} " in next_steps(recipe, ungrounded)[-1]  # of equal ones the supervised


def test_a_card_says_how_sure_the_best_heads_are():
    """Chosen on validation, reported with the interval of that head on test; in each layer its best head on test."""
    by_head = {"validation": [[0.1, 0.6], [0.2, 0.3]], "test": [[0.4, 0.2], [0.1, 0.3]]}
    ends = {"images": 9, "low": [[0.31, 0.12], [0.01, 0.21]], "high": [[0.52, 0.33], [0.22, 0.43]]}
    about = {"text_to_region_chance": 0.1, "text_to_region_tokens": 40, "text_to_region_intervals": ends}
    shares = {"text_to_region_share_by_head": [[0.5, 0.5], [0.5, 0.5]]}
    numbers = {}
    for split, values in by_head.items():
        numbers[split] = {"text_to_region_by_head": values, **about, **shares}
    (best,) = [line for line in result_table(numbers).splitlines() if "best head |" in line]
    assert best.endswith("| test | 0.200 | 0.120 to 0.330 | 40 | – | 0.100 |")
    table = head_table(numbers["test"])
    assert "| 0 | 0.300 | 0 | 0.400 | 0.310 to 0.520 | 0.500 |\n| 1 | 0.200 | 1 | 0.300 | 0.210 to 0.430 |" in table
