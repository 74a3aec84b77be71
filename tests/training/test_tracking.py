"""Pictures of heads reach TensorBoard and trackio at each evaluation, and the heads are in the logs."""

from types import SimpleNamespace

import pytest
from PIL import Image
from transformers.integrations.integration_utils import TensorBoardCallback, TrackioCallback

from grounded_attention.pages.figures import HEADS
from grounded_attention.training.experiments.trainers import PictureTracking, tracks_pictures


class Received:
    """A writer of TensorBoard and the module trackio, as far as pictures need them."""

    def __init__(self):
        self.board = []
        self.trackio = []

    def add_image(self, name, pixels, step, dataformats):
        self.board.append((name, pixels.shape, step, dataformats))

    def Image(self, path, caption):
        return Image.open(path).size, caption

    def log(self, values):
        self.trackio.append(values)


@pytest.fixture
def trainer():
    received = Received()
    board = object.__new__(TensorBoardCallback)
    trackio = object.__new__(TrackioCallback)
    board.tb_writer = received
    trackio._trackio = received
    handler = SimpleNamespace(callbacks=[board, trackio])
    return SimpleNamespace(callback_handler=handler, model="model", received=received)


def state(step, *entries):
    return SimpleNamespace(is_world_process_zero=True, global_step=step, log_history=list(entries))


def test_each_evaluation_sends_heads(trainer):
    heads = [[0.1, 0.2], [0.9, 0.1], [0.3, 0.3]]
    now = state(20, {"step": 10, HEADS: heads}, {"step": 20, HEADS: heads})
    trainer.state = now
    assert tracks_pictures(trainer)
    PictureTracking(trainer, "direct", ["0", "1", "2"]).on_evaluate(None, now, None)
    names = [name for name, *_ in trainer.received.board]
    assert names == ["heads"]
    assert {tuple(entry[2:]) for entry in trainer.received.board} == {(20, "HWC")}
    assert [next(iter(values)) for values in trainer.received.trackio] == names
    assert trainer.received.trackio[-1]["heads"][1] == "step 20"


def test_nothing_is_sent_where_no_head_was_measured(trainer):
    now = state(20, {"step": 20, "eval_vgp_accuracy": 0.5})
    PictureTracking(trainer, "none", ["0"]).on_evaluate(None, now, None)
    assert not trainer.received.board
    assert not trainer.received.trackio
