#!/usr/bin/env bash
# Rows have `objects` (ref, bbox) and <ref-object>, <bbox> in their messages, as ms-swift documents them.
cd "$(dirname "$0")"
GROUNDING=grounding.yaml swift sft --external_plugins plugin.py --tuner_type lora \
  --model "${MODEL:-Qwen/Qwen2.5-VL-3B-Instruct}" --dataset "${DATA:-rows.jsonl}" --val_dataset "${EVAL:-eval.jsonl}" \
  --eval_strategy steps --eval_steps 50 "$@"
