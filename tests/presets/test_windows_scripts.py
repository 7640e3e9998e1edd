"""Batch files and scripts of PowerShell: written, and read again."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from presets.preset_sample import SMALL_HELP, SPECIAL, make_preset

from autofit.errors import UsageError
from autofit.presets.formats.registry import FORMATS, write_preset
from autofit.presets.formats.variable_expansion import unknown_reasons
from autofit.presets.formats.windows_words import quote_word, split_words
from autofit.presets.read_preset import read_preset

# Any text that a command line of Linux can have, often with what is special to Windows.
special = st.text(st.sampled_from(list("%^&|<>()!\"'`$@,;=*?\\ ~:{}#[]\t\u2019x1é")), max_size=12)
anything = st.text(
    st.characters(exclude_characters="\0\ue000\ue001\ue002", exclude_categories=("Cs",)),
    max_size=12,
)
texts = st.one_of(special, anything, st.sampled_from(["", "--%", "a b\\", "%PATH%", "rem", "1,2"]))


def is_unwritable(name: str, arguments: list[str], env: dict[str, str]) -> bool:
    """Return whether a script of Windows cannot hold some text."""
    allowed = "\t" if name == "bat" else "\t\n\r"
    every = "".join((*arguments, *env.values()))
    has_control = any((c < " " or c == "\x7f") and c not in allowed for c in every)
    is_quoted = name == "bat" and any('"' in value for value in env.values())
    return has_control or is_quoted or not all(env.values())


@pytest.mark.parametrize("name", ["bat", "powershell"])
@given(
    arguments=st.lists(texts, max_size=5),
    env=st.dictionaries(st.sampled_from(["GGML_X", "A", "b"]), texts, max_size=2),
)
def test_any_command_is_read_back_or_refused(tmp_path_factory, name, arguments, env):
    """Arguments and variables are the same again, or the format names what it cannot hold."""
    preset = make_preset(arguments=("-m", "a.gguf", *arguments), address=(), env=env, help=None)
    if is_unwritable(name, arguments, env):
        with pytest.raises(UsageError, match=f"'{name}'"):
            write_preset(name, preset)
        return
    text = write_preset(name, preset)
    path = tmp_path_factory.mktemp("scripts") / f"preset{FORMATS[name].suffix}"
    path.write_bytes(text.encode())
    server = read_preset(str(path)).server

    assert server.full_argv(SMALL_HELP, "other") == preset.argv
    assert server.env == env


@given(st.lists(texts, max_size=5))
def test_words_of_a_command_line_are_split_as_they_were_quoted(words):
    """A text that `quote_word` writes is one argument."""
    assert split_words(" ".join(map(quote_word, words))) == words


@pytest.mark.parametrize(
    ("line", "words"),
    [
        # From the documentation of Microsoft's C runtime.
        (r'"abc" d e', ["abc", "d", "e"]),
        (r'a\\b d"e f"g h', [r"a\\b", "de fg", "h"]),
        (r"a\\\"b c d", ['a\\"b', "c", "d"]),
        (r'a\\\\"b c" d e', [r"a\\b c", "d", "e"]),
        (r'a"b"" c d', ['ab" c d']),
        ("  ", []),
        ('""', [""]),
    ],
)
def test_a_command_line_is_split_as_windows_does(line, words):
    """Backslashes count before a quote only."""
    assert split_words(line) == words


@pytest.mark.parametrize("name", ["bat", "powershell"])
def test_a_script_records_what_other_formats_do(tmp_path, name):
    """Check value, workload and used memory are read from its comments."""
    path = tmp_path / f"preset{FORMATS[name].suffix}"
    path.write_bytes(write_preset(name, SPECIAL).encode())
    preset = read_preset(str(path))

    assert preset.kind == name
    assert set(preset.metadata) == {"workload", "check", "taken_mib"}
    assert preset.server.full_argv(SMALL_HELP, "other") == SPECIAL.argv
    assert preset.server.env == SPECIAL.env


def test_a_command_that_is_too_long_for_cmd_is_refused():
    """Cmd cuts lines of more than 8,191 characters."""
    with pytest.raises(UsageError, match="characters"):
        write_preset("bat", make_preset(arguments=("--lora", "x" * 9000)))
    assert "x" * 9000 in write_preset("powershell", make_preset(arguments=("--lora", "x" * 9000)))


def test_an_argument_that_old_versions_pass_wrongly_needs_a_new_one():
    """PowerShell 5 drops empty arguments, and quotes within others."""
    for text in ("", '{"a": 1}', "a b\\"):
        written = write_preset("powershell", make_preset(arguments=("--alias", text)))
        assert written.startswith("#Requires -Version 7.3\n")
    assert "#Requires" not in write_preset("powershell", SPECIAL)


BATCH = {
    "variables": r"""
