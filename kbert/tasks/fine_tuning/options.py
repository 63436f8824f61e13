"""Settings of the tasks on tables."""

from collections.abc import Mapping
from typing import Any

from kbert.core.options import Options, option, parse_kind

TEMPLATE = "This example is {}."  # hypothesis of a zero-shot classifier

# The methods of `kbert.attributions`.
ATTRIBUTION_METHODS = ("integrated_gradients", "gradient_x_input", "occlusion", "rollout", "flow")

# Settings of tasks on decoders; for other encoders presets omit them.
DECODER_OPTIONS = ("both_orders", "auxiliary_lm_weight")
# Settings that presets omit if they have their defaults, as those of earlier versions do.
FEATURE_OPTIONS = ("feature_layers", "head")
LINEAR, BILSTM = "linear", "bilstm"
LSTM_WIDTH = 768  # BERT, section 5.3


class RowOptions(Options):
    """Settings of every task on a table of texts.

    Args:
        {options}
    """

    max_length: int | None = option(
        None,
        help="Maximum tokens in a sequence, special tokens included. None: the encoder's maximum.",
        at_least=4,
    )


class HeadOptions(RowOptions):
    """Settings of tasks with dropout before their head.

    Args:
        {options}
    """

    dropout: float | None = option(
        None,
        help="Dropout rate before the head. None: the encoder's.",
        at_least=0,
        at_most=1,
        of_rows=False,
        fixed=True,
    )


class WindowOptions(HeadOptions):
    """Settings of tasks that read long texts in windows.

    Args:
        {options}
    """

    doc_stride: int | None = option(
        None,
        help="Tokens from the start of one window to the start of the next, for texts longer than "
        "max_length (as in run_squad; the stride of Hugging Face's tokenizers is the overlap).",
        at_least=1,
        fixed=True,
    )
    pooling: str = option(
        "mean",
        help="How the outputs of a text's windows are combined.",
        choices=("mean", "max"),
        of_rows=False,
        fixed=True,
    )


class AuxiliaryOptions(Options):
    """Settings of tasks that support decoders.

    Args:
        {options}
    """

    auxiliary_lm_weight: float | None = option(
        None,
        help="For decoders: weight of the language-model loss on the texts. None: 0.5.",
        at_least=0,
        of_rows=False,
        fixed=True,
    )


class LayerOptions(Options):
    """Settings of tasks whose heads may read other hidden states than the last.

    Args:
        {options}
    """

    feature_layers: str | int | tuple[int, ...] | None = option(
        None,
        help="Hidden states that the head reads, as `layers` of kbert.features: a name such as "
        "sum_last_four, or indices such as 11 or sum:9,10. Also mix, mix_all or mix_last_four, "
        "sums with learned weights. None: the last layer; of ELMo its mix.",
        of_rows=False,
        fixed=True,
    )


class FeatureOptions(LayerOptions):
    """Settings of tasks with a choice of heads.

    Args:
        {options}
    """

    head: str = option(
        LINEAR,
        help="Layers on top: linear, one dense layer; or bilstm, two bidirectional LSTMs below it, "
        f"for a frozen encoder. They have {LSTM_WIDTH} units in each direction; bilstm:width=256 "
        "has 256.",
        of_rows=False,
        fixed=True,
    )

    @property
    def lstm_width(self) -> int | None:
        """Units in each direction of the LSTMs; None without them."""
        kind, given = parse_kind(self.head)
        return given.get("width", LSTM_WIDTH) if kind == BILSTM else None

    def check(self) -> None:
        kind, given = parse_kind(self.head)
        width = self.lstm_width
        is_width = width is None or (type(width) is int and width >= 1)
        names = {"width"} if kind == BILSTM else set()
        if kind not in (LINEAR, BILSTM) or not given.keys() <= names or not is_width:
            raise ValueError(
                f"`head` must be {LINEAR}, {BILSTM}, or with a width of at least 1 "
                f"{BILSTM}:width=256. Received: {self.head!r}"
            )


class TextOptions(WindowOptions, AuxiliaryOptions):
    """Settings of tasks on whole texts and pairs.

    Args:
        {options}
    """

    both_orders: bool | None = option(
        None,
        help="For decoders, which read from left to right: encode pairs in both orders, as GPT "
        "does for text similarity. None: for regression only.",
        fixed=True,
    )


class TextClassifierOptions(TextOptions, FeatureOptions):
    """Settings of `TextClassifier`.

    Args:
        {options}
    """

    labels: tuple[str, ...] = option(help="Names of the classes.", flag=False, fixed=True)
    multi_label: bool = option(
        False, help="Whether a text can have several labels, or none.", flag=False, fixed=True
    )
    threshold: float | Mapping[str, float] = option(
        0.5,
        help="With multi_label, the smallest probability of a label that is predicted; one number, "
        "or one for each label by its name. See `tune_threshold`.",
        flag=False,
        of_rows=False,
    )


class TokenClassifierOptions(WindowOptions, FeatureOptions):
    """Settings of `TokenClassifier`; without a `doc_stride`, windows overlap by half.

    Args:
        {options}
    """

    labels: tuple[str, ...] = option(help="Names of the labels.", flag=False, fixed=True)


class MultipleChoiceOptions(HeadOptions, AuxiliaryOptions):
    """Settings of `MultipleChoice`.

    Args:
        {options}
    """


class AnswerOptions(Options):
    """Options of answer files of fine-tuned tasks.

    Args:
        {options}
    """

    attributions: str | None = option(
        None,
        choices=ATTRIBUTION_METHODS,
        help="Writes the score of each token for the answer, by this method. Slower.",
    )


class ZeroShotOptions(AnswerOptions):
    """Options of answer files of a classifier of entailment: other classes, which are only named.

    Args:
        {options}
    """

    candidate_labels: tuple[str, ...] = option(
        (),
        help="Classes of the texts, for a classifier of entailment (zero-shot), separated by "
        "commas. Default: the classifier's own.",
    )
    hypothesis_template: str = option(
        TEMPLATE, help="With candidate_labels: text of a hypothesis, with {} for the label."
    )
    multi_label: bool = option(
        False, help="With candidate_labels: a text may have any number of these labels."
    )

    def check(self) -> None:
        changed = self.multi_label or self.hypothesis_template != TEMPLATE
        if changed and not self.candidate_labels:
            raise ValueError(
                "`hypothesis_template` and `multi_label` require `candidate_labels`. Received: "
                f"hypothesis_template={self.hypothesis_template!r}, "
                f"multi_label={self.multi_label}"
            )
        if self.attributions and self.candidate_labels:
            raise ValueError(
                "`attributions` explain the classifier's own classes only. Received: "
                f"attributions={self.attributions!r} with candidate_labels"
            )

    def identity(self) -> dict[str, Any]:
        """Returns all fields; for the classifier's own classes those of `AnswerOptions` alone."""
        fields = super().identity()
        own = fields if self.candidate_labels else AnswerOptions.names()
        return {name: value for name, value in fields.items() if name in own}
