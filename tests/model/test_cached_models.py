"""Models by name, from the caches of llama.cpp and Hugging Face."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autofit.errors import MissingError, UsageError
from autofit.model.cached_models import cached_models, find_model, model_lines

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OLDER = "fedcba9876543210fedcba9876543210fedcba98"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    """A user's home folder without caches."""
    for name in ("LLAMA_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    return tmp_path


def in_hub(hub: Path, name: str, *files: str, commit: str = COMMIT, ref: str = "main") -> Path:
    """Put files of a repository into a hub's cache, as links to blobs; return the snapshot."""
    repository = hub / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit
    for file in files:
        blob = repository / "blobs" / file.replace("/", "-")
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(b"GGUF" * 100)
        (snapshot / file).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / file).symlink_to(blob)
    if ref:
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / ref).write_text(commit)
    return snapshot


def in_old_cache(folder: Path, name: str, tag: str, *files: str) -> list[Path]:
    """Put files into llama.cpp's older cache, with the manifest of a name; return their paths."""
    owner, repository = name.split("/")
    folder.mkdir(parents=True, exist_ok=True)
    manifest = folder / f"manifest={owner}={repository}={tag}.json"
    manifest.write_text(json.dumps({"ggufFile": {"rfilename": files[0]}}))
    paths = [folder / f"{owner}_{repository}_{file.replace('/', '_')}" for file in files]
    for path in paths:
        path.write_bytes(b"GGUF" * 100)
    return paths


def test_a_path_is_a_path(home):
    """A text that exists, ends with .gguf or cannot be a name is returned as it is."""
    (home / "owner").mkdir()
    (home / "owner" / "model").touch()
    for text in (str(home / "owner" / "model"), "a/b.gguf", "model", "./a/b", "~/a/b", "a/b/c"):
        assert find_model(text) == Path(text)


@pytest.mark.parametrize(
    "text", ["me/Tiny-GGUF:Q4_K_M", "me/tiny-gguf:q4_k_m", "me/Tiny-GGUF:UD-Q4_K_M"]
)
def test_a_name_is_found_whatever_its_case(home, text):
    """The quantization selects a file, and a link to a blob stays a link."""
    snapshot = in_hub(home / ".cache/huggingface/hub", "me/Tiny-GGUF", "Tiny-Q8_0.gguf",
                      "Tiny-UD-Q4_K_M.gguf", "mmproj-F16.gguf", "imatrix.gguf")  # fmt: skip

    assert find_model(text) == snapshot / "Tiny-UD-Q4_K_M.gguf"
    assert find_model(text, is_name=True) == snapshot / "Tiny-UD-Q4_K_M.gguf"


def test_a_repository_with_one_model_needs_no_quantization(home):
    """Projectors and drafts are no models."""
    snapshot = in_hub(home / ".cache/huggingface/hub", "me/Tiny-GGUF", "Tiny-Q8_0.gguf",
                      "mmproj-F16.gguf", "mtp-Tiny-Q8_0.gguf")  # fmt: skip

    assert find_model("me/Tiny-GGUF") == snapshot / "Tiny-Q8_0.gguf"


@pytest.mark.parametrize(
    ("variable", "below"),
    [
        ("LLAMA_CACHE", ""),
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
    ],
)
def test_each_variable_of_a_cache_is_obeyed(home, monkeypatch, variable, below):
    """The variables of llama.cpp and of Hugging Face's tools name the cache."""
    monkeypatch.setenv(variable, str(home / "other"))
    snapshot = in_hub(home / "other" / below, "me/Tiny-GGUF", "Tiny-Q8_0.gguf")

    assert find_model("me/Tiny-GGUF") == snapshot / "Tiny-Q8_0.gguf"


