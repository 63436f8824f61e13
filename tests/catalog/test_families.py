"""The family's table: names, values, and sizes against transformers' own configs."""

import re

import pytest

from kbert.catalog.families import BILMS, FAMILY, family, family_row
from kbert.configs.elmo import ElmoConfig
from kbert.models import Encoder, describe
from tests.models.references import widen_queries

pytestmark = pytest.mark.tensorflow  # names and numbers: another backend would say the same


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("google-bert/bert-base-uncased", "bert-base-uncased"),
        ("bert-base", "bert-base-uncased"),
        ("albert/albert-base-v2", "albert-base-v2"),
        ("FacebookAI/roberta-base", "roberta-base"),
        ("FacebookAI/xlm-roberta-large", "xlm-roberta-large"),
        ("distilbert/distilbert-base-cased", "distilbert-base-cased"),
        ("distilbert/distilroberta-base", "distilroberta-base"),
        ("sentence-transformers/all-MiniLM-L6-v2", "nreimers/MiniLM-L6-H384-uncased"),
        ("electra-small-discriminator", "google/electra-small-discriminator"),
        ("TinyBERT_General_4L_312D", "huawei-noah/TinyBERT_General_4L_312D"),
    ],
)
def test_names_with_and_without_an_owner(name, same):
    assert family_row(name) == family_row(same)


def test_an_owner_has_only_its_own_models():
    with pytest.raises(ValueError, match="Received: 'albert/bert-base-uncased'"):
        family("albert/bert-base-uncased")


def test_an_unknown_name_lists_the_close_ones():
    with pytest.raises(ValueError, match=r"Close: .*bert-base-uncased.*'bert-base-uncase'"):
        family("bert-base-uncase")
    with pytest.raises(ValueError, match="Close: huawei-noah/TinyBERT_General_4L_312D, "):
        family("tinybert")
    with pytest.raises(TypeError, match=r"must be a string. Received: None"):
        family(None)
    with pytest.raises(ValueError, match=r"Known: bert-tiny, .*Received: 'xyzzy'"):
        family("xyzzy")
    with pytest.raises(ValueError, match=r"Close: elmo-original, elmo-original-5.5b.*'elmo-orig'"):
        family("elmo-orig")


def test_every_size_of_bert_is_there():
    assert len([name for name in FAMILY if name.startswith("google/bert_uncased")]) == 24


def is_plain(name):
    """Whether a row's encoder is BERT's block, with learned positions, and no ERNIE."""
    config = family(name)
    learned = config.kind == "encoder" and config.positions == "learned" and config.part is None
    return learned and not name.startswith("nghuyong")


def test_activations_are_those_of_the_original_code():
    tanh_form = ("bert-", "google/bert", "albert", "hfl/", "xlnet", "ib-bert")
    for name in FAMILY:
        form = "gelu_tanh" if name.startswith(tanh_form) else "gelu"
        if name.startswith(("chandar-lab", "EuroBERT", "nomic-ai")):
            form = "silu"
        elif re.search("^transfo-xl|/reformer|mobilebert|ernie-1.0-base-zh$", name):
            form = "relu"
        elif name == "awd-lstm":
            form = "tanh"
        assert family(name).activation == form, name


def test_what_roberta_changes():
    for name in filter(is_plain, FAMILY):
        config, is_roberta = family(name), re.search("^(xlm-)?(distil)?roberta", name)
        assert config.layer_norm_epsilon == (1e-5 if is_roberta else 1e-12), name
        assert family_row(name).unused_rows == (2 if is_roberta else 0), name
        assert config.padding_id == (1 if is_roberta else None), name
        has_segments = not is_roberta and not name.startswith("distilbert")
        assert config.num_segments == (2 if has_segments else 0), name
        assert config.max_positions == 512, name


def test_poolers_are_there_where_they_were_released():
    for name in filter(is_plain, FAMILY):
        without = name.startswith(("distilbert", "google/electra"))
        assert (family(name).pooler_activation is None) == without, name


