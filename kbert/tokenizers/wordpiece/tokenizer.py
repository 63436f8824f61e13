"""BERT's WordPiece tokenizer, in the graph and eager, on tensorflow-text's C++ kernels."""

import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from kbert.files import Path
from kbert.tokenizers.base import ROLES, Pieces, Tokenizer
from kbert.tokenizers.normalization import byte_table, normalize
from kbert.tokenizers.offsets import original_ranges
from kbert.tokenizers.wordpiece.characters import CharacterRules, character_rules
from kbert.tokenizers.wordpiece.decoding import join_pieces
from kbert.tokenizers.wordpiece.kernel import WordPieceKernel
from kbert.tokenizers.wordpiece.special import SpecialTokens
from kbert.tokenizers.wordpiece.tokenizer_json import tokenizer_json
from kbert.tokenizers.wordpiece.vocab_txt import (
    FAIRSEQ_TOKENS,
    check_vocabulary,
    read_vocabulary,
    save_vocabulary,
    special_tokens,
)

# The names that Hugging Face's tokenizer_config.json gives to our arguments.
CONFIG_KEYS = {
    "lowercase": "do_lower_case",
    "strip_accents": "strip_accents",
    "split_chinese": "tokenize_chinese_chars",
}


class WordPieceTokenizer(Tokenizer):
    """Splits text into BERT's word pieces and back.

    It gives the ids of google-research/bert's `FullTokenizer` (Devlin et al. 2019; tokenization.py)
    and works the same eagerly, inside `tf.data` and inside a SavedModel: it holds no lookup table
    or other resource that an export would have to track.

    Args:
        vocabulary: the pieces in the order of their ids, or the path of a BERT `vocab.txt`. It must
            hold [PAD], [UNK], [CLS], [SEP] and [MASK]; or begin with <s>, <pad> and </s>, as
            MPNet's, and hold [UNK] and <mask>.
        lowercase: True for uncased models: lower case, and accents stripped.
        strip_accents: None = as `lowercase`, which is BERT's rule.
        split_chinese: every Chinese character is a word of its own.
        special_tokens_in_text: "[MASK]" in a text becomes the mask id (and so do the other four,
            but for MPNet's <s> and </s>) instead of "[", "mask", "]". Leave it off where texts come
            from strangers.

    Where it differs from Google's code: characters that one side's Unicode tables do not know yet
    (Google's code goes by those of the Python that runs it).

    Example:
        >>> tokenizer = WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "flight", "##less", "bird"])
        >>> tokenizer.encode("A flightless BIRD").numpy().tolist()
        [1, 5, 6, 7]
        >>> tokenizer.decode([5, 6, 7])
        'flightless bird'
    """

    kind = "wordpiece"

    def __init__(
        self,
        vocabulary: Sequence[str] | str | os.PathLike,
        lowercase: bool = True,
        *,
        strip_accents: bool | None = None,
        split_chinese: bool = True,
        special_tokens_in_text: bool = False,
    ) -> None:
        if isinstance(vocabulary, str | os.PathLike):
            vocabulary = read_vocabulary(vocabulary)
        else:
            vocabulary = list(vocabulary)
            check_vocabulary(vocabulary)
        tokens = special_tokens(vocabulary)
        super().__init__(vocabulary, dict(zip(ROLES, tokens, strict=True)))
        if tokens == FAIRSEQ_TOKENS:  # <s> A </s></s> B </s>
            self.pair_separators = 2
        self.lowercase = lowercase
        self.strip_accents = strip_accents
        self.split_chinese = split_chinese
        self.special_tokens_in_text = special_tokens_in_text
        self.continuation = np.array([p.startswith("##") for p in vocabulary])
        self._specials = SpecialTokens(vocabulary, tokens) if special_tokens_in_text else None
        stand_ins = self._specials.stand_ins if self._specials else []
        self._kernel = WordPieceKernel([*vocabulary, *stand_ins], self.unk_id, split_chinese)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            "vocabulary": list(self.vocabulary),
            "lowercase": self.lowercase,
            "strip_accents": self.strip_accents,
            "split_chinese": self.split_chinese,
            "special_tokens_in_text": self.special_tokens_in_text,
        }

    def _options(self) -> dict[str, Any]:
        named = {CONFIG_KEYS.get(name, name): value for name, value in self.settings.items()}
        name = "MPNetTokenizer" if self.pair_separators == 2 else "BertTokenizer"
        return {"tokenizer_class": name, **named}

    def tokenizer_json(self) -> bytes:
        """What Hugging Face's tokenizer.json says of it, with nothing put around texts."""
        whole = self.special_tokens.values() if self.special_tokens_in_text else ()
        return tokenizer_json(
            self.vocabulary,
            unk_token=self.unk_token,
            special_tokens=sorted(whole, key=self.token_to_id),
            lowercase=self.lowercase,
            strip_accents=self.strip_accents,
            split_chinese=self.split_chinese,
        )

    def _save_model(self, folder: Path) -> None:
        save_vocabulary(self.vocabulary, folder / "vocab.txt")

    def _encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        if self._specials:
            texts = self._specials.hide(texts)
        ids, _, _ = self._kernel(self._normalize(texts))
        return self._specials.restore(ids) if self._specials else ids

    def _encode_with_offsets(self, texts: tf.Tensor) -> Pieces:
        visible = self._specials.hide(texts) if self._specials else texts
        ids, starts, ends = self._kernel(self._normalize(visible))
        starts, ends = original_ranges(visible, starts, ends, self._byte_table)
        is_first = self._kernel.word_starts(ids)
        if self._specials:
            starts, ends = self._specials.widen(ids, starts, ends)
            ids = self._specials.restore(ids)
        return ids, starts, ends, is_first

    def _normalize(self, texts: tf.Tensor) -> tf.Tensor:
        return normalize(texts, lowercase=self.lowercase, strip_accents=self.strip_accents)

    @cached_property
    def _byte_table(self) -> tf.Tensor:
        """Created when offsets are first needed."""
        strip_accents = self.lowercase if self.strip_accents is None else self.strip_accents
        with tf.init_scope(), tf.device("CPU"):
            return tf.constant(byte_table(self.lowercase, strip_accents))

    @property
    def character_rules(self) -> CharacterRules:
        """What it does to each character before it looks words up, for other runtimes."""
        strip_accents = self.lowercase if self.strip_accents is None else self.strip_accents
        return character_rules(self.lowercase, strip_accents, self.split_chinese)

    def _decode_rows(self, ids: tf.RaggedTensor) -> tf.Tensor:
        return join_pieces(ids.with_flat_values(tf.gather(self.vocabulary, ids.flat_values)))
