"""What the architectures of Hugging Face's library share, and the form of their tables.

An architecture says, mostly in values, how its `config.json` and its weights differ from kbert's:
keys of the config, renames of weights, and what no rename can say in two hooks, `fold` and
`unfold`. (transformers, models/<name>/configuration_<name>.py and modeling_<name>.py.)
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
# Keys of the sizes, as most architectures have them -> fields.
SIZES = {
    "vocab_size": "vocabulary_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "intermediate_size",
}
# Heads that all go by the name `classifier` there: name here -> end of the class's name there.
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
    "tie_word_embeddings": (True, False, None),  # the weights say it
    "pruned_heads": ({}, None),
    "quantization_config": (None,),
}
# Buffers, which hold no knowledge, and TinyBERT's projections to the width of its teacher, which
# nothing reads after the distillation.
UNREAD = r"(^|\.)(embeddings\.(position_ids|token_type_ids)$|fit_denses?\.)"


class Architecture:
    """One of Hugging Face's architectures: subclasses fill the table in.

    Attributes:
        model_type: its name in `config.json`.
        title: its name in messages.
        config_class: the kind of model it is.
        root: what the names of the model's weights begin with in kbert.
        task: the task that all its models are trained for, whatever their weights; None = the heads
            say it.
        class_prefix: what the names of its classes begin with, as in "BertForMaskedLM".
        prefix: what the names of the encoder's weights begin with.
        heads: what the names of other weights begin with.
        unread: pattern of the names of arrays that hold nothing a model needs.
        fields: key of the config -> field of `config_class`.
        defaults: key -> what transformers takes where it is absent; other keys must be there.
        required: key -> values that kbert's encoder has an equal for, the default first.
        ignored: keys that say nothing about the encoder's function.
        head_dropouts: which of `CLASSIFIERS` -> key of the rate of dropout before its last layer,
            and what transformers takes where it is absent; None = the encoder's rate.
        classifier_settings: of the task of a sequence classifier.
        fixed: fields of `config_class` that have one value in all models.
        unsaid: fields that the weights decide about, and what they are until then.
        own_fields: fields that `read_fields`, `write_fields` and `misfits` know besides. Every
            other field has the config's default in all models.
        activations: name of an activation there -> here; the first of several is written.
        pooler_activations: what the pooler may have.
        replaced_pooler: names there of a pooler that nothing reads where the classifier has a
            dense layer of its own.
        min_segments: how many rows the segment table has at least.
        factorised: whether the embeddings may be of another width.
        shared_layers: whether layers may share their weights.
        masked_lm_activation: where the masked-LM head has one of its own, whatever the config
            says; None = the config's.
        sentence_objective: name of the setting of `kbert.tasks.Pretraining` that its sentence
            head stands for, or None.
        sentence_class: end of the name of the class with the sentence head alone.
        causal_class: end of the name of the class of a decoder, or of a language model by
            permutations.
        span_class: end of the name of the class that finds answers.
        class_endings: ends of names of classes that go by others there.
        part: of encoders that are written as this one, by its name; None = it decides nothing.
        name: where several have its `model_type`, what it goes by here.
        marks: keys that tell it from others of its `model_type`.
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
    class_endings: ClassVar[Mapping[str, str]] = {}
    part: ClassVar[str | None] = None
    name: ClassVar[str | None] = None
    marks: ClassVar[tuple[str, ...]] = ()

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        """The renames: the model's, and those of heads as far as there are any.

        Args:
            config: the model's; says how many layers there are.
            head: which of `CLASSIFIERS` the weights hold, or None.
        """
        raise NotImplementedError

    def modernised(self, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """The content of a config of before under the keys of today."""
        return content

    def read_fields(self, content: Mapping[str, Any], source: str) -> dict[str, Any]:
        """The fields of `config_class`, `content` being checked already."""
        return {
            field: content.get(key, self.defaults.get(key)) for key, field in self.fields.items()
        }

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        """The reverse of `read_fields`: keys and values of the config there.

        Args:
            config: the model's.
            tokenizer: whose special ids the config there repeats, or None.
        """
        fields = {key: getattr(config, field) for key, field in self.fields.items()}
        return fields if tokenizer is None else {**fields, "pad_token_id": tokenizer.pad_id}

    def classifier(self, content: Mapping[str, Any], arrays: Arrays) -> str | None:
        """Which of `CLASSIFIERS` the weights hold: all go by one name, and the class says it."""
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
        """Of the dense layer under `head`, which kbert has as the pooler."""
        return self.pooler_activations[0]

    def usual_pooler(self, config: Any) -> str:
        """The activation of a new dense layer under a classifier."""
        return self.pooler_activations[0]

    def head_activation(self, content: Mapping[str, Any], source: str) -> str | None:
        """Activation of the dense layers under the logits of heads; None = the encoder's."""
        return self.masked_lm_activation

    def fold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        """Before the renames of reading: what kbert has no weight for goes into others."""
        return arrays

    def unfold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        """After the renames of writing: what that architecture has weights for in addition."""
        return arrays

    def incompatibilities(self, config: Any) -> list[str]:
        """Why this architecture cannot be the model, in words; empty if it can."""
        kind: type[Any] = self.config_class  # which all have an activation, unlike Config
        if not isinstance(config, kind) or config.kind != kind.kind:
            return [f"its config is of the kind {kind.__name__}"]
        told = {*self.fields.values(), *self.unsaid, *self.own_fields}
        told |= {"head_activation"} if self.masked_lm_activation else set()
        values = {
            field.name: field.default
            for field in dataclasses.fields(kind)
            if field.name not in told
        } | dict(self.fixed)
        found = [
            f"{field} is {value!r} in all of them"
            for field, value in values.items()
            if getattr(config, field) != value
        ]
        if config.activation not in self.activations.values():
            found.append(f"it has no activation {config.activation!r}")
        if self.masked_lm_activation and config.head_activation not in (
            None,
            self.masked_lm_activation,
        ):
            found.append(f"its masked-LM head has the activation {self.masked_lm_activation!r}")
        return found + self.misfits(config)

    def misfits(self, config: Any) -> list[str]:
        """The `incompatibilities` that are of one kind of model alone."""
        found = []
        if config.embedding_width != config.hidden_size and not self.factorised:
            found.append("its embeddings are of the hidden width")
        if config.num_layer_groups is not None and not self.shared_layers:
            found.append("its layers share no weights")
        if config.num_segments < self.min_segments:
            found.append(f"it has {self.min_segments} or more segments")
        if config.pooler_activation not in (None, *self.pooler_activations):
            found.append(f"its pooler has {' or '.join(self.pooler_activations)}")
        return found

    def check_masked_lm(self, config: Any, arrays: Arrays) -> None:
        """Raises where the masked-LM head has another activation there than in kbert."""
        own = self.masked_lm_activation
        if own and own != config.transform_activation and "masked_lm/bias" in arrays:
            raise ValueError(
                f"The masked-LM head of {self.title} has the activation {own!r} whatever the "
                "config says. Received: a head with the activation "
                f"{config.transform_activation!r}"
            )


def check_head_size(
    key: str, content: Mapping[str, Any], fields: Mapping[str, Any], source: str
) -> None:
    """Raises unless heads are as wide together as the hidden states; the key may be absent."""
    size, heads, width = content.get(key), fields["num_heads"], fields["hidden_size"]
    if size is None:
        return
    if not isinstance(size, int) or not isinstance(heads, int) or size * heads != width:
        raise ValueError(
            f"`{key}` must be the share of the hidden width that each head has. "
            f"Received: {size!r}, of {heads!r} heads and a width of {width!r}, in {source}"
        )


def clipped(window: Any, widest: int | None) -> Any:
    """A window, or the widest that makes a difference; what is no number stays for the config."""
    return min(window, widest) if isinstance(window, int) and widest else window


def dense(name: str, *sources: str) -> tuple[Rule, Rule]:
    """Rules of a dense layer that PyTorch calls `Linear`."""
    return (
        Rule(f"{name}/kernel", tuple(f"{source}.weight" for source in sources), transpose=True),
        Rule(f"{name}/bias", tuple(f"{source}.bias" for source in sources)),
    )


def norm(name: str, source: str) -> tuple[Rule, Rule]:
    """Rules of a LayerNorm."""
    return Rule(f"{name}/gamma", (f"{source}.weight",)), Rule(f"{name}/beta", (f"{source}.bias",))


def fine_tuned_rules(head: str | None, classifier: str) -> list[Rule]:
    """Rules of the last layer of fine-tuned heads.

    Args:
        head: which of `CLASSIFIERS` the weights hold, or None.
        classifier: the name of its last layer there.
    """
    classes = dense(f"{head}/dense", classifier) if head else ()
    return [*dense("span/dense", "qa_outputs"), *classes]


def has_inner_classifier(names: Container[str]) -> bool:
    """Whether the classifier has a dense layer of its own under the last one."""
    return "classifier.dense.weight" in names


def modern_name(name: str) -> str:
    """Names of old files, which followed TensorFlow's, as they are now."""
    return re.sub(
        r"LayerNorm\.(gamma|beta)$",
        lambda match: "LayerNorm." + {"gamma": "weight", "beta": "bias"}[match[1]],
        name,
    )
