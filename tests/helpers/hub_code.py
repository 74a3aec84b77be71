# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A vision-language model as people share it on the Hub: code of its own, which is copied beside the weights.

Its image tokens have ids that only its processor knows; they go down the columns of a grid, each ended by one more.
`kind` says how it attends: `library` in a language model of transformers, `interface` in an attention class of its own
on transformers' interface, `maps` in one that returns its maps alone, `none` in one that returns nothing.
"""

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, ProcessorMixin, Qwen2Config, Qwen2ForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

WIDTH, HEADS, LAYERS, CELL, WORDS = 32, 4, 3, 4, 520
PATCH, COLUMN_END = 501, 502  # ids above those of the tokenizer
SIZES = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}


class SeerConfig(PreTrainedConfig):
    model_type = "seer"

    def __init__(self, kind="maps", llm_config=None, **kwargs):
        self.kind = kind
        self.llm_config = Qwen2Config(**(llm_config or {**SIZES, "num_key_value_heads": 2, "intermediate_size": 48,
                                                        "vocab_size": WORDS}))  # fmt: skip
        if kind != "library":
            self.num_hidden_layers, self.num_attention_heads = LAYERS, HEADS
        super().__init__(**kwargs)


def eager_attention_forward(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    weights = (query @ key.transpose(2, 3) * scaling + attention_mask).softmax(-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class SeerAttention(nn.Module):
    """Attention of its own, which returns its maps if they are asked for."""

    def __init__(self, config, layer_idx):
        super().__init__()
        self.config, self.layer_idx, self.is_causal = config, layer_idx, True
        self.num_heads = HEADS
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def states(self, hidden):
        return [each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in self.qkv(hidden).chunk(3, -1)]

    def forward(self, hidden, mask, output_attentions=False):
        mixed, weights = eager_attention_forward(self, *self.states(hidden), mask, (WIDTH // HEADS) ** -0.5)
        is_shown = output_attentions and self.config.kind == "maps"
        return self.out(mixed.flatten(2)), weights if is_shown else None


class SeerInterfaceAttention(SeerAttention):
    def forward(self, hidden, mask, output_attentions=False, **kwargs):
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        scaling = (WIDTH // HEADS) ** -0.5
        mixed, weights = attend(self, *self.states(hidden), mask, scaling=scaling, **kwargs)
        return self.out(mixed.flatten(2)), weights


class SeerLanguage(PreTrainedModel):
    config_class = SeerConfig
    _supports_sdpa = True

    def __init__(self, config):
        super().__init__(config)
        kind = SeerInterfaceAttention if config.kind == "interface" else SeerAttention
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(kind(config, layer) for layer in range(LAYERS))
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.words

    def forward(self, inputs_embeds, attention_mask, output_attentions=False, **kwargs):
        hidden, maps = inputs_embeds, []
        length = hidden.shape[1]
        seen = torch.ones(length, length).tril().bool() & attention_mask[:, None, None].bool()
        mask = torch.zeros(seen.shape).masked_fill(~seen, -1e9)
        if self.config.kind != "interface":
            kwargs = {}
        for layer in self.layers:
            mixed, weights = layer(hidden, mask, output_attentions=output_attentions, **kwargs)
            hidden, maps = hidden + mixed, [*maps, weights]
        shown = tuple(maps) if output_attentions else None
        return CausalLMOutputWithPast(logits=self.lm_head(hidden), attentions=shown)


class SeerTower(PreTrainedModel):
    """Reads each cell of a picture by itself."""

    config_class = SeerConfig
    _supports_sdpa = True

    def __init__(self, config):
        super().__init__(config)
        self.places = nn.Embedding(9, WIDTH)
        self.project = nn.Linear(3 * CELL * CELL, WIDTH)
        self.post_init()

    def forward(self, cells):
        return self.project(cells.flatten(1)) + self.places.weight[0]


class SeerModel(PreTrainedModel):
    config_class = SeerConfig
    _supports_sdpa = True

    def __init__(self, config):
        super().__init__(config)
        self.tower = SeerTower(config)
        self.llm = Qwen2ForCausalLM(config.llm_config) if config.kind == "library" else SeerLanguage(config)
        self.post_init()

    def embed(self, input_ids, pixel_values):
        states = self.llm.get_input_embeddings()(input_ids).clone()
        if pixel_values is not None:
            states[input_ids == PATCH] = self.tower(pixel_values)
        return states

    def forward(self, input_ids, pixel_values=None, grids=None, attention_mask=None, use_cache=None,
                output_attentions=False, return_dict=True):  # fmt: skip
        """It hands nothing else on."""
        states = self.embed(input_ids, pixel_values)
        outputs = self.llm(
            inputs_embeds=states, attention_mask=attention_mask, output_attentions=output_attentions, use_cache=False
        )
        return CausalLMOutputWithPast(logits=outputs.logits, attentions=outputs.attentions)

    @torch.no_grad()
    def generate(self, input_ids, pixel_values=None, grids=None, attention_mask=None, max_new_tokens=20, **kwargs):
        """The new tokens alone, by the language model; or by a loop, which of `interface` keeps the prompt."""
        if self.config.kind == "library":
            options = {"attention_mask": attention_mask, "max_new_tokens": max_new_tokens, **kwargs}
            return self.llm.generate(inputs_embeds=self.embed(input_ids, pixel_values), **options)
        forbidden = [token for (token,) in kwargs["bad_words_ids"]] + list(kwargs.get("suppress_tokens", ()))
        ids = input_ids
        mask = attention_mask
        for _ in range(max_new_tokens):
            logits = self(ids, pixel_values, attention_mask=mask).logits[:, -1]
            logits[:, forbidden] = -torch.inf
            ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
            mask = torch.cat([mask, mask[:, :1]], 1)
        return ids if self.config.kind == "interface" else ids[:, input_ids.shape[1] :]


class SeerProcessor(ProcessorMixin):
    """Puts images first. It has no part for images and no chat template."""

    attributes = ["tokenizer"]
    tokenizer_class = "AutoTokenizer"

    def __init__(self, tokenizer):
        super().__init__(tokenizer)

    def __call__(self, text, images=None, padding=False, add_special_tokens=True, return_tensors=None):
        rows, cells, grids = [], [], []
        for words, pictures in zip(text, images or [[]] * len(text), strict=True):
            ids = [self.tokenizer.bos_token_id] if add_special_tokens else []
            for picture in pictures:
                columns, lines = (max(1, round(edge / 16)) for edge in picture.size)
                shown = np.asarray(picture.resize((columns * CELL, lines * CELL), 0), dtype=np.float32) / 255
                grid = shown.reshape(lines, CELL, columns, CELL, 3).transpose(2, 0, 4, 1, 3)  # column by column
                cells.append(torch.from_numpy(grid.reshape(-1, 3, CELL, CELL).copy()))
                grids.append([columns, lines])
                ids += ([PATCH] * lines + [COLUMN_END]) * columns
            rows.append(ids + self.tokenizer(words, add_special_tokens=False)["input_ids"])
        longest = max(map(len, rows))
        made = {"input_ids": [[*row, *[0] * (longest - len(row))] for row in rows]}
        made["attention_mask"] = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
        if cells:
            made |= {"grids": grids, "pixel_values": torch.cat(cells)}
        return {name: torch.as_tensor(value) for name, value in made.items()}


def find_columns(ids, inputs, sizes):
    """The image tokens of `SeerProcessor`: cells column by column, each column with one token more."""
    found = []
    start = 1
    for columns, lines in inputs["grids"].tolist():
        positions = []
        boxes = []
        for column in range(columns):
            for line in range(lines):
                boxes.append([column / columns, line / lines, (column + 1) / columns, (line + 1) / lines])
            boxes.append([np.nan] * 4)
        positions = np.arange(start, start + len(boxes))
        start += len(boxes)
        found.append((positions, np.array(boxes)))
    return found


SeerConfig.register_for_auto_class()
SeerModel.register_for_auto_class("AutoModel")
SeerProcessor.register_for_auto_class("AutoProcessor")
