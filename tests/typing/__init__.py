"""What a type checker knows of the public API, written the way users write it.

mypy and pyright, both strict, must find exactly what stands in `assert_type`; pytest runs the same lines. A line
with `type: ignore` is a mistake that both must catch: each complains of a comment that it has no need of.
"""
