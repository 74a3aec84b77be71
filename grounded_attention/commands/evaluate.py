# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Scores a saved checkpoint and writes a report that shows its failures.

The command writes to the folder --output: metrics.json, the predictions (VQA and GQA: the official format,
predictions_SPLIT.json; other tasks: one line per prediction, predictions_SPLIT.jsonl) and report.html, one file that
needs neither network nor scripts.

The numbers equal those that training measures on the same rows. --set takes keys of recipes: data.builder,
data.options.NAME (options of the builder), options.NAME (options of the task).

--faithful compares raw attention (raw_last, raw_mean), rollout, gradient-weighted relevancy, contribution and a
random order (docs/heads.md); it writes faithful.json and faithful.png. Vision-language models: look --faithful.

examples:
  grounded-attention evaluate runs/scenes_vgp/direct --task vgp --data-dir data/scenes --regions data/scenes/regions \\
      --images data/scenes/flickr30k-images

  # as its run measured it: task, data, regions and seed of the recipe beside it
  grounded-attention evaluate runs/referring/none --split validation

  # rows as people have them, and the regions of their pictures (grounded-attention regions extract --data)
  grounded-attention evaluate runs/referring/none --task referring_expressions --data others.jsonl --split val \\
      --regions data/others_regions

  # probes: one table with intervals (docs/evaluation.md)
  grounded-attention evaluate runs/vlm_scenes/direct --suite composition --probe data/scenes --probe relations.json

  # the model before and after its training, into its card
  grounded-attention evaluate runs/vlm_scenes/direct --suite evidence --probe data/scenes \\
      --before runs/vlm_scenes/none --card runs/vlm_scenes/direct

  # how faithful maps are: regions are left out, or shown alone, in the order of each map
  grounded-attention evaluate runs/scenes_vgp/direct --task vgp --data-dir data/scenes --regions data/scenes/regions \\
      --split test --limit 500 --faithful all

  # an official file of answers, without a model
  grounded-attention evaluate --predictions answers.json --task vqa --data-dir data/vqa --split validation
"""

from .command_line import Program, Result, explain_error, refuse_given
from .options import Evaluation


def evaluate(checkpoint: str | None = None, *, options: Evaluation) -> Result:
    """Scores a checkpoint.

    Args:
        checkpoint (CHECKPOINT): folder of a trained model, or a name on the Hub
    """
    if options.suite:
        from .evaluate_suite import work

        return work(checkpoint, options)
    refuse_given(options, ("probe", "before", "card"), "has no effect without --suite: give --suite, or remove it")
    if options.task is None and (checkpoint is None or options.predictions or options.data or options.faithful):
        raise ValueError("give --task and --data or --data-dir, a CHECKPOINT of a run, or --suite")
    if options.task is not None and (options.data_dir is None) == (options.data is None):
        raise ValueError(f"--task {options.task}: give either --data-dir or --data")
    from .evaluate_work import work as score

    return score(checkpoint, options)


main = Program("evaluate", evaluate, explain_error)
