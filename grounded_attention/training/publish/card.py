# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The model card of a trained run: what was trained how, what it reached, where its heads look, and what it is not."""

import importlib.metadata
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard, ModelCardData
from transformers import PreTrainedModel

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.licences import SCENES, Licence, read_scenes
from grounded_attention.families import FAMILIES
from grounded_attention.modeling.attention_calls import layer_names
from grounded_attention.reports.figures import heads_figure
from grounded_attention.supervision import SupervisionMethod
from grounded_attention.supervision.supervise import find_calls
from grounded_attention.tasks import TASKS
from grounded_attention.training.experiments.measuring import TEXT_ONLY, reported
from grounded_attention.training.experiments.setup import Prepared
from grounded_attention.training.loop.checkpoint import CARD
from grounded_attention.training.recipes.model_family import family_name, head_class
from grounded_attention.training.recipes.recipe import Recipe
from grounded_attention.training.recipes.recipe_text import recipe_yaml
from grounded_attention.utils.project import MODEL_CARDS
from grounded_attention.utils.whole_files import whole_file, write_text

from .card_forward import forward_lines, seen_lines
from .card_place import EVAL_RESULTS, FIGURE, place_line
from .card_results import eval_entries, eval_results, head_table, headline_figures, result_table
from .hub import START

PACKAGES = ("torch", "transformers", "datasets", "accelerate")
LIMITS = (
    "A region that the detector missed cannot be attended to, and features of another detector than that of training "
    "mean nothing to the model.",
    "Attention shows where a head looks, not why the model answers as it does; grounded-attention perturb "
    "measures how faithful a map is.",
    "The words are English, and whatever the captions and images of the training data over- or misrepresent, the "
    "model has learned.",
)
SCENES_LIMIT = (
    "It has seen drawn scenes of coloured shapes and a few hundred words, nothing of the world: a demonstration."
)


@dataclass(frozen=True)
class Trained:
    """What a card is about.

    Args:
        recipe (`Recipe`): what was run.
        name (`str`): of the run: a method, `text_only` or `start`.
        model (`PreTrainedModel`): the trained model.
        processor (`Any`): its processor.
        method (`SupervisionMethod`): how its attention was supervised.
        figures (`Mapping[str, dict[str, Any]]`): split -> what was measured on it.
        seconds (`float`): how long training took, since it was last begun or continued.
        steps (`int`): optimizer steps.
        continued_at (`int`, *optional*, defaults to `0`): the step that it was continued from; 0 where it went through
            in one go.
    """

    recipe: Recipe
    name: str
    model: PreTrainedModel
    processor: Any
    method: SupervisionMethod
    figures: Mapping[str, dict[str, Any]]
    seconds: float
    steps: int
    continued_at: int = 0

    @property
    def reported(self) -> dict[str, Any]:
        """The figures of the split that stands for all."""
        return reported(self.figures)


def write_card(trained: Trained, data: Prepared, directory: Path) -> Path:
    """Writes the card (README.md), its figure, and `.eval_results/` where the rows are of the Hub; returns the card.

    Args:
        trained (`Trained`): what was trained.
        data (`Prepared`): what it was trained and measured on.
        directory (`Path`): of the checkpoint.
    """
    heads = trained.reported.get("text_to_region_by_head")
    if heads is not None:
        chance = trained.reported["text_to_region_chance"]
        heads_figure({trained.method.name: heads}, chance, directory / FIGURE)
    card = ModelCard.from_template(
        card_metadata(trained, data),
        template_path=str(MODEL_CARDS / "trained.md"),
        place=place_line(str(directory)),
        **card_content(trained, data),
    )
    with whole_file(directory / CARD) as draft:
        card.save(draft)
    entries = eval_entries(trained.figures, *_measured_on(trained.recipe, data))
    if entries:
        path = directory / EVAL_RESULTS
        path.parent.mkdir(exist_ok=True)
        write_text(path, yaml.safe_dump(entries, sort_keys=False))
    return directory / CARD


def progress_card(recipe: Recipe, name: str, data: Prepared, step: int) -> str:
    """The card of a model that is still being trained: `name` is that of its run, `step` how far it is."""
    metadata = _metadata(recipe, name, data)
    model_class = head_class(TASKS[recipe.task].head, recipe.model).__name__
    content = {
        "title": _title(recipe, name, model_class),
        "summary": _summary(recipe, name),
        "step": f"{step:,}",
        "licence": _licence(recipe, data),
    }
    template = str(MODEL_CARDS / "in_progress.md")
    return str(ModelCard.from_template(ModelCardData(**metadata), template_path=template, **content))


# The metadata


def card_metadata(trained: Trained, data: Prepared) -> ModelCardData:
    """The YAML at the head of the card, with the results as `model-index`."""
    recipe, (hub, _) = trained.recipe, _measured_on(trained.recipe, data)
    builder = builder_name(recipe)
    return ModelCardData(
        **_metadata(recipe, trained.name, data),
        model_name=recipe.card.name or _title(recipe, trained.name, type(trained.model).__name__),
        eval_results=eval_results(trained.figures, TASKS[recipe.task], hub or builder, builder),
    )


