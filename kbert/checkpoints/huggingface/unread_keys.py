"""Keys of a `config.json` that do not affect what the model computes from token ids.

`IGNORED` are keys that transformers itself writes into configs of every model. Others are from
programs for training and serving: `says_nothing` recognises them by their names, and a warning
lists them. Every other key that is not in an architecture's table raises an error, because the
model may be another one: `auto_map`, `rope_theta`, `use_bias`, `num_experts`.
"""

import re
from typing import Any

from kbert.core import late

IGNORED = frozenset(
    "_name_or_path _attn_implementation_autoset _num_labels architectures bos_token_id "
    "chunk_size_feed_forward classifier_dropout cross_attention_hidden_size dtype eos_token_id "
    "eos_token_ids tie_encoder_decoder "
    "finetuning_task gradient_checkpointing id2label label2id language model_type name num_labels "
    "output_attentions output_hidden_states output_past pad_token_id prefix problem_type "
    "return_dict sbert_ce_default_activation_function sentence_transformers sep_token_id "
    "task_specific_params tf_legacy_loss tokenizer_class torch_dtype torchscript "
    "transformers_version use_bfloat16 use_cache xla_device".split()
)
# Text generation: versions 2 to 4 wrote these into configs of every kind.
GENERATION = frozenset(
    "bad_words_ids begin_suppress_tokens decoder_start_token_id diversity_penalty do_sample "
    "early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty "
    "forced_bos_token_id forced_eos_token_id length_penalty max_length min_length "
    "no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_scores "
    "remove_invalid_values repetition_penalty return_dict_in_generate suppress_tokens temperature "
    "top_k top_p typical_p".split()
)
IGNORED |= GENERATION
# Config keys of edits, which have files of their own.
IGNORED |= {key for _, edit in late.load_each("file of an edit") for key in edit.config_keys}

_HARMLESS = re.compile(
    "|".join(
        (
            # Private keys of the library, and keys with the names of tools.
            r"_\w+|(unsloth|wandb|mlflow|sagemaker|neptune|comet|hf|sbert|uniem)_\w+",
            # Files, names and versions of programs, data and models.
            r"\w+_(file|path|url|dir)|author|commit_hash|description|license|tags",
            r"((model|kobart|kobert|torch|pytorch|tokenizers|datasets|library|framework)_)?version",
            r"(base_)?model_name(_or_path)?|dataset(s|_name)?|library_name|pipeline_tag|task_name"
            r"|export_model_type",
            # The tokenizer: everything before there are token ids.
            r"(bos|eos|unk|sep|pad|cls|mask|start|end)_token(_id)?|(padding|truncation)_side",
            r"do_(basic_tokenize|lower_case)|lowercase|tokenizer_\w+|(model_)?max_(seq_)?(len|length)",
            # The loss and its optimisation.
            r"loss|loss_\w+|label_smoothing(_factor)?|(num_)?(train_)?epochs|(num_)?train_\w*steps",
            r"((per_device|per_gpu)_)?((train|eval|test)_)?batch_size|gradient_\w+|max_grad_norm",
            r"(peak_|init_)?(learning_rate|lr)|lr_scheduler(_\w+)?|optim(izer)?|adam_\w+|adafactor",
            r"weight_decay|warmup_\w+|(max|save|eval|logging)_steps|seed|fp16(_\w+)?|bf16(_\w+)?",
            r"mlm_probability|masked_lm_prob(ability)?|(eval|metric|best)_\w+|matryoshka_dim\w*",
            # How the folder is loaded.
            r"trust_remote_code|is_local|local_files_only|(max_)?seq(uence)?_len(gth)?",
            # Other ways to compute the same result, and which outputs are returned.
            r"attn_implementation|use_(flash|sdpa|memory_efficient)_\w+|output_logits|torch_compile",
        )
    )
)


def says_nothing(key: str, value: Any) -> bool:
    """Whether a config key that is in no architecture's table does not affect the model.

    A key with the value null never does.

    Args:
        key: key of a `config.json`.
        value: value of the key.

    Example:
        >>> [says_nothing(key, True) for key in ("unsloth_fixed", "vocab_file", "use_bias")]
        [True, True, False]
        >>> says_nothing("rope_scaling", None)
        True
    """
    return value is None or _HARMLESS.fullmatch(key) is not None
