# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The model card of a trained run: training, results, grounding of its heads, and limits."""

import importlib.metadata
import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard, ModelCardData
from transformers import PreTrainedModel

from grounded_attention.dataset_scripts.builders import BUILDERS
from grounded_attention.dataset_scripts.builders.rows import find_files
from grounded_attention.dataset_scripts.licences import SCENES, UNDECLARED, Licence, read_scenes
from grounded_attention.dataset_scripts.rows.opening import hub_name
from grounded_attention.families import FAMILIES
from grounded_attention.heads.card import heads_before
from grounded_attention.modeling.attention_calls import layer_labels, layer_names
from grounded_attention.pages.figures import heads_figure
from grounded_attention.pages.tables import generation_table
from grounded_attention.supervision import GroundingAlignment, SupervisionMethod, split_name
from grounded_attention.supervision.supervise import find_calls, unwrap_model
from grounded_attention.tasks import TASKS
from grounded_attention.tasks.generated_answers import EXPRESSION, QUESTION
from grounded_attention.tasks.grounded_generation import GroundedGenerationOptions, make_chat, row_kind
from grounded_attention.training.experiments.measuring import BEFORE, TEXT_ONLY, chosen_heads, reported
from grounded_attention.training.experiments.prepared_data import PreparedData
from grounded_attention.training.loop.checkpoint import CARD
from grounded_attention.training.recipes.adapters import is_local
from grounded_attention.training.recipes.model_family import family_name, family_title, head_class
from grounded_attention.training.recipes.recipe import Recipe, recipe_method, recipe_yaml
from grounded_attention.utils.named_types import Columns, Fields, Row
from grounded_attention.utils.plain_text import markdown_text
from grounded_attention.utils.project import MODEL_CARDS
from grounded_attention.utils.whole_files import whole_file, write_text

from .card_results import eval_entries, eval_results, head_table, headline_numbers, result_table
from .card_snippets import (
    EVAL_RESULTS,
    FIGURE,
    LIMITS,
    OWN_PROCESSOR,
    VLM_LIMITS,
    VLM_TEMPLATE,
    base_lines,
    feature_model,
    forward_lines,
    place_line,
    seen_lines,
)
from .hub import START

PACKAGES = ("torch", "transformers", "datasets", "accelerate")
SCENES_LIMIT = (
    "It was trained on drawn scenes of coloured shapes with a few hundred words: a demonstration, not for photographs."
)


@dataclass(frozen=True)
class Trained:
    """The input of a model card."""

    recipe: Recipe
    name: str
    model: PreTrainedModel
    processor: Any
    method: SupervisionMethod
    numbers: Mapping[str, Fields]
    seconds: float
    steps: int
    continued_at: int = 0
    before: Mapping[str, Fields] | None = None

    @property
    def class_name(self) -> str:
        """The name of the model's class, without the wrapper of an adapter."""
        return type(unwrap_model(self.model)).__name__

    @property
    def reported(self) -> Fields:
        """The numbers of the reported split."""
        return reported(self.numbers)


def write_card(trained: Trained, data: PreparedData, directory: Path) -> Path:
    """Writes the card (README.md), its picture, and `.eval_results/` if the rows have a Hub data set."""
    heads = trained.reported.get("text_to_region_by_head")
    if heads is not None:
        chance = trained.reported["text_to_region_chance"]
        layers = layer_labels(find_calls(trained.model))
        measured = {trained.method.name: trained.numbers}
        if trained.before is not None:
            measured = {BEFORE: trained.before, **measured}
        panels = {name: reported(splits)["text_to_region_by_head"] for name, splits in measured.items()}
        heads_figure(panels, chance, directory / FIGURE, layers, chosen_heads(measured))
    card = ModelCard.from_template(
        card_metadata(trained, data),
        template_path=str(MODEL_CARDS / (VLM_TEMPLATE if TASKS[trained.recipe.task].image_tokens else "trained.md")),
        place=place_line(str(directory)),
        **card_content(trained, data),
    )
    with whole_file(directory / CARD) as draft:
        card.save(draft)
    entries = eval_entries(trained.numbers, *_measured_on(trained.recipe, data))
    if entries:
        write_text(directory / EVAL_RESULTS, yaml.safe_dump(entries, sort_keys=False))
    return directory / CARD


def progress_card(recipe: Recipe, name: str, data: PreparedData, step: int) -> str:
    """The card of a model during training: `name` is the name of its run, `step` its current step."""
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


