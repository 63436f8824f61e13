"""Few-shot classification: a language model reads examples in its prompt, and no weight changes.

Shapes: N texts, L labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kbert import inference
from kbert.data.tables.table import as_table
from kbert.inference.texts import warn_of_cut
from kbert.io.progress import Progress
from kbert.tasks.fine_tuning.labels import Labels, class_answer, class_scores
from kbert.tasks.fine_tuning.zero_shot import label_names, softmax
from kbert.tasks.generation.base import tokenize
from kbert.tasks.generation.causal_lm import CausalLM
from kbert.tasks.generation.likelihood import Likelihood

TEMPLATE = "Text: {text}\nLabel: {label}"
_TEXT, _LABEL = "{text}", "{label}"


class FewShotClassifier:
    """Classifies texts by the words that a language model expects after a prompt.

    (Radford et al. 2018, section 5, "zero-shot behaviors"; Brown et al. 2020,
    https://arxiv.org/abs/2005.14165, section 2: no examples are zero-shot, one is one-shot, several
    few-shot.) A prompt is the instruction, the examples with their labels, and the text in the
    template up to its label. The score of a label is the log-probability of its words after the
    prompt. The probabilities of a text's labels are the softmax of their scores.

    A model expects some words after any text. `content_free` corrects for this: probabilities are
    divided by their means for such texts, and scaled to the sum 1 (contextual calibration, Zhao et
    al. 2021, https://arxiv.org/abs/2102.09690, section 5; their last softmax keeps the order). The
    means are those of the model's probabilities before scaling, as in the authors' code
    (`run_classification.py` of tonyzhaozh/few-shot-learning). With GPT-2::

        classifier = kbert.FewShotClassifier(
            kbert.tasks.CausalLM.from_preset("gpt2"),
            {"negative": "terrible", "positive": "great"},
            template="Review: {text}\\nIt was {label}",
            examples=[("A waste of time.", "negative"), ("I loved it.", "positive")],
            content_free="N/A",
        )
        classifier.predict(["They won my heart."])

    Args:
        causal_lm: a `kbert.tasks.CausalLM`.
        labels: names of the classes; or a mapping of each name to the words that stand for it in
            the prompt (the verbalizer).
        template: text of an example: one {text}, and {label} at its end.
        examples: pairs (text, label) that each prompt shows, in this order.
        instruction: text before the examples.
        separator: text between instruction, examples and the text.
        normalize: whether a score is the mean over the tokens of the label's words instead of the
            sum, so that longer words are no less likely.
        content_free: one or several texts without content that calibrate the probabilities, such
            as "N/A", or the authors' three: "N/A", "" and "[MASK]"; () = no calibration.

    Raises:
        TypeError: the model is not a `CausalLM`.
        ValueError: the template lacks a place, an example has no such label, two labels have the
            same tokens, or the examples leave no room for a text.

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "is"])
        >>> config = kbert.DecoderConfig(vocabulary_size=9, hidden_size=8, num_layers=1,
        ...                              num_heads=2, intermediate_size=16, max_positions=32)
        >>> causal_lm = kbert.tasks.CausalLM(kbert.Decoder(config), tokenizer)
        >>> classifier = FewShotClassifier(causal_lm, ["good", "bad"], template="{text} is {label}",
        ...                                examples=[("film", "good")], separator=" ")
        >>> classifier.prompt("bad film")
        'film is good bad film is'
        >>> answer, = classifier.predict(["bad film"])
        >>> sorted(answer["probabilities"])
        ['bad', 'good']
    """

    def __init__(
        self,
        causal_lm: CausalLM,
        labels: Sequence[str] | Mapping[str, str],
        *,
        template: str = TEMPLATE,
        examples: Sequence[tuple[str, str]] = (),
        instruction: str = "",
        separator: str = "\n\n",
        normalize: bool = False,
        content_free: str | Sequence[str] = (),
    ) -> None:
        if not isinstance(causal_lm, CausalLM):
            raise TypeError(
                "The model must be a kbert.tasks.CausalLM; for a classifier of entailment use "
                f"kbert.ZeroShotClassifier. Received: {causal_lm!r:.80}"
            )
        places = (template.count(_TEXT), template.count(_LABEL), template.endswith(_LABEL))
        if places != (1, 1, True):
            raise ValueError(
                "`template` must have one {text}, and {label} at its end. Received: "
                f"template={template!r}"
            )
        words = dict(labels) if isinstance(labels, Mapping) else {x: x for x in label_names(labels)}
        self.causal_lm = causal_lm
        self.labels = label_names([*words])
        self.normalize = normalize
        self.content_free = [content_free] if isinstance(content_free, str) else list(content_free)
        if unknown := [label for _, label in examples if label not in words]:
            raise ValueError(
                f"The label of an example must be one of {', '.join(words)}. Received: "
                f"{unknown[0]!r}"
            )
        shown = [
            template.replace(_LABEL, words[label]).replace(_TEXT, text.strip())
            for text, label in examples
        ]
        before, after = template.removesuffix(_LABEL).split(_TEXT)
        beginning = "".join(part + separator for part in [instruction, *shown] if part) + before
        # Byte-pair encodings have the space in front of a word: each part ends before its spaces.
        self._before, self._after = beginning.rstrip(), after.rstrip()
        self._spaces = beginning[len(self._before) :]
        tokenizer = causal_lm.tokenizer
        self._label_ids = tokenize(
            tokenizer, [after[len(self._after) :] + word for word in words.values()]
        )
        if len({tuple(x.tolist()) for x in self._label_ids}) < len(words) or not all(
            map(len, self._label_ids)
        ):
            raise ValueError(
                "The words of each label must have tokens of their own. Received: "
                f"{', '.join(map(repr, words.values()))} with the ids "
                f"{[x.tolist() for x in self._label_ids]}"
            )
        self._around_ids = tokenize(tokenizer, [self._before, self._after])
        self._likelihood = Likelihood(causal_lm.decoder, tokenizer, causal_lm._begin_id)
        fixed = sum(map(len, self._around_ids)) + max(map(len, self._label_ids))
        self._budget = causal_lm.decoder.config.max_positions - fixed
        if self._budget < 1:
            raise ValueError(
                "Instruction, examples and label must leave room for a text in the model's "
                f"{causal_lm.decoder.config.max_positions} positions: show fewer examples. "
                f"Received: {fixed} tokens without a text"
            )

    def prompt(self, text: str) -> str:
        """Returns the text after which the words of the labels are scored."""
        return f"{self._before}{self._spaces}{text.strip()}{self._after}"

    def predict(
        self, texts: Any, *, batch_size: int = 8, verbose: str | int = "auto"
    ) -> list[dict[str, Any]]:
        """Classifies texts.

        White space around a text is removed. A text that is too long is truncated at its end; the
        rest of the prompt is not.

        Args:
            texts: one text or several.
            batch_size: rows, pairs of text and label, that go through the model together.
            verbose: "auto" = a progress bar if it takes longer than a moment, 0 = none.

        Returns:
            An answer for each text, in the form of `TextClassifier.predict`: `label`, `probability`
            and `probabilities`, in descending order.

        Raises:
            TypeError: an item is not a text.
        """
        texts = inference.as_texts(texts)
        inference.check_batch_size(batch_size)
        log_prior: Any = 0.0  # up to a constant, which the softmax removes
        if self.content_free:
            log_prior = np.logaddexp.reduce(self._scores(self.content_free, batch_size)[0])
        answers: list[dict[str, Any]] = []
        total_cut, size = 0, max(inference.CHUNK // len(self.labels), 1)
        with Progress("", len(texts), " texts", verbose=verbose) as bar:
            for start in range(0, len(texts), size):
                scores, cut = self._scores(texts[start : start + size], batch_size)
                answers += [self._answer(x) for x in softmax(scores - log_prior)]
                total_cut += cut
                bar.show(len(answers))
        warn_of_cut(total_cut, len(texts), self._budget)
        return answers

    def evaluate(self, data: Any, labels: Any = None, **options: Any) -> dict[str, float]:
        """Returns accuracy, macro F1 and Matthews' correlation; of two labels also the second's F1.

        Args:
            data: labelled texts, in the form of `TextClassifier.evaluate`.
            labels: labels of the texts, if `data` has none.
            **options: `batch_size` and `verbose` of `predict`.

        Raises:
            ValueError: a label is none of the classifier's.
        """
        table = as_table(data, labels)
        return class_scores(Labels(self.labels), table, self.predict(table["text"], **options))

    def _scores(self, texts: Sequence[str | bytes], batch_size: int) -> tuple[np.ndarray, int]:
        """Returns the scores of the labels of texts, (N, L), and how many texts are truncated."""
        strings = [x.decode() if isinstance(x, bytes) else x for x in texts]
        ids = tokenize(self.causal_lm.tokenizer, [self._spaces + x.strip() for x in strings])
        before, after = self._around_ids
        contexts = [np.concatenate([before, x[: self._budget], after]) for x in ids]
        count = len(self._label_ids)
        scores = self._likelihood.of_continuations(
            [context for context in contexts for _ in range(count)],
            [label_ids for _ in contexts for label_ids in self._label_ids],
            batch_size,
        ).reshape(len(texts), count)
        if self.normalize:
            scores = scores / [len(label_ids) for label_ids in self._label_ids]
        return scores, sum(len(x) > self._budget for x in ids)

    def _answer(self, probabilities: np.ndarray) -> dict[str, Any]:
        """Returns the answer for a text from the probabilities (L,) of its labels."""
        order = np.argsort(-probabilities, kind="stable")
        return class_answer([self.labels[i] for i in order], probabilities[order], None)
