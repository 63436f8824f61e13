"""UniLM fine-tuned to write: masked tokens of the target are predicted.

Shapes: B rows, S tokens of the source, T tokens of the target, V vocabulary.
"""

from typing import Any

import keras
from keras import ops

from kbert.checkpoints import Checkpoint
from kbert.configs.encoder import EncoderConfig
from kbert.core.protocols import TokenizerLike
from kbert.core.types import DType, Tensors
from kbert.data.translation.framing import Framing
from kbert.decoding import Beam
from kbert.heads import MaskedLMHead
from kbert.models import UniLMSeq2Seq
from kbert.models.generators.unilm_seq2seq import INPUTS
from kbert.models.weights import set_arrays
from kbert.tasks.generation.options import UniLMTranslatorOptions
from kbert.tasks.generation.source_answers import TranslationAnswers
from kbert.tasks.generation.text_to_text import TextToText
from kbert.tasks.generation.translator import Translator
from kbert.tasks.loading import load_encoder


class UniLMTranslator(TextToText):
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
        name: name of the task.
        **options: settings:

            {options}

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
    options = UniLMTranslatorOptions
    file_answers = TranslationAnswers
    shown_metrics = ("perplexity", "bleu")
    answer_name = "translation"
    signature_name = "translate"
    usual_method = Beam()  # as a `Translator`
    model_classes = (UniLMSeq2Seq,)
    model_inputs = INPUTS
    other_inputs = ()
    corpus_objective = None  # its batches have no masked targets

    # Copied methods instead of a base class: few classes between a task and `keras.Model`.
    make_objective = Translator.make_objective
    fit = Translator.fit
    evaluate = Translator.evaluate  # type: ignore[assignment]  # its arguments have other names
    usual_optimizer = Translator.usual_optimizer

    @property
    def framing(self) -> Framing:
        return Framing.one_row(self.tokenizer)

    def prefill(self, features: Tensors, max_new_tokens: int) -> Any:
        ids = features["encoder_token_ids"]
        mask_ids = ops.full_like(ids[:, 0], self.tokenizer.mask_id)
        return self.seq2seq.prefill(ids, features["encoder_padding_mask"], max_new_tokens, mask_ids)

    @classmethod
    def _make_model(cls, checkpoint: Checkpoint, dtype: DType) -> keras.Model:
        # Not of `TextToText`, which makes an encoder a prefix model.
        return _with_head(super(TextToText, cls)._make_model(checkpoint, dtype))

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
