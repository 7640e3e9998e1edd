"""A command line taken apart by the runtime's own help."""

from __future__ import annotations

from pathlib import Path

import pytest
from presets.preset_sample import SMALL_HELP, real_help

from autofit.errors import UsageError
from autofit.presets.option import each_once, parse_options, with_absolute_paths


def _parse(*arguments: str):
    return parse_options(arguments, SMALL_HELP)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("-c", "4096"), ("--ctx_size", "4096")),
        (("-nkvo",), ("--no-kv-offload",)),
        (("-ngl", "5"), ("--gpu-layers", "5")),
    ],
)
def test_spellings_of_one_flag_mean_the_same(one, other):
    """Short, long and underscore spellings are one option."""
    assert [o.canonical for o in _parse(*one)] == [o.canonical for o in _parse(*other)]


def test_positive_and_negative_forms_differ():
    """A pair is switched on or off by its spelling, and `--no-host` alone switches on."""
    on, off, short, alone = _parse("-kvo", "--no-kv-offload", "-nkvo", "--no-host")

    assert [o.is_negative for o in (on, off, short, alone)] == [False, True, True, False]
    assert on.canonical != off.canonical
    assert off.positive_name == "kv-offload"
    assert alone.name == "no-host"


@pytest.mark.parametrize("word", ["--prefetch", "model.gguf", "--draft", "-"])
def test_word_that_the_help_does_not_list_is_refused(word):
    """Unknown, positional and removed words are named, with what else can be done."""
    with pytest.raises(UsageError) as caught:
        _parse("-c", "1", word)

    assert repr(word) in caught.value.message
    assert "args" in caught.value.hint


def test_missing_value_is_refused():
    """A flag at the end without its value is named."""
    with pytest.raises(UsageError, match="value of --threads"):
        _parse("--threads")


def test_values_may_look_like_flags():
    """What follows a flag that takes a value is its value, whatever it looks like."""
    threads, context = _parse("--threads", "-1", "-c", "-ngl")

    assert (threads.value, context.value) == ("-1", "-ngl")


def test_repeated_flags_become_one():
    """Overrides add up, counts take the larger, of others the last one counts."""
    options = _parse("-ot", "a=CPU", "-ncmoe", "5", "-c", "1", "-ot", "b=CPU", "-ncmoe", "3")
    merged = {o.name: o.value for o in each_once((*options, *_parse("--ctx-size", "2")))}

    assert merged == {"override-tensor": "a=CPU,b=CPU", "n-cpu-moe": "5", "ctx-size": "2"}


def test_named_files_become_absolute():
    """Relative files are found from any folder; repositories' files and values stay."""
    words = ("-m", "a b.gguf", "--lora", "x.gguf,/y.gguf", "-hff", "z.gguf", "-ot", "a/b=CPU", "c")

    absolute = with_absolute_paths(words, SMALL_HELP, Path("/home"))

    assert absolute[:4] == ("-m", "/home/a b.gguf", "--lora", "/home/x.gguf,/y.gguf")
    assert absolute[4:] == words[4:]
    assert with_absolute_paths(words, None, Path("/home")) == words


@pytest.mark.runtime
def test_real_help_tells_senses_apart(llama_cpp):
    """In the real help a flag is negative just where its long name says so."""
    help_text = real_help(llama_cpp)
    words = [
        *("--no-host", "--cpu-moe", "-cmoed", "--no-warmup", "-nocb", "-nr", "--repack"),
        *("--no-mmproj", "-no-kvu", "-kvu", "--no-webui", "-no-ag", "--swa-full"),
    ]
    negative = {o.spelling for o in parse_options(words, help_text) if o.is_negative}

    assert negative == {
        *("--no-warmup", "-nocb", "-nr", "--no-mmproj", "-no-kvu", "--no-webui", "-no-ag")
    }
