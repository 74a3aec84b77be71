# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The page: a tab that asks a vision-language model, and a tab for checkpoints of this package that read regions."""

import logging
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from threading import Thread, main_thread
from typing import Any

import gradio as gr
from PIL import Image

from grounded_attention.lens.page import lens_page
from grounded_attention.lens.word_maps import Lens
from grounded_attention.pages.report_pictures import embed

from .figure import write_figure
from .loading import Capture, Captures, VisitorError, open_picture
from .settings import HERE, SMALL_VLM, Scene, SpaceSettings, read_scenes
from .view import MEAN, PHRASES, WORD, VisitorChoice, view_html

TITLE = "Where does a word look?"
INTRODUCTION = f"# {TITLE}\nAsk a vision-language model about a picture, and **click a word** of its answer."
REGIONS = (
    "A model reads a caption and the regions of a picture. **Click a word** to see which regions it attends to, in "
    "each layer and head."
)
QUESTION = "Describe the image."
HEADS = {"heads that ground": "auto", "all heads": "all"}
NO_SECOND = "none"
THUMBNAIL = 144
MOST_WAITING = 40  # events; a visitor who comes after them reads that the queue is full
MOST_VISITORS = 100  # whose pictures are kept: at most 8 MB each
KEPT_SECONDS = 3600  # what a visitor uploads or downloads stays on the disk of the server for an hour or two
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shown:
    """What one visitor sees: the picture, and its attention in one or two checkpoints."""

    image: Image.Image
    captures: tuple[Capture, ...] = ()


def build_page(settings: SpaceSettings) -> gr.Blocks:
    """Builds the page, and captures the first pictures, so that it opens with one."""
    captures, scenes = Captures(settings), read_scenes()
    names = list(settings.models)
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(KEPT_SECONDS, KEPT_SECONDS)) as page:
        gr.Markdown(INTRODUCTION)
        with gr.Tab("Ask a model"):
            asked = _LookTab(captures.look, scenes, [*([settings.vlm] if settings.vlm else []), *SMALL_VLM])
            asked.build()
        with gr.Tab("Regions"):
            gr.Markdown(REGIONS)
            regions = _Tab(captures.grounded, scenes, names, names[:2], "grounded")
            regions.build()
    Thread(target=_prepare, args=[asked.prepare, regions.prepare]).start()
    return page


def _prepare(*waiting: Callable[[Scene], None]) -> None:
    """Answers what visitors may choose first, one after the other, until the program ends."""
    for prepare in waiting:
        for scene in read_scenes():
            if not main_thread().is_alive():
                return
            prepare(scene)


def launch_page(page: gr.Blocks, **options: Any) -> Any:
    """Serves a page of `build_page`, without telemetry; `options` are those of `gr.Blocks.launch`."""
    launched: dict[str, Any] = {"footer_links": [], "max_file_size": "20mb", "ssr_mode": False, "show_error": True}
    launched |= {"css_paths": HERE / "page.css", "theme": gr.themes.Default(font=["system-ui"])}
    return page.queue(max_size=MOST_WAITING).launch(state_session_capacity=MOST_VISITORS, **launched | options)


