# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Prepares grounded examples for vision-language models, whose regions are image tokens.

Shapes: B batch, N sequence, S texts of an example, T text tokens, P phrases, R image tokens.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, cast

import numpy as np
import torch
import transformers
from packaging import version
from PIL import Image

from ..utils.masks import mask_boxes
from ..utils.open_images import ENOUGH, open_image, picture_size
from .box_dialects import BOX_DIALECTS, BoxDialect, fit_dialect
from .chat_prompts import (
    Prompt,
    PromptText,
    end_answer,
    is_conversation,
    make_conversation,
    plain_prompt,
    read_exchange,
    render_prompt,
)
from .given_image_tokens import GIVEN, ImageTokenFunction, find_spans, read_image_tokens, run_processor
from .grounded_batch import DroppedPhrase, GroundedBatch, as_batch, word_inputs
from .image_layouts import ImageLayout, ImageSettings, VideoSettings
from .image_tokens import (
    NEWEST_TRANSFORMERS,
    AnswerDecoder,
    ImageTokenFamily,
    get_image_token_family,
    image_layouts,
)
from .patch_sequences import (
    IGNORED,
    TokenSequence,
    answer_labels,
    region_arrays,
    text_arrays,
    text_spans,
)
from .phrase_arrays import phrase_arrays
from .region_columns import RegionColumns
from .sequence_layouts import check_tokenizer
from .tile_layouts import MLLAMA_PATCH
from .videos import Video

# The keys of a batch that are for supervision and not for the model.
GROUNDING_KEYS = (
    "text_positions",
    "region_positions",
    "region_boxes",
    "region_attention_mask",
    "region_candidate_mask",
    "region_image",
    "phrase_mask",
    "phrase_regions",
    "phrase_scores",
    "phrase_boxes",
    "phrase_image",
    "phrase_anchor",
    "phrase_pairs",
    "dropped_phrases",
)
# A gold box is widened to this part of the image, so that one without area is in a patch too.
SMALLEST_BOX = 1e-6
# Boxes are float32, so that a share of one may be this much too small.
ROUNDING = 1e-5


