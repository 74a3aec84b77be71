# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A model that answers requests of chats one at a time, and says for each word of its answer where it looked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from grounded_attention.processing.patch_sequences import AnswerText
from grounded_attention.supervision.supervise import unwrap_model
from grounded_attention.utils.bounded_files import MAX_COUNT
from grounded_attention.utils.named_types import Fields
from grounded_attention.utils.plain_text import REPLACEMENT

from .chat_requests import ChatRequest, RequestError
from .exchanges import Exchange, GivenHeads, choose_heads, layers_of, make_lens, ready
from .prompts import Pictures, read_chat
from .sequences import RowReader, Sequenced, add_answer, generate, generate_and_read, read_prompt


@dataclass(frozen=True)
class Answer:
    """An answer: its text, why it ends (`stop` or `length`), numbers of tokens as OpenAI's, and if it was asked for
    `grounding`, where the model looked.
    """

    text: str
    finish_reason: str
    usage: dict[str, int]
    places: Fields


class ChatModel:
    """A vision-language model that answers; each call must end before the next.

    Args:
        model (`PreTrainedModel`): as for [`look`]; it is set to evaluation mode.
        processor (`ProcessorMixin` or `PatchGroundingProcessor`): its processor, with a chat template.
        heads (*optional*): whose attention is shown, as for [`look`].
        most (`int`): the most tokens of an answer.

    Raises:
        ValueError: if model and processor do not fit, or a head does not exist.
    """

    def __init__(self, model: Any, processor: Any, heads: GivenHeads, most: int):
        self.most = most
        self.model, self.patches = ready(model, processor)
        self.chosen = choose_heads(self.model, heads)
        text_config = unwrap_model(self.model).config.get_text_config()
        self.context = getattr(text_config, "max_position_embeddings", None) or MAX_COUNT

    def answer(self, request: ChatRequest, messages: list[Fields], tell: Callable[[str], None]) -> Answer:
        """Answers a request.

        Args:
            request (`ChatRequest`): what was asked.
            messages (`list[Fields]`): its messages with the files of their pictures.
            tell (`Callable`): called when the prompt was read, and for each token, with what the text has more, or
                nothing; what it raises ends the answer.

        Raises:
            RequestError: if pictures or messages cannot be read, or prompt and answer are too long.
        """
        pictured = any(part["type"] == "image" for message in messages for part in message["content"])
        try:
            if messages[-1]["role"] != "user":
                raise ValueError("expected a conversation that ends with the user")
            chat, pictures = read_chat(None, messages) if pictured else (messages, [])
            prompt = read_prompt(self.patches, chat, (), pictures)
        except ValueError as error:
            raise RequestError(f"messages: {error}") from error
        room = min(self.most, self.context - prompt.prompt_length)
        length = request.max_completion_tokens or request.max_tokens or max(room, 1)
        if length > room:
            found = f"the prompt has {prompt.prompt_length} tokens, the answer {length}"
            limits = f"the model reads {self.context}, and answers of this server have at most {self.most}"
            raise RequestError(f"max_tokens: {found}; {limits}", code="context_length_exceeded")
        tell("")
        stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
        progress = Progress(AnswerText(self.patches.tokenizer), length, stops, tell)
        options: Fields = {"max_new_tokens": length, "stopping_criteria": StoppingCriteriaList([progress])}
        options |= start_sampling(request)
        reader = None
        if request.grounding and pictured:
            _, reader = generate_and_read(
                self.model, self.patches, prompt, layers_of(self.model, self.chosen), **options
            )
        else:
            generate(self.model, self.patches, prompt, **options)
        text = progress.finish()
        places = {}
        if request.grounding:
            places["grounding"] = self._ground(pictures, prompt, progress, reader)
        counts = {"prompt_tokens": prompt.prompt_length, "completion_tokens": len(progress.ids)}
        ends = unwrap_model(self.model).generation_config.eos_token_id
        ended = progress.ids[-1] in (ends if isinstance(ends, list) else [ends])
        reason = "stop" if ended or progress.stopped else "length"
        return Answer(text, reason, counts | {"total_tokens": sum(counts.values())}, places)

    def _ground(self, pictures: Pictures, prompt: Sequenced, progress: "Progress", reader: RowReader | None) -> Fields:
        """Where the model looked for each word of its answer."""
        whole = add_answer(self.model, self.patches.tokenizer, prompt, progress.ids)
        words: list[Fields] = []
        if not (pictures and whole.words):
            return {"words": words, "heads": [], "heads_from": "there is no picture, or no word of an answer"}
        exchange = Exchange(pictures, prompt, whole, ())
        lens = make_lens(self.model, self.patches, exchange, self.chosen, ("plain",), "own", reader)
        for place in lens.answer_places():
            start = place["start"]
            end = min(place["end"], progress.end)  # a stop text may begin inside of a word
            if start < end:
                words.append(place | {"text": lens.answer[start:end], "end": end})
        return {"words": words, "heads": lens.heads, "heads_from": lens.heads_from}


def start_sampling(request: ChatRequest) -> Fields:
    """Seeds torch, anew without a seed, and returns the options of `generate`; by default as OpenAI's."""
    temperature = 1.0 if request.temperature is None else float(request.temperature)
    if temperature == 0:
        return {"do_sample": False}
    if request.seed is None:
        torch.seed()
    else:
        torch.manual_seed(request.seed)
    return {"do_sample": True, "temperature": temperature, "top_p": float(request.top_p or 1), "top_k": 0}


class Progress(StoppingCriteria):
    """Follows one answer while it is generated: tells its text, and ends it before stop texts.

    It ends an answer one token late, in whose pass the last one is read.
    """

    def __init__(self, answer: AnswerText, most: int, stops: Sequence[str], tell: Callable[[str], None]):
        self.answer = answer
        self.most = most
        self.stops = stops
        self.tell = tell
        self.ids: list[int] = []
        self.stopped = False
        self.end = 0  # of the text that later tokens leave as it is

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        over = self.stopped or len(self.ids) == self.most
        if not over:
            token = int(input_ids[0, -1])
            self.ids.append(token)
            self.answer.add(token)
            text = self.answer.text
            starts = [text.find(stop) for stop in self.stops if stop in text]
            self.stopped = bool(starts)
            self._tell(min(starts, default=settled(text, self.stops)))
        return torch.full((len(input_ids),), over, device=input_ids.device)

    def _tell(self, end: int) -> None:
        told = self.end
        self.end = max(told, end)
        self.tell(self.answer.text[told : self.end])

    def finish(self) -> str:
        """Tells the rest, and returns the text."""
        if not self.stopped:
            self._tell(len(self.answer.text))
        return self.answer.text[: self.end]


def settled(text: str, stops: Sequence[str]) -> int:
    """How many characters of a text later tokens leave as they are: no parts of a character, nor of a stop text."""
    whole = text.rstrip(REPLACEMENT)
    begun = [size for stop in stops for size in range(len(stop)) if whole.endswith(stop[:size])]
    return len(whole) - max(begun, default=0)
