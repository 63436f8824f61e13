"""`kbert-pretrain` for BART, T5 and their kin: an encoder-decoder restores corrupted text."""

import kbert

from .causal import check_vocabulary
from .flags import NoiseOptions
from .shards import OnShards
from .translation import make_seq2seq


class Denoising(OnShards):
    """The objective denoising: what is corrupted, and what is predicted, is chosen by --noise."""

    READS = (NoiseOptions,)

    def make_task(self) -> kbert.tasks.Translator:
        """Makes the task that the flags describe, not compiled."""
        if self.options.init_preset:
            check_vocabulary(self.options.init_preset, self.tokenizer)
        seq2seq = make_seq2seq(self.options, self.tokenizer)
        # Pretraining has no label smoothing (Lewis et al. 2020; Raffel et al. 2020).
        return kbert.tasks.Translator(seq2seq, self.tokenizer, label_smoothing=0.0)
