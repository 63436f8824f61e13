"""UniLM fine-tuned to write: masked tokens of the target are predicted.

Shapes: B rows, S tokens of the source, T tokens of the target, V vocabulary.
"""

from typing import Any

import keras
from keras import ops

from kbert.checkpoints import Checkpoint
from kbert.configs.base import check_real
from kbert.configs.encoder import EncoderConfig
from kbert.core.protocols import TokenizerLike
from kbert.core.types import DType, Tensors
from kbert.heads import MaskedLMHead
from kbert.models import UniLMSeq2Seq
from kbert.models.generators.unilm_seq2seq import INPUTS
from kbert.models.weights import set_arrays
from kbert.tasks.generation.translator import Translator
from kbert.tasks.loading import load_encoder
from kbert.tokenizers.base import Tokenizer


class UniLMTranslator(Translator):
    """A `Translator` that predicts masked tokens of the target, as UniLM is fine-tuned.

    (Dong et al. 2019, section 2.4, https://arxiv.org/abs/1905.03197.) It writes summaries,
    questions or answers for a source. Source and target are one row of an encoder; a share of the
    target's tokens, among them its end, is masked and predicted by the encoder's masked-LM head. To
    generate, it predicts a mask behind the text so far.

    `from_preset(folder, new_head=True)` begins with the encoder and the masked-LM head of a folder,
    such as that of a `kbert.tasks.UniLM` or of a BERT. `fit`, `predict` and the metrics are those
    of `Translator`, over the masked tokens. The paper fine-tunes with a learning rate of 3e-5 and a
    label smoothing of 0.1.

    Args:
        seq2seq: a `kbert.models.UniLMSeq2Seq`.
        tokenizer: tokenizer of both sides. Its "cls" token begins a source, its "sep" token ends
            source and target, and its "mask" token hides tokens of the target.
        masked_share: share of a target's tokens that are masked in training.
        label_smoothing: share of the label that is spread over the vocabulary.
        name: name of the task.

    Raises:
        TypeError: the model is of another class.
        ValueError: the vocabularies differ, the tokenizer has no "mask" token, or a value is out of
            range.

    Example:
        >>> import kbert
        >>> specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        >>> tokenizer = kbert.WordPieceTokenizer([*specials, "the", "sun", "die", "sonne"])
        >>> config = kbert.EncoderConfig(vocabulary_size=9, hidden_size=8, num_layers=1,
        ...                              num_heads=2, intermediate_size=16, num_segments=6)
        >>> unilm = kbert.tasks.UniLM(kbert.Encoder(config), tokenizer)
        >>> writer = UniLMTranslator(UniLMSeq2Seq(unilm.encoder, unilm.masked_lm), tokenizer)
        >>> len(writer.predict(["the sun", ""], max_new_tokens=3))
        2
    """

    kind = "unilm_translate"
    model_classes = (UniLMSeq2Seq,)  # type: ignore[assignment]  # in place of `Translator`'s
    model_inputs = INPUTS  # type: ignore[assignment]
    other_inputs = ()  # type: ignore[assignment]
    corpus_objective = None  # type: ignore[assignment]  # its batches have no masked targets

    def __init__(
        self,
        seq2seq: keras.Model,
        tokenizer: Tokenizer,
        *,
        masked_share: float = 0.7,
        label_smoothing: float = 0.1,
        name: str = "unilm_translator",
    ) -> None:
        check_real("masked_share", masked_share, "above 0 and at most 1", lambda x: 0 < x <= 1)
        if getattr(tokenizer, "mask_id", None) is None:
            raise ValueError(
                'The tokenizer\'s special_tokens must name a "mask" token, which hides tokens of '
                f"the target. Received: a {type(tokenizer).__name__} without one"
            )
        self._masked_share = float(masked_share)
        super().__init__(seq2seq, tokenizer, label_smoothing=label_smoothing, name=name)

    @property
    def masked_share(self) -> float:
        """Share of a target's tokens that are masked in training."""
        return self._masked_share

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "masked_share": self.masked_share}

    def prefill(self, features: Tensors, max_new_tokens: int) -> Any:
        ids = features["encoder_token_ids"]
        special = (self.tokenizer.cls_id, self.tokenizer.mask_id)
        starts = (ops.full_like(ids[:, 0], token) for token in special)
        return self.seq2seq.prefill(ids, features["encoder_padding_mask"], max_new_tokens, *starts)

    @classmethod
    def _make_model(cls, checkpoint: Checkpoint, dtype: DType) -> keras.Model:
        # Not of `Translator`, which makes an encoder a prefix model.
        return _with_head(super(Translator, cls)._make_model(checkpoint, dtype))

    @classmethod
    def _without_heads(
        cls, checkpoint: Checkpoint, tokenizer: TokenizerLike, dtype: DType, strict: bool
    ) -> keras.Model:
        """Returns the encoder and the masked-LM head of a folder; the head is new if it has none.

        `checkpoint` is the content of the folder; with `strict` all of its weights must fit.
        """
        checkpoint.expect(EncoderConfig)
        model = _with_head(load_encoder(checkpoint, tokenizer, dtype, strict=strict, pooler=False))
        if head := checkpoint.part("masked_lm/"):
            set_arrays(model.masked_lm, "masked_lm", head, checkpoint.source, strict)
        return model


def _with_head(encoder: Any) -> UniLMSeq2Seq:
    head = MaskedLMHead(encoder.config, encoder.token_embedding, dtype=encoder.dtype_policy)
    return UniLMSeq2Seq(encoder, head)
