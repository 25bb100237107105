"""Names and holders that were chosen to confuse: what is shown of them, and how they are passed."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import lockfast
from lockfast._model import HolderInfo, LockInfo
from lockfast.cli import inspection, main
from lockfast.cli.options import Parser, complain, unmistakable, visible
from lockfast.cli.run import _parser, _split
from lockfast.observe.events import Events
from tests.cli.conftest import Shell

# Each would move the cursor, end the line, or turn the direction of what follows.
OBEYED = [
    *map(chr, range(0x20)),
    *map(chr, range(0x7F, 0xA0)),
    *map(chr, range(0x202A, 0x202F)),
    *map(chr, range(0x2066, 0x206A)),
    *"\u200e\u200f\u061c\u2028\u2029\u200b\ufeff",
]
HOSTILE = "".join(OBEYED)


class HostileStore:
    """What `connect` gives, if other programs have filled the store."""

    def __init__(self, *_: object, **__: object) -> None:
        session = {"pid": 1, "application_name": HOSTILE, "client": HOSTILE, "connected_at": 0.0, "state": HOSTILE}
        metadata = {f"key{HOSTILE}": HOSTILE}
        holder = HolderInfo(f"who{HOSTILE}", f"id{HOSTILE}", 7, "exclusive", 0.0, 0.0, metadata, session)
        self.info = LockInfo(f"name{HOSTILE}", (holder, holder), 1)
        self.events = Events()

    def __enter__(self) -> HostileStore:
        return self

    def __exit__(self, *exc: object) -> None: ...

    def list(self, prefix: str) -> list[LockInfo]:
        return [self.info]

    def inspect(self, name: str) -> LockInfo:
        return self.info

    break_lock = inspect


def test_each_of_them_would_be_noticed() -> None:
    """The searches below rest on `str.isprintable`."""
    assert not any(letter.isprintable() for letter in OBEYED)


@pytest.mark.parametrize("words", [["ls"], ["show", "x"], ["break", "x"]], ids=lambda words: words[0])
def test_no_name_moves_the_cursor_or_looks_like_a_line_of_ours(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(inspection, "connect", HostileStore)
    monkeypatch.setenv("LOCKFAST_URL", "memory://")
    assert main(words) == 0
    shown = capsys.readouterr().out
    lines = shown.split("\n")
    assert len(lines) == {"ls": 4, "show": 17, "break": 4}[words[0]]  # the last one is empty
    assert [line for line in lines if not line.isprintable()] == []
    assert "name\\x00\\x01" in shown
    assert "\\x9b" in shown
    assert "\\u202e" in shown


@pytest.mark.parametrize("words", [["ls"], ["show", "x"], ["break", "x"]], ids=lambda words: words[0])
def test_json_has_every_name_as_it_is(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(inspection, "connect", HostileStore)
    monkeypatch.setenv("LOCKFAST_URL", "memory://")
    main([*words, "--json"])
    printed: Any = json.loads(capsys.readouterr().out)
    lock = printed[0] if words == ["ls"] else printed
    assert lock["name"] == f"name{HOSTILE}"
    assert lock["holders"][0]["metadata"] == {f"key{HOSTILE}": HOSTILE}


def test_a_complaint_is_one_harmless_line(capsys: pytest.CaptureFixture[str]) -> None:
    complain(f"refused by {HOSTILE}")
    line = capsys.readouterr().err
    assert line.endswith("\n")
    assert line[:-1].isprintable()


def test_what_people_can_read_is_left_as_it_is() -> None:
    assert visible("order:42 größe 注文 🔒") == "order:42 größe 注文 🔒"
    assert visible("a\x9bb\u202ec") == "a\\x9bb\\u202ec"


def test_an_escape_cannot_be_imitated() -> None:
    assert unmistakable("a\x9b") == r"a\x9b"
    assert unmistakable(r"a\x9b") == r"a\\x9b"


# An output that has few letters


@pytest.mark.parametrize("words", [["ls"], ["show", "ü→"], ["break", "ü→"], ["--help"]], ids=lambda words: words[0])
def test_an_output_that_lacks_a_letter_gets_an_escape(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"
    monkeypatch.setenv("LOCKFAST_URL", url)
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True) for _ in range(2))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with lockfast.connect(url, holder="Jürgen") as locks:
        locks.lock("ü→", renew=False).acquire()
        assert main(words) == 0
    shown = out.buffer.getvalue()
    assert (rb"\u2026" if words == ["--help"] else rb"\xfc\u2192") in shown
    assert err.buffer.getvalue() == b""


@pytest.mark.slow
@pytest.mark.usefixtures("store")
def test_pythons_own_setting_of_the_encoding_kills_no_command(shell: Shell) -> None:
    done = shell("show", "ü", env_extra={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "1"})
    assert (done.returncode, done.stdout.splitlines()[0], done.stderr) == (0, r"\xfc: free", "")


# Names that look like options


@pytest.mark.parametrize(
    ("line", "ours", "command"),
    [
        ("x -- true", "x", "true"),
        ("-n x -- cat -- -x", "-n x", "cat -- -x"),
        ("-- -x -- true", "-- -x", "true"),
        ("-n -- --ttl -- cat -- -x --", "-n -- --ttl", "cat -- -x --"),
        ("x", "x", ""),
        ("x --", "x", ""),
    ],
)
def test_dashes_before_the_command_differ_from_dashes_before_a_name(line: str, ours: str, command: str) -> None:
    assert _split(_parser(), line.split()) == (ours.split(), command.split())


@pytest.mark.parametrize("name", ["-x", "--url", "-n", "-", "-1", "--no such"])
def test_a_name_that_looks_like_an_option_can_be_given_after_dashes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"
    monkeypatch.setenv("LOCKFAST_URL", url)
    with lockfast.connect(url) as locks, locks.lock("other", renew=False):
        lease = locks.lock(name, renew=False).acquire()
        assert main(["show", "--check", "--", name]) == 0
        assert capsys.readouterr().out.startswith(f"{name}: held\n")
        assert main(["ls", "--json", "--", name]) == 0
        assert name in [lock["name"] for lock in json.loads(capsys.readouterr().out)]
        assert main(["break", "--", name]) == 0
        assert lease is not None
        assert lease.release() is False


@pytest.mark.slow
def test_a_command_runs_under_a_name_that_looks_like_an_option(shell: Shell) -> None:
    done = shell("run", "--wait", "5", "--", "-x", "--", "sh", "-c", "echo $LOCKFAST_NAME")
    assert (done.returncode, done.stdout, done.stderr) == (0, "-x\n", "")
    assert shell("run", "-x", "--", "true").returncode == 64


@pytest.mark.parametrize("command", ["run", "show", "break"])
def test_help_says_how_such_a_name_is_written(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([command, "--help"])
    assert "begins with -" in capsys.readouterr().out


def test_an_error_of_usage_shows_no_control(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        Parser("ls").parse_args(["\x9b2J"])
    assert "\\x9b2J" in capsys.readouterr().err
