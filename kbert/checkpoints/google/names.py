"""Variable names in Google's TensorFlow 1 code, as tables that translate in both directions.

google-research/bert and /albert: modeling.py, run_pretraining.py, run_classifier.py, run_squad.py.
google-research/electra: model/modeling.py, run_pretraining.py.
"""

from typing import Any

from kbert.checkpoints.renames import Rule, dense, norm
from kbert.configs.encoder import EncoderConfig
from kbert.core.types import Arrays


def bert_rules(config: EncoderConfig) -> list[Rule]:
    """Returns the table of weight names of google-research/bert.

    Args:
        config: config of the encoder, for the number of layers.

    Example:
        >>> config = EncoderConfig(vocabulary_size=9, hidden_size=8, num_layers=1, num_heads=2,
        ...                        intermediate_size=16)
        >>> bert_rules(config)[5].sources[0]
        'bert/encoder/layer_0/attention/self/query/kernel'
    """
    return [
        *_embeddings("bert/embeddings"),
        *_layers(config, "bert/encoder"),
        *dense("encoder/pooler", "bert/pooler/dense"),
        *_heads(),
    ]


def albert_rules(config: EncoderConfig) -> list[Rule]:
    """Returns the table of weight names of google-research/albert.

    The layers of a group share variables.

    Args:
        config: config of the encoder, for the number of groups.

    Example:
        >>> config = EncoderConfig(vocabulary_size=9, hidden_size=8, num_layers=4, num_heads=2,
        ...                        intermediate_size=16, num_layer_groups=1)
        >>> albert_rules(config)[7].sources[0]
        'bert/encoder/transformer/group_0/inner_group_0/attention_1/self/query/kernel'
    """
    table = [
        *_embeddings("bert/embeddings"),
        *dense("encoder/embeddings/projection", "bert/encoder/embedding_hidden_mapping_in"),
    ]
    for i in range(config.num_blocks):
        layer, source = f"encoder/layers/{i}", f"bert/encoder/transformer/group_{i}/inner_group_0"
        table += [
            *_attention(f"{layer}/attention", f"{source}/attention_1"),
            *norm(f"{layer}/attention_norm", f"{source}/LayerNorm"),
            *dense(f"{layer}/feed_forward/intermediate", f"{source}/ffn_1/intermediate/dense"),
            *dense(f"{layer}/feed_forward/output", f"{source}/ffn_1/intermediate/output/dense"),
            *norm(f"{layer}/feed_forward_norm", f"{source}/LayerNorm_1"),
        ]
    return [*table, *dense("encoder/pooler", "bert/pooler/dense"), *_heads()]


def electra_rules(
    config: EncoderConfig, scope: str = "electra", embeddings: str = "electra"
) -> list[Rule]:
    """Returns the table of weight names of one ELECTRA model, and of the heads of both models.

    Args:
        config: config of the model, for the number of layers.
        scope: scope of the model: "electra" (the discriminator) or "generator".
        embeddings: scope of the model's embeddings. The generator shares the discriminator's,
            unless it was trained with `untied_generator_embeddings`.

    Example:
        >>> config = EncoderConfig(vocabulary_size=9, hidden_size=8, num_layers=1, num_heads=2,
        ...                        intermediate_size=16)
        >>> electra_rules(config, "generator")[0].sources
        ('electra/embeddings/word_embeddings',)
    """
    return [
        *_embeddings(f"{embeddings}/embeddings"),
        *dense("encoder/embeddings/projection", f"{scope}/embeddings_project"),
        *_layers(config, f"{scope}/encoder"),
        *dense("masked_lm/transform", "generator_predictions/dense"),
        *norm("masked_lm/norm", "generator_predictions/LayerNorm"),
        Rule("masked_lm/bias", ("generator_predictions/output_bias",)),
        *dense("discriminator/transform", "discriminator_predictions/dense"),
        *dense("discriminator/output", "discriminator_predictions/dense_1"),
    ]


def electra_model(config: EncoderConfig, tensors: Arrays) -> tuple[list[Rule], tuple[str, ...]]:
    """Selects one of the two models of an ELECTRA checkpoint by the config.

    Args:
        config: config of the model.
        tensors: name in the checkpoint -> array.

    Returns:
        The table of the generator if only the generator has the config's hidden width, else that of
        the discriminator; and the prefixes of names that belong to the other model. There are no
        prefixes if the checkpoint contains only one model.
    """
    generator = tensors.get("generator/encoder/layer_0/attention/self/query/kernel")
    discriminator = tensors.get("electra/encoder/layer_0/attention/self/query/kernel")
    if generator is None or discriminator is None:
        return electra_rules(config), ()
    if config.hidden_size != len(generator) or len(generator) == len(discriminator):
        return electra_rules(config), ("generator/", "generator_predictions/")
    other_prefixes = (
        "electra/encoder/",
        "electra/embeddings_project/",
        "discriminator_predictions/",
    )
    if "generator/embeddings/word_embeddings" not in tensors:
        return electra_rules(config, "generator"), other_prefixes
    return electra_rules(config, "generator", "generator"), (*other_prefixes, "electra/embeddings/")


def _embeddings(scope: str) -> tuple[Rule, ...]:
    """Returns the rules of the three tables and the norm of embeddings in a TensorFlow scope."""
    return (
        Rule("encoder/embeddings/token", (f"{scope}/word_embeddings",)),
        Rule("encoder/embeddings/position", (f"{scope}/position_embeddings",)),
        Rule("encoder/embeddings/segment", (f"{scope}/token_type_embeddings",)),
        *norm("encoder/embeddings/norm", f"{scope}/LayerNorm"),
    )


def _layers(config: Any, scope: str) -> list[Rule]:
    """Returns the rules of all layers of an encoder; `scope` is the encoder's in TensorFlow."""
    table = []
    for i in range(config.num_layers):
        layer, source = f"encoder/layers/{i}", f"{scope}/layer_{i}"
        table += [
            *_attention(f"{layer}/attention", f"{source}/attention"),
            *norm(f"{layer}/attention_norm", f"{source}/attention/output/LayerNorm"),
            *dense(f"{layer}/feed_forward/intermediate", f"{source}/intermediate/dense"),
            *dense(f"{layer}/feed_forward/output", f"{source}/output/dense"),
            *norm(f"{layer}/feed_forward_norm", f"{source}/output/LayerNorm"),
        ]
    return table


def _heads() -> tuple[Rule, ...]:
    """Returns the rules of BERT's heads: masked LM, sentence, classifier and span."""
    return (
        *dense("masked_lm/transform", "cls/predictions/transform/dense"),
        *norm("masked_lm/norm", "cls/predictions/transform/LayerNorm"),
        Rule("masked_lm/bias", ("cls/predictions/output_bias",)),
        *_output("sentence/dense", "cls/seq_relationship/"),
        *_output("classifier/dense", ""),
        *_output("span/dense", "cls/squad/"),
    )


def _attention(name: str, scope: str) -> tuple[Rule, ...]:
    return (
        *dense(f"{name}/qkv", *(f"{scope}/self/{part}" for part in ("query", "key", "value"))),
        *dense(f"{name}/output", f"{scope}/output/dense"),
    )


def _output(name: str, scope: str) -> tuple[Rule, ...]:
    """Returns the rules of a head whose matrix is (classes, H) in the original code.

    `name` is kbert's name of the layer; `scope`, the TensorFlow scope, ends with "/" or is empty.
    """
    return (
        Rule(f"{name}/kernel", (f"{scope}output_weights",), transpose=True),
        Rule(f"{name}/bias", (f"{scope}output_bias",)),
    )
