"""Published pretraining recipes of the models of the family: a table of plain values.

Values are from the published code and its README where they have them, because these made the
released weights; else from the paper. Two settings are the same in every recipe here but were not
in every original. Biases and LayerNorm have no weight decay (fairseq, which trained RoBERTa and
SpanBERT, decays them). Every epoch has new masks (Google's data were masked once, in 10 to 40
copies). One recipe is kbert's own: "kbert-fast", for minutes on a CPU.
"""

from typing import Any

from kbert.catalog.recipe import Recipe, by_name, shown

_UNMASKED: dict[str, Any] = {
    **dict.fromkeys(("segments", "short_sequence_share", "masking")),
    **dict.fromkeys(("masked_share", "replacement")),
}
_BERT: dict[str, Any] = {
    "segments": "pairs",
    "short_sequence_share": 0.1,
    "learning_rate": 1e-4,
    "steps": 1_000_000,
    "batch_size": 256,
    "phases": "128:0.9,512:0.1",
}
_FAIRSEQ: dict[str, Any] = {"bias_correction": True, "decay_join": "after", "phases": "512:1"}
_ELECTRA: dict[str, Any] = {
    "source": "configure_pretraining.py of google-research/electra",
    "objective": "replaced_tokens",
    "segments": "consecutive",
    "short_sequence_share": 0.05,
    "masking": "independent",
    "replacement": (0.85, 0.0),
    "decay_join": "product",
}
_TRANSFORMER: dict[str, Any] = {
    "tokenizer": "bpe",
    "objective": "translation",
    "label_smoothing": 0.1,
    "beta_2": 0.98,
    "epsilon": 1e-9,
    "bias_correction": True,
    "weight_decay": 0.0,
    "clip_norm": 0.0,
    "warmup_steps": 4_000,
    "decay": "inverse_sqrt",
    "batch_size": None,
    "phases": None,
    "batch_tokens": 25_000,
    **_UNMASKED,
}
# Adafactor with a rate of 1 / √max(step, 10,000).
_ADAFACTOR: dict[str, Any] = {
    "tokenizer": "unigram",
    "objective": "denoising",
    "optimizer": "adafactor",
    "learning_rate": 0.01,
    "weight_decay": 0.0,
    "clip_norm": 0.0,
    "decay": "inverse_sqrt",
    "decay_join": "constant",
    "phases": "512:1",
    **_UNMASKED,
}

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="bert",
            tokenizer="wordpiece",
            source="README and code of google-research/bert; batch size: section A.2 of the paper",
            model="bert-base-uncased",
            masking="token",
            **_BERT,
        ),
        Recipe(
            name="bert-wwm",
            tokenizer="wordpiece",
            source="README of google-research/bert, whole word masking; all else as bert",
            model="bert-large-uncased-whole-word-masking",
            masking="whole_word",
            **_BERT,
        ),
        Recipe(
            name="roberta",
            tokenizer="bpe",
            source="examples/roberta of facebookresearch/fairseq: README and config base.yaml",
            model="roberta-base",
            segments="full_sentences",
            short_sequence_share=0.0,
            masking="token",
            learning_rate=5e-4,
            beta_2=0.98,
            clip_norm=0.0,
            steps=125_000,
            batch_size=2048,
            **_FAIRSEQ,
        ),
        Recipe(
            name="xlm-r",
            tokenizer="unigram",
            source="arXiv 1911.02116, section 3: RoBERTa on a folder for each language, sampled "
            "by 0.3; other settings as RoBERTa's",
            model="xlm-roberta-base",
            mixture_temperature=0.3,
            segments="full_sentences",
            short_sequence_share=0.0,
            masking="token",
            learning_rate=6e-4,
            beta_2=0.98,
            clip_norm=0.0,
            steps=1_500_000,
            batch_size=8192,
            **_FAIRSEQ,
        ),
        Recipe(
            name="xlm",
            tokenizer="bpe",
            source="arXiv 1901.07291, sections 3.3 and 5.1, and the README and optim.py of "
            "facebookresearch/XLM; without embeddings of languages, as its models of 17 "
            "and 100; a batch mixes translations with other text, where the original "
            "alternates between them",
            model="roberta-base",
            set=(
                *("hidden_size=1024", "num_heads=8", "intermediate_size=4096"),
                *("layer_norm_epsilon=1e-12", "pooler_activation=null"),
            ),
            mixture_temperature=0.7,
            segments="aligned",
            short_sequence_share=0.0,
            masking="token",
            learning_rate=1e-4,
            beta_2=0.98,
            epsilon=1e-8,
            bias_correction=True,
            weight_decay=0.0,
            clip_norm=5.0,
            warmup_steps=4_000,
            decay="inverse_sqrt",
            steps=300_000,
            batch_size=4096,
            phases="256:1",
        ),
        Recipe(
            name="albert",
            tokenizer="unigram",
            source="README and code of google-research/albert",
            model="albert-base-v2",
            segments="halves",
            short_sequence_share=0.1,
            masking="ngram",
            optimizer="lamb",
            learning_rate=1.76e-3,
            warmup_steps=3_125,
            steps=125_000,
            batch_size=4096,
            phases="512:1",
        ),
        Recipe(
            name="spanbert",
            tokenizer="wordpiece",
            source="README of facebookresearch/SpanBERT; 32 x 4,096 tokens a batch",
            model="SpanBERT/spanbert-base-cased",
            objective="span_boundary",
            segments="single",
            short_sequence_share=0.0,
            masking="span",
            learning_rate=1e-4,
            epsilon=1e-8,
            steps=2_400_000,
            batch_size=256,
            **_FAIRSEQ,
        ),
        Recipe(
            name="electra",
            tokenizer="wordpiece",
            model="google/electra-small-discriminator",
            generator_share=0.25,
            learning_rate=5e-4,
            steps=1_000_000,
            batch_size=128,
            phases="128:1",
            **_ELECTRA,
        ),
        Recipe(
            name="electra-base",
            tokenizer="wordpiece",
            model="google/electra-base-discriminator",
            generator_share=1 / 3,
            learning_rate=2e-4,
            steps=766_000,
            batch_size=256,
            phases="512:1",
            **_ELECTRA,
        ),
        Recipe(
            name="electra-large",
            tokenizer="wordpiece",
            model="google/electra-large-discriminator",
            generator_share=0.25,
            masked_share=0.25,
            learning_rate=2e-4,
            steps=400_000,
            batch_size=2048,
            phases="512:1",
            **_ELECTRA,
        ),
        Recipe(
            name="deberta-v3",
            tokenizer="unigram",
            model="microsoft/deberta-v3-base",
            source="arXiv 2111.09543, section 3 and its table of hyperparameters; generator: "
            "rtd_base.json of microsoft/DeBERTa, masks: rtd_task.py there",
            objective="replaced_tokens",
            generator_share=1.0,
            generator_depth=0.5,
            embedding_sharing="gradient_disentangled",
            segments="single",
            short_sequence_share=0.0,
            masking="token",
            replacement=(1.0, 0.0),
            learning_rate=6e-4,
            beta_2=0.98,
            bias_correction=True,
            steps=500_000,
            batch_size=8192,
            phases="512:1",
        ),
        Recipe(
            name="elmo",
            tokenizer="words",
            source="bin/train_elmo.py and bilm/training.py of allenai/bilm-tf; 10 epochs of the "
            "768,648,884 tokens of the 1 Billion Word Benchmark on 3 GPUs of 128 rows each",
            model="elmo-original",
            objective="language_model",
            negatives=8192,
            optimizer="adagrad",
            learning_rate=0.2,
            initial_accumulator_value=1.0,
            clip_norm=10.0,
            warmup_steps=0,
            decay="constant",
            steps=1_000_840,
            batch_size=384,
            phases="20:1",
            **_UNMASKED,
        ),
        Recipe(
            name="gpt",
            tokenizer="bpe",
            source="section 4.1 of the paper, opt.py of openai/finetune-transformer-lm; 100 epochs "
            "of the 984,846,357 words of BooksCorpus, a token each at least",
            model="openai-gpt",
            objective="causal_lm",
            learning_rate=2.5e-4,
            epsilon=1e-8,
            bias_correction=True,
            warmup_steps=2_000,
            decay="cosine",
            steps=3_005_512,
            batch_size=64,
            phases="512:1",
            **_UNMASKED,
        ),
        Recipe(
            name="transformer-xl",
            tokenizer="words",
            source="pytorch/run_wt103_large.sh and train.py of kimiyoung/transformer-xl",
            model="transfo-xl-wt103",
            set=("dropout=0.2", "attention_dropout=0.2", "same_length=false"),
            objective="memory_lm",
            memory_length=384,
            learning_rate=2.5e-4,
            epsilon=1e-8,
            bias_correction=True,
            weight_decay=0.0,
            clip_norm=0.25,
            warmup_steps=16_000,
            decay="cosine",
            steps=4_000_000,
            batch_size=128,
            phases="384:1",
            **_UNMASKED,
        ),
        Recipe(
            name="ulmfit",
            tokenizer="words",
            source="arXiv 1801.06146, section 4.1; clipping: main.py of salesforce/awd-lstm-lm; "
            "steps, not told: ten passes over the 103,227,021 words of WikiText-103",
            model="awd-lstm",
            objective="memory_lm",
            memory_length=70,
            learning_rate=4e-3,
            beta_1=0.7,
            beta_2=0.99,
            epsilon=1e-8,
            bias_correction=True,
            weight_decay=0.0,
            clip_norm=0.25,
            warmup_steps=23_041,
            decay="slanted_triangular",
            decay_join="after",
            steps=230_410,
            batch_size=64,
            phases="70:1",
            **_UNMASKED,
        ),
        Recipe(
            name="bart",
            tokenizer="bpe",
            source="arXiv 1910.13461, section 5.1, whose rate and warm-up are not told: those of "
            "RoBERTa-large, which it follows (arXiv 1907.11692, table 9); dropout to the end and "
            "not off in the last tenth; the decoder begins with <s> and not with </s><s>",
            model="facebook/bart-large",
            objective="denoising",
            noise="bart",
            learning_rate=4e-4,
            beta_2=0.98,
            clip_norm=0.0,
            warmup_steps=30_000,
            steps=500_000,
            batch_size=8000,
            **_FAIRSEQ,
            **_UNMASKED,
        ),
        Recipe(
            name="mass",
            tokenizer="wordpiece",
            source="arXiv 1905.02450, section 3.2, and MASS-summarization of microsoft/MASS: "
            "README, for 32 GPUs; one fragment of a row, as in the paper, and not one of every 64 "
            "tokens; rows of whole sentences of one document",
            model="mass-base-uncased",
            objective="denoising",
            noise="mass",
            learning_rate=5e-4,
            beta_2=0.98,
            clip_norm=0.0,
            steps=125_000,
            batch_size=4096,
            **_FAIRSEQ,
            **_UNMASKED,
        ),
        Recipe(
            name="t5",
            source="arXiv 1910.10683: the baseline of section 3.1 with the spans of section 3.3.4",
            model="t5-base",
            noise="t5",
            steps=2**19,
            batch_size=128,
            **_ADAFACTOR,
        ),
        Recipe(
            name="pegasus",
            source="arXiv 1912.08777, sections 6 and 6.2, and params of google-research/pegasus; "
            "sentences compared by tokens and not by words without stop words",
            model="google/pegasus-large",
            noise="pegasus:gap_share=0.45,kept_share=0.2",
            steps=500_000,
            batch_size=8192,
            **_ADAFACTOR,
        ),
        Recipe(
            name="transformer",
            source="sections 5 and 6.1 of the paper, base model: its learning rate is 512^-0.5 * "
            "4000^-0.5",
            model="transformer-base",
            learning_rate=(512 * 4_000) ** -0.5,
            steps=100_000,
            average_checkpoints=5,
            **_TRANSFORMER,
        ),
        Recipe(
            name="transformer-big",
            source="sections 5 and 6.1 of the paper, big model: its learning rate is 1024^-0.5 * "
            "4000^-0.5",
            model="transformer-big",
            learning_rate=(1024 * 4_000) ** -0.5,
            steps=300_000,
            average_checkpoints=20,
            **_TRANSFORMER,
        ),
        Recipe(
            name="modernbert",
            tokenizer="bpe",
            source="arXiv 2412.13663, table 3 and section 2.2: 1,719, 250 and 50 billion tokens, "
            "without the warm-up of the batch size; decay of 1e-5 that is not scaled by the rate",
            model="answerdotai/ModernBERT-base",
            segments="single",
            short_sequence_share=0.0,
            masking="token",
            masked_share=0.3,
            optimizer="stable_adamw",
            learning_rate=8e-4,
            beta_2=0.98,
            bias_correction=True,
            weight_decay=1e-5 / 8e-4,
            clip_norm=0.0,
            warmup_steps=640,
            decay="wsd",
            decay_share=0.025,
            decay_join="after",
            steps=428_000,
            batch_size=4608,
            phases="1024:0.85,8192:0.15:576",
        ),
        Recipe(
            name="xlnet",
            tokenizer="unigram",
            source="arXiv 1906.08237, appendix A.4, and train.py, data_utils.py and model_utils.py "
            "of zihangdai/xlnet; without second segments of other documents, a memory of whole "
            "rows and not of their first half, the rate down to 0 and not to a thousandth, no "
            "decay of the attention's biases",
            model="xlnet-large-cased",
            objective="permutation_lm",
            memory_length=384,
            segments="runs",
            short_sequence_share=0.0,
            masking="permutation",
            masked_share=1 / 6,
            replacement=(0.0, 0.0),
            learning_rate=4e-4,
            warmup_steps=40_000,
            decay_join="after",
            steps=500_000,
            batch_size=8192,
            phases="512:1",
        ),
        Recipe(
            name="gpt-bert",
            tokenizer="bpe",
            source="arXiv 2410.24159 and pretraining/ of ltgoslo/gpt-bert, for an encoder of kbert "
            "of about base's size, not its architecture; without the growth of the batch from a "
            "quarter, the cosine to 0 and not to a tenth; spans of words, not of tokens",
            model="roberta-base",
            set=(
                *("num_segments=0", "positions=rotary", "feed_forward=gated"),
                *("intermediate_size=2560", "block=pre_norm", "pooler_activation=null"),
            ),
            objective="masked_and_causal",
            segments="single",
            short_sequence_share=0.0,
            masking="ngram",
            masked_share=0.3,
            final_masked_share=0.15,
            causal_share=1 / 16,
            z_loss=1e-4,
            optimizer="lamb",
            learning_rate=1e-2,
            beta_2=0.98,
            epsilon=1e-8,
            weight_decay=0.1,
            clip_norm=2.0,
            warmup_steps=250,
            decay="cosine",
            decay_join="after",
            steps=15_625,
            batch_size=32_768,
            phases="128:0.7,256:0.2:16384,512:0.1:8192",
            ema=0.999,
        ),
        Recipe(
            name="unilm",
            tokenizer="wordpiece",
            source="arXiv 1905.03197, sections 2.3 and 2.5: BERT-large, trained on by "
            "--init_preset; without next sentences; epsilon and clipping as bert's",
            model="bert-large-cased",
            objective="unilm",
            segments="consecutive",
            short_sequence_share=0.0,
            masking="token_ngram",
            attention_shares=(2.0, 2.0, 1.0, 1.0),
            learning_rate=3e-5,
            warmup_steps=40_000,
            steps=770_000,
            batch_size=330,
            phases="512:1",
        ),
        Recipe(
            name="ernie",
            tokenizer="wordpiece",
            source="arXiv 1904.09223, section 3.2: words, then phrases, then entities, by "
            "--phrases=,PHRASES,ENTITIES; rates: ERNIE/script/pretrain.sh of "
            "PaddlePaddle/ERNIE, 8 GPUs of 8,192 tokens; the stages' shares of the steps "
            "are not from a source; next sentences, without its dialogues",
            model="nghuyong/ernie-1.0-base-zh",
            segments="pairs",
            short_sequence_share=0.0,
            masking="phrase",
            learning_rate=1e-4,
            epsilon=1e-8,
            bias_correction=True,
            warmup_steps=4_000,
            steps=1_000_000,
            batch_size=128,
            phases="512:0.34,512:0.33,512:0.33",
        ),
        Recipe(
            name="kbert-fast",
            tokenizer="wordpiece",
            source="benchmarks/speedrun.py: the best of what was tried in minutes on two cores",
            model="bert-tiny",
            set=("dropout=0", "attention_dropout=0", "positions=rotary"),
            masking="token",
            segments="single",
            short_sequence_share=0.1,
            learning_rate=2e-3,
            beta_2=0.98,
            warmup_steps=1_000,
            decay_join="after",
            steps=10_000,
            batch_size=32,
            phases="8:0.15:256,16:0.25:128,32:0.25:64,64:0.35:32",
        ),
    )
}