class PatchGroundingProcessor:
    """Makes batches for attention supervision of a vision-language model: its image tokens are the regions.

    It has the call and the keys of [`GroundedProcessor`], so supervision methods and grounding metrics read both. The
    sequence is made by the processor of the model. This class finds the image tokens and the words of each phrase in
    it.

    Args:
        processor (`ProcessorMixin`): The processor of the model, with a fast tokenizer.
        model_type (`str`, *optional*): `config.model_type` of the model; by default found by the processor's class.
        coverage_threshold (`float`, *optional*, defaults to 0.5): An image token belongs to a phrase if a gold box
            covers at least this share of the token's box; above 0, at most 1. A gold box that covers so much of no
            token gets the one of which it covers most.
        image_settings (`Mapping[str, Any]`, *optional*): Settings of the image processor for every call, for example
            `{"do_pan_and_scan": True}`.
        image_tokens (`Callable`, *optional*): Finds the image tokens of a type that is not known (docs/vlm.md has an
            example). `image_tokens(ids, inputs, sizes)` gets the sequence of one example without padding, (N,)
            int64; all outputs of the processor for this example alone; and (width, height) of its images. It returns
            for each image positions (n,) in this sequence, and boxes (n, 4): x1, y1, x2, y2 divided by width and
            height, NaN for tokens without a place. The processor may be any object with a `tokenizer` that is called
            with lists as those of transformers: `text`, `images` (lists of images), `padding`, `add_special_tokens`,
            `return_tensors` and the `image_settings`. Without a chat template of its own a text is the whole prompt.
            Words are found in what the tokens say, so the tokenizer need not be fast.

    Raises:
        ValueError: The image tokens of the model are not known, the tokenizer is not fast, or the threshold is not in
            its range.
    """

    def __init__(
        self,
        processor: Any,
        model_type: str | None = None,
        coverage_threshold: float = 0.5,
        image_settings: Mapping[str, Any] | None = None,
        image_tokens: ImageTokenFunction | None = None,
    ) -> None:
        if isinstance(processor, type) or not hasattr(processor, "tokenizer"):
            kind = processor if isinstance(processor, type) else type(processor)
            raise ValueError(
                f"{kind.__name__} is no known processor of a vision-language model: AutoProcessor loads one."
            )
        self.image_tokens = image_tokens
        self._found_ids: set[int] = set()
        self.family: ImageTokenFamily = GIVEN
        if image_tokens is None:
            self.family = get_image_token_family(processor, model_type)
        check_tokenizer(processor.tokenizer, self.family.processor)
        if not 0 < coverage_threshold <= 1:
            raise ValueError(f"coverage_threshold={coverage_threshold}, expected a number above 0 and at most 1.")
        self.processor = processor
        self.coverage_threshold = coverage_threshold
        self.image_settings = dict(image_settings or {})

    @property
    def placeholder(self) -> str:
        """The token that stands for an image in a prompt."""
        return self.family.placeholder(self.processor)

    @property
    def picture_tokens(self) -> list[str]:
        """The tokens of image tokens in a sequence: of images, and of videos, in whose prompts it is the place too.

        None are known with `image_tokens`.
        """
        image = self.family.image_token(self.processor)
        if not image:
            return []
        video = getattr(self.processor, "video_token", "")
        # A tokenizer without the token would give that of unknown words.
        unknown = (None, self.tokenizer.unk_token_id)
        if self.family.frames is None or self.tokenizer.convert_tokens_to_ids(video) in unknown:
            return [image]
        return [image, video]

    @property
    def picture_ids(self) -> set[int]:
        """The ids of `picture_tokens`; with `image_tokens` those with a place in the sequences so far."""
        return {*self.tokenizer.convert_tokens_to_ids(self.picture_tokens), *self._found_ids}

    def frame_steps(self, video: Video) -> list[tuple[range, float]]:
        """The frames of a video that the model reads together, and when; each step is an image of `region_image`."""
        return video.steps(getattr(self.processor.video_processor, "temporal_patch_size", None) or 1)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the model's processor."""
        return self.processor.tokenizer

    def check_model(self, config: Any) -> None:
        """Raises a ValueError if a model, by its configuration, is of another type or has other patches than known."""
        if getattr(config, "is_encoder_decoder", False) is not (self.family.decoder is not None):
            raise ValueError(
                f"the processor is that of another type: PatchGroundingProcessor(processor, {config.model_type!r})"
            )
        if self.family.keys == "images":
            size = config.vision_config.patch_size
            if size != getattr(self.processor.image_processor, "patch_size", MLLAMA_PATCH):
                raise ValueError(
                    f"the model has other patches than known: set processor.image_processor.patch_size = {size}"
                )

    def box_dialect(self, image: Any = None, name: str | None = None) -> BoxDialect:
        """How the model writes boxes and points of an image.

        Args:
            image (*optional*): The image, as for [`open_image`]; pixels and padded squares are not the same for all.
            name (`str`, *optional*): One of [`BOX_DIALECTS`], for a model that was taught another one than its family.

        Returns:
            [`BoxDialect`]: Its prompt, writer and reader.
        """
        own = self.family.boxes
        if own == "plain" and "<loc_500>" in self.tokenizer.get_vocab():  # SmolDocling is an Idefics3
            own = "granite_docling"
        dialect = BOX_DIALECTS[name or own]
        if image is None:
            return fit_dialect(dialect, None)
        settings = {**self.family.settings, **self.image_settings}
        return fit_dialect(dialect, ImageSettings(self.processor, settings, *picture_size(image), True))

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> Any:
        """Saves the processor of the model; the settings of this class are not stored."""
        return self.processor.save_pretrained(save_directory, **kwargs)

    @staticmethod
    def model_inputs(batch: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the entries of a batch that the model reads (`dict[str, Any]`)."""
        return {key: value for key, value in batch.items() if key not in GROUNDING_KEYS}

    def __call__(
        self,
        text: Any,
        text_pair: str | Sequence[str | None] | None = None,
        *,
        images: Any = None,
        phrases: Any = None,
        phrase_pairs: Any = None,
        padding: bool | str = True,
        max_length: int | None = None,
        labels: bool = False,
    ) -> GroundedBatch:
        r"""Makes a batch.

        A sequence is never cut, because a model needs all of its image tokens.

        Args:
            text (`str`, conversation, or a list of them): A text, or a conversation in transformers' form (a list of
                messages, whose images are `{"type": "image"}`). With a chat template, a text becomes the words of the
                user after the images. Without one, or with image tokens in the text, it is the prompt itself; images
                without tokens come first. With a single text or conversation every other argument is that of one
                example; the outputs have the batch dimension, with B = 1.
            text_pair (`str` or `list[str]`, *optional*): The answers of the assistant to texts, with a chat template.
            images (list of B images, or of B lists of images, *optional*): As for [`open_image`], or a [`Video`]: its
                frames are counted as images, those that the model reads together as one ([`frame_steps`]). `None` is
                an example without an image.
            phrases (list of B lists of [`Phrase`] or mappings with its keys, *optional*): Words of the texts (the
                text and its answer, or the texts of a conversation in order), see [`read_phrase`]. `boxes` are those
                of the original image, `regions` indices into the image tokens; `image` is required if the example
                has several images.
            phrase_pairs (list of B arrays `(k, 2)`, *optional*): Pairs of indices into the example's phrases.
            padding (`bool` or `str`, *optional*, defaults to `True`): As for the tokenizer; the side is the
                tokenizer's `padding_side`.
            max_length (`int`, *optional*): Length for `padding="max_length"`.
            labels (`bool`, *optional*, defaults to `False`): Whether to add `labels` (B, N) int64 for a language
                model: the tokens of the answers up to the special token that ends each of them, -100 elsewhere. If
                the chat template writes no special token after the last answer, the tokenizer's end token follows it.

        Returns:
            [`GroundedBatch`]: The inputs of the model ([`model_inputs`]) as its processor makes them, and for
            supervision:

            - `text_positions` (B, T) and `region_positions` (B, R) int64: positions in the sequence of the tokens of
              the texts and of the image tokens, in order; -1 is padding.
            - `region_boxes` (B, R, 4) float32: the part of the original image that each image token shows; 0 for
              tokens without a place (newlines, padding of the image) and for padding.
            - `region_attention_mask` (B, R) int64: 1 for image tokens. `region_candidate_mask` (B, R) bool: image
              tokens with a place in the image. `region_image` (B, R) int64: the image of each token.
            - `phrase_mask` (B, P, T) bool and `phrase_regions` (B, P, R) float32: the tokens of each phrase, and 1 for
              its image tokens, 0 for others; with a `mask`, the image tokens that it covers enough have the share of
              them that it covers, with a map all have its mean there. Only with `phrases`.
            - `phrase_boxes` (B, P, G, 4) float32, -1 for padding, and `phrase_image` (B, P) int64: the gold boxes of
              each phrase and their image. `phrase_anchor` (B, P) bool: whether a phrase is one token that was added to
              the tokenizer. Only with `phrases`.
            - `phrase_scores` (B, P, R) float32 in (0, 1], only if a phrase has `"scores"`: how sure a region is.
            - `phrase_pairs` (B, K, 2) int64, -1 for padding. Only with `phrase_pairs`.

            `dropped_phrases` of the result lists phrases whose span has no token, and phrases whose boxes no image
            token shows (reason `"regions cut"`; a centre crop removes parts of the image).

        Raises:
            ValueError: An image cannot be read; prompt and images do not fit; the chat template changes a text; the
                processor makes other tokens than its family is known for; a span, an index or a box is not valid;
                `labels` without an answer. The message names the example.
        """
        single = isinstance(text, str) or is_conversation(text)
        texts = [text] if single else text
        examples = {"images": images, "phrases": phrases, "phrase_pairs": phrase_pairs}
        if single:
            examples = {name: None if value is None else [value] for name, value in examples.items()}
            text_pair = None if text_pair is None else [text_pair]  # type: ignore[list-item]
        # Conversations are checked where they are rendered.
        if hasattr(texts, "__len__"):
            stand_ins = ["" if is_conversation(each) else each for each in texts]
        else:
            stand_ins = texts
        _, _, examples = as_batch(stand_ins, text_pair, examples)
        pictures = _open_images(examples["images"], len(texts))
        answers = [None] * len(texts) if text_pair is None else list(text_pair)
        rows = zip(texts, answers, pictures, strict=True)
        prompts = [self._prompt(f"Example {i}", *row) for i, row in enumerate(rows)]
        if labels:
            prompts = [end_answer(prompt, self.tokenizer, f"Example {i}") for i, prompt in enumerate(prompts)]
        inputs, specials = self._run(prompts, pictures, padding, max_length)
        inputs.pop("labels", None)
        places = count()
        sequences = [self._read(i, prompts[i], pictures[i], inputs, specials, places) for i in range(len(prompts))]
        if self.family.decoder is not None:
            written = [str(prompt.decoder) for prompt in prompts]
            decoded = self.tokenizer(
                written, padding=True, padding_side="right", add_special_tokens=False, return_tensors="pt"
            )
            inputs |= {f"decoder_{name}": decoded[name] for name in ("input_ids", "attention_mask")}
        ids = inputs[word_inputs(inputs)[0]].numpy()
        data, dropped = self.ground(sequences, ids, examples)
        if labels:
            data["labels"] = answer_labels(sequences, ids.shape[1], set(self.tokenizer.all_special_ids))
            if self.family.decoder is not None:  # what each token of a decoder predicts
                installed = transformers.__version__
                # Florence-2 shifted them once more.
                if version.parse(installed) < version.parse(NEWEST_TRANSFORMERS):
                    raise ValueError(
                        f"labels of a model with a decoder need transformers {NEWEST_TRANSFORMERS}, found {installed}"
                    )
                data["labels"] = np.pad(data["labels"][:, 1:], [(0, 0), (0, 1)], constant_values=IGNORED)
        tensors = {name: torch.from_numpy(data[name]) for name in (*GROUNDING_KEYS, "labels") if name in data}
        return GroundedBatch({**inputs, **tensors}, dropped_phrases=dropped)

    def ground(
        self, sequences: list[TokenSequence], input_ids: np.ndarray, examples: Mapping[str, Any]
    ) -> tuple[dict[str, np.ndarray], list[list[DroppedPhrase]]]:
        """The arrays of grounding of a batch whose texts and image tokens were found, and its dropped phrases.

        Args:
            sequences (`list[TokenSequence]`): The B examples.
            input_ids (`np.ndarray`): (B, N) int64, the tokens of the batch.
            examples (`Mapping[str, Any]`): `phrases` and `phrase_pairs` of each example, or None, as for the call.

        Returns:
            `tuple[dict[str, np.ndarray], list[list[DroppedPhrase]]]`: The entries of a batch that this class adds to
            the inputs of the model, see the call; and what `dropped_phrases` has.
        """
        data = region_arrays([each.image_tokens for each in sequences])
        encoded, columns, data["text_positions"] = text_arrays(sequences, input_ids.shape[1])
        counts = np.array([each.images for each in sequences])
        shape = data["region_positions"].shape
        cover = partial(mark_covered, threshold=self.coverage_threshold)
        tokens = data["region_attention_mask"].sum(axis=1)
        every = np.tile(np.arange(shape[1]), (shape[0], 1))
        regions = RegionColumns(dict(data), data["region_boxes"], tokens, every, data["region_image"], cover)
        match = partial(match_coverage, threshold=self.coverage_threshold)
        parts = [each.prompt.parts for each in sequences]
        spoken = []
        for i in range(len(encoded.ids)):
            spoken.append([own[i].text if i < len(own) else "" for own in parts])
        length = data["text_positions"].shape[1]
        arrays, dropped = phrase_arrays(examples, spoken, encoded, columns, length, regions, match, counts)
        data.update(arrays)
        if "phrase_mask" in data:
            data["phrase_boxes"], data["phrase_image"] = box_arrays(examples["phrases"], data["phrase_mask"].shape[1])
            added = np.array([*self.tokenizer.get_added_vocab().values()], dtype=np.int64)
            places = data["text_positions"]
            ids = np.take_along_axis(input_ids, places.clip(min=0), axis=1)
            special = np.isin(ids, added) & (places >= 0)
            mask = data["phrase_mask"]
            one = mask.sum(-1) == 1
            data["phrase_anchor"] = one & (mask & special[:, None]).any(-1)
        return data, dropped

    @property
    def answer_prefix(self) -> str:
        """The token with which answers of a decoder begin, or nothing."""
        if self.family.decoder is None:
            return ""
        return self.family.decoder.prefix(self.processor)

    def check_text(self, text: str, name: str) -> None:
        """Raises a ValueError if a text of a user, called `name`, has a token of an image, or one that ends texts."""
        for token in (self.placeholder, *self.picture_tokens):
            if token in text:
                raise ValueError(
                    f"{name}: a text has {token!r}, the model's token for an image: write these words in another way. "
                    'An image of a conversation is a part {"type": "image"}.'
                )
        ends = (self.tokenizer.bos_token, self.tokenizer.eos_token, self.tokenizer.pad_token)
        for token in ends:
            if token and token in text:
                raise ValueError(
                    f"{name}: a text has {token!r}, which would begin, end or pad it: write it in another way."
                )

    def _prompt(self, name: str, text: Any, answer: str | None, pictures: list[Image.Image | Video]) -> Prompt:
        token = self.placeholder
        is_video = [isinstance(picture, Video) for picture in pictures]
        if len(self.picture_tokens) < 2 and any(is_video):
            raise ValueError(
                f"{name}: videos of this type of model are not read; docs/vlm.md names those of which they are; give "
                "frames as images."
            )
        if self.family.decoder is not None:
            return self._encoder_prompt(name, read_exchange(text, answer, name), self.family.decoder, len(pictures))
        if answer is not None and not is_conversation(text):
            self.check_text(f"{text}\n{answer}", name)
        has_template = getattr(self.processor, "chat_template", None)
        expected = []
        if self.image_tokens is None:
            has_template = has_template or self.tokenizer.chat_template
            expected = [self.processor.video_token if video else token for video in is_video]
        if is_conversation(text) or (has_template and not self._places.search(text)):
            if is_conversation(text) and answer is not None:
                raise ValueError(
                    f"{name}: text_pair is given with a conversation; add the answer to the conversation."
                )
            kinds = ["video" if video else "image" for video in is_video]
            conversation = text if is_conversation(text) else make_conversation(text, answer, kinds)
            prompt = render_prompt(self.processor, conversation, name)
            for part in prompt.parts:
                self.check_text(part.text, name)
        elif answer is not None:
            raise ValueError(f"{name}: text_pair needs a chat template; write one text instead.")
        else:
            prompt = plain_prompt(text, expected)
        self._check_places(name, prompt, expected)
        return prompt

    def _encoder_prompt(self, name: str, texts: list[str], decoder: AnswerDecoder, images: int) -> Prompt:
        """The prompt of an encoder, with the sequence of its decoder: words of the prompt have no part in it."""
        question = texts[0]
        parts = [PromptText(question, 0, 0, 0)]
        written = decoder.start(self.processor)
        if len(texts) > 1:
            written += self.answer_prefix
            parts.append(PromptText(texts[1], 0, len(written), len(written + texts[1]), answer=True))
            written += texts[1]
        expected = [self.placeholder] * images
        self.check_text("\n".join(texts if decoder.prompt is not None else texts[1:]), name)
        if decoder.prompt is None:
            prompt = Prompt(plain_prompt(question, expected).text, parts, None, written)
        else:
            prompt = Prompt(decoder.prompt(self.processor, question), parts, question, written)
        self._check_places(name, prompt, expected)
        return prompt

    def _check_places(self, name: str, prompt: Prompt, expected: list[str]) -> None:
        found = self._places.findall(prompt.text)
        if found != expected:
            raise ValueError(
                f"{name}: {len(expected)} images, but the prompt has {len(found)} image tokens ({self.placeholder}); "
                f"give one image for each: {expected}."
            )

    @property
    def _places(self) -> re.Pattern[str]:
        """The places of images and videos in a prompt."""
        return re.compile("|".join(map(re.escape, [self.placeholder, *self.picture_tokens[1:]])))

    def _run(
        self,
        prompts: list[Prompt],
        pictures: list[list[Image.Image | Video]],
        padding: bool | str,
        max_length: int | None,
    ) -> tuple[dict[str, Any], bool]:
        """Runs the model's processor; the second value says whether the tokenizer adds special tokens."""
        start = self.tokenizer.bos_token
        # As apply_chat_template of the processor: a template may write the start token itself.
        specials = self.family.adds_special_tokens and not (start and prompts[0].text.startswith(start))
        # Arguments that are not in one of the groups are ignored beside them in transformers 5.4.
        words: dict[str, Any] = {"padding": padding, "add_special_tokens": specials, "return_tensors": "pt"}
        if max_length is not None:
            words["max_length"] = max_length
        if self.image_tokens is not None:
            options = {**words, **self.image_settings}
            return run_processor(self.processor, prompts, images=pictures, **options), specials
        images = []
        videos: list[Video] = []
        for given in pictures:
            images.append([picture for picture in given if not isinstance(picture, Video)])
            videos += [picture for picture in given if isinstance(picture, Video)]
        arranged = None
        if any(images):
            arranged = self.family.arrange(images)
        arguments = dict(self.family.arguments)
        if videos:
            arguments |= _video_arguments(videos)
            if any(images) and not self.family.frames_and_images:
                name = type(self.processor).__name__
                raise ValueError(f"models of {name} read images or videos, not both together; give one of them")
        try:
            inputs = self.processor(
                text=[prompt.text if prompt.given is None else prompt.given for prompt in prompts],
                images=arranged,
                text_kwargs=words,
                **arguments,
                images_kwargs={**self.family.settings, **self.image_settings, "return_tensors": "pt"},
            )
        except ValueError as error:
            if len({len(video.frames) for video in videos}) < 2:
                raise
            name = type(self.processor).__name__
            raise ValueError(f"{name} does not read these videos together; give as many frames of each") from error
        if "video_second_per_grid" in inputs:  # the processor has one number of frames in a second for all videos
            span = self.processor.video_processor.temporal_patch_size
            inputs["video_second_per_grid"] = torch.tensor([span / video.fps for video in videos])
        inputs.pop("video_metadata", None)
        return dict(inputs), specials

    def _read(
        self,
        example: int,
        prompt: Prompt,
        pictures: list[Image.Image | Video],
        inputs: Mapping[str, Any],
        specials: bool,
        places: Iterator[int],
    ) -> TokenSequence:
        """Finds the texts and the image tokens of an example in its sequence; `places` are those of its videos."""
        name = f"Example {example}"
        positions = np.flatnonzero(inputs["attention_mask"][example].numpy())
        ids = inputs["input_ids"][example].numpy()[positions]
        if self.image_tokens is not None:
            if inputs["input_ids"].shape != (1, len(ids)):  # which outputs are those of one example is not known
                inputs, _ = self._run([prompt], [pictures], True, None)
                if inputs["input_ids"].tolist() != [ids.tolist()]:
                    raise ValueError(f"{name}: it has other tokens in a batch than alone; give one example at a time.")
            found = self.image_tokens(ids.copy(), inputs, [cast(Any, picture).size for picture in pictures])
            given = read_image_tokens(found, len(pictures), len(ids), name)
            self._found_ids |= {*ids[given.positions[given.has_box]].tolist()}
            words = ids.copy()
            words[given.positions] = -1
            spans = find_spans(prompt, self.tokenizer, words.tolist(), name)
            placed = replace(given, positions=positions[given.positions])
            return TokenSequence(prompt, placed, positions, spans, ids, len(pictures))
        sizes = [picture.size for picture in pictures if not isinstance(picture, Video)]
        of_images = iter(image_layouts(self.family, self.processor, sizes, self.image_settings))
        layouts: list[list[ImageLayout]] = []
        numbers = count()
        for picture in pictures:
            if isinstance(picture, Video):
                about = (*picture.frames[0].size, True, next(numbers))
                place = next(places)
                settings = VideoSettings(self.processor, {}, *about, video=picture, inputs=inputs, place=place)
                layouts.append(cast(Any, self.family.frames)(settings))
            else:
                layouts.append([next(of_images)])
        expanded, segments = self._expand(prompt, layouts)
        encoding = self.tokenizer(expanded, add_special_tokens=specials, return_offsets_mapping=True, verbose=False)
        if ids.tolist() != list(encoding["input_ids"]):
            raise ValueError(
                f"{name}: {type(self.processor).__name__} makes {len(ids)} tokens that are not the "
                f"{len(encoding['input_ids'])} expected ones; the settings of images that this class does not know "
                "were changed, or this version of transformers lays out image tokens in another way."
            )
        flat = [layout for each in layouts for layout in each]
        image_tokens = self.family.place(positions[np.isin(ids, [*self.picture_ids])], flat, name)
        if prompt.decoder is not None:
            encoding = self.tokenizer(prompt.decoder, add_special_tokens=False, return_offsets_mapping=True)
            ids = np.array(encoding["input_ids"])
            positions = np.arange(len(ids))
            segments = np.array([[0, len(prompt.decoder), 0]])
        offsets = np.array(encoding["offset_mapping"], dtype=np.int64).reshape(-1, 2)
        spans = text_spans(prompt, offsets, segments)
        return TokenSequence(prompt, image_tokens, positions, spans, ids, len(flat))

    def _expand(self, prompt: Prompt, layouts: list[list[ImageLayout]]) -> tuple[str, np.ndarray]:
        """Inserts image tokens as the processor does: the text, and (start, end, start in the prompt) of each part."""
        expanded = ""
        segments = []
        place = 0
        if self.family.starts_prompt:
            start = self.tokenizer.bos_token or self.tokenizer.eos_token
            expanded = "" if prompt.text.startswith(start) else start
        waiting = ""
        if self.family.starts_text and self.tokenizer.bos_token not in prompt.text:
            waiting = self.tokenizer.bos_token
        end = self.family.prompt_end(self.processor)
        after = self.family.after_images(self.processor)
        for number, found in enumerate([*self._places.finditer(prompt.text), None]):
            part = prompt.text[place : None if found is None else found.start()]
            if part or found is None:
                expanded += waiting
                waiting = ""
            segments.append((len(expanded), len(expanded) + len(part), place))
            expanded += part
            if found is not None:
                kind = self.family.image_token if found[0] == self.placeholder else self.family.frame_token
                token = kind(self.processor)
                expanded += "".join(self.family.text_of(layout, token) for layout in layouts[number])
                expanded += after if number + 1 == len(layouts) else ""
                place = found.end()
        return expanded + end, np.array(segments, dtype=np.int64)