def _metadata(recipe: Recipe, name: str, data: Prepared) -> dict[str, Any]:
    hub, _ = _measured_on(recipe, data)
    method = [] if _unsupervised(name) else ["attention-supervision", f"{name}-supervision"]
    return {
        "language": "en",
        "license": recipe.card.license or ("apache-2.0" if drawn_scenes(recipe, data) else None),
        "library_name": "transformers",
        "base_model": _base_model(recipe),
        "datasets": [hub] if hub else None,
        "tags": ["grounded-attention", "visual-grounding", family_name(recipe.model), recipe.task, *method],
    }


def _unsupervised(name: str) -> bool:
    return name in ("none", START, TEXT_ONLY)


def _base_model(recipe: Recipe) -> str | None:
    """The checkpoint from elsewhere that training began with; a folder of this machine is none."""
    model = _as_given(recipe).model
    source = model.source or model.bert
    return None if source is None or Path(source).exists() else source


def builder_name(recipe: Recipe) -> str:
    """Of the builder that made the rows."""
    return recipe.data.builder or TASKS[recipe.task].builder


def drawn_scenes(recipe: Recipe, data: Prepared) -> Mapping[str, Any] | None:
    """Version, seed and number of the scenes that were trained on; None for other data."""
    if data.pulled is not None:
        return data.pulled.record["scenes"]
    return read_scenes(Path(recipe.data.data_dir))


def _measured_on(recipe: Recipe, data: Prepared) -> tuple[str | None, str | None]:
    """The data set's name on the Hub and its commit, where they are known."""
    if data.pulled is not None:
        return data.pulled.repository, data.pulled.commit
    return recipe.card.dataset, None


# The text


def card_content(trained: Trained, data: Prepared) -> dict[str, Any]:
    """What the template `model_cards/trained.md` shows."""
    config: Any = trained.model.config
    heads = head_table(trained.reported)
    return {
        "title": trained.recipe.card.name or _title(trained.recipe, trained.name, type(trained.model).__name__),
        "summary": _summary(trained.recipe, trained.name),
        "about": _about(trained, data),
        "model_class": type(trained.model).__name__,
        "auto_class": type(trained.model)._auto_class,  # where config.auto_map has it
        "pixels": getattr(config, "vision_config", None) is not None,
        "feature_size": trained.processor.region_feature_size,
        **_use(trained),
        "results": result_table(trained.figures),
        "heads": heads,
        "figure": FIGURE,
        "training": _training(trained),
        "recipe": recipe_yaml(_as_given(trained.recipe)),
        "controls": " ".join(_controls(trained)),
        "limits": [*LIMITS, *([SCENES_LIMIT] if drawn_scenes(trained.recipe, data) else [])],
        "licence": _licence(trained.recipe, data),
        "citations": list(_citations(trained, data)),
    }


def _as_given(recipe: Recipe) -> Recipe:
    """The recipe before its start was trained, which is a checkpoint of this machine now."""
    return recipe if recipe.start is None else replace(recipe, model=recipe.start.model)


def _title(recipe: Recipe, name: str, model_class: str) -> str:
    supervised = "" if _unsupervised(name) else f", {name.replace('_', '-')} attention supervision"
    blind = ", from the text alone" if name == TEXT_ONLY else ""
    return f"{model_class}: {TASKS[recipe.task].title}{supervised}{blind}"


def _summary(recipe: Recipe, name: str) -> str:
    family = FAMILIES[family_name(recipe.model)].title
    said = f"A {family} that reads words and image regions, trained on {TASKS[recipe.task].title}"
    if name == TEXT_ONLY:
        return f"A {family} that was trained on {TASKS[recipe.task].title} without seeing a region: a baseline."
    if _unsupervised(name):
        return f"{said}, its attention left to itself."
    return f"{said}; phrases whose regions are known taught its attention where to look (`{name}` supervision)."


def _about(trained: Trained, data: Prepared) -> list[tuple[str, str]]:
    config: Any = trained.model.config
    size = sum(parameter.numel() for parameter in trained.model.parameters()) / 1e6
    rows = ", ".join(f"{name} {len(split):,}" for name, split in data.splits.items())
    calls = find_calls(config)
    heads = " or ".join(str(count) for count in dict.fromkeys(call.num_heads for call in calls))
    layers = f"{len(layer_names(calls))} layers of {heads} heads, width {config.hidden_size}"
    return [
        ("class", f"`{type(trained.model).__name__}`"),
        ("size", f"{size:.1f} million parameters, {layers}"),
        ("data", f"{_data_said(trained.recipe, data)}; rows: {rows}"),
        ("seed", str(trained.recipe.seed)),
    ]


def _data_said(recipe: Recipe, data: Prepared) -> str:
    name, scenes = builder_name(recipe), drawn_scenes(recipe, data)
    hub, commit = _measured_on(recipe, data)
    place = "" if commit is None else f", pulled from `{hub}` at `{commit[:8]}`"
    if scenes is not None:
        drawn = f"{scenes['images']:,} generated scenes (seed {scenes['seed']}, version {scenes['version']})"
        return f"{drawn}, as the builder `{name}` reads them{place}"
    return f"`{name}`{place}" if place else f"`{hub or name}`"


