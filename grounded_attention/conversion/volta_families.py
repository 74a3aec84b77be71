# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Converts checkpoints of VOLTA's ViLBERT, LXMERT and VisualBERT."""

from pathlib import Path

import torch

from grounded_attention.utils.named_types import Columns

from .fields import ConfigFields, OverrideError
from .file import VOLTA, read_overrides, recognise
from .keys import Conversion, Keys, Pairs, Weights
from .lxmert import LXMERTFamily
from .vilbert import ViLBertFamily
from .visualbert import EMBEDDINGS, VisualBERTFamily
from .volta import FEED_FORWARD, MARK, SELF_ATTENTION, STREAMS, Layers, Step, VoltaConfig, VoltaFamily

_DECODERS = "cls.imagePredictions.decoder_dict."
# Number of what pre-training predicts of regions -> our name in ViLBERT, and our head in LXMERT.
_TARGETS = {"0": "classes", "1": "features", "2": "nce", "6": "classes"}
_LXMERT_HEADS = {"0": "obj", "6": "obj", "3": "obj", "4": "attr", "5": "feat"}


class VoltaViLBert(VoltaFamily, ViLBertFamily):
    """The converter for VOLTA's ViLBERT."""

    family = "ViLBERT"
    trunk = (
        ("bert.embeddings.", "vilbert.embeddings."),
        ("bert.v_embeddings.", "vilbert.v_embeddings."),
        ("bert.t_pooler.", "vilbert.t_pooler."),
        ("bert.v_pooler.", "vilbert.v_pooler."),
        ("cls.predictions.", "cls.predictions."),
        ("cls.imagePredictions.transform.", "cls.imagePredictions.transform."),
        ("cls.bi_seq_relationship.", "cls.bi_seq_relationship."),
    )
    fusion_methods = ("mul", "sum")

    def list_layers(self) -> Layers:
        """A layer of a stream, and co-attention."""
        return ("self", "feed-forward"), ("cross", "feed-forward")

    def map_layers(self) -> Pairs:
        names = {"t": ("layer", "", 2), "v": ("v_layer", "v_", 1)}
        for stream, (layers, side, number) in names.items():
            counts = {"self": 0, "cross": 0}
            for steps in self.steps[stream]:
                kind = steps[0].kind
                if kind == "self":
                    yield from self.map_layer(steps, side, f"vilbert.encoder.{layers}.{counts[kind]}.")
                else:
                    ours = f"vilbert.encoder.c_layer.{counts[kind]}."
                    yield from self._map_cross(steps, stream, side, ours, number)
                counts[kind] += 1
        yield f"{_DECODERS}{self._target()}.", "cls.imagePredictions.decoder."

    def _map_cross(self, steps: list[Step], stream: str, side: str, ours: str, number: int) -> Pairs:
        """Pairs for one stream of a co-attention; in our names its `number` is 1 for regions, 2 for text."""
        parts = {old: f"biattention.{new.rpartition('.')[2]}{number}" for old, new in SELF_ATTENTION.items()}
        parts |= {f"attention_output.{{}}{part}": f"biOutput.{part}{number}" for part in ("dense", "LayerNorm")}
        yield from self.map_parts(steps[0], side, parts, ours)
        yield from self.map_parts(steps[1], side, FEED_FORWARD, f"{ours}{stream}_")

    def _target(self) -> str:
        """What pre-training predicts of regions: the number in the public code."""
        targets = self.config.targets
        if len(targets) != 1 or targets[0] not in _TARGETS:
            raise OverrideError(
                f"visual_target_weights has the targets {', '.join(targets)}, expected one of {', '.join(_TARGETS)}."
            )
        return targets[0]

    def give_fields(self) -> Columns:
        """The fields of ViLBERT; the co-attention may have sizes of its own, the same in every layer."""
        config = self.config
        names = "hidden_size num_attention_heads intermediate_size hidden_act hidden_dropout_prob"
        fields = {f"v_{name}": config[f"v_{name}"] for name in (*names.split(), "attention_probs_dropout_prob")}
        places: dict[str, list[int]] = {"t": [], "v": []}
        for stream, layers in self.steps.items():
            kinds = [steps[0].kind for steps in layers]
            fields["v_num_hidden_layers" if stream == "v" else "num_hidden_layers"] = kinds.count("self")
            places[stream] = [kinds[:place].count("self") for place, kind in enumerate(kinds) if kind == "cross"]
        crosses = [steps[0].number for steps in self.steps["t"] if steps[0].kind == "cross"]
        for field, name in (("bi_hidden_size", "hidden_size"), ("bi_num_attention_heads", "num_attention_heads")):
            sizes = {}
            for number in crosses:
                for side in ("", "v_"):
                    sizes[config.size(side + name, number)] = number
            if len(sizes) > 1:
                config.refuse(
                    max(sizes.values()), f"has another {name} of co-attention ({', '.join(map(str, sizes))})"
                )
            if sizes:
                fields[field] = next(iter(sizes))
        return {
            **self.text_fields(),
            **fields,
            "t_biattention_id": places["t"],
            "v_biattention_id": places["v"],
            "visual_target": _TARGETS[self._target()],
        }


