"""What is remembered of claims and names stays bounded."""

from __future__ import annotations

from lockfast._bounded import BoundedDict, BoundedSet


def test_a_full_set_drops_a_member_for_a_new_one_and_none_for_one_it_has() -> None:
    remembered = BoundedSet[str](2)
    for member in ("a", "b", "b", "a"):
        remembered.add(member)
    assert remembered == {"a", "b"}
    remembered.add("c")
    assert len(remembered) == 2
    assert "c" in remembered


def test_a_set_keeps_what_is_wanted_and_forgets_what_is_not() -> None:
    remembered = BoundedSet[str](2)
    remembered.keep("a", True)
    remembered.keep("b", True)
    remembered.keep("a", False)
    remembered.keep("c", False)
    assert remembered == {"b"}


def test_a_full_dict_drops_its_oldest_entry_for_a_new_key_only() -> None:
    remembered = BoundedDict[str, int](2)
    remembered["a"] = 1
    remembered["b"] = 2
    remembered["a"] = 3
    assert remembered == {"a": 3, "b": 2}
    remembered["c"] = 4
    assert remembered == {"b": 2, "c": 4}