def test_tokenizers():
    for name in FAMILY:
        kind = "wordpiece"
        if name.startswith(("chandar-lab", "nomic-ai", "junnyu", "mosaicml", "nghuyong")):
            kind = "wordpiece"
        elif name.startswith(("microsoft/deberta", "xlnet")):
            kind = "unigram"
        elif "/reformer" in name:  # bytes, and SentencePiece's BPE: none of kbert's
            kind = None
        elif name.startswith(("transfo-xl", "awd-lstm")):
            kind = "words"
        elif "mobilebert" in name or name.startswith(
            ("ib-bert", "microsoft/mpnet", "Yitu", "squeezebert")
        ):
            kind = "wordpiece"
        elif name.startswith(("roberta", "distilroberta")) or not is_plain(name):
            kind = "bpe"
        elif name.startswith(("albert", "xlm-roberta", "bert-xlarge")):
            kind = "unigram"
        assert family_row(name).tokenizer == kind, name


def test_albert_drops_out_only_where_it_was_trained_so():
    for name in (name for name in FAMILY if name.startswith("albert")):
        rate = 0.1 if name.endswith("v1") and "xxlarge" not in name else 0.0
        assert family(name).dropout == family(name).attention_dropout == rate, name


# What the configs on the hub say where it is not transformers' default for the architecture:
# layers, hidden width, heads, and the rest by name.
_CHINESE = {"vocab_size": 21128}
_BIG = {"intermediate_size": 4096}
_XLM_R = {"vocab_size": 250002}
_NARROW = {"intermediate_size": 1024}
HUB = {
    "bert": {
        "bert-base-uncased": (12, 768, 12, {}),
        "bert-large-uncased": (24, 1024, 16, _BIG),
        "bert-large-uncased-whole-word-masking": (24, 1024, 16, _BIG),
        "bert-base-cased": (12, 768, 12, {"vocab_size": 28996}),
        "bert-large-cased": (24, 1024, 16, {"vocab_size": 28996, **_BIG}),
        "bert-large-cased-whole-word-masking": (24, 1024, 16, {"vocab_size": 28996, **_BIG}),
        "bert-base-multilingual-uncased": (12, 768, 12, {"vocab_size": 105879}),
        "bert-base-multilingual-cased": (12, 768, 12, {"vocab_size": 119547}),
        "bert-base-chinese": (12, 768, 12, _CHINESE),
        "hfl/chinese-bert-wwm": (12, 768, 12, _CHINESE),
        "hfl/chinese-bert-wwm-ext": (12, 768, 12, _CHINESE),
        "hfl/chinese-roberta-wwm-ext": (12, 768, 12, _CHINESE),
        "hfl/chinese-roberta-wwm-ext-large": (24, 1024, 16, {**_CHINESE, **_BIG}),
        "bert-xlarge": (24, 2048, 16, {"vocab_size": 30000, "intermediate_size": 8192}),
        "SpanBERT/spanbert-base-cased": (12, 768, 12, {"vocab_size": 28996}),
        "SpanBERT/spanbert-large-cased": (24, 1024, 16, {"vocab_size": 28996, **_BIG}),
        "huawei-noah/TinyBERT_General_4L_312D": (4, 312, 12, {"intermediate_size": 1200}),
        "huawei-noah/TinyBERT_General_6L_768D": (6, 768, 12, {}),
        "nreimers/MiniLM-L6-H384-uncased": (6, 384, 12, {"intermediate_size": 1536}),
        "microsoft/MiniLM-L12-H384-uncased": (12, 384, 12, {"intermediate_size": 1536}),
    },
    "albert": {
        f"albert-{size}-{version}": (*numbers, {"intermediate_size": 4 * numbers[1]})
        for version in ("v1", "v2")
        for size, numbers in {
            "base": (12, 768, 12),
            "large": (24, 1024, 16),
            "xlarge": (24, 2048, 16),
            "xxlarge": (12, 4096, 64),
        }.items()
    },
    "roberta": {
        "roberta-base": (12, 768, 12, {}),
        "roberta-large": (24, 1024, 16, _BIG),
        "distilroberta-base": (6, 768, 12, {}),
        "xlm-roberta-base": (12, 768, 12, _XLM_R),
        "xlm-roberta-large": (24, 1024, 16, {**_XLM_R, **_BIG}),
    },
    "distilbert": {
        "distilbert-base-uncased": (6, 768, 12, {}),
        "distilbert-base-cased": (6, 768, 12, {"vocab_size": 28996}),
        "distilbert-base-multilingual-cased": (6, 768, 12, {"vocab_size": 119547}),
    },
    "electra": {
        "google/electra-small-discriminator": (12, 256, 4, {"embedding_size": 128, **_NARROW}),
        "google/electra-small-generator": (12, 256, 4, {"embedding_size": 128, **_NARROW}),
        "google/electra-base-discriminator": (
            *(12, 768, 12),
            {"embedding_size": 768, "intermediate_size": 3072},
        ),
        "google/electra-base-generator": (12, 256, 4, {"embedding_size": 768, **_NARROW}),
        "google/electra-large-discriminator": (24, 1024, 16, {"embedding_size": 1024, **_BIG}),
        "google/electra-large-generator": (24, 256, 4, {"embedding_size": 1024, **_NARROW}),
    },
    "modernbert": {
        name: (
            *numbers,
            {
                "intermediate_size": inner,
                **({"vocab_size": 256_000} if "mmBERT" in name else {}),
            },
        )
        for name, (*numbers, inner) in {
            "answerdotai/ModernBERT-base": (22, 768, 12, 1152),
            "answerdotai/ModernBERT-large": (28, 1024, 16, 2624),
            "jhu-clsp/ettin-encoder-17m": (7, 256, 4, 384),
            "jhu-clsp/ettin-encoder-32m": (10, 384, 6, 576),
            "jhu-clsp/ettin-encoder-68m": (19, 512, 8, 768),
            "jhu-clsp/ettin-encoder-150m": (22, 768, 12, 1152),
            "jhu-clsp/ettin-encoder-400m": (28, 1024, 16, 2624),
            "jhu-clsp/ettin-encoder-1b": (28, 1792, 28, 3840),
            "jhu-clsp/mmBERT-small": (22, 384, 6, 1152),
            "jhu-clsp/mmBERT-base": (22, 768, 12, 1152),
        }.items()
    },
    "eurobert": {
        "EuroBERT/EuroBERT-210m": (12, 768, 12, {}),
        "EuroBERT/EuroBERT-610m": (
            *(26, 1152, 18),
            {"num_key_value_heads": 6, "intermediate_size": 4096},
        ),
        "EuroBERT/EuroBERT-2.1B": (
            *(32, 2304, 18),
            {"num_key_value_heads": 6, "intermediate_size": 6144},
        ),
    },
    "ernie": {
        "nghuyong/ernie-1.0-base-zh": (
            *(12, 768, 12),
            {"vocab_size": 18000, "max_position_embeddings": 513},
        ),
        "nghuyong/ernie-2.0-base-en": (12, 768, 12, {"type_vocab_size": 4}),
        "nghuyong/ernie-2.0-large-en": (24, 1024, 16, {"type_vocab_size": 4, **_BIG}),
        **{
            f"nghuyong/ernie-3.0-{size}-zh": (
                *numbers,
                {
                    "vocab_size": 40000,
                    "max_position_embeddings": 2048,
                    "type_vocab_size": 4,
                    "use_task_id": True,
                    "task_type_vocab_size": 3 if size == "base" else 16,
                    "intermediate_size": 4 * numbers[1],
                },
            )
            for size, numbers in {
                "xbase": (20, 1024, 16),
                "base": (12, 768, 12),
                "medium": (6, 768, 12),
                "mini": (6, 384, 12),
                "micro": (4, 384, 12),
                "nano": (4, 312, 12),
            }.items()
        },
    },
    "roformer": {
        "junnyu/roformer_chinese_base": (12, 768, 12, {}),
        "junnyu/roformer_chinese_small": (6, 384, 6, {"intermediate_size": 1536}),
    },
    "nomic_bert": {"nomic-ai/nomic-bert-2048": (12, 768, 12, {})},
    "deberta-v2": {
        f"microsoft/deberta-v3-{size}": (*numbers, {"intermediate_size": 4 * numbers[1]})
        for size, numbers in {
            "xsmall": (12, 384, 6),
            "small": (6, 768, 12),
            "base": (12, 768, 12),
            "large": (24, 1024, 16),
        }.items()
    },
    "convbert": {
        "YituTech/conv-bert-small": (
            *(12, 256, 4),
            {"embedding_size": 128, "intermediate_size": 1024},
        ),
        "YituTech/conv-bert-medium-small": (
            *(12, 384, 8),
            {"embedding_size": 128, "intermediate_size": 1536, "num_groups": 2},
        ),
        "YituTech/conv-bert-base": (12, 768, 12, {}),
    },
    "squeezebert": {
        "squeezebert/squeezebert-uncased": (12, 768, 12, {"vocab_size": 30528}),
    },
    "mpnet": {
        "microsoft/mpnet-base": (
            *(12, 768, 12),
            {"max_position_embeddings": 514, "layer_norm_eps": 1e-5},
        )
    },
    "xlnet": {
        "xlnet-base-cased": (12, 768, 12, {"d_inner": 3072}),
        "xlnet-large-cased": (24, 1024, 16, {"d_inner": 4096}),
    },
    "reformer": {
        "google/reformer-enwik8": (
            *(12, 1024, 8),
            {
                "attn_layers": ["local", "local", "lsh", "local"] * 3,
                "attention_head_size": 128,
                "feed_forward_size": 4096,
                "vocab_size": 258,
                "axial_pos_shape": [128, 512],
                "axial_pos_embds_dim": [256, 768],
                "max_position_embeddings": 65536,
            },
        ),
        "google/reformer-crime-and-punishment": (
            *(6, 256, 2),
            {"axial_pos_shape": [512, 1024], "max_position_embeddings": 524288},
        ),
    },
    # The teacher is transformers' class with other queries and keys.
    "mobilebert": {
        "google/mobilebert-uncased": (24, 512, 4, {"classifier_activation": False}),
        "mobilebert-tiny-uncased": (
            *(24, 512, 4),
            {
                "classifier_activation": False,
                "use_bottleneck_attention": True,
                "key_query_shared_bottleneck": False,
                "num_feedforward_networks": 2,
            },
        ),
        "ib-bert-large-uncased": (
            *(24, 512, 4),
            {
                "key_query_shared_bottleneck": False,
                "num_feedforward_networks": 1,
                "intra_bottleneck_size": 1024,
                "normalization_type": "layer_norm",
                **_BIG,
            },
        ),
    },
}
_LONG = {"max_position_embeddings": 4098}
HUB["longformer"] = {
    "allenai/longformer-base-4096": (12, 768, 12, _LONG),
    "allenai/longformer-large-4096": (24, 1024, 16, {**_LONG, **_BIG}),
}
for _name in FAMILY:
    if _name.startswith("google/bert_uncased"):
        _layers, _hidden, _heads = map(int, re.findall(r"_[LHA]-(\d+)", _name))
        HUB["bert"][_name] = (_layers, _hidden, _heads, {"intermediate_size": 4 * _hidden})


