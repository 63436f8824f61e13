"""Folders of tiny BARTs that transformers wrote, with random weights and a byte-level BPE."""

import kbert
from kbert.tokenizers.bpe.training import train_byte_pair
from tests.harness import SIGMA
from tests.tasks import toy

NAMES = ["contradiction", "neutral", "entailment"]
SIDES = ("encoder", "decoder")
_WORDS = " ".join((*toy.RULES, *toy.RULES.values(), "the a is one two three This example . no"))


def make_tokenizer():
    """BART's: RoBERTa's bytes and special tokens."""
    pieces, merges = train_byte_pair([_WORDS] * 3, 320)
    return kbert.BytePairTokenizer(pieces, merges)


def config_of(tokenizer, labels=NAMES, **changes):
    """Values of transformers' BartConfig, all without dropout."""
    return {
        "vocab_size": tokenizer.vocabulary_size,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 3,
        **{f"{side}_attention_heads": 4 for side in SIDES},
        **{f"{side}_ffn_dim": 48 for side in SIDES},
        "max_position_embeddings": 40,
        **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0),
        **{"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2},
        "id2label": dict(enumerate(labels)),
        "label2id": {name: i for i, name in enumerate(labels)},
        **changes,
    }


def saved(folder, tokenizer, ending="ForSequenceClassification", first="Bart", **changes):
    """A model of transformers, every weight drawn, which lies in the folder."""
    import torch
    import transformers

    config = getattr(transformers, f"{first}Config")(**config_of(tokenizer, **changes))
    model = getattr(transformers, first + ending)(config).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            scale = "norm" in name and name.endswith("weight")
            weight.normal_(1.0 if scale else 0.0, SIGMA)
            if "embed_positions" in name:
                weight[:2] = 0.0  # rows that no token reads
    model.save_pretrained(folder)
    tokenizer.save(folder)
    return model