class _LookTab:
    """Asks a vision-language model, and shows the page of `look`: in it, words are clicked without the server."""

    def __init__(self, look: Callable[..., Lens], scenes: Sequence[Scene], names: Sequence[str]):
        self.look, self.scenes, self.names = look, scenes, list(names)

    def build(self) -> None:
        """Adds the tab to the page that is being built."""
        first = open_picture(self.scenes[0].path)
        picture = gr.State(first)
        gallery = gr.HTML(thumbnails(self.scenes), elem_id="look-scenes", js_on_load=script())
        with gr.Row():
            with gr.Column(scale=2, min_width=280, elem_classes="ga-inputs"):
                file = picture_file("look")
                question = gr.Textbox(QUESTION, label="Question", lines=2, elem_id="look-question", submit_btn=False)
                button = gr.Button("Ask", variant="primary", elem_id="look-ask")
                name = gr.Dropdown(
                    self.names,
                    value=self.names[0],
                    label="Model",
                    info="or its name on the Hub (LLaVA, Qwen-VL, Gemma 3 …), which is then downloaded",
                    allow_custom_value=True,
                    elem_id="look-model",
                )
                heads = gr.Radio(list(HEADS), value=next(iter(HEADS)), label="Show", elem_id="look-heads")
            with gr.Column(scale=5, min_width=280, elem_classes="ga-result"):
                error = gr.HTML(error_line(""), elem_id="look-error")
                view = gr.HTML(self.ask(first, QUESTION, self.names[0])[0], elem_id="look-view")
        slow: dict[str, Any] = {"show_progress": "minimal", "show_progress_on": [view]}
        asked, outputs = [picture, question, name, heads], [view, error]
        gallery.click(self.open_scene, asked[1:], [picture, *outputs], **slow)
        file.upload(self.open_file, file, [picture, *outputs], **slow)
        for event in (button.click, question.submit, name.input, heads.input):
            event(self.ask, asked, outputs, **slow)

    def ask(self, image: Image.Image, question: str, name: str, heads: str = next(iter(HEADS))) -> tuple[Any, str]:
        """The page of the answer, and an error line."""
        try:
            lens = self.look(image, question or "", name or "", HEADS[heads])
        except VisitorError as error:
            return gr.skip(), error_line(str(error))
        except Exception:
            log.exception("the model has not answered")
            return gr.skip(), error_line("Something went wrong on the server; another picture or model may work.")
        return frame(lens_page([lens], title=name)), error_line("")

    def prepare(self, scene: Scene) -> None:
        """Asks about a picture to begin with, so that nobody waits for it."""
        self.ask(open_picture(scene.path), QUESTION, self.names[0])

    def open_scene(self, question: str, name: str, heads: str, event: gr.EventData) -> Any:
        image = open_picture(self.scenes[int(event._data["scene"])].path)
        return image, *self.ask(image, question, name, heads)

    def open_file(self, path: str) -> Any:
        try:
            image = open_picture(path)
        except VisitorError as error:
            return gr.skip(), gr.skip(), error_line(str(error))
        return image, plain_picture(image, "Now ask about this picture and press Ask."), error_line("")


