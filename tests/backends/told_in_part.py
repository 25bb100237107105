"""Chapters of the contract for a backend that cannot tell all stories; whoever uses it says why each is left out."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Set
from typing import Any

import pytest

from holdfast.testing.contract import Promise


def told_in_part(
    chapter: type[Promise], name: str, told: dict[str, Any], stories: Set[str], parts: Set[str]
) -> type[Promise]:
    """That chapter under that name, with what the backend needs told, but without these stories and parts of stories.

    A part is one way of a story that is told in several, by its id.
    """
    names = dir(chapter)  # in order: all workers must collect the same
    told = told | {
        each: _without(getattr(chapter, each), parts) for each in names if _has(getattr(chapter, each), parts)
    }
    told |= {each: None for each in names if each in stories}
    return pytest.mark.slow(type(name, (chapter,), told))


def _has(story: Any, parts: Set[str]) -> bool:
    return any(not parts.isdisjoint(_ids(mark)) for mark in getattr(story, "pytestmark", ()))


def _ids(mark: pytest.Mark) -> list[str]:
    ids = mark.kwargs.get("ids")
    return list(map(str, ids)) if isinstance(ids, Iterable) else []


def _without(story: Any, parts: Set[str]) -> Any:
    @functools.wraps(story)
    def told(*args: Any, **given: Any) -> None:
        story(*args, **given)

    told.__dict__["pytestmark"] = [_mark_without(mark, parts) for mark in story.pytestmark]
    return told


def _mark_without(mark: pytest.Mark, parts: Set[str]) -> pytest.Mark:
    names, values = mark.args
    kept = [(id, value) for id, value in zip(_ids(mark), values, strict=True) if id not in parts]
    return pytest.mark.parametrize(names, [value for _, value in kept], ids=[id for id, _ in kept]).mark
