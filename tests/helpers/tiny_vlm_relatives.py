# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""Sizes of tiny processors and models of families that are only tested by the contracts that all families share."""

import os
from typing import Any, NamedTuple

# Other sizes of patches and pictures, for the page of all types: nothing may hold for those of the tests alone.
OTHER = "OTHER_SIZES" in os.environ
PATCH = 6 if OTHER else 4  # pixels
TILE = 4 * PATCH  # pixels of a picture that the vision tower sees, where its size is fixed


class Relative(NamedTuple):
    """A family: folder and class of its image processor, settings of it and of the processor, and its configuration.

    Args:
        image (`str`): folder and class, as in `PROCESSORS`.
        settings (`dict`): settings of the image processor.
        config (`dict`): what the configuration has beside `TEXT`.
        own (`dict`): what the processor itself is given.
        folder (`str`): the folder of the processor's class in transformers, by default that of the model type.
        image_token (`str`): the token that stands for a patch.
        placeholder (`str`): the token of an image in the tokenizer, by default `image_token`.
        processor (`str`): the class of the processor, by default that of the family.
        model_type (`str`): the model type, by default the key.
    """

    image: str
    settings: dict[str, Any]
    config: dict[str, Any]
    own: dict[str, Any] = {}
    folder: str = ""
    image_token: str = "<image>"
    placeholder: str = ""
    processor: str = ""
    model_type: str = ""


TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 1400,  # PaliGemma's processor adds more than a thousand tokens
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "initializer_range": 0.2,
}


def _rope(section, **more):
    return {"rope_parameters": {"rope_type": "default", "mrope_section": section, "rope_theta": 10000.0, **more}}


MROPE = _rope([2, 1, 1])
WINDOW = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4096}
WHOLE = _rope([2, 1, 1], partial_rotary_factor=1.0)
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 48,
    "image_size": TILE,
    "patch_size": PATCH,
    "initializer_range": 0.2,
}
QWEN_VISION = {
    "depth": 2,
    "num_heads": 4,
    "hidden_size": 32,
    "embed_dim": 32,
    "intermediate_size": 48,
    "patch_size": PATCH,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 32,
    "initializer_range": 0.2,
}
QWEN3_VISION = {**QWEN_VISION, "deepstack_visual_indexes": [0], "num_position_embeddings": 16}
EXPERTS = {
    "num_experts": 2,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "shared_intermediate_size": 16,
    "dense_intermediate_size": 48,
}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "index_head_dim": 8,
    "index_n_heads": 2,
    "index_topk": 512,
}
GRID = {"patch_size": PATCH, "merge_size": 2, "size": {"shortest_edge": 4 * 64, "longest_edge": 30 * 64}}
FRAMES = {**GRID, "size": {"shortest_edge": 8 * 64, "longest_edge": 60 * 64}}  # counted twice: two equal frames
GLM_VISION = {**QWEN_VISION, "image_size": 32, "rope_parameters": {"rope_type": "axial", "rope_theta": 10000.0}}
AUDIO = {
    "num_mel_bins": 8,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 8,
    "d_model": 8,
    "output_dim": 32,
    "downsample_hidden_size": 8,
}


LLAMA = {**TEXT, "model_type": "llama"}
SQUARE = {"height": TILE, "width": TILE}
CLIP = {**VISION, "model_type": "clip_vision_model", "projection_dim": 32}
SIGLIP = {**VISION, "model_type": "siglip_vision_model", "vision_use_head": False}
PIXTRAL = {**VISION, "model_type": "pixtral", "head_dim": 8, "image_size": 64}
SIDE = 6 * PATCH  # of a picture of the towers of LLaVA, in pixels
CROP = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
CODES_SIDE = 32 if OTHER else 24  # of a picture whose codes are those of cells of 4 x 4 pixels
CLASS_TOKEN = {"patch_size": PATCH, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}
# A model of timm, see `tiny_vlm_models`
TIMM = {"hidden_size": 32, "do_pooling": False, "model_args": {"embed_dim": 32, "patch_size": PATCH}}
DOUBLE = {"height": 2 * TILE, "width": 2 * TILE}
LARGE = {"height": 4 * TILE, "width": 4 * TILE}
# A tower as SAM's: convolutions behind it merge 4 x 4 patches
SAM = {**VISION, "image_size": 4 * TILE, "output_channels": 16, "mlp_dim": 48, "num_pos_feats": 16, "window_size": 4,
       "global_attn_indexes": [1]}  # fmt: skip
