"""Writes model-garden/: tiny checkpoints and SavedModels of tf-models-official, as zip files.

    TF_USE_LEGACY_KERAS=1 python tests/golden/write_model_garden.py tests/golden/model-garden

In an environment of its own with tf-models-official 2.20, tf-keras and tensorflow 2.21. Beside each
lies NAME.npz: ids, and what the library computed for them.
"""

import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import tensorflow as tf
import tf_keras
from official.legacy.bert import bert_models, configs
from official.modeling import tf_utils
from official.nlp.configs import encoders
from official.nlp.modeling import layers, models, networks
from official.nlp.tools import export_tfhub_lib

SIZES = {
    "vocab_size": 12,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 10,
    "type_vocab_size": 2,
}
CONFIG = configs.BertConfig(**SIZES)
ARGUMENTS = {
    "vocab_size": 12,
    "hidden_size": 8,
    "num_layers": 2,
    "num_attention_heads": 2,
    "max_sequence_length": 10,
    "type_vocab_size": 2,
}
INPUTS = {
    "input_word_ids": np.array([[2, 5, 9, 11, 3], [4, 7, 3, 0, 0]], "int32"),
    "input_mask": np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], "int32"),
    "input_type_ids": np.array([[0, 0, 1, 1, 1], [0, 0, 0, 0, 0]], "int32"),
}
POSITIONS = {"masked_lm_positions": np.array([[0, 1, 2, 3, 4]] * 2, "int32")}
PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] the fox Fox ##es a b c".split()
LISTED = list(INPUTS.values())

OUT = pathlib.Path(sys.argv[1])
WORK = pathlib.Path(tempfile.mkdtemp())
RANDOM = np.random.default_rng(0)


def randomise(model):
    for weight in model.weights:
        mean = 1.0 if weight.name.endswith("gamma:0") else 0.0
        weight.assign(RANDOM.normal(mean, 0.15, weight.shape))
    return model


def write(name, outputs, folder=None, checkpoint=None, **content):
    """Zips a SavedModel, or the checkpoint after writing it."""
    if folder is None:
        folder = WORK / name
        checkpoint.save(str(folder / "bert_model.ckpt"))
        file = "albert_config.json" if "num_hidden_groups" in content else "bert_config.json"
        (folder / file).write_text(json.dumps({**SIZES, **content}))
        (folder / "checkpoint").unlink()  # it holds the time
    shutil.make_archive(str(OUT / name), "zip", folder)
    np.savez(OUT / f"{name}.npz", **INPUTS, **{k: np.asarray(v) for k, v in outputs.items()})


def outputs_of(encoder):
    outputs = encoder(INPUTS)
    return {key: outputs[key] for key in ("sequence_output", "pooled_output")}


def hub(name, checkpoint, outputs, lowercase, **options):
    """A SavedModel made of the checkpoint by the library's own program."""
    (WORK / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    export_tfhub_lib.export_model(
        str(WORK / name),
        model_checkpoint_path=str(WORK / checkpoint / "bert_model.ckpt-1"),
        vocab_file=str(WORK / "vocab.txt"),
        do_lower_case=lowercase,
        **options,
    )
    write(name, outputs, folder=WORK / name)


OUT.mkdir(exist_ok=True)
GELU = tf_utils.get_activation("gelu")

bert = randomise(networks.BertEncoder(**ARGUMENTS, intermediate_size=16, dict_outputs=True))
pretrainer = models.BertPretrainerV2(
    encoder_network=bert,
    mlm_activation=GELU,
    classification_heads=[layers.ClassificationHead(8, 2, name="next_sentence")],
)
pretrainer({**INPUTS, **POSITIONS})
randomise(pretrainer)
outputs = pretrainer({**INPUTS, **POSITIONS})
write(
    "pretrainer",
    {key: outputs[key] for key in ("sequence_output", "mlm_logits", "next_sentence")},
    checkpoint=tf.train.Checkpoint(model=pretrainer, **pretrainer.checkpoint_items),
    hidden_act="gelu",
)
plain = models.BertPretrainerV2(encoder_network=bert, mlm_activation=GELU)
randomise(plain)
outputs = plain({**INPUTS, **POSITIONS})
outputs = {key: outputs[key] for key in ("sequence_output", "pooled_output", "mlm_logits")}
write("bert", outputs, checkpoint=tf.train.Checkpoint(**plain.checkpoint_items), hidden_act="gelu")
hub("hub-bert", "bert", outputs, True, bert_config=CONFIG, with_mlm=True)

narrow = networks.BertEncoderV2(**ARGUMENTS, inner_dim=16, embedding_width=4)
narrow(INPUTS)
randomise(narrow)
adam = tf_keras.optimizers.Adam()
adam.build(narrow.trainable_variables)
step = tf.Variable(3, dtype=tf.int64)
write(
    "narrow",
    outputs_of(narrow),
    checkpoint=tf.train.Checkpoint(model=narrow, optimizer=adam, global_step=step),
    embedding_size=4,
)
sizes = {
    **{key: value for key, value in SIZES.items() if key != "num_hidden_layers"},
    "num_layers": 2,
}
config = encoders.EncoderConfig(
    type="bert", bert=encoders.BertEncoderConfig(**sizes, embedding_size=4)
)
hub("hub-narrow", "narrow", outputs_of(narrow), False, encoder_config=config, with_mlm=False)

albert = networks.AlbertEncoder(
    **ARGUMENTS, intermediate_size=16, embedding_width=4, dict_outputs=True
)
pretrainer = models.BertPretrainerV2(encoder_network=albert, mlm_activation=GELU)
randomise(pretrainer)
outputs = pretrainer({**INPUTS, **POSITIONS})
outputs = {key: outputs[key] for key in ("sequence_output", "pooled_output", "mlm_logits")}
write(
    "albert",
    outputs,
    checkpoint=tf.train.Checkpoint(**pretrainer.checkpoint_items),
    embedding_size=4,
    num_hidden_groups=1,
    inner_group_num=1,
)
config = encoders.EncoderConfig(
    type="albert", albert=encoders.AlbertEncoderConfig(**sizes, embedding_width=4)
)
del outputs["mlm_logits"]
hub("hub-albert", "albert", outputs, True, encoder_config=config, with_mlm=False)

classifier, _ = bert_models.classifier_model(CONFIG, 3)
randomise(classifier)
write(
    "classifier",
    {"classifier": classifier(LISTED)},
    checkpoint=tf.train.Checkpoint(model=classifier),
)
squad, _ = bert_models.squad_model(CONFIG, 5)
randomise(squad)
start, end = squad(INPUTS)
write("squad", {"span": np.stack([start, end], -1)}, checkpoint=tf.train.Checkpoint(model=squad))
