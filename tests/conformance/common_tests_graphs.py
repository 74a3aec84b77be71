# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Models as graphs: every family compiled as torch.compile does by default, every head of every family exported; run
by `make conformance`. `make test` traces only: C++ takes half a minute a family.
"""

import argparse
import unittest
from itertools import product
from unittest import mock

import torch
from parameterized import parameterized
from torch.testing import assert_close
from transformers.testing_utils import torch_device

from benchmarks import gpu
from grounded_attention.families import FAMILIES
from grounded_attention.modeling import VLBertModel
from grounded_attention.supervision import get_method
from tests.conformance.common_tests_models import TESTERS, VLBertTester, on_device
from tests.helpers.exported import assert_exported_equals_model

TINY_STEP = argparse.Namespace(device="cpu", batch=3, vgp_batch=3)
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


class CompiledTest(unittest.TestCase):
    """A compiled model computes what the model computes."""

    @torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
    def test_a_training_step_without_padding(self):
        """As `make bench-gpu` compiles it, with sizes that are not fixed; on a CPU the benchmark only traces."""
        compile_with = torch.compile
        options = {"dynamic": True, "fullgraph": True}
        with mock.patch("torch.compile", lambda model, **_: compile_with(model, **options)):
            step = gpu.Training("VGP", gpu.Way("compiled", compiled="model"), TINY_STEP)
        plain = gpu.Training("VGP", gpu.UNPADDED, TINY_STEP)
        step.model.eval()
        plain.model.eval()
        loss = step.loss(half=False)
        assert_close(loss, plain.loss(half=False), **CLOSE)
        loss.backward()

    @parameterized.expand([*product(gpu.CLASSES, ("none", "direct"), (True,)), ("VGP", "direct", False)])
    def test_one_graph_for_batches_of_all_sizes(self, task, method, unpad):
        """`fullgraph=True` refuses a graph break. A second graph is for two sizes that were equal at first."""
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        way = gpu.Way("compiled", unpad=unpad, method=method, compiled="model")
        # Without padding the number of valid columns is a size in the graph.
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=unpad):
            step = gpu.Training(task, way, TINY_STEP)
            for size in (5, 7, 9, 11):
                step.inputs, step.targets = gpu.make_batch(task, size, step.model.config)
                step.loss(half=False).backward()
        assert 1 <= torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2

    @parameterized.expand(FAMILIES)
    def test_every_family_with_direct_supervision(self, name):
        """Logits of both heads, losses and all gradients: one graph has the whole model."""
        tester = TESTERS[name]({})
        model_class = FAMILIES[name].heads["vgp"]
        config, inputs = tester.prepare_config_and_inputs_for_common()
        model = model_class(config).eval().to(torch_device)
        method = get_method("direct")
        method.prepare(model)
        size = len(inputs["input_ids"])
        regions = inputs["region_features"].shape[1]
        inputs |= tester.make_class_inputs(model_class, size)
        grounded = torch.eye(inputs["phrase_mask"].shape[1], regions).bool().expand(size, -1, -1)
        every = torch.ones(size, regions, dtype=torch.bool)
        batch = {**inputs, **on_device({"phrase_regions": grounded, "region_candidate_mask": every})}
        batch |= method.prepare_batch(batch)

        def step(model=model, method=method, inputs=inputs, batch=batch):
            outputs = model(**inputs, **method.forward_kwargs(batch))
            losses = {key: total for key, (total, _) in method.losses(outputs, batch).items()}
            return losses, (outputs.identification_logits, outputs.vgp_logits)

        results = []
        for way in (step, torch.compile(step, fullgraph=True)):  # no graph break, the losses included
            model.zero_grad()
            losses, logits = way()
            sum(losses.values()).backward()
            # A graph has zeros where a head is not supervised.
            gradients = [torch.zeros_like(w) if w.grad is None else w.grad for w in model.parameters()]
            results.append((losses, logits, gradients))
        assert sum(gradient.any().item() for gradient in results[0][2]) > 20
        assert_close(results[1], results[0], **CLOSE)

    @torch.no_grad()
    def test_flex_attention(self):
        config, inputs = VLBertTester({"hidden_size": 64}).prepare_config_and_inputs_for_common()
        model = VLBertModel(config).eval().to(torch_device)
        expected = model(**inputs)
        model.set_attn_implementation("flex_attention")
        assert_close(dict(model(**inputs)), dict(expected), **CLOSE)


class ExportedTest(unittest.TestCase):
    """The graph of torch.export computes what the model computes, for batches of two sizes."""

    @parameterized.expand([(name, head) for name, family in FAMILIES.items() for head in (None, *family.heads)])
    def test_every_head_of_every_family(self, name, head):
        assert_exported_equals_model(name, head)