class _Tab:
    """Compares checkpoints that read regions."""

    def __init__(
        self,
        capture: Callable[[Image.Image, str, str], Capture],
        scenes: Sequence[Scene],
        names: Sequence[str],
        first: Sequence[str],
        key: str,
    ):
        self.capture, self.scenes, self.names, self.first, self.key = capture, scenes, list(names), list(first), key
        self.start, self.choice = Shown(open_picture(scenes[0].path)), VisitorChoice()
        if self.first:
            self.start = self.look(self.start.image, scenes[0].caption, *self.first)
            self.choice = first_choice(self.start.captures)

    # What the events do

    def look(self, image: Image.Image, caption: str, *names: str) -> Shown:
        """The attention of the checkpoints; a name that is empty or `NO_SECOND` is left out, except the first."""
        asked = [name or "" for name in names[:1]] + [name for name in names[1:] if name and name != NO_SECOND]
        return Shown(image, tuple(self.capture(image, caption, name) for name in dict.fromkeys(asked)))

    def prepare(self, scene: Scene) -> None:
        """Captures a picture to begin with, so that nobody waits for it."""
        try:
            self.look(open_picture(scene.path), scene.caption, *self.first)
        except VisitorError:  # the visitor who chooses this picture reads why
            log.info("%s: not captured", scene.path)

    def show_scene(self, choice: VisitorChoice, first: str, second: str, event: gr.EventData) -> Any:
        scene = self.scenes[int(event._data["scene"])]
        return self.answer(lambda: self.look(open_picture(scene.path), scene.caption, first, second), choice, scene)

    def show_file(self, shown: Shown, path: str | None) -> Any:
        if path is None:
            return self.nothing()
        return self.answer(lambda: Shown(open_picture(path)), VisitorChoice())

    def show_caption(self, shown: Shown, choice: VisitorChoice, caption: str, first: str, second: str) -> Any:
        return self.answer(lambda: self.look(shown.image, caption or "", first, second), choice)

    def click(self, shown: Shown, choice: VisitorChoice, event: gr.EventData) -> Any:
        data = event._data
        if data["word"]:
            choice = replace(choice, word=int(data["word"]), show=WORD)
        elif data["cell"]:
            layer, head = map(int, data["cell"].split())
            choice = replace(choice, layer=layer, head=head)
        return choice, view_html(shown.captures, choice), choice.layer, choice.head, choice.show

    def move(self, shown: Shown, choice: VisitorChoice, layer: float, head: float, show: str) -> Any:
        choice = replace(choice, layer=int(layer), head=int(head), show=show)
        return choice, view_html(shown.captures, choice) if shown.captures else gr.skip()

    def figure(self, shown: Shown, choice: VisitorChoice) -> Any:
        try:
            with tempfile.TemporaryDirectory(prefix="grounded_attention_") as folder:
                path = write_figure(shown.captures, choice, Path(folder, "attention.png"))
                return self.ready.move_resource_to_block_cache(path), error_line("")
        except VisitorError as error:
            return gr.skip(), error_line(str(error))

    def answer(self, look: Callable[[], Shown], choice: VisitorChoice, scene: Scene | None = None) -> list[Any]:
        """The new values of `self.outputs` after a picture, a caption or a checkpoint has changed."""
        try:
            shown = look()
        except VisitorError as error:
            return self.nothing(str(error))
        except Exception:
            log.exception("the page has not answered")
            return self.nothing("Something went wrong on the server; another picture or checkpoint may work.")
        if not shown.captures:
            hint = "Now write a caption for this picture and press Show."
            return [shown, choice, plain_picture(shown.image, hint), gr.skip(), gr.skip(), error_line(""), ""]
        choice = choice.within(shown.captures[0]) if same_shape(shown, choice) else first_choice(shown.captures)
        layers, heads = _most(shown.captures)
        return [
            shown,
            choice,
            view_html(shown.captures, choice),
            gr.Slider(maximum=max(layers - 1, 1), value=choice.layer),
            gr.Slider(maximum=heads - 1, value=choice.head),
            error_line(""),
            gr.skip() if scene is None else scene.caption,
        ]

    def nothing(self, message: str = "") -> list[Any]:
        """Leaves the page as it is, with a line for the visitor."""
        return [*[gr.skip()] * 5, error_line(message), gr.skip()]

    # The parts of the tab

    def build(self) -> None:
        """Adds the tab to the page that is being built."""
        self.shown, self.chosen = gr.State(self.start), gr.State(self.choice)
        self.gallery = gr.HTML(thumbnails(self.scenes), elem_id=f"{self.key}-scenes", js_on_load=script())
        with gr.Row():
            with gr.Column(scale=2, min_width=280, elem_classes="ga-inputs"):
                self._build_inputs()
            with gr.Column(scale=5, min_width=280, elem_classes="ga-result"):
                self._build_picture()
        self.outputs = [
            self.shown, self.chosen, self.view, self.layer, self.head, self.error, self.caption
        ]  # fmt: skip
        self._connect()

    def _build_inputs(self) -> None:
        self.file = picture_file(self.key)
        self.caption = gr.Textbox(
            self.scenes[0].caption, label="Caption", lines=2, elem_id=f"{self.key}-caption", submit_btn=False
        )
        self.button = gr.Button("Show", variant="primary", elem_id=f"{self.key}-show")
        with gr.Accordion("Checkpoints", open=False):
            self._build_names()

    def _build_names(self) -> None:
        self.first_name = gr.Dropdown(
            self.names,
            value=next(iter(self.first), None),
            label="First",
            info="one of the list, or ORG/NAME on the Hub",
            allow_custom_value=True,
            elem_id=f"{self.key}-first",
        )
        self.second_name = gr.Dropdown(
            [NO_SECOND, *self.names],
            value=self.first[1] if len(self.first) > 1 else NO_SECOND,
            label="Second",
            allow_custom_value=True,
            elem_id=f"{self.key}-second",
        )

    def _build_picture(self) -> None:
        layers, heads = _most(self.start.captures)
        self.error = gr.HTML(error_line(""), elem_id=f"{self.key}-error")
        with gr.Row():
            self.layer = gr.Slider(
                0,
                max(layers - 1, 1),
                self.choice.layer,
                step=1,
                label="Layer",
                elem_id=f"{self.key}-layer",
                buttons=[],
            )
            self.head = gr.Slider(
                MEAN,
                heads - 1,
                self.choice.head,
                step=1,
                label="Head (-1: mean)",
                elem_id=f"{self.key}-head",
                buttons=[],
            )
        self.show = gr.Radio([WORD, PHRASES], value=WORD, label="Show", elem_id=f"{self.key}-mode")
        self.view = gr.HTML(
            view_html(self.start.captures, self.choice) or plain_picture(self.start.image, "Choose a model."),
            elem_id=f"{self.key}-view",
            js_on_load=script(),
        )
        self.download = gr.Button("Download the picture", elem_id=f"{self.key}-download")
        self.ready = gr.DownloadButton(visible="hidden", elem_id=f"{self.key}-ready")

    def _connect(self) -> None:
        names = [self.first_name, self.second_name]
        quick: dict[str, Any] = {"queue": False, "show_progress": "hidden"}
        slow: dict[str, Any] = {"show_progress": "minimal", "show_progress_on": [self.view]}
        inputs = [self.shown, self.chosen, self.caption, *names]
        self.gallery.click(self.show_scene, [self.chosen, *names], self.outputs, **slow)
        self.file.upload(self.show_file, [self.shown, self.file], self.outputs, **slow)
        scroll = f"() => innerWidth <= 640 && document.querySelector('#{self.key}-view').scrollIntoView()"
        for event in (self.button.click, self.caption.submit, self.first_name.input, self.second_name.input):
            event(self.show_caption, inputs, self.outputs, **slow).success(None, js=scroll)
        self.view.click(
            self.click, [self.shown, self.chosen], [self.chosen, self.view, self.layer, self.head, self.show], **quick
        )
        controls = [self.shown, self.chosen, self.layer, self.head, self.show]
        for event in (self.layer.input, self.head.input, self.show.input):
            event(self.move, controls, [self.chosen, self.view], trigger_mode="always_last", **quick)
        self.download.click(
            self.figure, [self.shown, self.chosen], [self.ready, self.error], show_progress="hidden"
        ).success(None, js=f"() => document.querySelector('#{self.key}-ready').click()")


