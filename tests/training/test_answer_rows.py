# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""A model for questions that starts from one with other answers takes the rows of the answers that both have."""

import pytest
import torch
import yaml
from transformers import set_seed

from grounded_attention.families import FAMILIES
from grounded_attention.training.experiments.models import answer_weights, make_model
from grounded_attention.training.recipes.recipe import Model, RecipeError
from tests.training.runs import assert_same_weights

HEAD = "vqa"
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
SIZES |= {"vocab_size": 30, "region_feature_size": 6}
OF_FAMILY = """
vl_bert: {}
visualbert: {}
vilbert: {v_hidden_size: 16, v_intermediate_size: 16, v_num_hidden_layers: 1, v_num_attention_heads: 2,
          bi_hidden_size: 16, bi_num_attention_heads: 2}
lxmert: {num_hidden_layers: 1, r_layers: 1, x_layers: 1, visual_attr_loss: false}
"""
THEIRS = ["red", "a ball", "two", "left"]


@pytest.fixture(params=FAMILIES)
def saved(request, tmp_path):
    set_seed(0)
    family = request.param
    sizes = {**SIZES, **yaml.safe_load(OF_FAMILY)[family]}
    made = FAMILIES[family].heads[HEAD](FAMILIES[family].config_class(**sizes, answers=THEIRS))
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    made.save_pretrained(tmp_path)
    return Model(family=family, source=str(tmp_path)), made


@pytest.mark.parametrize("answers", [["ball", "green", "red", "2", "up"], ["green", "two", "red", "up"]])
def test_rows_go_by_their_answer(saved, answers, capsys):
    source, given = saved
    made = make_model(HEAD, source, None, answers=answers)
    assert list(made.config.answers) == answers
    same = {"ball": 1, "red": 0, "2": 2, "two": 2}
    names = answer_weights(made)
    assert names
    assert names == answer_weights(given)
    weights = made.state_dict()
    for name, theirs in given.state_dict().items():
        if name in names:
            for answer, row in zip(answers, weights[name], strict=True):
                equal = [place for place, other in enumerate(theirs) if torch.equal(row, other)]
                assert equal == ([same[answer]] if answer in same else []), (name, answer)
        else:
            assert torch.equal(weights[name], theirs), name
    assert f"took the weights of {len(set(answers) & set(same))} of {len(answers)}" in capsys.readouterr().out


def test_the_same_answers_are_all_taken(saved, capsys):
    source, given = saved
    made = make_model(HEAD, source, None, answers=THEIRS)
    assert_same_weights(made.state_dict(), given.state_dict())
    assert "other answers" not in capsys.readouterr().out


def test_another_width_is_still_an_error(saved):
    source, _ = saved
    source.config = {"hidden_size": 32}
    with pytest.raises(RecipeError, match="remove the override that changes it"):
        make_model(HEAD, source, None, answers=["green"])
