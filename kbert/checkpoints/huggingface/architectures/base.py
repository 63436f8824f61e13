"""Base class and shared values of the tables of Hugging Face's architectures.

An architecture describes, mostly in values, how its `config.json` and its weights differ from
kbert's: keys of the config, and names of weights. Two hooks, `fold` and `unfold`, do what renaming
cannot. (transformers, models/<name>/configuration_<name>.py and modeling_<name>.py.)
"""

import dataclasses
import re
from collections.abc import Container, Mapping
from typing import Any, ClassVar

from kbert.checkpoints.huggingface.unread_keys import IGNORED
from kbert.checkpoints.renames import Rule
from kbert.configs.base import Config
from kbert.configs.encoder import EncoderConfig
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Arrays

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
# Config keys of the sizes in most architectures -> fields.
SIZES = {
    "vocab_size": "vocabulary_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "intermediate_size",
}
# Heads that are all called `classifier` there: kbert's name -> end of the class name there.
CLASSIFIERS = {
    "classifier": "ForSequenceClassification",
    "tokens": "ForTokenClassification",
    "choice": "ForMultipleChoice",
}
# Keys that change the model unless they have this value.
REQUIRED = {
    "is_decoder": (False, None),
    "is_encoder_decoder": (False, None),
    "add_cross_attention": (False, None),
    "position_embedding_type": ("absolute", None),
    "tie_word_embeddings": (True, False, None),  # the weights decide
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
}
# Buffers, which are not trained, and TinyBERT's projections to the width of its teacher, which are
# unused after the distillation.
UNREAD = r"(^|\.)(embeddings\.(position_ids|token_type_ids)$|fit_denses?\.)"