# The words of Chameleon for the codes of patches: digits are letters
CODES = {
    f"IMGIMG{str(code).translate(str.maketrans('0123456789', 'ABCDEFGHIJ'))}Z": 400 + code for code in range(1000)
}
BREAKS = {"image_token": "<image>", "image_break_token": "<break>", "image_end_token": "<|image_end|>"}
PINPOINTS = [[TILE * rows, TILE * columns] for rows, columns in ((1, 1), (1, 2), (2, 1), (2, 2), (1, 3), (3, 1))]
INKLING = {
    **EXPERTS,
    "layer_types": ["hybrid_sliding", "hybrid"],
    "sliding_window_size": 512,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 8,
    "d_rel": 4,
    "rel_extent": 64,
}
BART = {
    "model_type": "bart",
    "d_model": 32,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "vocab_size": 1400,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "decoder_start_token_id": 3,
    "init_std": 0.2,
    "forced_eos_token_id": None,
    "dropout": 0.0,
}
FLORENCE_TASKS = ("ocr", "phrase_grounding", "pure_text", "description_with_bboxes", "polygons", "bboxes",
                  "description_with_polygons", "description_with_bboxes_or_polygons")  # fmt: skip
WIDE_PINPOINTS = [[2 * TILE * rows, 2 * TILE * columns] for rows, columns in ((1, 1), (1, 2), (2, 1))]
GEMMA4 = {
    **TEXT,
    "global_head_dim": 8,
    **WINDOW,
    "vocab_size_per_layer_input": 1400,
    "hidden_size_per_layer_input": 8,
}


def _grid(vision, text=None, image="qwen2_vl.Qwen2VL", **more):
    """A family that resizes images to full patches and merges two by two."""
    names = {name: more.pop(name) for name in ("settings", "own", "folder", "image_token") if name in more}
    config = {"text_config": {**TEXT, **MROPE, **(text or {})}, "vision_config": vision, **more}
    return Relative(image, names.pop("settings", GRID), config, **names)


def _pixtral(text, own, folder=""):
    """A family with Pixtral's tower, whose patches are merged two by two."""
    settings = {"size": {"longest_edge": 64}, "patch_size": PATCH}
    merged = {"spatial_merge_size": 2}
    config = {"text_config": {**TEXT, **text}, "vision_config": PIXTRAL, **merged}
    return Relative("pixtral.Pixtral", settings, config, {**own, "patch_size": PATCH, **merged}, folder)