# Of code that lies with its weights, and of a class that transformers has no more.
REMOTE = {
    "chandar-lab/NeoBERT": 221_665_536,
    "transfo-xl-wt103": 283_885_936,
    "awd-lstm": 44_262_464,
    **{
        f"mosaicml/mosaic-bert-base{suffix}": 136_777_728
        for suffix in ("", *(f"-seqlen-{length}" for length in (256, 512, 1024, 2048)))
    },
}


@pytest.mark.parametrize("name", REMOTE)
def test_parameters_of_models_that_transformers_has_not(name):
    """Counts of the shapes of the published code, as written out in the files of their tests."""
    assert describe(name).parameters == REMOTE[name]


def test_the_check_below_knows_every_row():
    rows = [name for rows in HUB.values() for name in rows]
    assert sorted([*rows, *REMOTE]) == sorted(FAMILY)


def _reference_config(architecture, layers, hidden, heads, changes):
    import transformers

    common = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
    if architecture == "distilbert":
        return transformers.DistilBertConfig(
            n_layers=layers, dim=hidden, n_heads=heads, hidden_dim=4 * hidden, **changes
        )
    if architecture in ("roberta", "longformer"):
        rows = {"max_position_embeddings": 514, "type_vocab_size": 1, "vocab_size": 50265}
        make = {"roberta": transformers.RobertaConfig, "longformer": transformers.LongformerConfig}
        return make[architecture](**{**common, **rows, **changes})
    if architecture == "deberta-v2":
        attention = {"relative_attention": True, "share_att_key": True, "position_buckets": 256}
        attention |= {"norm_rel_ebd": "layer_norm", "pos_att_type": "p2c|c2p"}
        changes = {**changes, **attention, "position_biased_input": False}
        return transformers.DebertaV2Config(**common, **changes)
    if architecture == "xlnet":
        sizes = {"n_layer": layers, "d_model": hidden, "n_head": heads}
        return transformers.XLNetConfig(**sizes, **changes)
    kind = {"bert": "BertConfig", "albert": "AlbertConfig", "electra": "ElectraConfig"}
    kind |= {"modernbert": "ModernBertConfig", "eurobert": "EuroBertConfig"}
    kind |= {"nomic_bert": "NomicBertConfig", "roformer": "RoFormerConfig"}
    kind |= {"ernie": "ErnieConfig", "reformer": "ReformerConfig"}
    kind |= {"mobilebert": "MobileBertConfig", "mpnet": "MPNetConfig"}
    kind |= {"convbert": "ConvBertConfig", "squeezebert": "SqueezeBertConfig"}
    return getattr(transformers, kind[architecture])(**common, **changes)