def card_metadata(trained: Trained, data: PreparedData) -> ModelCardData:
    """The YAML metadata of the card, with the results as `model-index`."""
    recipe, (hub, _) = trained.recipe, _measured_on(trained.recipe, data)
    builder = builder_name(recipe)
    return ModelCardData(
        **_metadata(recipe, trained.name, data),
        model_name=recipe.card.name or _title(recipe, trained.name, trained.class_name),
        eval_results=eval_results(trained.numbers, TASKS[recipe.task], hub or builder, builder),
    )


def _metadata(recipe: Recipe, name: str, data: PreparedData) -> Fields:
    hub, _ = _measured_on(recipe, data)
    parts = _parts(recipe, name)
    if parts == ["none"]:
        method = []
    else:
        method = ["attention-supervision", *(f"{part}-supervision" for part in parts)]
    return {
        "language": "en",
        "license": recipe.card.license or ("apache-2.0" if drawn_scenes(recipe, data) else None),
        "library_name": "transformers",
        "base_model": _base_model(recipe),
        "datasets": [hub] if hub else None,
        "tags": ["grounded-attention", "visual-grounding", family_name(recipe.model), recipe.task, *method],
    }


def _method(recipe: Recipe, name: str) -> str:
    """The name of the method of a run."""
    if name == TEXT_ONLY:
        return "none"
    if name == START:
        return recipe.methods[0]
    return name


def _parts(recipe: Recipe, name: str) -> list[str]:
    """The names of the methods that the method of a run combines."""
    return split_name(_method(recipe, name))


def _base_model(recipe: Recipe) -> str | None:
    """The Hub id of the checkpoint that the training started from; `None` for a local folder."""
    model = _as_given(recipe).model
    source = model.source or model.bert
    if source is None or is_local(source):
        return None
    return source


def builder_name(recipe: Recipe) -> str:
    """The name of the builder of the rows, or of their source."""
    if recipe.data.source is not None:
        return Path(recipe.data.source).name
    return recipe.data.builder or TASKS[recipe.task].builder


def drawn_scenes(recipe: Recipe, data: PreparedData) -> Columns | None:
    """Version, seed and number of the training scenes; `None` for other data."""
    if data.pulled is not None:
        return data.pulled.record["scenes"]
    if recipe.data.source is not None:
        return None
    return read_scenes(Path(recipe.data.data_dir))


def _measured_on(recipe: Recipe, data: PreparedData) -> tuple[str | None, str | None]:
    """The Hub name and commit of the data set; `None` if unknown."""
    if data.pulled is not None:
        return data.pulled.repository, data.pulled.commit
    source = recipe.data.source
    on_hub = source is not None and not find_files(source)
    return recipe.card.dataset or (hub_name(source)[0] if on_hub and source else None), None


# The text


def card_content(trained: Trained, data: PreparedData) -> Fields:
    """The variables of the template `model_cards/trained.md`, or `TEMPLATE` for a vision-language model."""
    heads = head_table(trained.reported)
    tokens = TASKS[trained.recipe.task].image_tokens
    measured = {**({BEFORE: trained.before} if trained.before else {}), "this model": trained.numbers}
    limits = VLM_LIMITS if tokens else LIMITS
    source = _as_given(trained.recipe).model.source
    return {
        "title": trained.recipe.card.name or _title(trained.recipe, trained.name, trained.class_name),
        "summary": _summary(trained.recipe, trained.name),
        "about": _about(trained, data),
        "processor": OWN_PROCESSOR,
        **(vlm_content(trained, source, data.splits["train"][0], data.options) if tokens else _use(trained)),
        "results": generation_table(measured) if tokens else result_table(trained.numbers),
        "heads": heads,
        "figure": FIGURE,
        "training": _training(trained),
        "recipe": recipe_yaml(_as_given(trained.recipe)),
        "controls": " ".join(_controls(trained)),
        "limits": [*limits, *([SCENES_LIMIT] if drawn_scenes(trained.recipe, data) else [])],
        "licence": _licence(trained.recipe, data),
        "citations": list(_citations(trained, data)),
    }


def _as_given(recipe: Recipe) -> Recipe:
    """The recipe with its original model section; after the start it contains a local checkpoint."""
    if recipe.start is None:
        return recipe
    return replace(recipe, model=recipe.start.model)


def _title(recipe: Recipe, name: str, model_class: str) -> str:
    parts = [part.replace("_", "-") for part in _parts(recipe, name)]
    supervised = ""
    if parts != ["none"]:
        supervised = f", {' and '.join(parts)} attention supervision"
    blind = ", from the text alone" if name == TEXT_ONLY else ""
    return f"{model_class}: {TASKS[recipe.task].title}{supervised}{blind}"


