# Copyright 2026 The grounded-attention authors. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""What the model families take from a BERT checkpoint to start from, and which fields a caller may still choose."""

from transformers import AutoConfig, PreTrainedConfig

# The fields that the shapes of BERT's tensors fix.
_BERT_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings")


def read_bert_config(name: str) -> dict:
    """
    The fields of a BERT checkpoint's configuration that decide those of a model that starts from it.

    Raises:
        ValueError: a checkpoint of another family.
    """
    bert_config = AutoConfig.from_pretrained(name)
    if bert_config.model_type != "bert":
        raise ValueError(
            f"{name} is a checkpoint of the family '{bert_config.model_type}'; expected 'bert', for example "
            "google-bert/bert-base-uncased."
        )
    names = (
        "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act "
        "hidden_dropout_prob attention_probs_dropout_prob max_position_embeddings initializer_range layer_norm_eps "
        "pad_token_id"
    )
    return {name: getattr(bert_config, name) for name in names.split()}


def check_overrides(config_class: type[PreTrainedConfig], overrides: dict, bert_fields: dict, name: str) -> None:
    """Refuses (`ValueError`) overrides that are no fields or contradict the weights of the BERT `name`."""
    unknown = sorted(
        set(overrides) - {*config_class().to_dict(), *config_class.attribute_map, "answers", "num_labels"}
    )
    if unknown:
        raise ValueError(f"{unknown[0]} is no field of {config_class.__name__}.")
    for field in _BERT_SIZES:
        if overrides.get(field, bert_fields[field]) != bert_fields[field]:
            raise ValueError(
                f"{field}={overrides[field]} contradicts the weights of {name}, where it is {bert_fields[field]}; "
                "leave it out."
            )


def check_sizes(config: PreTrainedConfig, bert_fields: dict, name: str) -> None:
    """Refuses (`ValueError`) a BERT `name` whose tensors have other shapes than a model with this `config`."""
    for field in _BERT_SIZES:
        found = getattr(config, field)
        if found != bert_fields[field]:
            raise ValueError(
                f"{field} is {bert_fields[field]} in the BERT {name}, but {found} in the model; give a BERT of the "
                "same size."
            )


__all__ = ["check_overrides", "check_sizes", "read_bert_config"]