set MODEL=C:\m\a.gguf
set "NGL=99"
set GGML_X=1
llama-server.exe -m %MODEL% -ngl %ngl%
""",
    "start": r"""
@echo off
title LLM
start "my llm" /min /d C:\llama llama-server -m a.gguf > log.txt 2>&1
""",
    "continued": r"""
:: llama
rem -ngl 1
C:\llama\llama-server.exe ^
  -m a.gguf ^
  -ot "a^b" %*
pause
""",
    "quotes": r"""
llama-server -m "C:\my models\a.gguf" --alias "50%% & more" --jinja && echo done
""",
    "other lines": r"""
cd /d C:\llama
if not exist a.gguf (
  echo missing
  exit /b 1
)
llama-server -m a.gguf | find "x"
exit /b
:help
llama-server -m b.gguf
""",
}
_C = Path("C:\\llama")
BATCH_SERVERS = {
    "variables": (["llama-server.exe", "-m", r"C:\m\a.gguf", "-ngl", "99"], {"GGML_X": "1"}, None),
    "start": (["llama-server", "-m", "a.gguf"], {}, _C),
    "continued": ([r"C:\llama\llama-server.exe", "-m", "a.gguf", "-ot", "a^b"], {}, None),
    "quotes": (
        ["llama-server", "-m", r"C:\my models\a.gguf", "--alias", "50% & more", "--jinja"],
        {},
        None,
    ),
    "other lines": (["llama-server", "-m", "a.gguf"], {}, _C),
}


@pytest.mark.parametrize("name", BATCH)
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_batch_files_of_people_are_read(tmp_path, name, ends):
    """Variables, `start`, continued lines, quotes and what has nothing to do with the server."""
    argv, env, folder = BATCH_SERVERS[name]
    path = tmp_path / "run.BAT"
    path.write_bytes(BATCH[name].replace("\n", ends).encode())
    server = read_preset(str(path)).server

    assert (list(server.argv), dict(server.env), server.folder) == (argv, env, folder)


def test_the_folder_of_a_script_is_known(tmp_path):
    """`%~dp0` and `$PSScriptRoot` are where the script is."""
    batch, script = tmp_path / "run.cmd", tmp_path / "run.ps1"
    batch.write_text("%~dp0llama-server -m %~dp0\\a.gguf")
    script.write_text('& "$PSScriptRoot\\llama-server" -m $PSScriptRoot/a.gguf')

    for path in (batch, script):
        argv = read_preset(str(path)).server.argv
        assert argv == (f"{tmp_path}/llama-server", "-m", f"{tmp_path}/a.gguf")


POWERSHELL = {
    "array": r"""
$model = 'C:\m\a.gguf'
$flags = @(
  '-m', $model, # the model
  "-c", 8192
)
$flags += '--jinja'
$env:GGML_X = '1'
& .\llama-server.exe @flags
""",
    "backticks": r"""