def _summary(recipe: Recipe, name: str) -> str:
    family = family_title(recipe.model)
    task = TASKS[recipe.task]
    if name == TEXT_ONLY:
        blind = "images" if task.image_tokens else "regions"
        return f"A {family} that was trained on {task.title} without {blind}: a baseline."
    inputs = "images" if task.image_tokens else "image regions"
    summary = f"A {family} that reads words and {inputs}, trained on {task.title}"
    method = _method(recipe, name)
    if method == "none":
        return f"{summary}, without attention supervision."
    return f"{summary}; {recipe_method(recipe, method).effect} (`{method}` supervision)."


def _about(trained: Trained, data: PreparedData) -> list[tuple[str, str]]:
    config: Any = trained.model.config
    size = sum(parameter.numel() for parameter in trained.model.parameters()) / 1e6
    rows = ", ".join(f"{name} {len(split):,}" for name, split in data.splits.items())
    calls = find_calls(trained.model)
    heads = " or ".join(str(count) for count in dict.fromkeys(call.num_heads for call in calls))
    layers = f"{len(layer_names(calls))} layers of {heads} heads, width {config.get_text_config().hidden_size}"
    return [
        ("class", f"`{trained.class_name}`"),
        ("size", f"{size:.1f} million parameters, {layers}"),
        ("data", f"{_data_text(trained.recipe, data)}; rows: {rows}"),
        ("seed", str(trained.recipe.seed)),
    ]


def _data_text(recipe: Recipe, data: PreparedData) -> str:
    name = builder_name(recipe)
    scenes = drawn_scenes(recipe, data)
    hub, commit = _measured_on(recipe, data)
    place = ""
    if commit is not None:
        place = f", pulled from `{hub}` at `{commit[:8]}`"
    if scenes is not None:
        held_out = ", combinations held out" if scenes.get("held_out") else ""
        drawn = f"{scenes['images']:,} generated scenes (seed {scenes['seed']}, version {scenes['version']}{held_out})"
        return f"{drawn}, read by the builder `{name}`{place}"
    if place:
        return f"`{name}`{place}"
    return f"`{hub or name}`"


def _training(trained: Trained) -> str:
    arguments = trained.recipe.training
    batch = arguments.get("per_device_train_batch_size", 8) * arguments.get("gradient_accumulation_steps", 1)
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in PACKAGES)
    start = "" if trained.recipe.start is None else " after the start of the recipe"
    continued = f" for the steps after {trained.continued_at:,}" if trained.continued_at else ""
    return (
        f"{trained.steps:,} steps of {batch} rows per process{start}, {trained.seconds / 60:.1f} minutes{continued}. "
        f"Python {platform.python_version()}, {versions}. Same seed and machine: same numbers."
        f"{_which_of_several(trained)}"
    )


def _which_of_several(trained: Trained) -> str:
    if trained.name == TEXT_ONLY:
        return " The recipe trains several models; this one is `text_only_baseline`."
    if trained.name == START or len(trained.recipe.methods) == 1:
        return ""
    return f" The recipe trains several models; `methods=[{trained.name}]` trains only this one."


def _controls(trained: Trained) -> Iterator[str]:
    """Sentences about controls and comparisons for the numbers."""
    recipe = trained.recipe
    method = _method(recipe, trained.name)
    if trained.name == START:
        supervised = "attention was not supervised" if method == "none" else f"supervised with `{method}`"
        yield f"Other models start from this one: {supervised}, and nothing was measured."
    elif trained.name == TEXT_ONLY:
        yield "**A control**: the accuracy from words alone, for a comparison with models that read regions."
    elif trained.name == "none":
        if len(recipe.methods) > 1:
            compared = "; the supervised models of the recipe are compared with this one"
        else:
            compared = ""
        yield f"Attention was not supervised{compared}."
    elif recipe.supervision.labels == "gold":
        aligned = all(isinstance(part, GroundingAlignment) for part in trained.method.parts)
        yield f"{'The head of alignment' if aligned else 'Attention'} was supervised with the gold regions."
    else:
        yield (
            f"**A control**: attention was supervised with `{recipe.supervision.labels}` regions instead of the gold "
            "ones, to measure how much of the effect of supervision comes from the grounding itself."
        )
    if recipe.supervision.heads != "all" and method != "none":
        yield f"Supervised heads: `{recipe.supervision.heads}`."
    if getattr(trained.model.config, "box_layer", None) is not None:
        yield "In addition, words were trained to predict the boxes of their regions."
    if any(headline_numbers(trained.numbers)):
        yield (
            "The table also shows the most frequent class (majority) and chance, where they are known. "
            "This is one run with one seed: small differences between models may be due to chance."
        )