RELATIVES = {
    "qwen3_vl_moe": _grid(QWEN3_VISION, EXPERTS, folder="qwen3_vl"),
    "cosmos3_omni": _grid(QWEN3_VISION, folder="qwen3_vl"),
    "qwen4_exp": _grid(
        QWEN3_VISION,
        {**EXPERTS, **DELTA, "layer_types": ["linear_attention", "indexed_attention"], "hc_lowrank": 4,
         "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 512,
         "indexer_compress_ratio": 4},
        folder="qwen3_vl",
    ),
    "glm5_next": _grid(
        GLM_VISION,
        {**EXPERTS, **LATENT, "qk_rope_head_dim": 0, "num_key_value_heads": 4, "linear_num_heads": 2,
         "linear_head_dim": 8, "layer_types": ["linear_attention", "indexed_attention"]},
        image="glm5_next.Glm5Next",
        settings={"patch_size": PATCH, "merge_size": 2, "min_image_tokens": 6, "max_image_tokens": 30},
    ),
    "qwen3_5": _grid({**QWEN3_VISION}, DELTA, folder="qwen3_vl"),
    "qwen3_5_moe": _grid({**QWEN3_VISION}, {**EXPERTS, **DELTA}, folder="qwen3_vl"),
    "glm4v": _grid(GLM_VISION, image="glm4v.Glm4v", settings=FRAMES),
    "glm46v": _grid(GLM_VISION, image="glm46v.Glm46V", settings=FRAMES),
    "glm4v_moe": _grid(GLM_VISION, {**EXPERTS, **WHOLE}, image="glm4v.Glm4v", settings=FRAMES, folder="glm4v"),
    "glm_ocr": _grid(GLM_VISION, image="glm46v.Glm46V", settings=FRAMES, folder="glm46v"),
    "glmga": _grid(GLM_VISION, image="glmga.Glmga", settings=FRAMES, folder="glm46v"),
    "exaone4_5": _grid(
        {**QWEN_VISION, "window_size": 16, "fullatt_block_indexes": [1], "num_key_value_heads": 2},
        {"model_type": "exaone4", **WINDOW, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    ),
    "paddleocr_vl": _grid({**VISION, "spatial_merge_size": 2}, image="paddleocr_vl.PaddleOCRVL"),
    "ernie4_5_vl_moe": _grid(
        QWEN_VISION,
        {"moe_intermediate_size": [16, 16], "moe_num_experts": 2, "moe_k": 1, "moe_num_shared_experts": 1,
         **_rope([1, 1, 2])},
        image="ernie4_5_vl_moe.Ernie4_5_VLMoe",
    ),
    "video_llama_3": _grid(VISION, {"model_type": "qwen2"}, image="video_llama_3.VideoLlama3"),
    "cosmos3_edge": _grid(
        {**VISION, "num_patches": 16, "spatial_merge_size": 2},
        image="cosmos3_edge.Cosmos3Edge",
        settings=FRAMES,
        projector_hidden_size=32,
    ),
    "cohere_compass": _grid(
        QWEN3_VISION,
        {"layer_types": ["sliding_attention", "full_attention"],
         "rope_parameters": dict.fromkeys(["sliding_attention", "full_attention"], MROPE["rope_parameters"])},
        image="cohere_compass.CohereCompass",
        image_token="<|IMAGE_PAD|>",
    ),
    "hyperclovax_vision_v2": _grid(
        {**QWEN_VISION, "model_type": "qwen2_5_vl_vision", "window_size": 16, "fullatt_block_indexes": [1]},
        {"model_type": "hyperclovax"},
    ),
    "lfm3_vl": _grid(
        {**QWEN_VISION, **VISION, "layer_types": ["conv", "full_attention"], "conv_kernel_size": 3},
        {"model_type": "lfm3", "layer_types": ["conv", "full_attention"], "conv_L_cache": 3,
         "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
        projector_hidden_size=32,
    ),
    "dots3_note": _grid(
        {**VISION, "adapter_in_dim": 32, "adapter_out_dim": 32, "moe_intermediate_size": 16,
         "num_local_experts": 2, "num_experts_per_tok": 1, "mlp_layer_types": ["dense", "sparse"]},
        {**EXPERTS, **LATENT, **{f"swa_{name}": size for name, size in LATENT.items() if "index" not in name},
         "num_key_value_heads": 4, "swa_num_attention_heads": 2, "swa_num_key_value_heads": 2, "swa_head_dim": 8,
         "layer_types": ["sliding_attention", "indexed_attention"], "sliding_window": 4096, "rope_parameters": None},
        settings={**GRID, "temporal_patch_size": 1},
        image_token="<|imgpad|>",
        audio_config={**VISION, "adapter_input_size": 32, "adapter_out_dim": 32, "feature_size": 8},
    ),
    "qwen2_5_omni_thinker": _grid(
        {**QWEN_VISION, "window_size": 16, "fullatt_block_indexes": [1]}, audio_config=AUDIO, folder="qwen2_5_omni"
    ),
    "qwen3_omni_moe_thinker": _grid(QWEN3_VISION, EXPERTS, audio_config=AUDIO, folder="qwen3_omni_moe"),
    "minimax_m3_vl": _grid(
        {**QWEN_VISION, **VISION},
        {**EXPERTS, "rotary_dim": 4, "index_head_dim": 8, "layer_types": ["full_attention"] * 2},
        image="minimax_m3_vl.MiniMaxM3VL",
        image_token="]<]image[>[",
        projector_hidden_size=32,
    ),
    "muse_glimmer": _grid(
        {**VISION, "pos_emb_height": 4, "pos_emb_width": 4, "merge_size": 2, "patch_temporal": 2,
         "layer_types": ["window_attention", "full_attention"]},
        WINDOW,
        image="muse_glimmer.MuseGlimmer",
        settings={"patch_size": PATCH, "merge_size": 2, "max_image_tokens": 20},
        image_token="<|patch|>",
        out_hidden_size=128,
        projector_hidden_size=32,
    ),
    "video_llava": Relative(
        "video_llava.VideoLlava",
        CROP,
        {"text_config": LLAMA, "vision_config": {**CLIP, "image_size": SIDE}},
        CLASS_TOKEN,
    ),
    "vipllava": Relative(
        "clip.CLIP",
        CROP,
        {"text_config": LLAMA, "vision_config": {**CLIP, "image_size": SIDE}, "vision_feature_layers": [-1, -2]},
        CLASS_TOKEN,
        folder="llava",
    ),
    "llava_next_video": Relative(
        "llava_next.LlavaNext",
        {"size": {"shortest_edge": TILE}, "crop_size": SQUARE, "image_grid_pinpoints": PINPOINTS},
        {"text_config": LLAMA, "vision_config": CLIP, "image_grid_pinpoints": PINPOINTS},
        CLASS_TOKEN,
    ),
    "granite4_vision": Relative(  # windows of 4 x 4 patches, each with 2 x 2 tokens
        "llava_next.LlavaNext",
        {"size": DOUBLE, "crop_size": DOUBLE,
         "image_grid_pinpoints": WIDE_PINPOINTS},
        {"text_config": {**TEXT, "model_type": "granite4_vision_text", "attention_multiplier": 0.35},
         "vision_config": {**SIGLIP, "hidden_size": 64, "image_size": 2 * TILE},
         "vision_feature_select_strategy": "full",
         "image_grid_pinpoints": WIDE_PINPOINTS, "downsample_rate": "2/4", "deepstack_layer_map": [[-1, 0]],
         "spatial_target_layers": [0, 1, 1, 1], "projector_dropout": 0.0,
         "qformer_config": {"num_hidden_layers": 1, "intermediate_size": 32, "cross_attention_frequency": 1,
                            "use_qformer_text_input": False, "hidden_dropout_prob": 0.0,
                            "attention_probs_dropout_prob": 0.0}},
        {"patch_size": PATCH, "vision_feature_select_strategy": "full", "downsample_rate": "2/4"},
    ),
    "llava_pixtral": Relative(
        "pixtral.Pixtral",
        {"size": {"longest_edge": 48}, "patch_size": PATCH},
        {"text_config": LLAMA, "vision_config": PIXTRAL, "vision_feature_layer": -1,
         "vision_feature_select_strategy": "full"},
        {**BREAKS, "patch_size": PATCH},
        folder="pixtral",
        processor="PixtralProcessor",
        model_type="llava",
    ),
    "mistral_large4": _pixtral({**EXPERTS, **LATENT, "num_key_value_heads": 4}, BREAKS, folder="pixtral"),
    "mistral3": _pixtral({"model_type": "mistral", "sliding_window": None}, BREAKS, folder="pixtral"),
    "lighton_ocr": _pixtral({"model_type": "qwen3"}, {}),
    "qianfan_ocr": Relative(
        "got_ocr2.GotOcr2",
        {"size": SQUARE, "max_patches": 6, "crop_to_patches": True},
        {"text_config": {**TEXT, "model_type": "qwen3"}, "image_seq_length": 4,
         "vision_config": {**VISION, "drop_path_rate": 0.0, "image_size": [TILE, TILE], "patch_size": [PATCH, PATCH]}},
        {"image_seq_length": 4},
    ),
    "granite_docling": Relative(
        "granite_docling.GraniteDocling",
        {"size": SQUARE, "max_patches": 6},
        {"text_config": {**TEXT, "model_type": "granite_docling_text", "attention_multiplier": 0.35},
         "vision_config": {**VISION, "out_hidden_size": 32, "scale_factor": 2, "deepstack_visual_indexes": [0],
                           "use_fine_route": False}},
        {"image_seq_len": 4},
    ),
    "aya_vision": Relative(
        "got_ocr2.GotOcr2",
        {"size": SQUARE, "max_patches": 6},
        {"text_config": {**TEXT, "model_type": "cohere2", **WINDOW}, "vision_config": SIGLIP},
        {"patch_size": PATCH, "img_size": TILE, "downsample_factor": 2},
        image_token="<|IMG_PATCH|>",
    ),
    "cohere2_vision": Relative(
        "cohere2_vision.Cohere2Vision",
        {"size": SQUARE, "max_patches": 6, "patch_size": 2},
        {"text_config": {**TEXT, "model_type": "cohere2", **WINDOW}, "vision_config": SIGLIP,
         "alignment_intermediate_size": 32},
    ),
    "ovis2": Relative(
        "ovis2.Ovis2",
        {"size": SQUARE, "max_patches": 6, "crop_to_patches": True},
        {"text_config": {**TEXT, "model_type": "qwen2"}, "hidden_size": 32,
         "visual_indicator_token_ids": [60, 61, 62, 63, 64],
         "vision_config": {**VISION, "vocab_size": 40, "hidden_stride": 2}},
        {"image_seq_length": 4},
        image_token="<IMG_ATOM>",
    ),
    "gemma4": Relative(
        "gemma4.Gemma4",
        {"patch_size": PATCH, "pooling_kernel_size": 2, "max_soft_tokens": 70},
        {"text_config": GEMMA4, "vision_config": {**VISION, "head_dim": 8, "pooling_kernel_size": 2}},
    ),
    "gemma4_unified": Relative(
        "gemma4_unified.Gemma4Unified",
        {"patch_size": PATCH, "pooling_kernel_size": 2, "max_soft_tokens": 70},
        {"text_config": GEMMA4, "vision_config": {"patch_size": PATCH, "pooling_kernel_size": 2, "mm_embed_dim": 32,
                                                  "mm_posemb_size": 80, "output_proj_dims": 32}},
    ),
    "gemma3n": Relative(
        "siglip.Siglip",
        {"size": SQUARE},
        {"text_config": {**GEMMA4, "altup_num_inputs": 2, "laurel_rank": 8, "num_hidden_layers": 4,
                         "layer_types": WINDOW["layer_types"] * 2, "num_kv_shared_layers": 2},
         "vision_config": {**TIMM, "vocab_size": 10, "vocab_offset": 1380},
         "audio_config": {"hidden_size": 8, "vocab_size": 10, "vocab_offset": 1390, "input_feat_size": 8,
                          "conf_num_attention_heads": 2, "conf_num_hidden_layers": 1},
         "vision_soft_tokens_per_image": 16},
        {"image_seq_length": 16},
    ),
    "fast_vlm": Relative(
        "clip.CLIP",
        CROP,
        {"text_config": {**TEXT, "model_type": "qwen2"}, "vision_config": {**TIMM, "model_type": "timm_wrapper"}},
        {"patch_size": PATCH, "vision_feature_select_strategy": "full"},
        folder="llava",
    ),
    "perception_lm": Relative(
        "perception_lm.PerceptionLM",
        {"tile_size": TILE, "max_num_tiles": 6, "vision_input_type": "vanilla"},  # else a batch has equal tiles
        {"text_config": LLAMA, "projector_pooling_ratio": 2,
         "vision_config": {**TIMM, "model_args": {**TIMM["model_args"], "class_token": True}}},
        {"patch_size": PATCH, "pooling_ratio": 2},
    ),
    "got_ocr2": Relative(
        "got_ocr2.GotOcr2",
        {"size": LARGE, "max_patches": 6},
        {"text_config": {**TEXT, "model_type": "qwen2"}, "vision_config": SAM},
        {"num_image_tokens": 16},
        image_token="<imgpad>",
    ),
    "chameleon": Relative(
        "chameleon.Chameleon",
        {"size": {"shortest_edge": CODES_SIDE}, "crop_size": {"height": CODES_SIDE, "width": CODES_SIDE}},
        {**TEXT, "vocabulary_map": {"<image>": 4, **CODES},
         "vq_config": {"base_channels": 32, "channel_multiplier": [1, 1, 1], "num_embeddings": len(CODES),
                       "latent_channels": 32, "num_res_blocks": 1, "embed_dim": 1, "initializer_range": 0.08}},
        {"image_seq_length": (CODES_SIDE // 4) ** 2},
    ),
    "unlimited_ocr": Relative(
        "unlimited_ocr.UnlimitedOcr",
        {"size": LARGE, "tile_size": 2 * TILE, "max_patches": 6},
        {"text_config": {**TEXT, **EXPERTS, "num_key_value_heads": 4},
         "vision_config": {"sam_config": {**SAM, "downsample_channels": [16, 32]}, "encoder_config": VISION}},
        {"patch_size": PATCH},
    ),
    "emu3": Relative(
        "emu3.Emu3",
        {"min_pixels": 1024, "max_pixels": 2048},
        {"text_config": {**TEXT, "attention_dropout": 0.0},
         "vocabulary_map": {"<image>": 4, "<|extra_200|>": 399,
                            **{f"<|visual token {code:06}|>": 400 + code for code in range(1000)}},
         "vq_config": {"base_channels": 32, "channel_multiplier": [1, 1, 1, 1], "codebook_size": 1000, "embed_dim": 1,
                       "num_res_blocks": 1, "hidden_size": 32, "attn_resolutions": []}},
    ),
    "apertus1p5": Relative(
        "apertus1p5.Apertus1p5",
        {"size": {"min_pixels": 256, "max_pixels": 640}, "spatial_factor": 4},
        {"text_config": TEXT, "image_token_offset": 400, "audio_token_offset": 1200,
         "vision_config": {"base_channels": 32, "channel_multiplier": [1, 1, 1], "codebook_size": 800, "embed_dim": 2,
                           "num_res_blocks": 1, "latent_channels": 32, "attn_resolutions": []},
         "audio_config": {"model_type": "wavtokenizer_encoder", "num_filters": 2, "hidden_size": 8, "codebook_dim": 8,
                          "codebook_size": 8, "num_lstm_layers": 1}},
    ),
    "pp_chart2table": Relative(
        "pp_chart2table.PPChart2Table",
        {"size": {"height": 128, "width": 128}},
        {"text_config": {**TEXT, "model_type": "qwen2"},
         "vision_config": {**SAM, "patch_size": 16, "image_size": 128}},
        image_token="<imgpad>",
    ),
    "deepseek_vl_hybrid": Relative(
        "deepseek_vl_hybrid.DeepseekVLHybrid",
        {"size": SQUARE, "min_size": 4, "high_res_size": LARGE, "high_res_resample": 0},
        {"text_config": LLAMA, "vision_config": SIGLIP, "high_res_vision_config": SAM},
        {"num_image_tokens": 16},
    ),
    "deepseek_vl": Relative(
        "deepseek_vl.DeepseekVL",
        {"size": SQUARE, "min_size": 4},
        {"text_config": LLAMA, "vision_config": SIGLIP},
        {"num_image_tokens": 16},
    ),
    "janus": Relative(
        "janus.Janus",
        {"size": SQUARE, "min_size": 4},
        {"text_config": LLAMA, "vision_config": {**VISION, "projection_dim": 32, "depth": 1, "num_image_tokens": 16},
         "vq_config": {"base_channels": 32, "channel_multiplier": [1, 1], "num_embeddings": 8, "num_patches": 4,
                       "latent_channels": 32, "projection_dim": 32, "image_token_embed_dim": 32, "embed_dim": 8}},
        {"num_image_tokens": 16},
    ),
    "llama4": Relative(
        "llama4.Llama4",
        {"size": SQUARE, "max_patches": 6},
        {"text_config": {**TEXT, **EXPERTS, "intermediate_size_mlp": 48, "layer_types": ["full_attention"] * 2},
         "vision_config": {**VISION, "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32,
                           "intermediate_size": 128}},
        {"patch_size": PATCH},
        image_token="<|patch|>",
    ),
    "lfm2_vl": Relative(
        "lfm2_vl.Lfm2Vl",
        {"tile_size": TILE, "encoder_patch_size": PATCH, "min_image_tokens": 2,
         "max_image_tokens": 8, "max_tiles": 6},
        {"text_config": {**TEXT, "model_type": "lfm2", "layer_types": ["conv", "full_attention"]},
         "vision_config": {**SIGLIP, "model_type": "siglip2_vision_model", "num_patches": 16},
         "projector_hidden_size": 32},
    ),
    "kimi_k25": Relative(
        "kimi_k25.Kimi_K25",
        {"patch_size": PATCH, "merge_size": 2, "max_patches": 80, "size": {"max_height": 20, "max_width": 20}},
        {"text_config": LLAMA, "projection_hidden_size": 32,
         "vision_config": {**VISION, "pos_emb_height": 4, "pos_emb_width": 4}},
    ),
    "hunyuan_vl": _grid(
        {**VISION, "out_hidden_size": 32, "text_hidden_size": 32, "spatial_merge_size": 2, "max_image_size": 64},
        image="hunyuan_vl.HunYuanVL",
    ),
    "hy_v4_vl": _grid(
        {**VISION, "out_hidden_size": 32, "spatial_merge_size": 2, "max_image_size": 64},
        {**EXPERTS, **LATENT, "num_key_value_heads": 4, "mlp_layer_types": ["dense", "sparse"], "n_shared_experts": 1,
         **_rope([2, 0, 0])},
        image="hy_v4_vl.HYV4VL",
        settings={**GRID, "temporal_patch_size": 1},
    ),
    "molmo2": Relative(
        "molmo2.Molmo2",
        {"size": {"height": 5 * PATCH, "width": 5 * PATCH}, "patch_size": PATCH, "max_crops": 6,
         "overlap_margins": [1, 1]},
        {"text_config": {**TEXT, "additional_vocab_size": 8,
                         "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
         "vision_config": {**VISION, "head_dim": 8, "image_size": [5 * PATCH, 5 * PATCH]},
         "adapter_config": {**VISION, "head_dim": 8, "text_hidden_size": 32, "vision_feature_layer": [1, 0]}},
        image_token="<im_patch>",
        placeholder="<image>",
    ),
    "nemotron_h_omni": Relative(
        "nemotron_h_omni.NemotronH_Omni_Reasoning_V3",
        {"patch_size": PATCH, "min_num_patches": 16, "max_num_patches": 120},
        {"text_config": {**TEXT, "model_type": "nemotron_h",
                         "layers_block_type": ["linear_attention", "full_attention"],
                         "mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 2,
                         "time_step_min": 1e-9},  # only a whole pass has this limit, not the steps of generation
         "vision_config": {**VISION, "model_type": "radio", "max_img_size": 32, "video_temporal_patch_size": 2},
         "vision_hidden_size": 32, "projector_hidden_size": 32},
    ),
    "step3p7": Relative(
        "step3p7.Step3p7",
        {"size": {"height": 3 * TILE, "width": 3 * TILE}, "patch_size": 2 * TILE, "vision_patch_size": PATCH},
        {"text_config": {**TEXT, **EXPERTS, **WINDOW, "share_expert_dim": 16, "num_sliding_attention_heads": 2,
                         "mlp_layer_types": ["dense", "sparse"]},
         "vision_config": {**VISION, "image_size": 3 * TILE, "mlp_ratio": 1.5}},
        image_token="<im_patch>",
    ),
    "inkling2": Relative(
        "inkling2.Inkling2",
        {"size": {"height": 6, "width": 6}},
        {"text_config": {**TEXT, **INKLING, "log_scaling_n_floor": 16, "unpadded_vocab_size": 1400},
         "vision_config": {**VISION, "patch_size": 3, "posemb_grid_size": 4, "projection_hidden_dim": 32,
                           "text_hidden_size": 32}},
    ),
    "inkling_mm_model": Relative(
        "inkling.Inkling",
        {"size": {"height": 6, "width": 6}},
        {"text_config": {**TEXT, **INKLING, "log_scaling_n_floor": 16, "mlp_layer_types": ["dense", "sparse"]},
         "vision_config": {"patch_size": 6, "hidden_size": 32, "num_hidden_layers": 5},
         "audio_config": {"n_mel_bins": 4, "mel_vocab_size": 4}},
        folder="inkling",
    ),
    "muse_spark": _grid(
        {**VISION, "pos_emb_height": 4, "pos_emb_width": 4, "merge_size": 2, "patch_temporal": 2,
         "layer_types": ["window_attention", "full_attention"]},
        {**EXPERTS, **WINDOW,
         "moe_hidden_size": 32, "mlp_layer_types": ["dense", "sparse"], "layer_rope_theta": [1e4, 1e4],
         "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        image="muse_glimmer.MuseGlimmer",
        settings={"patch_size": PATCH, "merge_size": 2, "max_image_tokens": 20},
        image_token="<|patch|>",
        out_hidden_size=128,
        projector_hidden_size=32,
        audio_config={"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "out_hidden_size": 32},
    ),
    **{
        name: Relative(
            image,
            {"patch_size": PATCH, "scale_resolution": 32, "max_slice_nums": 6},
            {"text_config": {**TEXT, **DELTA, "model_type": "qwen3_5_text"},
             "vision_config": {**VISION, "insert_layer_id": 0},
             "insert_layer_id": 0},
        )
        for name, image in (
            ("minicpmv4_6", "minicpmv4_6.MiniCPMV4_6"), ("minicpmv4_7", "minicpmv4_6.MiniCPMV4_6"),
            ("minicpm_ocr", "minicpm_ocr.MiniCPMOcr"),
        )
    },
    "florence2": Relative(
        "clip.CLIP",
        {"size": {"height": 24, "width": 24}, "do_center_crop": False, "image_seq_length": 37},
        {"text_config": {**BART, "encoder_layers": 1, "decoder_layers": 2},
         "vision_config": {"depths": [1, 1], "patch_size": [3, 3], "patch_stride": [2, 2], "patch_padding": [1, 1],
                           "patch_prenorm": [False, True], "embed_dim": [16, 32], "num_heads": [2, 2],
                           "num_groups": [2, 2], "window_size": 3, "projection_dim": 32, "drop_path_rate": 0.0,
                           "initializer_range": 0.2},
         "is_encoder_decoder": True},
        {"post_processor_config": {task: {"pattern": "", "area_threshold": 0.0} for task in FLORENCE_TASKS}},
    ),
    "t5gemma2": Relative(
        "gemma3.Gemma3",
        {"size": SQUARE},
        {"encoder": {"text_config": {**TEXT, **WINDOW, "query_pre_attn_scalar": 8, "num_hidden_layers": 1,
                                     "layer_types": ["full_attention"]},
                     "vision_config": SIGLIP, "mm_tokens_per_image": 4},
         "decoder": {**TEXT, **WINDOW, "query_pre_attn_scalar": 8}},
        {"image_seq_length": 4},
        folder="gemma3",
    ),
    "mllama": Relative(
        "mllama.Mllama",
        {"size": SQUARE, "max_image_tiles": 4},
        {"text_config": {**TEXT, "num_hidden_layers": 4, "cross_attention_layers": [1, 3],
                         "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
         "vision_config": {**VISION, "attention_heads": 4, "num_global_layers": 1, "intermediate_layers_indices": [0],
                           "vision_output_dim": 64}},
        image_token="<|image|>",
    ),
}  # fmt: skip
