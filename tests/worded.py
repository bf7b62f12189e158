"""A tokenizer of whole words and single signs, written as a tokenizer.json."""

import pathlib
import string

_TEXT = (
    "the grass is green sky blue sun yellow here we go there and back again pass key Remember it What number of way to "
    "in was for that with as on by at from this are have not or but his her you they he she Oslo Lima Cairo Delhi Quito "
    "Paris Tunis Seoul Minsk Dakar Milan Perth The There And We It Here"
)
WORDS = _TEXT.split()


def write_tokenizer(directory: pathlib.Path) -> pathlib.Path:
    """The file, made with the tokenizers library: words at spaces, digits and signs each for itself."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    signs = [each for each in string.printable if not each.isspace()]
    vocab = {word: i for i, word in enumerate(dict.fromkeys(["<unk>", "<s>", *WORDS, *signs]))}
    made = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    split = [
        pre_tokenizers.WhitespaceSplit(),
        pre_tokenizers.Punctuation(),
        pre_tokenizers.Digits(individual_digits=True),
    ]
    made.pre_tokenizer = pre_tokenizers.Sequence(split)
    begins = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", vocab["<s>"])])
    made.post_processor = begins  # where special tokens are asked for
    path = directory / "tokenizer.json"
    made.save(str(path))
    return path