class VoltaLXMERT(VoltaFamily, LXMERTFamily):
    """The converter for VOLTA's LXMERT."""

    family = "LXMERT"
    flipped = "cls.seq_relationship."
    trunk = (
        ("bert.embeddings.", "lxmert.embeddings."),
        ("bert.v_embeddings.image_embeddings.", "lxmert.encoder.visn_fc.visn_fc."),
        ("bert.v_embeddings.image_location_embeddings.", "lxmert.encoder.visn_fc.box_fc."),
        ("bert.v_embeddings.ImgLayerNorm.", "lxmert.encoder.visn_fc.visn_layer_norm."),
        ("bert.v_embeddings.LocLayerNorm.", "lxmert.encoder.visn_fc.box_layer_norm."),
        ("bert.t_pooler.", "lxmert.pooler."),
        ("bert.v_pooler.", "lxmert.region_pooler."),
        ("cls.predictions.", "cls.predictions."),
        ("cls.imagePredictions.transform.", "obj_predict_head.transform."),
        ("cls.qaPredictions.logit_fc.", "answer_head.logit_fc."),
        ("cls.bi_seq_relationship.", "cls.seq_relationship."),
    )

    def list_layers(self) -> Layers:
        """A layer of a stream, and one stream of a cross layer."""
        return ("self", "feed-forward"), ("shared cross", "self", "feed-forward")

    def map_layers(self) -> Pairs:
        self.check_equal_streams()
        encoder = "lxmert.encoder."
        for stream, layers, side, name in (("t", "layer", "", "lang"), ("v", "r_layers", "v_", "visn")):
            number = 0
            crosses = 0
            for steps in self.steps[stream]:
                if steps[0].kind == "self":
                    if crosses:
                        place = f"is self of {STREAMS[stream]}"
                        self.config.refuse(steps[0].number, place, "shared cross", self.family)
                    yield from self.map_layer(steps, side, f"{encoder}{layers}.{number}.")
                    number += 1
                else:
                    yield from self._map_cross(steps, side, f"{encoder}x_layers.{crosses}.", name)
                    crosses += 1
        for target, own in _LXMERT_HEADS.items():
            if target in self.config.targets:
                yield f"{_DECODERS}{target}.", f"obj_predict_head.decoder_dict.{own}."

    def _map_cross(self, steps: list[Step], side: str, ours: str, name: str) -> Pairs:
        """Pairs for one stream of a cross layer; `name` is that of the stream in our names."""
        parts = {}
        for old, new in SELF_ATTENTION.items():
            parts[old] = new.replace("attention.self", "att").replace("attention.", "")
        if side == "":  # the tensors of the other stream are the same
            yield from self.map_parts(steps[0], side, parts, f"{ours}visual_attention.")
        parts = {old: new.replace("attention.", f"{name}_self_att.") for old, new in SELF_ATTENTION.items()}
        yield from self.map_parts(steps[1], side, parts, ours)
        parts = {old: new.replace("intermediate", "inter") for old, new in FEED_FORWARD.items()}
        yield from self.map_parts(steps[2], side, parts, f"{ours}{name}_")

    def finish(self, conversion: Conversion, weights: Weights) -> None:
        """Also leaves out the background of 1,601 classes, which is row 0: the classes here have none."""
        super().finish(conversion, weights)
        for part in ("weight", "bias") if self._has_background() else ():
            name = f"obj_predict_head.decoder_dict.obj.{part}"
            if name in conversion.weights:
                conversion.weights[name] = conversion.weights[name][1:].clone()

    def _has_background(self) -> bool:
        return not {"0", "6"}.isdisjoint(self.config.targets)

    def read_fields(self, conversion: Conversion, overrides: Columns) -> ConfigFields:
        """Also notes the missing background."""
        fields = super().read_fields(conversion, overrides)
        if self._has_background() and "num_object_labels" in fields.read:
            fields.notes["num_object_labels"] = "one less than in the file: row 0, the background, is left out"
        return fields

    def give_fields(self) -> Columns:
        counts = {}
        for stream, layers in self.steps.items():
            counts[stream] = sum(steps[0].kind == "self" for steps in layers)
        return {
            **self.text_fields(),
            "pooler_act": "relu",
            "visual_pos_dim": self.config["num_locs"],
            "l_layers": counts["t"],
            "r_layers": counts["v"],
            "x_layers": len(self.steps["t"]) - counts["t"],
            "visual_loss": "masked",
        }


