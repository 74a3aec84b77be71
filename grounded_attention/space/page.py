# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The page: a tab that asks a vision-language model, and a tab for checkpoints of this package that read regions.

Each shows a page of its own: words, layers and heads are clicked in it, without the server.
"""

import logging
from collections.abc import Callable, Sequence
from html import escape
from threading import Thread, main_thread
from typing import Any

import gradio as gr
from PIL import Image

from grounded_attention.lens.page import lens_page
from grounded_attention.modeling.grounding_items import BY_WORDS, find_phrases
from grounded_attention.pages.explorer import explorer, explorer_body
from grounded_attention.pages.overlay import embed
from grounded_attention.pages.page import html_page, note
from grounded_attention.processing.phrase import Phrase

from .loading import Captures, VisitorError, open_picture
from .settings import HERE, SMALL_VLM, Scene, SpaceSettings, read_scenes

TITLE = "Where does a word look?"
NO_SECOND = "none"
MOST_PHRASES = 6
HINT = (
    "Click a word to see which regions it attends to, or a region to see which words it attends to. Numbers are "
    "shares of the attention on all regions."
)


def regions_page(captures: Captures, image: Image.Image, caption: str, first: str, second: str) -> str:
    """The page of the attention of one or two checkpoints; two of other sizes have an explorer each."""
    names = [first or "", *([second] if second and second != NO_SECOND else [])]
    found = {name: captures.grounded(image, caption or "", name) for name in names}
    examples = {capture.name: [capture.example] for capture in found.values()}
    (read, *_) = (capture.example for capture in found.values())
    phrases = [phrase for phrase in caption_phrases(read.caption) if read.words_of(phrase)]
    try:
        explorers = [explorer(examples, phrases=phrases)]
    except ValueError:
        explorers = [explorer({name: one}, phrases=phrases) for name, one in examples.items()]
    notes = dict.fromkeys(line for capture in found.values() for line in capture.notes)
    return html_page(" and ".join(examples), "".join(map(note, notes)) + explorer_body(explorers, HINT))


def caption_phrases(caption: str) -> list[Phrase]:
    """The first phrases of a caption; neighbouring content words, such as “small pink hoop”, are one."""
    try:
        phrases, way = find_phrases(caption)
    except ValueError:  # the caption has only words such as "the" and "of"
        return []
    joined: list[Phrase] = []
    for phrase in phrases:
        if way == BY_WORDS and joined and caption[joined[-1].end : phrase.start] == " ":
            start = joined.pop().start
            phrase = Phrase(caption[start : phrase.end], start, phrase.end)
        joined.append(phrase)
    return joined[:MOST_PHRASES]


INTRODUCTION = f"# {TITLE}\nAsk a vision-language model about a picture, and **click a word** of its answer."
REGIONS = (
    "A model reads a caption and the regions of a picture. **Click a word** to see which regions it attends to, in "
    "each layer and head."
)
QUESTION = "Describe the image."
HEADS = {"heads that ground": "auto", "all heads": "all"}
THUMBNAIL = 144
MOST_WAITING = 40  # events; a visitor who comes after them reads that the queue is full
MOST_VISITORS = 100  # whose pictures are kept: at most 8 MB each
KEPT_SECONDS = 3600  # what a visitor uploads or downloads stays on the disk of the server for an hour or two
log = logging.getLogger(__name__)


def build_page(settings: SpaceSettings) -> gr.Blocks:
    """Builds the page, and captures the first pictures, so that it opens with one."""
    captures = Captures(settings)
    scenes = read_scenes()
    names = list(settings.models)

    def look(image: Image.Image, question: str, name: str, heads: str) -> str:
        return lens_page([captures.look(image, question, name or "", HEADS[heads])], title=name)

    def regions(image: Image.Image, caption: str, first: str, second: str) -> str:
        return regions_page(captures, image, caption, first, second)

    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(KEPT_SECONDS, KEPT_SECONDS)) as page:
        gr.Markdown(INTRODUCTION)
        with gr.Tab("Ask a model"):
            asked = _Tab("look", look, scenes, "Ask", ("Question", QUESTION))
            vlms = [*([settings.vlm] if settings.vlm else []), *SMALL_VLM]
            info = "or its name on the Hub (LLaVA, Qwen-VL, Gemma 3 …), which is then downloaded"
            asked.build(
                lambda: asked.dropdown("model", vlms, vlms[0], "Model", info),
                lambda: gr.Radio(list(HEADS), value=next(iter(HEADS)), label="Show", elem_id="look-heads"),
            )
        with gr.Tab("Regions"):
            gr.Markdown(REGIONS)
            compared = _Tab("grounded", regions, scenes, "Show", ("Caption", None))
            second = names[1] if len(names) > 1 else NO_SECOND
            info = "one of the list, or ORG/NAME on the Hub"
            compared.build(
                lambda: compared.dropdown("first", names, next(iter(names), None), "First checkpoint", info),
                lambda: compared.dropdown("second", [NO_SECOND, *names], second, "Second checkpoint"),
            )
    Thread(target=_prepare, args=[asked, compared]).start()
    return page


def launch_page(page: gr.Blocks, **options: Any) -> Any:
    """Serves a page of `build_page`, without telemetry; `options` are those of `gr.Blocks.launch`."""
    launched: dict[str, Any] = {"footer_links": [], "max_file_size": "20mb", "ssr_mode": False, "show_error": True}
    launched |= {"css_paths": HERE / "page.css", "theme": gr.themes.Default(font=["system-ui"])}
    return page.queue(max_size=MOST_WAITING).launch(state_session_capacity=MOST_VISITORS, **launched | options)


def _prepare(*tabs: "_Tab") -> None:
    """Answers what visitors may choose first, one after the other, until the program ends."""
    for tab in tabs:
        for scene in tab.scenes:
            if not main_thread().is_alive():
                return
            tab.ask(open_picture(scene.path), tab.text or scene.caption, *tab.start)


class _Tab:
    """Pictures to begin with, a text and models to choose; below them the page that `answer` makes of these.

    `text` is its label and the text that it begins with; without one it is the caption of the picture.
    """

    def __init__(
        self,
        key: str,
        answer: Callable[..., str],
        scenes: Sequence[Scene],
        button: str,
        text: tuple[str, str | None],
    ):
        self.key = key
        self.answer = answer
        self.scenes = scenes
        self.button = button
        self.label, self.text = text
        self.start: list[Any] = []

    def build(self, *choices: Callable[[], Any]) -> None:
        """Adds the tab to the page that is being built."""
        image = open_picture(self.scenes[0].path)
        words = self.text or self.scenes[0].caption
        picture = gr.State(image)
        script = (HERE / "page.js").read_text(encoding="utf-8")
        gallery = gr.HTML(thumbnails(self.scenes), elem_id=f"{self.key}-scenes", js_on_load=script)
        with gr.Row():
            with gr.Column(scale=2, min_width=280, elem_classes="ga-inputs"):
                dropped = {"height": 150, "elem_id": f"{self.key}-file", "elem_classes": "ga-drop"}
                file = gr.File(label="Your own picture", **dropped)
                text = gr.Textbox(words, label=self.label, lines=2, elem_id=f"{self.key}-text", submit_btn=False)
                button = gr.Button(self.button, variant="primary", elem_id=f"{self.key}-ask")
                chosen = [choice() for choice in choices]
            with gr.Column(scale=5, min_width=280, elem_classes="ga-result"):
                self.start = [choice.value for choice in chosen]
                shown, line = self.ask(image, words, *self.start)
                error = gr.HTML(line, elem_id=f"{self.key}-error")
                if not isinstance(shown, str):
                    shown = plain_picture(image, "Choose a model.")
                view = gr.HTML(shown, elem_id=f"{self.key}-view")
        slow: dict[str, Any] = {"show_progress": "minimal", "show_progress_on": [view]}
        gallery.click(self.open_scene, [text, *chosen], [picture, text, view, error], **slow)
        file.upload(self.open_file, file, [picture, view, error], **slow)
        for event in (button.click, text.submit, *(choice.input for choice in chosen)):
            event(self.ask, [picture, text, *chosen], [view, error], **slow)

    def dropdown(self, key: str, names: Sequence[str], first: str | None, label: str, info: str = "") -> gr.Dropdown:
        """Names to choose from; a visitor may write another one."""
        place = f"{self.key}-{key}"
        return gr.Dropdown(names, value=first, label=label, info=info, allow_custom_value=True, elem_id=place)

    def ask(self, image: Image.Image, text: str, *chosen: Any) -> tuple[Any, str]:
        """The page of the answer, and an error line."""
        try:
            return frame(self.answer(image, text or "", *chosen)), error_line("")
        except VisitorError as error:
            return gr.skip(), error_line(str(error))
        except Exception:
            log.exception("the model has not answered")
            return gr.skip(), error_line("Something went wrong on the server; another picture or model may work.")

    def open_scene(self, event: gr.EventData, text: str, *chosen: Any) -> Any:
        scene = self.scenes[int(event._data["scene"])]
        image = open_picture(scene.path)
        words = text if self.text else scene.caption
        return image, words, *self.ask(image, words, *chosen)

    def open_file(self, path: str) -> Any:
        try:
            image = open_picture(path)
        except VisitorError as error:
            return gr.skip(), gr.skip(), error_line(str(error))
        hint = f"Now write a {self.label.lower()} for this picture and press {self.button}."
        return image, plain_picture(image, hint), error_line("")


def frame(page: str) -> str:
    """A page inside the page, as high as it needs to be."""
    grow = (
        "const fit = () => this.style.height = this.contentDocument.body.offsetHeight + 4 + 'px'; "
        "new ResizeObserver(fit).observe(this.contentDocument.body)"
    )
    return f'<iframe class="ga-frame" title="{TITLE}" srcdoc="{escape(page)}" onload="{grow}"></iframe>'


def error_line(message: str) -> str:
    """One line for the visitor, which a screen reader reads out; empty without a message."""
    if message:
        return f'<div role="alert" class="ga-error">{escape(message)}</div>'
    return ""


def plain_picture(image: Image.Image, hint: str) -> str:
    """A picture without attention, and what to do next."""
    return f'<p>{escape(hint)}</p><img class="ga-picture" alt="your picture" src="{embed(image, 560).source}">'


def thumbnails(scenes: Sequence[Scene]) -> str:
    """A button for each picture to begin with."""
    buttons = "".join(
        f'<button type="button" data-scene="{number}" title="{escape(scene.caption)}">'
        f'<img src="{embed(open_picture(scene.path), THUMBNAIL).source}" alt="{escape(scene.caption)}"></button>'
        for number, scene in enumerate(scenes)
    )
    return f'<div class="ga-scenes" role="group" aria-label="choose a picture">{buttons}</div>'
