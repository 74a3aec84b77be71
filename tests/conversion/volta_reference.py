# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The encoder of VOLTA as plain functions of its configuration and of a state dict with its key names.

Written from the description of its sub-layers: every attention sub-layer has up to four directions (tt, tv, vt, vv),
with one softmax over all keys of a query; a feed-forward sub-layer works on text, regions or both.
"""

import json
import math
from typing import Any

import torch
from torch.nn import functional as F


def _lists(**numbers):
    names = "tt_attn tv_attn vt_attn vv_attn t_ff v_ff shared single_ln"
    return {f"{name}_sublayers": sorted(numbers.get(name, ())) for name in names.split()}


def vilbert_schedule(first, pairs):
    """`first` layers of text alone, then `pairs` of co-attention and self-attention, each with a feed-forward."""
    alone = [2 * number for number in range(first)]
    cross = [2 * first + 4 * number for number in range(pairs)]
    own = [number + 2 for number in cross]
    ends = [number + 1 for number in (*cross, *own)]
    return _lists(
        tt_attn=alone + own, vv_attn=own, tv_attn=cross, vt_attn=cross, t_ff=[n + 1 for n in alone] + ends, v_ff=ends
    )


def lxmert_schedule(both, text, crosses):
    """`both` layers of both streams, `text` layers of text alone, then cross layers of three sub-layers."""
    shared = [2 * (both + text) + 3 * number for number in range(crosses)]
    own = [n + 1 for n in shared]
    ends = [n + 2 for n in shared]
    layers = [2 * number for number in range(both + text)]
    return _lists(
        tt_attn=layers + own,
        vv_attn=layers[:both] + own,
        tv_attn=shared,
        vt_attn=shared,
        t_ff=[n + 1 for n in layers] + ends,
        v_ff=[n + 1 for n in layers[:both]] + ends,
        shared=shared,
    )


def visualbert_schedule(layers):
    """Layers of one stream."""
    attention = [2 * number for number in range(layers)]
    ends = [n + 1 for n in attention]
    every = {f"{pair}_attn": attention for pair in ("tt", "tv", "vt", "vv")}
    return _lists(**every, t_ff=ends, v_ff=ends, shared=attention + ends, single_ln=attention + ends)


SMALL = json.loads(
    """{
    "vocab_size": 40, "hidden_size": 24, "num_attention_heads": 4, "intermediate_size": 36,
    "max_position_embeddings": 20, "type_vocab_size": 2, "pooler_size": 20, "num_locs": 5,
    "add_global_imgfeat": "first", "bert_model": "bert-base-uncased", "hidden_act": "gelu",
    "v_feature_size": 16, "v_hidden_size": 24, "v_num_attention_heads": 4, "v_intermediate_size": 36,
    "v_pooler_size": 20, "fusion_method": "mul", "visual_target_weights": {"0": 1.0}
    }"""
)
# Small versions of the public configurations: the controlled ones and, where they differ, the original ones.
CONFIGS: dict[str, dict[str, Any]] = {
    "ctrl_vilbert": {**SMALL, "image_embeddings": "vilbert", **vilbert_schedule(2, 2)},
    "vilbert": {
        **SMALL,
        "image_embeddings": "vilbert",
        **vilbert_schedule(1, 2),
        **{"v_hidden_size": 18, "v_num_attention_heads": 3, "v_intermediate_size": 28, "pooler_size": 18},
        "sublayer2attn_hidden_size": {"2": 18, "6": 18},
        "sublayer2num_attention_heads": {"2": 3, "6": 3},
    },
    "ctrl_lxmert": {**SMALL, "image_embeddings": "lxmert", **lxmert_schedule(1, 1, 2)},
    "lxmert": {
        **SMALL,
        "image_embeddings": "lxmert",
        **lxmert_schedule(2, 1, 1),
        **{"pooler_size": 24, "num_locs": 4, "add_global_imgfeat": None, "fusion_method": "text"},
        "visual_target_weights": {"3": 6.667, "4": 6.667, "5": 6.667},
    },
    "ctrl_visualbert": {**SMALL, "image_embeddings": "visualbert", **visualbert_schedule(2)},
}
TARGETS = {"0": 1601, "3": 1600, "4": 400, "5": 16}


def count(config):
    """The number of sub-layers."""
    return 1 + max(number for name, numbers in config.items() if name.endswith("_sublayers") for number in numbers)


def streams(config, number):
    """The streams with a part in a sub-layer, by the prefix of their modules: the keys of an attention, or ["ff"]."""
    found: dict[str, list[str]] = {}
    for prefix, stream in (("", "t"), ("v_", "v")):
        keys = [key for key in "tv" if number in config[f"{stream}{key}_attn_sublayers"]]
        keys += ["ff"] if number in config[f"{stream}_ff_sublayers"] else []
        if keys:
            found[prefix] = keys
    return found


def size(config, prefix, name, number):
    """A size of a stream in a sub-layer."""
    field = f"sublayer2{prefix}{'attn_hidden_size' if name == 'hidden_size' else name}"
    return config.get(field, {}).get(str(number), config[prefix + name])


def list_shapes(config):
    """The names and shapes of a checkpoint of pre-training; tensors with two names are in it twice."""
    shapes: dict[str, tuple[int, ...]] = {}
    hidden = config["hidden_size"]
    v_hidden = config["v_hidden_size"]
    features = config["v_feature_size"]

    def norm(module, width):
        shapes[f"{module}.weight"] = (width,)
        shapes[f"{module}.bias"] = (width,)

    def linear(module, before, after):
        shapes[f"{module}.weight"] = (after, before)
        shapes[f"{module}.bias"] = (after,)

    tables = {"word": "vocab_size", "position": "max_position_embeddings", "token_type": "type_vocab_size"}
    for name, field in tables.items():
        shapes[f"bert.embeddings.{name}_embeddings.weight"] = (config[field], hidden)
    norm("bert.embeddings.LayerNorm", hidden)
    if config["image_embeddings"] == "visualbert":
        linear("bert.embeddings.projection", features, hidden)
        for name in ("position", "token_type"):
            shapes[f"bert.embeddings.{name}_embeddings_visual.weight"] = (config[tables[name]], hidden)
    else:
        linear("bert.v_embeddings.image_embeddings", features, v_hidden)
        linear("bert.v_embeddings.image_location_embeddings", config["num_locs"], v_hidden)
        for name in ("LayerNorm",) if config["image_embeddings"] == "vilbert" else ("ImgLayerNorm", "LocLayerNorm"):
            norm(f"bert.v_embeddings.{name}", v_hidden)
    for number in range(count(config)):
        layer = f"bert.encoder.layer.{number}."
        for prefix, keys in streams(config, number).items():
            width = config[f"{prefix}hidden_size"]
            if keys == ["ff"]:
                inner = size(config, prefix, "intermediate_size", number)
                linear(f"{layer}intermediate.{prefix}dense", width, inner)
                linear(f"{layer}output.{prefix}dense", inner, width)
                norm(f"{layer}output.{prefix}LayerNorm", width)
                continue
            inner = size(config, prefix, "hidden_size", number)
            for name in ("query", "key", "value"):
                linear(f"{layer}attention_self.{prefix}{name}", width, inner)
            linear(f"{layer}attention_output.{prefix}dense", inner, width)
            norm(f"{layer}attention_output.{prefix}LayerNorm", width)
    linear("bert.t_pooler.dense", hidden, config["pooler_size"])
    if config["fusion_method"] != "text":
        linear("bert.v_pooler.dense", v_hidden, config["pooler_size"])
    linear("cls.predictions.transform.dense", hidden, hidden)
    norm("cls.predictions.transform.LayerNorm", hidden)
    shapes["cls.predictions.decoder.weight"] = (config["vocab_size"], hidden)
    shapes["cls.predictions.bias"] = (config["vocab_size"],)
    linear("cls.bi_seq_relationship", config["pooler_size"], 2)
    linear("cls.imagePredictions.transform.dense", v_hidden, v_hidden)
    norm("cls.imagePredictions.transform.LayerNorm", v_hidden)
    for target in config["visual_target_weights"]:
        linear(f"cls.imagePredictions.decoder_dict.{target}", v_hidden, TARGETS[target])
    return shapes


def make_state_dict(config):
    """A random checkpoint of pre-training. Tied and shared tensors have two names."""
    generator = torch.Generator().manual_seed(3)
    weights = {key: 0.2 * torch.randn(shape, generator=generator) for key, shape in list_shapes(config).items()}
    weights["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"]
    for number in config["shared_sublayers"]:
        for key in weights:
            if key.startswith(f"bert.encoder.layer.{number}.") and ".v_" in key:
                weights[key] = weights[key.replace(".v_", ".")]
    return weights


WORD_TABLES = ("word", "position", "token_type")


class VoltaReference:
    """Runs a checkpoint; `maps` are the attention maps of the last run by sub-layer and direction."""

    def __init__(self, config, weights):
        self.config = config
        self.weights = weights
        self.maps = {}

    def linear(self, module, states):
        return F.linear(states, self.weights[f"{module}.weight"], self.weights[f"{module}.bias"])

    def norm(self, module, states):
        return F.layer_norm(
            states, states.shape[-1:], self.weights[f"{module}.weight"], self.weights[f"{module}.bias"], 1e-12
        )

    def embed(self, words, types, features, locations):
        table = {name: self.weights[f"bert.embeddings.{name}_embeddings.weight"] for name in WORD_TABLES}
        text = table["word"][words] + table["position"][: words.shape[1]] + table["token_type"][types]
        text = self.norm("bert.embeddings.LayerNorm", text)
        if self.config["image_embeddings"] == "visualbert":
            regions = self.linear("bert.embeddings.projection", features)
            regions = regions + self.weights["bert.embeddings.token_type_embeddings_visual.weight"][1]
            regions = regions + self.weights["bert.embeddings.position_embeddings_visual.weight"][0]
            return text, self.norm("bert.embeddings.LayerNorm", regions)
        feature = self.linear("bert.v_embeddings.image_embeddings", features)
        place = self.linear("bert.v_embeddings.image_location_embeddings", locations)
        if self.config["image_embeddings"] == "vilbert":
            return text, self.norm("bert.v_embeddings.LayerNorm", feature + place)
        feature = self.norm("bert.v_embeddings.ImgLayerNorm", feature)
        place = self.norm("bert.v_embeddings.LocLayerNorm", place)
        return text, (feature + place) / 2

    def attend(self, number, parts, states, masks):
        """The contexts of an attention sub-layer."""
        module = f"bert.encoder.layer.{number}.attention_self."
        found = {}
        for prefix, keys in parts.items():
            heads = size(self.config, prefix, "num_attention_heads", number)
            query = self.linear(f"{module}{prefix}query", states[prefix])
            names = [{"t": "", "v": "v_"}[key] for key in keys]
            key = torch.cat([self.linear(f"{module}{name}key", states[name]) for name in names], dim=1)
            value = torch.cat([self.linear(f"{module}{name}value", states[name]) for name in names], dim=1)
            mask = torch.cat([masks[name] for name in names], dim=1)
            q, k, v = (tensor.unflatten(-1, (heads, -1)).transpose(1, 2) for tensor in (query, key, value))
            scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1]) + (1 - mask[:, None, None]) * -10000.0
            maps = scores.softmax(-1)  # (B, heads, queries, keys)
            self.maps[number, prefix] = maps
            found[prefix] = (maps @ v).transpose(1, 2).flatten(2)
        return found

    def run(self, inputs, locations):
        """The states of both streams, the pooled states, and the scores of pre-training."""
        text, regions = self.embed(inputs["input_ids"], inputs["token_type_ids"], inputs["region_features"], locations)
        states = {"": text, "v_": regions}
        masks = {"": inputs["attention_mask"].float(), "v_": inputs["region_attention_mask"].float()}
        for number in range(count(self.config)):
            parts = streams(self.config, number)
            layer = f"bert.encoder.layer.{number}."
            output = "attention_output"
            new = {}
            if ["ff"] in parts.values():
                output = "output"
                for prefix in parts:
                    new[prefix] = F.gelu(self.linear(f"{layer}intermediate.{prefix}dense", states[prefix]))
            else:
                new = self.attend(number, parts, states, masks)
            for prefix, inner in new.items():
                change = self.linear(f"{layer}{output}.{prefix}dense", inner)
                states[prefix] = self.norm(f"{layer}{output}.{prefix}LayerNorm", change + states[prefix])
        pooled = self.linear("bert.t_pooler.dense", states[""][:, 0]).relu()
        if self.config["fusion_method"] == "mul":
            pooled = pooled * self.linear("bert.v_pooler.dense", states["v_"][:, 0]).relu()
        words = F.gelu(self.linear("cls.predictions.transform.dense", states[""]))
        words = self.norm("cls.predictions.transform.LayerNorm", words)
        seen = F.gelu(self.linear("cls.imagePredictions.transform.dense", states["v_"]))
        seen = self.norm("cls.imagePredictions.transform.LayerNorm", seen)
        return {
            "text": states[""],
            "regions": states["v_"],
            "pooled": pooled,
            "words": words @ self.weights["cls.predictions.decoder.weight"].T + self.weights["cls.predictions.bias"],
            "relationship": self.linear("cls.bi_seq_relationship", pooled),
            "targets": {
                target: self.linear(f"cls.imagePredictions.decoder_dict.{target}", seen)
                for target in self.config["visual_target_weights"]
            },
        }