def _licence(recipe: Recipe, data: PreparedData) -> str:
    named = recipe.card.license
    terms = _data_licence(recipe, data)
    weights = "apache-2.0" if drawn_scenes(recipe, data) else "not stated; ask the publisher"
    of_data = f"Data (`{builder_name(recipe)}`): {markdown_text(terms.identifier)}. {markdown_text(terms.terms, 2000)}"
    return f"Weights: {named or weights}. Code: Apache-2.0. {of_data}"


def _data_licence(recipe: Recipe, data: PreparedData) -> Licence:
    if data.pulled is not None:
        return Licence(**data.pulled.record["licence"])
    if recipe.data.source is not None:
        return UNDECLARED
    if drawn_scenes(recipe, data):
        return SCENES
    return BUILDERS[builder_name(recipe)].BUILDER_CONFIG_CLASS.LICENCE


def _citations(trained: Trained, data: PreparedData) -> Iterator[str]:
    family = FAMILIES.get(family_name(trained.recipe.model))
    if family is not None and family.citation is not None:
        yield family.citation
    yield from _own_citations(trained)
    if drawn_scenes(trained.recipe, data) is None:
        if data.pulled:
            citation = data.pulled.record["citation"]
        else:
            citation = next(iter(data.splits.values())).info.citation
        if citation and citation not in _own_citations(trained):
            yield citation.strip().replace("```", "'")  # it must not end its block


def _own_citations(trained: Trained) -> list[str]:
    """The citations of the task and of the method, each once."""
    cited = [TASKS[trained.recipe.task].citation, trained.method.citation if trained.method.name != "none" else None]
    return list(dict.fromkeys(citation for citation in cited if citation is not None))


def _use(trained: Trained) -> Fields:
    """The variables of the code snippets of the card."""
    example = _example(trained.processor.tokenizer)
    processor = trained.processor
    places = trained.model.config.code_places
    pixels = getattr(trained.model.config, "vision_config", None) is not None
    source = processor.region_feature_source
    return {
        **example,
        "model_class": trained.class_name,
        "auto_class": next(key for key, place in places.items() if place.endswith(f".{trained.class_name}")),
        **base_lines(adapted_model(trained.model)),
        "pixels": pixels,
        "feature_size": processor.region_feature_size,
        "seen": seen_lines(pixels, processor.region_feature_size, source),
        "forward": forward_lines(TASKS[trained.recipe.task].example, **example),
        "features_text": f"those of {feature_model(source)}, as in training" if source else "those of training",
    }


def _example(tokenizer: Any) -> dict[str, str]:
    """A caption whose words are in the vocabulary, and a phrase of it."""
    known = tokenizer.get_vocab()
    captions = {"a dog runs after a red ball": "a red ball", "a red ball left of a blue cube": "a blue cube"}
    for caption, phrase in captions.items():
        if all(word in known for word in caption.split()):
            return {"caption": caption, "phrase": phrase}
    words = [word for word in known if word.isalpha()][:3] or [tokenizer.unk_token]
    return {"caption": " ".join(words), "phrase": words[-1]}


def vlm_content(trained: Trained, source: str | None, row: Row, options: GroundedGenerationOptions) -> Fields:
    """The variables of the template that only vision-language models have; `row` is one of those of training."""
    example: Fields = {"caption_id": "", "text": "a red ball"}
    if row_kind(row) == QUESTION:
        example = {"text": "What color is the ball?", "answer": ""}
    elif row_kind(row) == EXPRESSION:
        ball = {"text": "a red ball", "start": 0, "end": 10, "boxes": [[0.1, 0.2, 0.5, 0.6]]}
        example = {"text": "a red ball", "phrases": [ball]}
    prompt = make_chat(example, options, trained.processor.box_dialect(None, options.box_dialect)).prompt
    about = {**base_lines(adapted_model(trained.model)), "tokens": trained.recipe.model.tokens}
    return {**about, "prompt": json.dumps(prompt, ensure_ascii=False), "heads_before": heads_before(source)}


def adapted_model(model: Any) -> str | None:
    """The name of the model that an adapter belongs to; `None` without an adapter."""
    if model is unwrap_model(model):
        return None
    return next(iter(model.peft_config.values())).base_model_name_or_path