def _training(trained: Trained) -> str:
    arguments = trained.recipe.training
    batch = arguments.get("per_device_train_batch_size", 8) * arguments.get("gradient_accumulation_steps", 1)
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in PACKAGES)
    start = "" if trained.recipe.start is None else " after the start that the recipe describes"
    continued = f" for those after step {trained.continued_at:,}" if trained.continued_at else ""
    return (
        f"{trained.steps:,} steps of {batch} rows a process{start}, {trained.seconds / 60:.1f} minutes{continued}. "
        f"Python {platform.python_version()}, {versions}. Same seed and machine: same numbers."
        f"{_which_of_several(trained)}"
    )


def _which_of_several(trained: Trained) -> str:
    if trained.name == TEXT_ONLY:
        return " It trains several models; `text_only_baseline` is this one."
    if trained.name == START or len(trained.recipe.methods) == 1:
        return ""
    return f" It trains several models; `methods=[{trained.name}]` this one."


def _controls(trained: Trained) -> Iterator[str]:
    """What the figures have to be held against."""
    recipe = trained.recipe
    if trained.name == START:
        yield "What other models start from: attention was not supervised, and nothing was measured."
    elif trained.name == TEXT_ONLY:
        yield "**A control**: what the words alone give away, for models that see regions to be compared with."
    elif trained.name == "none":
        compared = (
            ": the supervised models of the recipe are compared with this one" if len(recipe.methods) > 1 else ""
        )
        yield f"Attention was not supervised{compared}."
    elif recipe.supervision.labels == "gold":
        yield "Attention was supervised with the gold regions."
    else:
        yield (
            f"**A control**: attention was taught `{recipe.supervision.labels}` regions, not the gold ones, to see "
            "what a supervised model owes to the grounding itself."
        )
    if recipe.supervision.heads != "all" and not _unsupervised(trained.name):
        yield f"Supervised heads: `{recipe.supervision.heads}`."
    if trained.model.config.box_layer is not None:
        yield "Beside it words were taught the boxes of what they name."
    if any(headline_figures(trained.figures)):
        yield (
            "The table shows the most frequent class (majority) and chance beside a figure, where they are known. "
            "This is one run of one seed: differences between models of a few points may be luck."
        )


def _licence(recipe: Recipe, data: Prepared) -> str:
    named, terms = recipe.card.license, _data_licence(recipe, data)
    weights = "apache-2.0" if drawn_scenes(recipe, data) else "not stated; ask who published them"
    said = f"Data (`{builder_name(recipe)}`): {terms.identifier}. {terms.terms}"
    return f"Weights: {named or weights}. Code: Apache-2.0. {said}"


def _data_licence(recipe: Recipe, data: Prepared) -> Licence:
    if data.pulled is not None:
        return Licence(**data.pulled.record["licence"])
    return SCENES if drawn_scenes(recipe, data) else BUILDERS[builder_name(recipe)].BUILDER_CONFIG_CLASS.LICENCE


def _citations(trained: Trained, data: Prepared) -> Iterator[str]:
    paper = FAMILIES[family_name(trained.recipe.model)].citation
    if paper is not None:
        yield paper
    yield from _own_citations(trained)
    if drawn_scenes(trained.recipe, data) is None:
        citation = data.pulled.record["citation"] if data.pulled else next(iter(data.splits.values())).info.citation
        if citation and citation not in _own_citations(trained):
            yield citation.strip()


def _own_citations(trained: Trained) -> list[str]:
    """Of the task and of the method, each once."""
    found = [TASKS[trained.recipe.task].citation, trained.method.citation if trained.method.name != "none" else None]
    return list(dict.fromkeys(citation for citation in found if citation is not None))


def _use(trained: Trained) -> dict[str, str]:
    """The lines of the snippets that use the model."""
    said, processor = _example(trained.processor.tokenizer), trained.processor
    pixels, source = getattr(trained.model.config, "vision_config", None) is not None, processor.region_feature_source
    return {
        **said,
        "seen": seen_lines(pixels, processor.region_feature_size, source),
        "forward": forward_lines(TASKS[trained.recipe.task].example, **said),
        "features_said": f"those of {source['name']}, as in training" if source else "those of training",
    }


def _example(tokenizer: Any) -> dict[str, str]:
    """A caption that the tokenizer knows the words of, and a phrase of it."""
    known = tokenizer.get_vocab()
    captions = {"a dog runs after a red ball": "a red ball", "a red ball left of a blue cube": "a blue cube"}
    for caption, phrase in captions.items():
        if all(word in known for word in caption.split()):
            return {"caption": caption, "phrase": phrase}
    words = [word for word in known if word.isalpha()][:3] or [tokenizer.unk_token]
    return {"caption": " ".join(words), "phrase": words[-1]}