class Architecture:
    """One of Hugging Face's architectures; subclasses fill in the table.

    Attributes:
        model_type: name of the architecture in `config.json`.
        title: name of the architecture in messages.
        config_class: config class of its models in kbert.
        root: prefix of the model's weight names in kbert.
        task: task that all its models are trained for, whatever their weights; None = inferred from
            the heads.
        class_prefix: prefix of its class names in transformers, as in "BertForMaskedLM".
        prefix: prefix of the encoder's weight names in transformers.
        heads: prefixes of other weight names in transformers.
        unread: pattern of the names of arrays that the model does not need.
        fields: config key -> field of `config_class`.
        defaults: config key -> transformers' default if absent; other keys must be present.
        required: config key -> values that kbert supports, the default first.
        ignored: config keys that do not affect what the encoder computes.
        head_dropouts: one of `CLASSIFIERS` -> config key of the dropout rate before its last layer,
            and transformers' default if absent; None = the encoder's rate.
        classifier_settings: task settings of a sequence classifier.
        task_settings: settings of `task`.
        fixed: fields of `config_class` with the same value in all models -> that value.
        unsaid: fields determined by the weights -> value until the weights are read.
        own_fields: fields that `read_fields`, `write_fields` or `misfits` handle, in addition to
            those in `fields`. Every other field has the config's default in all models.
        activations: name of an activation in transformers -> in kbert; the first of several names
            is written.
        pooler_activations: activations that the pooler may have.
        replaced_pooler: names in transformers of pooler weights that are unused if the classifier
            has a dense layer of its own.
        min_segments: minimum number of rows of the segment table.
        factorised: whether the embeddings may have another width than the hidden states.
        shared_layers: whether layers may share weights.
        masked_lm_activation: activation of the masked-LM head if it does not depend on the config;
            None = the config's.
        sentence_objective: setting of `kbert.tasks.Pretraining` that turns on the objective of the
            sentence head; None = no such head.
        sentence_class: end of the name of the class with only the sentence head.
        causal_class: end of the class name of a decoder, or of a permutation language model.
        span_class: end of the class name of extractive question answering.
        class_ending: end of the class name of a model without fine-tuned heads; None = by its
            other heads.
        class_endings: usual end of a class name -> end in this architecture, if it differs.
        part: name of the `part` in a config that is written as this architecture; None = no part
            selects it.
        name: kbert's name of the architecture, if several have the same `model_type`.
        marks: config keys that distinguish it from others with the same `model_type`.
    """

    model_type: ClassVar[str]
    title: ClassVar[str]
    config_class: ClassVar[type[Config]] = EncoderConfig
    root: ClassVar[str] = "encoder"
    task: ClassVar[str | None] = None
    class_prefix: ClassVar[str]
    prefix: ClassVar[str]
    heads: ClassVar[tuple[str, ...]]
    unread: ClassVar[str] = UNREAD
    fields: ClassVar[Mapping[str, str]]
    defaults: ClassVar[Mapping[str, Any]]
    required: ClassVar[Mapping[str, tuple]] = REQUIRED
    ignored: ClassVar[frozenset[str]] = IGNORED
    head_dropouts: ClassVar[Mapping[str, tuple[str, float | None]]] = {
        "classifier": ("classifier_dropout", None),
        "tokens": ("classifier_dropout", None),
    }
    classifier_settings: ClassVar[Mapping[str, Any]] = {}
    task_settings: ClassVar[Mapping[str, Any]] = {}
    fixed: ClassVar[Mapping[str, Any]] = {}
    unsaid: ClassVar[Mapping[str, Any]] = {"pooler_activation": None}
    own_fields: ClassVar[tuple[str, ...]] = ("num_layer_groups", "embedding_size", "num_segments")
    activations: ClassVar[Mapping[str, str]] = ACTIVATIONS
    pooler_activations: ClassVar[tuple[str, ...]] = ("tanh",)
    replaced_pooler: ClassVar[tuple[str, ...]] = ()
    min_segments: ClassVar[int] = 1
    factorised: ClassVar[bool] = False
    shared_layers: ClassVar[bool] = False
    masked_lm_activation: ClassVar[str | None] = None
    sentence_objective: ClassVar[str | None] = None
    sentence_class: ClassVar[str] = "ForPreTraining"
    causal_class: ClassVar[str] = "LMHeadModel"
    span_class: ClassVar[str] = "ForQuestionAnswering"
    class_ending: ClassVar[str | None] = None
    class_endings: ClassVar[Mapping[str, str]] = {}
    part: ClassVar[str | None] = None
    name: ClassVar[str | None] = None
    marks: ClassVar[tuple[str, ...]] = ()

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        """Returns the table of weight names of the model and of its possible heads.

        Args:
            config: config of the model, for the number of layers.
            head: one of `CLASSIFIERS` that is in the weights, or None.
        """
        raise NotImplementedError

    def modernised(self, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the content of a `config.json` with keys of old versions renamed to today's."""
        return content

    def read_fields(self, content: Mapping[str, Any], source: str) -> dict[str, Any]:
        """Returns field of `config_class` -> value, from the content of a `config.json`.

        Args:
            content: key -> value, accepted by `check_keys`.
            source: where the config is from, for messages.
        """
        return {
            field: content.get(key, self.defaults.get(key)) for key, field in self.fields.items()
        }

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        """Returns key -> value of transformers' `config.json`; reverses `read_fields`.

        Args:
            config: config of the model.
            tokenizer: tokenizer whose special ids the config repeats, or None.
        """
        fields = {key: getattr(config, field) for key, field in self.fields.items()}
        return fields if tokenizer is None else {**fields, "pad_token_id": tokenizer.pad_id}

    def classifier(self, content: Mapping[str, Any], arrays: Arrays) -> str | None:
        """Returns which one of `CLASSIFIERS` is in the weights, or None.

        All have the same name in transformers. So the class under `architectures` decides, else
        other weights.

        Args:
            content: key -> value of `config.json`.
            arrays: name in transformers -> array.
        """
        if not any(name.startswith("classifier.") for name in arrays):
            return None
        classes = content.get("architectures")
        classes = [str(name) for name in classes] if isinstance(classes, list) else []
        for head, ending in CLASSIFIERS.items():
            if any(name.endswith(ending) for name in classes):
                return head
        if any(name.startswith("sequence_summary.") for name in arrays):
            return "choice"
        pooled = any("pooler." in name or "pre_classifier." in name for name in arrays)
        return "classifier" if pooled or has_inner_classifier(arrays) else "tokens"

    def pooler_activation(self, content: Mapping[str, Any], head: str | None) -> str:
        """Returns the activation of the dense layer before `head`, which is kbert's pooler."""
        return self.pooler_activations[0]

    def usual_pooler(self, config: Any) -> str:
        """Returns the activation of a new dense layer before a classifier."""
        return self.pooler_activations[0]

    def head_activation(self, content: Mapping[str, Any], source: str) -> str | None:
        """Returns the activation of the dense layers before heads' logits; None = the encoder's."""
        return self.masked_lm_activation

    def fold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        """Prepares transformers' arrays for the renames of reading; merges weights kbert lacks.

        Args:
            arrays: name in transformers -> array.
            content: key -> value of `config.json`.
        """
        return arrays

    def unfold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        """Converts arrays after the renames of writing; adds weights that kbert does not have.

        Args:
            arrays: name in transformers -> array.
            content: key -> value of `config.json`.
        """
        return arrays

    def head_keys(self, arrays: Arrays, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        """Returns key -> value of transformers' `config.json` that only fine-tuned heads need.

        Args:
            arrays: kbert's weight name -> array.
            tokenizer: tokenizer whose special ids the config repeats, or None.
        """
        return {}

    def settled(self, config: Any, arrays: Arrays, content: Mapping[str, Any]) -> Any:
        """Returns the config with the values that only the weights determine.

        Args:
            config: config from `config.json`.
            arrays: kbert's weight name -> array.
            content: key -> value of `config.json`.
        """
        return config

    def incompatibilities(self, config: Any) -> list[str]:
        """Returns why a model with this config cannot be this architecture; empty if it can be."""
        kind: type[Any] = self.config_class  # all of them have an activation, unlike Config
        if not isinstance(config, kind) or config.kind != kind.kind:
            return [f"its config is of the kind {kind.__name__}"]
        checked_fields = {*self.fields.values(), *self.unsaid, *self.own_fields}
        checked_fields |= {"head_activation"} if self.masked_lm_activation else set()
        values = {
            field.name: field.default
            for field in dataclasses.fields(kind)
            if field.name not in checked_fields
        } | dict(self.fixed)
        reasons = [
            f"{field} is {value!r} in all of them"
            for field, value in values.items()
            if getattr(config, field) != value
        ]
        if config.activation not in self.activations.values():
            reasons.append(f"it has no activation {config.activation!r}")
        if self.masked_lm_activation and config.head_activation not in (
            None,
            self.masked_lm_activation,
        ):
            reasons.append(f"its masked-LM head has the activation {self.masked_lm_activation!r}")
        return reasons + self.misfits(config)

    def misfits(self, config: Any) -> list[str]:
        """Returns those `incompatibilities` that depend on the kind of model.

        Here they are an encoder's; architectures override or extend them.
        """
        reasons = []
        if config.embedding_width != config.hidden_size and not self.factorised:
            reasons.append("its embeddings have the hidden width")
        if config.num_layer_groups is not None and not self.shared_layers:
            reasons.append("its layers share no weights")
        if config.num_segments < self.min_segments:
            reasons.append(f"it has {self.min_segments} or more segments")
        if config.pooler_activation not in (None, *self.pooler_activations):
            reasons.append(f"its pooler has {' or '.join(self.pooler_activations)}")
        return reasons

    def check_masked_lm(self, config: Any, arrays: Arrays) -> None:
        """Raises ValueError if a masked-LM head has another activation in transformers than here.

        Args:
            config: config of the model.
            arrays: kbert's weight name -> array; weights without that head pass.
        """
        activation = self.masked_lm_activation
        if activation and activation != config.transform_activation and "masked_lm/bias" in arrays:
            raise ValueError(
                f"The masked-LM head of {self.title} must have the activation {activation!r}, "
                "whatever the config. Received: a head with the activation "
                f"{config.transform_activation!r}"
            )


def check_head_size(
    key: str, content: Mapping[str, Any], fields: Mapping[str, Any], source: str
) -> None:
    """Raises ValueError unless the heads' widths add up to the hidden width.

    Args:
        key: config key of the width of one head, which may be absent.
        content: key -> value of `config.json`.
        fields: field -> value of the config, with `num_heads` and `hidden_size`.
        source: where the config is from, for the error message.
    """
    size, heads, width = content.get(key), fields["num_heads"], fields["hidden_size"]
    if size is None:
        return
    if not isinstance(size, int) or not isinstance(heads, int) or size * heads != width:
        raise ValueError(
            f"`{key}` must be the hidden width divided by the number of heads. Received: "
            f"{size!r}, with {heads!r} heads and a width of {width!r}, in {source}"
        )


def clipped(window: Any, widest: int | None) -> Any:
    """Returns a window in tokens, limited to the widest that makes a difference.

    A window that is not an int is returned unchanged: the config raises for it.

    Args:
        window: window in a config.
        widest: limit in tokens; None or 0 = no limit.
    """
    return min(window, widest) if isinstance(window, int) and widest else window


def dense(name: str, *sources: str) -> tuple[Rule, Rule]:
    """Returns the rules of a dense layer, `Linear` in PyTorch.

    Args:
        name: kbert's name of the layer.
        *sources: names in transformers; several layers there become one in kbert.
    """
    return (
        Rule(f"{name}/kernel", tuple(f"{source}.weight" for source in sources), transpose=True),
        Rule(f"{name}/bias", tuple(f"{source}.bias" for source in sources)),
    )


def norm(name: str, source: str) -> tuple[Rule, Rule]:
    """Returns the rules of a LayerNorm; `name` is kbert's name of it, `source` transformers'."""
    return Rule(f"{name}/gamma", (f"{source}.weight",)), Rule(f"{name}/beta", (f"{source}.bias",))


def fine_tuned_rules(head: str | None, classifier: str) -> list[Rule]:
    """Returns the rules of the last layers of fine-tuned heads: the span head, and `head` if given.

    Args:
        head: one of `CLASSIFIERS` that is in the weights, or None.
        classifier: name of the last layer of `head` in transformers.
    """
    classes = dense(f"{head}/dense", classifier) if head else ()
    return [*dense("span/dense", "qa_outputs"), *classes]


def has_inner_classifier(names: Container[str]) -> bool:
    """Whether names of transformers include a dense layer before the classifier's last one."""
    return "classifier.dense.weight" in names


def modern_name(name: str) -> str:
    """Returns today's name of an array; old files had TensorFlow's names of LayerNorm's weights."""
    return re.sub(
        r"LayerNorm\.(gamma|beta)$",
        lambda match: "LayerNorm." + {"gamma": "weight", "beta": "bias"}[match[1]],
        name,
    )