def recipe(name: str) -> Recipe:
    """Returns a pretraining recipe.

    Args:
        name: name of a recipe in `table`: a published model's, such as "roberta", or "kbert-fast",
            which trains a small model in minutes.

    Returns:
        The recipe.

    Raises:
        ValueError: no recipe has that name; the message lists the close ones.

    Example:
        >>> albert = recipe("albert")
        >>> albert.optimizer, albert.masking, albert.sentence_objective
        ('lamb', 'ngram', 'sentence_order')
    """
    return by_name(name, RECIPES)


def table() -> str:
    """Formats all recipes as a text table, one line each, with the settings that distinguish them.

    Example:
        >>> table().splitlines()[1].split()
        ['bert', 'masked_lm', 'token', 'pairs', 'adamw', '0.0001', '256', '1,000,000']
    """
    columns = {
        "recipe": "name",
        "objective": "objective",
        "masking": "masking",
        "segments": "segments",
        "optimizer": "optimizer",
        "rate": "learning_rate",
        "batch": "batch_size",
        "steps": "steps",
    }
    cells = [list(columns)]
    for row in RECIPES.values():
        cells.append([shown(getattr(row, field)) for field in columns.values()])
        if row.batch_tokens is not None:
            cells[-1][[*columns].index("batch")] = f"{row.batch_tokens:,} tokens"
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in cells)
    return "\n".join(line.rstrip() for line in lines)