def test_a_split_model_is_its_first_part(home):
    """All parts count for the size, in whatever folder of the repository they are."""
    parts = [f"UD-Q4_K_XL/Big-UD-Q4_K_XL-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    snapshot = in_hub(home / ".cache/huggingface/hub", "me/Big-GGUF", *parts)

    assert find_model("me/Big-GGUF:UD-Q4_K_XL") == snapshot / parts[0]
    (model,) = cached_models()
    assert (model.name, model.count) == ("me/Big-GGUF:UD-Q4_K_XL", 3)
    assert model.size_mib == pytest.approx(3 * 400 / 2**20)


def test_a_model_with_missing_parts_is_refused(home):
    """A download that was interrupted is named with what is there."""
    in_hub(home / ".cache/huggingface/hub", "me/Big-GGUF", "Big-Q4_0-00002-of-00003.gguf")

    with pytest.raises(MissingError, match="1 of 3 parts") as caught:
        find_model("me/Big-GGUF")
    assert "llama-server -hf me/Big-GGUF" in caught.value.hint


def test_a_link_to_a_blob_that_is_gone_is_no_model(home):
    """Files that are not there are not listed."""
    snapshot = in_hub(home / ".cache/huggingface/hub", "me/Tiny-GGUF", "Tiny-Q8_0.gguf")
    (snapshot / "Tiny-Q8_0.gguf").resolve().unlink()

    assert cached_models() == []


@pytest.mark.parametrize("ref", ["main", "v2"])
def test_the_snapshot_of_the_branch_counts(home, ref):
    """Of several snapshots the one of main counts, or else of another branch."""
    hub = home / ".cache/huggingface/hub"
    snapshot = in_hub(hub, "me/Tiny-GGUF", "Tiny-Q8_0.gguf", ref=ref)
    in_hub(hub, "me/Tiny-GGUF", "Tiny-Q8_0-new.gguf", commit=OLDER, ref="")

    assert find_model("me/Tiny-GGUF") == snapshot / "Tiny-Q8_0.gguf"


def test_the_older_cache_of_llama_cpp_is_read(home):
    """Manifests name a file and its parts; files without one are found by their prefix."""
    folder = home / ".cache" / "llama.cpp"
    one = in_old_cache(folder, "me/Old-GGUF", "IQ4_XS", "Old-IQ4_XS.gguf")
    many = in_old_cache(folder, "me/Split-GGUF", "latest", "Q8_0/S-Q8_0-00001-of-00002.gguf",
                        "Q8_0/S-Q8_0-00002-of-00002.gguf")  # fmt: skip
    (folder / "you_Other_Other-F16.gguf").write_bytes(b"GGUF")
    (folder / "manifest=damaged=x=latest.json").write_text("{")

    assert find_model("me/Old-GGUF:IQ4_XS") == one[0]
    assert find_model("me/Split-GGUF") == many[0]
    assert find_model("you/Other:F16") == folder / "you_Other_Other-F16.gguf"
    assert [model.name for model in cached_models()] == [
        "me/Old-GGUF:IQ4_XS", "me/Split-GGUF:Q8_0", "you_Other_Other-F16.gguf"
    ]  # fmt: skip


def test_several_matches_are_listed(home):
    """Each of them is named with its file, and others are not."""
    hub = home / ".cache/huggingface/hub"
    in_hub(hub, "me/Tiny-GGUF", "Tiny-Q8_0.gguf", "Tiny-UD-Q4_K_M.gguf")
    in_hub(hub, "me/Else-GGUF", "Else-Q8_0.gguf")

    with pytest.raises(UsageError, match="2 cached models match") as caught:
        find_model("me/Tiny-GGUF")
    assert "me/Tiny-GGUF:UD-Q4_K_M" in caught.value.hint
    assert "Else" not in caught.value.hint


def test_a_name_that_is_not_cached_says_how_to_download(home):
    """The error has both commands, and the models that are there."""
    in_hub(home / ".cache/huggingface/hub", "me/Tiny-GGUF", "Tiny-Q8_0.gguf")

    with pytest.raises(MissingError, match="you/Other:Q4_0") as caught:
        find_model("you/Other:Q4_0")
    hint = caught.value.hint
    assert "llama-server -hf you/Other:Q4_0" in hint
    assert "hf download you/Other" in hint
    assert "me/Tiny-GGUF:Q8_0" in hint


def test_lines_have_name_size_and_file(home):
    """A control character in a name cannot reach the terminal."""
    in_hub(home / ".cache/huggingface/hub", "me/Tiny-GGUF", "Tiny\x1b-Q8_0.gguf")

    (line,) = model_lines(cached_models())
    assert line.startswith("me/Tiny-GGUF:Q8_0  ")
    assert "\x1b" not in line


def test_without_caches_there_are_no_models():
    """A machine without caches has an empty list, and any name is missing."""
    assert cached_models() == []
    with pytest.raises(MissingError, match="no cached model"):
        find_model("me/Tiny-GGUF", is_name=True)
    with pytest.raises(UsageError, match="not the name"):
        find_model("model.gguf", is_name=True)