@pytest.mark.parametrize("architecture", HUB)
def test_parameters_equal_those_of_transformers(architecture):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    for name, (layers, hidden, heads, changes) in HUB[architecture].items():
        config = _reference_config(architecture, layers, hidden, heads, changes)
        with torch.device("meta"):  # shapes alone, no memory
            model = transformers.AutoModel.from_config(config)
            if name.startswith("ib-bert"):
                model = widen_queries(model)
        # Without RoFormer's sines and cosines, which nobody trains.
        trained = [p.numel() for p in model.parameters() if p.requires_grad]
        assert describe(name).parameters == sum(trained), name
        attending = heads // 2 if architecture == "convbert" else heads
        assert describe(name).config.num_heads == attending, name
        pooler = [p.numel() for n, p in model.named_parameters() if n.startswith("pooler.")]
        assert describe(name).pooler_parameters == sum(pooler), name


@pytest.mark.parametrize(
    ("name", "num_highway", "lstm_size", "projection_size"),
    [
        ("elmo-small", 1, 1024, 128),
        ("elmo-medium", 1, 2048, 256),
        ("elmo-original", 2, 4096, 512),
        ("elmo-original-5.5b", 2, 4096, 512),
    ],
)
def test_elmos_differ_in_three_sizes(name, num_highway, lstm_size, projection_size):
    sizes = {"lstm_size": lstm_size, "projection_size": projection_size}
    assert family(name) == ElmoConfig(num_highway=num_highway, **sizes)
    assert family_row(name).tokenizer == "words"
    assert name in BILMS
    assert name not in FAMILY


def test_an_elmo_is_no_encoder():
    with pytest.raises(TypeError, match=r"of kbert.Elmo: ElmoConfig\). Received: ElmoConfig"):
        Encoder(family("elmo-small"))
