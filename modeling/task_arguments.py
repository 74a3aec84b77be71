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
"""Docstrings of the arguments that a task adds to `forward`, the same in every family (`auto_docstring`)."""

PRETRAINING_ARGS = """
        labels (`torch.LongTensor` of shape `(batch_size, text_length)`, *optional*):
            Vocabulary indices of the masked words, -100 elsewhere.
        relationship_labels (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            1 when the caption (of two, the second) belongs to the image, 0 when not, -100 to leave a row out.
        """

VGP_ARGS = """
        phrase_mask (`torch.BoolTensor` of shape `(batch_size, num_phrases, text_length)`, *optional*):
            The tokens of each phrase; no token for padding.
        phrase_pairs (`torch.LongTensor` of shape `(batch_size, num_pairs, 2)`, *optional*):
            Pairs of phrase indices, the first caption's phrase first; -1 pads.
        phrase_regions (`torch.BoolTensor` of shape `(batch_size, num_phrases, num_regions)`, *optional*):
            The regions of each phrase. A target of attention supervision, not read here.
        identification_labels (`torch.LongTensor` of shape `(batch_size,)`, *optional*):
            0 both captions match, 1 the first, 2 the second, -100 to leave a row out (VGP paper, equation 1).
        vgp_labels (`torch.LongTensor` of shape `(batch_size, num_pairs)`, *optional*):
            Semantic classes of the phrase pairs, -100 to leave one out (VGP paper, equation 4).
        """

REFERRING_ARGS = """
        region_targets (`torch.FloatTensor` of shape `(batch_size, num_regions)`, *optional*):
            How right each region is, in [0, 1]: 1 where it overlaps the named one by more than half (VL-BERT public
            code). Negative values, and padded regions, are left out.
        """

ANSWER_ARGS = """
        answer_positions (`torch.LongTensor` of shape `(batch_size,)`):
            The text column of each row's `[MASK]`, in the place of the answer.
        labels (`torch.FloatTensor` of shape `(batch_size, num_labels)`, *optional*):
            How right each answer is, in [0, 1].
        """

PHRASE_GROUNDING_ARGS = """
        phrase_mask (`torch.BoolTensor` of shape `(batch_size, num_phrases, text_length)`):
            The tokens of each phrase; no token for padding.
        phrase_regions (`torch.BoolTensor` of shape `(batch_size, num_phrases, num_regions)`, *optional*):
            The right regions of each phrase; phrases without any are left out of the loss, which is the divergence
            from a uniform choice among them, summed over the phrases and averaged over the rows (VisualBERT public
            code).
        """

__all__ = ["ANSWER_ARGS", "PHRASE_GROUNDING_ARGS", "PRETRAINING_ARGS", "REFERRING_ARGS", "VGP_ARGS"]
