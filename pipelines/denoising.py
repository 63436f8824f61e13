"""`kbert-pretrain` for BART and T5: an encoder-decoder restores text that noise corrupted."""

import kbert

from .causal import check_vocabulary
from .flags import NegativesOptions, VocabularyOptions
from .shards import MASKED, OnShards
from .translation import make_seq2seq
from .translation_flags import TranslationOptions


class Denoising(OnShards):
    """The objective denoising: what is corrupted, and what is predicted, is chosen by --noise."""

    UNREAD = (*MASKED, VocabularyOptions, NegativesOptions, TranslationOptions)
    READS_NOISE = True

    def make_task(self) -> kbert.tasks.Translator:
        """Makes the task that the flags describe, not compiled."""
        if self.options.init_preset:
            check_vocabulary(self.options.init_preset, self.tokenizer)
        seq2seq = make_seq2seq(self.options, self.tokenizer)
        # Pretraining has no label smoothing (Lewis et al. 2020; Raffel et al. 2020).
        return kbert.tasks.Translator(seq2seq, self.tokenizer, label_smoothing=0.0)
