"""The program as a whole: help, version, errors in one line, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import lockfast
from lockfast.cli import COMMANDS, main
from tests.cli.conftest import Shell

LOCKFAST = Path(sys.executable).with_name("lockfast")


def test_help_names_every_command_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {command}" in text for command in COMMANDS)
    assert all(f"  {code} " in text for code in (0, 1, 64, 69, 74, 75))


@pytest.mark.parametrize("command", list(COMMANDS))
def test_each_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert f"lockfast {command}" in capsys.readouterr().out


def test_run_help_explains_environment_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "--help"])
    text = capsys.readouterr().out
    facts = ["NAME", "FENCE", "HOLDER", "CLAIM", "TTL", "EXPIRES", "URL"]
    assert all(f"  LOCKFAST_{fact} " in text for fact in facts)
    assert all(f"{code}  " in text for code in (64, 69, 74, 75))


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"lockfast {lockfast.__version__}\n"


def test_without_a_command_help_is_shown_as_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 64
    assert capsys.readouterr().err.startswith("usage: lockfast COMMAND")


def test_an_unknown_command_gives_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frobnicate"]) == 64
    assert main(["--url", "memory://", "ls"]) == 64
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("lockfast: 'frobnicate' is not a command; known are run, ls, show, break, doctor, demo")
    assert second.endswith("options come after the command")


@pytest.mark.slow
@pytest.mark.usefixtures("store")
def test_python_m_lockfast_is_the_same_program(shell: Shell) -> None:
    for words in (["--help"], ["ls", "--json"], ["run"]):
        by_name = subprocess.run([LOCKFAST, *words], capture_output=True, text=True, env=shell.environment)
        as_module = shell(*words)
        assert (by_name.returncode, by_name.stdout, by_name.stderr) == (
            as_module.returncode,
            as_module.stdout,
            as_module.stderr,
        )


BAD_STORES = {
    "unknown scheme": (64, "unknown scheme 'zookeeper'", "zookeeper://x"),
    "no URL": (64, "this is no URL", ""),
    "no file": (64, "a SQLite URL is", "sqlite://"),
    "a folder": (69, "cannot be opened", "sqlite:///{folder}"),
    "not a database": (69, "not an SQLite file", "sqlite:///{folder}/text"),
    "under a file": (69, "", "sqlite:///{folder}/text/locks.db"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["run", "x", "--", "true"], ["ls"], ["show", "x"], ["break", "x"]], ids=lambda w: w[0]
)
@pytest.mark.parametrize("store", list(BAD_STORES))
def test_a_store_that_cannot_be_used_gives_one_line(shell: Shell, tmp_path: Path, words: list[str], store: str) -> None:
    (tmp_path / "text").write_text("no database at all, only words" * 100)
    code, what, url = BAD_STORES[store]
    done = shell(words[0], "--url", url.format(folder=tmp_path), *words[1:])
    assert done.returncode == code
    assert what in done.stderr
    assert done.stderr.startswith("lockfast: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["ls", "--url", ""],
        ["show", "--url", "", "x"],
        ["break", "--url", "", "x"],
        ["doctor", "--url", ""],
        ["doctor", ""],
        ["migrate", ""],
        ["demo", "--url", ""],
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("sets_signals")
def test_an_empty_url_is_not_taken_for_the_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """It is what a script gives whose variable is not set."""
    monkeypatch.setenv("LOCKFAST_URL", f"sqlite:///{tmp_path}/locks.db")
    assert main(words) == 64
    [line] = capfd.readouterr().err.splitlines()
    assert "URL" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["--url", "LOCKFAST_URL", "--system"])
@pytest.mark.parametrize("words", [["ls"], ["show", "x"], ["break", "x"], ["doctor"]], ids=lambda w: w[0])
def test_a_command_that_only_reads_makes_no_store_and_says_that_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    where: str,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    url = f"sqlite:///{tmp_path}/mistyped.db"
    monkeypatch.setenv("LOCKFAST_URL", url if where == "LOCKFAST_URL" else "")
    monkeypatch.setenv("LOCKFAST_SYSTEM_URL", url)
    given = {"--url": ["--url", url], "--system": ["--system"]}.get(where, [])
    file = tmp_path / "mistyped.db"
    for _ in range(2):
        assert main([words[0], *given, *words[1:]]) == 69
        out, err = capsys.readouterr()
        assert out == ""
        assert err == (
            f"lockfast: there is no lock store '{file}': no lock was ever acquired there, or its name is mistyped\n"
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "printed"),
    [
        (["ls"], 0, ("", "lockfast: no lock is held or waited for\n")),
        (["ls", "--json"], 0, ("[]\n", "")),
        (["show", "x"], 0, ("x: free\n  waiters   0\n", "")),
        (["show", "--check", "x"], 1, ("x: free\n  waiters   0\n", "")),
        (["break", "x"], 1, ("", "lockfast: lock 'x' was not held; nothing was broken\n")),
    ],
    ids=lambda it: " ".join(it) if isinstance(it, list) else "",
)
def test_a_default_store_that_was_never_used_has_no_locks(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    printed: tuple[str, str],
) -> None:
    """Its name is a default, so it cannot be mistyped."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("LOCKFAST_URL", "")
    monkeypatch.setattr(sys, "platform", "linux")
    assert main(words) == code
    assert tuple(capsys.readouterr()) == printed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("default", [False, True], ids=["--url", "default"])