class VoltaVisualBERT(VoltaFamily, VisualBERTFamily):
    """The converter for VOLTA's VisualBERT."""

    family = "VisualBERT"
    flipped = "cls.seq_relationship."
    trunk = (
        *EMBEDDINGS,
        ("bert.embeddings.", "visual_bert.embeddings."),
        ("bert.t_pooler.", "visual_bert.pooler."),
        ("bert.v_pooler.", "visual_bert.region_pooler."),
        ("cls.predictions.", "cls.predictions."),
        ("cls.bi_seq_relationship.", "cls.seq_relationship."),
    )
    ignored = {
        **VoltaFamily.ignored,
        r"^cls\.imagePredictions\.": "predicts masked regions, for which VisualBERT has no head here",
    }

    def list_layers(self) -> Layers:
        """BERT's layer on text and regions together."""
        return (("shared joint", "shared feed-forward"),)

    def map_layers(self) -> Pairs:
        self.check_equal_streams()
        for number, steps in enumerate(self.steps["t"]):
            yield from self.map_layer(steps, "", f"visual_bert.encoder.layer.{number}.")

    def finish(self, conversion: Conversion, weights: Weights) -> None:
        """Also exchanges token types 0 and 1 of regions: all regions have 1 there, and 0 by default here."""
        super().finish(conversion, weights)
        name = "visual_bert.embeddings.visual_token_type_embeddings.weight"
        types = conversion.weights.get(name)
        if types is not None:
            conversion.weights[name] = torch.cat([types[:2].flip(0), types[2:]])

    def give_fields(self) -> Columns:
        return {**self.text_fields(), "pooler_act": "relu", "num_hidden_layers": len(self.steps["t"])}


# Family -> its value of `image_embeddings` and its converter.
VOLTA_FAMILIES: dict[str, type[VoltaFamily]] = {
    "vilbert": VoltaViLBert,
    "lxmert": VoltaLXMERT,
    "visualbert": VoltaVisualBERT,
}


def is_volta(keys: Keys, overrides: Columns) -> bool:
    """Whether a file, or the configuration given for it, is one of VOLTA."""
    origin = recognise(keys)
    return MARK in overrides or (origin is not None and origin.title == VOLTA)


def make_volta_converter(family: str, overrides: Columns) -> VoltaFamily:
    """The converter for the checkpoints of a configuration."""
    if MARK not in overrides:
        raise OverrideError(
            f"a checkpoint of VOLTA has numbered sub-layers: give --config its JSON file, which has {MARK}, or put it "
            "beside the checkpoint as the only such file."
        )
    config = VoltaConfig(overrides)
    embeddings = config["image_embeddings"]
    if embeddings not in VOLTA_FAMILIES:
        raise OverrideError(
            f"image_embeddings is {embeddings!r}, expected {', '.join(VOLTA_FAMILIES)}: VOLTA's other models cannot "
            "be converted."
        )
    if embeddings != family:
        raise OverrideError(f"image_embeddings is {embeddings!r}, not {family!r}: use `convert {embeddings}`.")
    return VOLTA_FAMILIES[family](config)


def find_volta_config(checkpoint: Path) -> Path | None:
    """The only JSON file beside a checkpoint that is a configuration of VOLTA; `None` if there are none or several."""
    configs = []
    for path in sorted(checkpoint.parent.glob("*.json")):
        try:
            if MARK in read_overrides(path):
                configs.append(path)
        except (OSError, ValueError):  # another file
            continue
    if len(configs) == 1:
        return configs[0]
    return None
