"""A family of language models as data: a table from its configuration to our model's fields, and a map of its tensors.

    LLAMA = Family(
        "llama",
        keys={"hidden_size": Key("width"), "hidden_act": Key("mlp", "silu", named(GATED)), ...},
        lines=lines_of_llama,
    )

A configuration is read whole: each key sets a field of the model, or must have a certain value, or is listed as without
effect on numbers; any other key is refused by name.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NamedTuple

from posjax.checks import check
from posjax.encoding import Encoding
from posjax.hf import from_hf_layers
from posjax.hf.kinds import KINDS
from posjax.models.decoder import Decoder
from posjax.pretrained.entries import Entry, layered
from posjax.spec import layers_text, nearest, parse_layers

REQUIRED = object()  # default of a key that a configuration must have
Config = Mapping[str, Any]

# Keys of any configuration that change no logits: options of training, generation, files and return values. Unread keys that
# begin with "_" change none either.
_WITHOUT_EFFECT = """
architectures attn_implementation auto_map bad_words_ids base_model_name_or_path begin_suppress_tokens bos_token_id
cache_implementation chunk_size_feed_forward classifier_dropout decoder_start_token_id do_sample dtype early_stopping
eos_token_id exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id
generation_config gradient_checkpointing id2label init_device initializer_factor initializer_range
keys_to_ignore_at_inference label2id length_penalty max_length min_length model_type neftune_noise_alpha
no_repeat_ngram_size num_beam_groups num_beams num_labels num_return_sequences output_attentions output_hidden_states
output_router_logits output_scores pad_token_id prefix pretraining_tp problem_type remove_invalid_values
repetition_penalty return_dict return_dict_in_generate sep_token_id suppress_tokens tags task_specific_params
temperature tf_legacy_loss tokenizer_class top_k top_p torch_dtype torchscript transformers.js_config
transformers_version typical_p unk_token_id unsloth_fixed unsloth_version use_bfloat16 use_cache use_return_dict
"""
WITHOUT_EFFECT = frozenset(_WITHOUT_EFFECT.split())
# Keys of any configuration that must have these values.
PLAIN: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        ("add_cross_attention", "is_encoder_decoder", "tie_encoder_decoder", "cross_attention_hidden_size"),
        (False, None),
    ),
    "pruned_heads": ({}, None),
}
# Fields of a model that no configuration has: types, implementations, and noise in training.
COMPUTED = ("dtype", "attention_dtype", "param_dtype", "implementation", "context", "scan", "remat")
TRAINING = ("dropout", "drop_path")


class Key(NamedTuple):
    """The meaning of a configuration's key for a model.

    Args:
      field: field of the model.
      default: transformers' default, for configurations that lack the key.
      read: function from the key's value to the field's. None stands for itself unless `read` is given.
    """

    field: str
    default: Any = REQUIRED
    read: Callable[[Any], Any] = lambda value: value


def named(values: Mapping[Any, Any]) -> Callable[[Any], Any]:
    """Returns the `Key.read` of a key with these {key's value: field's value}."""

    def read(value: Any) -> Any:
        if not isinstance(value, Hashable) or value not in values:
            raise ValueError(f"{value!r} is not computed here; {nearest(str(value), [str(name) for name in values])}")
        return values[value]

    return read


@dataclass(frozen=True)
class Family:
    """The models that one architecture of transformers computes.

    Args:
      model_type: name of transformers' configuration.
      keys: of its configuration, by name.
      encoding: a configuration's encodings, one for each layer. The configuration has its model_type.
      encoding_keys: the keys that `encoding` reads.
      needed: keys that a configuration must have though transformers has a default for them, which few models mean.
      lines: a model's map of tensors, with the layers written once, as {l}.
      constants: fields that all models of the family have.
      derived: fields that several keys say together, from a configuration; with the keys in `derived_keys`.
      plain: keys that must have one of these values, as only these are computed here.
      silent: keys without effect on logits, beside the keys of any configuration.
      renamed: older spellings of keys.
      prefix: prefix of the names of all tensors but the head's; files of a model without head leave it out.
      ignored: regular expression of tensors that old files hold and no code reads.
      tied: name of the head that equals the token embedding if `tied_embedding`; a file may hold it all the same.
      copies: {name of a redundant tensor: name of the tensor that it must equal}.
      respelt: (regular expression, its replacement) for names in old files.
      by_tensors: {field: function from the configuration's model and the tensors' names to its value}, for fields that
        only the tensors show, such as heads.
      model: class of our model.
    """

    model_type: str
    keys: Mapping[str, Key]
    lines: Callable[[Any], list[Entry]]
    encoding: Callable[[Config], Sequence[Encoding]] = from_hf_layers
    encoding_keys: frozenset[str] = frozenset()
    needed: frozenset[str] = frozenset()
    constants: Mapping[str, Any] = field(default_factory=dict)
    derived: Callable[[Config], dict[str, Any]] = lambda config: {}
    derived_keys: frozenset[str] = frozenset()
    plain: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()
    renamed: Mapping[str, str] = field(default_factory=dict)
    prefix: str = "model."
    ignored: str = r".*rotary_emb\.inv_freq"
    tied: str = "lm_head.weight"
    copies: Mapping[str, str] = field(default_factory=dict)
    respelt: tuple[tuple[str, str], ...] = ()
    by_tensors: Mapping[str, Callable[[Any, Collection[str]], Any]] = field(default_factory=dict)
    model: type = Decoder

    def made(self, config: Config, ignore: Collection[str] = ()) -> Any:
        """Returns the model that a configuration describes, in float32.

        Args:
          config: the configuration.
          ignore: unknown keys to skip.

        Raises:
          ValueError: a key is unknown or missing; a value is of another type, out of range, or not computed here; or a key in
            `ignore` is absent, or known to change numbers.
        """
        config = {**self._current(config), "model_type": self.model_type}
        check("the configuration", config, KINDS)
        self._check(config, ignore)
        fields = {key.field: self._value(name, key, config) for name, key in self.keys.items()}
        fields |= {**self.constants, **self.derived(config)}
        read = {name: value for name, value in config.items() if name in {*self._read, "model_type"}}
        return self.model.from_config(fields, encoding=pattern_text(self.encoding(read)))

    def of_file(self, model: Any, names: Collection[str]) -> Any:
        """Returns the configuration's model with the fields that only the file's tensors show (heads, for example)."""
        return model.with_fields(**{name: read(model, names) for name, read in self.by_tensors.items()})

    def entries(self, model: Any) -> list[Entry]:
        """Returns the map of a model's tensors."""
        return layered(self.lines(model), model.depth)

    def sizes_of(self, model: Any) -> dict[str, int]:
        """Returns the sizes of letters in the axes of the model's entries: query heads, key heads, channels of a head."""
        block = model.block
        return {"h": block.num_heads, "k": block.key_heads, "d": block.channels}

    def _current(self, config: Config) -> dict[str, Any]:
        current: dict[str, Any] = {}
        for name, value in config.items():
            new = self.renamed.get(name, name)
            if new in current and current[new] != value:
                raise ValueError(f"the configuration has {new}={current[new]!r} and, its older name, {name}={value!r}")
            current[new] = value
        return current

    @property
    def _read(self) -> frozenset[str]:
        """The keys that set fields of the model."""
        return frozenset(self.keys) | self.encoding_keys | self.derived_keys

    def _check(self, config: Config, ignore: Collection[str]) -> None:
        plain = PLAIN | dict(self.plain)
        counting = self._read | plain.keys() | self.needed
        known = counting | self.silent | WITHOUT_EFFECT
        if missing := sorted(self.needed - config.keys()):
            raise ValueError(f"the configuration lacks {missing[0]}; {nearest(missing[0], sorted(config))}")
        for name in ignore:
            if name not in config:
                raise ValueError(f"ignore: the configuration has no key {name!r}; {nearest(name, sorted(config))}")
            if name in counting:
                raise ValueError(f"ignore: {name} (= {config[name]!r}) is known to change numbers")
        for name, value in config.items():
            if not (name in known or name in ignore or name.startswith("_")):
                near = "".join(f"; did you mean {near!r}?" for near in get_close_matches(name, counting, 1, 0.75))
                raise ValueError(
                    f"the configuration's key {name!r} (= {repr(value)[:60]}) is not known here and may change numbers: if "
                    f"it does not, pass ignore=[{name!r}] (commands: --ignore={name}, in a config init_ignore){near}"
                )
            if name in plain and value not in plain[name]:
                raise ValueError(f"{name}={value!r} is not computed here, only {' or '.join(map(repr, plain[name]))}")

    def _value(self, name: str, key: Key, config: Config) -> Any:
        if name not in config and key.default is REQUIRED:
            raise ValueError(f"the configuration lacks {name}; {nearest(name, sorted(config))}")
        try:
            return key.read(config.get(name, key.default))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None


def layers_of(model: Any) -> tuple[Encoding, ...]:
    """Returns the encoding of each layer."""
    pattern = parse_layers(model.encoding)
    return tuple(pattern[layer % len(pattern)] for layer in range(model.depth))


def pattern_text(layers: Sequence[Encoding]) -> str:
    """Returns the shortest pattern that repeats to these layers, as text."""
    count = len(layers)
    period = next(p for p in range(1, count + 1) if all(layers[i] == layers[i % p] for i in range(count)))
    return layers_text(layers[:period])