@pytest.mark.parametrize("words", [["ls"], ["show", "x"], ["break", "x"], ["doctor"]], ids=lambda w: w[0])
def test_a_store_that_cannot_be_made_is_reported_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    default: bool,
) -> None:
    def refusal_of(folder: Path) -> str:
        monkeypatch.setenv("XDG_STATE_HOME", str(folder))
        assert main([words[0], *([] if default else ["--url", f"sqlite:///{folder}/locks.db"]), *words[1:]]) == 69
        return capsys.readouterr().err

    monkeypatch.setenv("LOCKFAST_URL", "")
    monkeypatch.setattr(sys, "platform", "linux")
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("file", "link"):
        assert refusal_of(tmp_path / name).endswith(f"mistyped; {tmp_path}/{name} is no folder\n")
    monkeypatch.setattr(os, "access", lambda *_, **__: False)  # root may write everywhere
    assert f" may not write {tmp_path}: it belongs to " in refusal_of(tmp_path / "new")


@pytest.mark.slow
def test_a_store_that_every_user_can_replace_is_warned_of(shell: Shell) -> None:
    shell.folder.chmod(0o777)
    for words in (["run", "x", "--", "true"], ["ls"], ["doctor"]):
        done = shell(*words)
        warning, *more = done.stderr.splitlines()
        assert warning.startswith(f"lockfast: the lock store '{shell.folder}/locks.db' is in a folder that every user")
        assert (done.returncode, more) == (0, ["lockfast: no lock is held or waited for"] if words == ["ls"] else [])


# Root may write everywhere, so it becomes nobody for this, after everything has been imported by a first use.
AS_NOBODY = """
import os, sys
import lockfast.cli.signals
from lockfast.cli import main
main(["ls", "--url", sys.argv[1]])
if os.getuid() == 0:
    os.setegid(65534)
    os.seteuid(65534)
sys.exit(main(["ls", "--url", sys.argv[2]]))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("store")
def test_a_read_only_store_gives_one_line(shell: Shell) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "locks.db"
        sealed = f"sqlite:///{store}"
        shell("run", "--url", sealed, "x", "--", "true")
        store.chmod(0o444)
        Path(folder).chmod(0o555)
        words = [sys.executable, "-c", AS_NOBODY, shell.url, sealed]
        done = subprocess.run(words, capture_output=True, text=True, env=shell.environment)
        Path(folder).chmod(0o755)
    assert done.returncode == 69
    nothing, error = done.stderr.splitlines()
    assert nothing == "lockfast: no lock is held or waited for"
    assert error.startswith("lockfast: the lock store")


@pytest.mark.slow
@pytest.mark.usefixtures("store")
def test_a_reader_that_goes_away_is_no_error(shell: Shell) -> None:
    line = f"'{sys.executable}' -m lockfast ls --json; echo $? >&2"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(["sh", "-c", line], stdout=write, stderr=subprocess.PIPE, text=True, env=shell.environment)
    os.close(write)
    assert done.stderr == "141\n"


@pytest.mark.slow
def test_start_up_imports_nothing_that_it_does_not_need(shell: Shell) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "lockfast", "run", "x", "--", "true"],
        capture_output=True,
        text=True,
        env=shell.environment,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "lockfast.cli.supervisor" in imported
    assert imported.isdisjoint(
        {"asyncio", "rich", "ctypes", "concurrent.futures", "lockfast.cli.inspection", "lockfast.cli.demo"}
    )


def test_unforeseen_errors_are_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(words: list[str]) -> int:
        raise RuntimeError("the sky\nfell")

    monkeypatch.setattr("lockfast.cli.inspection.list_locks", fail)
    for off in (None, "", "0"):
        monkeypatch.delenv("LOCKFAST_DEBUG", raising=False)
        if off is not None:
            monkeypatch.setenv("LOCKFAST_DEBUG", off)
        assert main(["ls"]) == 70
        assert capsys.readouterr().err == (
            "lockfast: unexpected RuntimeError: the sky fell (LOCKFAST_DEBUG=1 shows where)\n"
        )
    monkeypatch.setenv("LOCKFAST_DEBUG", "1")
    with pytest.raises(RuntimeError):
        main(["ls"])


@pytest.mark.parametrize("debug", ["", "0"])
def test_an_interruption_gives_130(monkeypatch: pytest.MonkeyPatch, debug: str) -> None:
    monkeypatch.setenv("LOCKFAST_DEBUG", debug)

    def fail(words: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("lockfast.cli.inspection.list_locks", fail)
    assert main(["ls"]) == 130
