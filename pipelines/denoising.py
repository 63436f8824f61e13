"""`kbert-pretrain` for BART, T5 and their kin: an encoder-decoder restores corrupted text."""

import kbert

from .causal import check_vocabulary
from .flags import NoiseOptions
from .shards import OnShards
from .translation import make_seq2seq


class Denoising(OnShards):
    """The objective denoising: what is corrupted, and what is predicted, is chosen by --noise."""

    READS = (NoiseOptions,)

    def make_task(self) -> kbert.TextToText:
        """Makes the task that the flags describe, not compiled."""
        options, settings = self.options, {}
        if options.init_preset:
            check_vocabulary(options.init_preset, self.tokenizer)
            # The decoder's first token and the tokens around a text are those of the folder.
            settings = kbert.TextToText.from_preset(options.init_preset, new_head=True).settings
        return kbert.TextToText(make_seq2seq(options, self.tokenizer), self.tokenizer, **settings)