def picture_file(key: str) -> gr.File:
    """Where a visitor drops a picture."""
    return gr.File(label="Your own picture", height=150, elem_id=f"{key}-file", elem_classes="ga-drop")


def frame(page: str) -> str:
    """A page inside the page, as high as it needs to be."""
    grow = (
        "const fit = () => this.style.height = this.contentDocument.body.offsetHeight + 'px'; "
        "new ResizeObserver(fit).observe(this.contentDocument.body)"
    )
    return f'<iframe class="ga-frame" title="{TITLE}" srcdoc="{escape(page)}" onload="{grow}"></iframe>'


def script() -> str:
    """The JavaScript of the views."""
    return (HERE / "page.js").read_text(encoding="utf-8")


def first_choice(captures: Sequence[Capture]) -> VisitorChoice:
    """The longest word, in the mean over heads of the last layer."""
    capture = captures[0]
    example = capture.example
    longest = max(range(len(example.words)), key=lambda word: (len(example.text(word)), word))
    return VisitorChoice(longest, len(example.layers) - 1, MEAN)


def same_shape(shown: Shown, choice: VisitorChoice) -> bool:
    """Whether a choice is possible in the model and caption."""
    return choice.within(shown.captures[0]) == choice


def error_line(message: str) -> str:
    """One line for the visitor, which a screen reader reads out; empty without a message."""
    return f'<div role="alert" class="ga-error">{escape(message)}</div>' if message else ""


def plain_picture(image: Image.Image, hint: str) -> str:
    """A picture without attention, and what to do next."""
    source = embed(image, 560).source
    return f'<p>{escape(hint)}</p><img class="ga-scene" style="width:auto" alt="your picture" src="{source}">'


def thumbnails(scenes: Sequence[Scene]) -> str:
    """A button for each picture to begin with."""
    buttons = "".join(
        f'<button type="button" data-scene="{number}" title="{escape(scene.caption)}">'
        f'<img src="{embed(open_picture(scene.path), THUMBNAIL).source}" alt="{escape(scene.caption)}"></button>'
        for number, scene in enumerate(scenes)
    )
    return f'<div class="ga-scenes" role="group" aria-label="choose a picture">{buttons}</div>'


def _most(captures: Sequence[Capture]) -> tuple[int, int]:
    """The largest number of layers and of heads."""
    shapes = [capture.example.attention.shape for capture in captures] or [(2, 1)]
    return max(shape[0] for shape in shapes), max(shape[1] for shape in shapes)