<# mine #>
Write-Host "starting"
llama-server `
  -m "C:\my models\a.gguf" `
  --alias "it's `"mine`"" -ngl 99 2>&1 | Tee-Object log.txt
""",
    "start": r"""
Start-Process -NoNewWindow -FilePath llama-server.exe `
  -ArgumentList "-m", "a.gguf", "-c 4096 --alias `"x y`""
""",
    "conditions": r"""
param([int]$Port = 80)
if (-not (Test-Path a.gguf)) { Write-Error 'no'; exit 1 }
$n = "9"; llama-server -m a.gguf -ngl $n -ot 'blk=CPU'
""",
}
POWERSHELL_SERVERS = {
    "array": (
        [r".\llama-server.exe", "-m", r"C:\m\a.gguf", "-c", "8192", "--jinja"],
        {"GGML_X": "1"},
    ),
    "backticks": (
        ["llama-server", "-m", r"C:\my models\a.gguf", "--alias", 'it\'s "mine"', "-ngl", "99"],
        {},
    ),
    "start": (["llama-server.exe", "-m", "a.gguf", "-c", "4096", "--alias", "x y"], {}),
    "conditions": (["llama-server", "-m", "a.gguf", "-ngl", "9", "-ot", "blk=CPU"], {}),
}


@pytest.mark.parametrize("name", POWERSHELL)
def test_scripts_of_powershell_are_read(tmp_path, name):
    """Arrays, splatting, continued lines, quotes and Start-Process."""
    argv, env = POWERSHELL_SERVERS[name]
    path = tmp_path / "run.ps1"
    path.write_text(POWERSHELL[name])
    server = read_preset(str(path)).server

    assert (list(server.argv), dict(server.env)) == (argv, env)


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("a.bat", "if exist x (llama-server -m a.gguf) else (llama-server -m b.gguf)", "`if`"),
        ("a.bat", "for %%f in (*.gguf) do llama-server -m %%f", "`for`"),
        ("a.bat", "cmd /c llama-server -m a.gguf", "not followed"),
        ("a.ps1", "if ($x) { llama-server -m a.gguf }", "`if`"),
        ("a.ps1", "foreach ($m in $l) {\n  & llama-server -m $m\n}", "`foreach`"),
        ("a.ps1", "llama-server -m a.gguf -ts 3,1", "comma"),
        ("a.ps1", "llama-server -m 'a.gguf", "not closed"),
        ("a.ps1", "$f = @('-m'", "missing"),
        ("a.ps1", "Write-Host llama-server", "no launch command"),
    ],
)
def test_decisions_of_a_script_are_refused(tmp_path, file, text, reason):
    """The error names what decides, or what is not closed."""
    path = tmp_path / file
    path.write_text(text)

    with pytest.raises(UsageError, match=reason):
        read_preset(str(path))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("a.bat", "llama-server -m %USERPROFILE%\\a.gguf"),
        ("a.bat", "set /p M=model? \nllama-server -m %M%"),
        ("a.bat", "setlocal EnableDelayedExpansion\nset M=a.gguf\nllama-server -m !M!"),
        ("a.bat", "if x==y set M=a\nllama-server -m %M%"),
        ("a.ps1", 'llama-server -m "$HOME\\a.gguf"'),
        ("a.ps1", "llama-server -m (Get-Item a.gguf)"),
        ("a.ps1", "$m = Join-Path $dir 'a.gguf'\nllama-server -m $m"),
        ("a.ps1", "$m = 'a'\nif ($x) { $m = 'b' }\nllama-server -m $m"),
    ],
)
def test_a_value_that_the_script_does_not_have_is_unknown(tmp_path, file, text):
    """It is marked, so that a command that needs it is refused with the reason."""
    path = tmp_path / file
    path.write_text(text)
    server = read_preset(str(path)).server

    (reason,) = unknown_reasons(server.argv)
    assert reason


@given(
    st.text(st.sampled_from(list("%^&|<>()!\"'`$@,;= \n{}#[]ab-.")), max_size=40), st.booleans()
)
def test_no_text_of_a_script_is_a_fault_of_the_reader(tmp_path_factory, text, is_batch):
    """Whatever is in a file, it is read or refused."""
    path = tmp_path_factory.mktemp("any") / ("a.bat" if is_batch else "a.ps1")
    path.write_text("llama-server -m a.gguf\n" + text)
    with contextlib.suppress(UsageError):
        read_preset(str(path))
