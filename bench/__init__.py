"""How fast is it, against what it is made of and against what people use today?

One file answers one question, and each answer is a ratio or a share measured in one run, next to its bound:
`python -m bench`. Read `harness` first.
"""