def match_coverage(gold: np.ndarray, patches: np.ndarray, threshold: float) -> np.ndarray:
    """Marks the patches that gold boxes cover; a box that covers no patch enough gets the patch it covers most."""
    low = np.minimum(gold[:, None, :2].astype(np.float64), 1.0 - SMALLEST_BOX)
    high = np.maximum(gold[:, None, 2:].astype(np.float64), low + SMALLEST_BOX)
    sides = np.minimum(high, patches[..., 2:]) - np.maximum(low, patches[..., :2])
    area = (patches[..., 2:].astype(np.float64) - patches[..., :2]).prod(axis=-1)
    shared = sides.clip(min=0.0).prod(axis=-1)
    share = np.divide(shared, area, out=np.zeros_like(area), where=area > 0)
    return mark_covered(share, threshold)


def mark_covered(shares: np.ndarray, threshold: float) -> np.ndarray:
    """Marks the regions (n, G) that are covered enough; where none is, the one that is covered most."""
    marks = np.asarray(shares >= threshold - ROUNDING)
    small = np.flatnonzero(~marks.any(axis=1) & (shares.max(axis=1, initial=0.0) > 0))
    marks[small, shares[small].argmax(axis=1)] = True
    return marks


def box_arrays(phrases: Sequence[Sequence[Any] | None], count: int) -> tuple[np.ndarray, np.ndarray]:
    """The boxes (B, P, G, 4) float32 of the phrases of each example, -1 for padding, and their images (B, P)."""
    boxes: dict[tuple[int, int], np.ndarray] = {}
    images = np.zeros((len(phrases), count), dtype=np.int64)
    for row, example in enumerate(phrases):
        for place, phrase in enumerate(example or ()):
            fields = phrase if isinstance(phrase, Mapping) else vars(phrase)
            given = fields.get("boxes")
            if given is None and fields.get("mask") is not None:
                given = mask_boxes(fields["mask"], "phrase")
            boxes[row, place] = np.reshape(() if given is None else given, (-1, 4))
            images[row, place] = fields.get("image") or 0
    most = max([1, *map(len, boxes.values())])
    padded = np.full((len(phrases), count, most, 4), -1.0, dtype=np.float32)
    for (row, place), gold in boxes.items():
        padded[row, place, : len(gold)] = gold
    return padded, images


def _video_arguments(videos: Sequence[Video]) -> dict[str, Any]:
    """What a processor is given for videos: all frames, and their times."""
    frames = []
    about = []
    for video in videos:
        count = len(video.frames)
        frames.append(np.stack([*map(np.asarray, video.frames)]))
        about.append({"fps": video.fps, "total_num_frames": count, "frames_indices": list(range(count))})
    options = {"video_metadata": about, "return_metadata": True, "do_sample_frames": False, "return_tensors": "pt"}
    return {"videos": frames, "videos_kwargs": options}


def _open_images(images: Sequence[Any] | None, batch_size: int) -> list[list[Image.Image | Video]]:
    """Opens the images of each example."""
    if images is None:
        images = [None] * batch_size
    opened: list[list[Image.Image | Video]] = []
    for example, given in enumerate(images):
        if given is None:
            given = []
        elif not isinstance(given, (list, tuple)):
            given = [given]
        opened.append([])
        for index, image in enumerate(given):
            if not isinstance(image, Video):
                image = open_image(image, f"Example {example}, image {index}", ENOUGH)
            opened[-1].append(image)
    return opened
